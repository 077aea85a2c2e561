"""`benchmarks.adapted_positions`: a checkpoint with random weights, adapted once for each way to read long texts."""

import json
from pathlib import Path

import pytest
from benchmarks import adapted_positions
from checkpoints import CHECKPOINTS, save


def test_prints_a_row_for_each_way_and_adapts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(CHECKPOINTS["bert"], tmp_path / "bert")
    rows = [{"text": "a film so good " * (10 + i), "label": ("down", "level", "up")[i % 3]} for i in range(40)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "learn.txt").write_text("".join(f"{'the quick brown fox ' * 24}{i}\n" for i in range(3)))
    command = [str(folder), "--texts", str(tmp_path / "test.jsonl"), "--learn", str(tmp_path / "learn.txt")]
    command += ["--output", str(tmp_path / "out"), "--max-tokens", "100", "--documents", "24", "--adapt"]
    command += ["--epochs", "1", "--num-hashes", "4", "--hash-bits", "4", "--norm-lift", "0", "--threads", "1"]
    assert adapted_positions.main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "24 texts of more than 70 tokens" in printed
    table = [line.split(" | ") for line in printed if line.startswith("|")][2:]
    assert [row[0] for row in table] == ["| cut at 70", "| repeated, 100", "| interpolated, 100"]
    last = json.loads((tmp_path / "out" / "interpolated" / "training.json").read_text())
    [after] = [row for row in last["after"] if row["value"] == 4]
    agreement = f"{after['agreement']:.3f} ({after['low']:.3f} to {after['high']:.3f})"
    assert table[2][-1].removesuffix(" |") == agreement
    monkeypatch.setattr(adapted_positions, "adapt", lambda _: pytest.fail("adapted again"))
    assert adapted_positions.main(command) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == printed[-3:]
