"""The table of `benchmarks.long_positions`, from a checkpoint with random weights."""

import json
from pathlib import Path

import pytest
from benchmarks import long_positions
from checkpoints import CHECKPOINTS, save


def test_prints_a_row_for_each_way_and_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(CHECKPOINTS["bert"], tmp_path / "bert")
    rows = [{"text": "a film so good " * (5 + 5 * i), "label": ("down", "level", "up")[i % 3]} for i in range(12)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert long_positions.main([str(folder), "--texts", str(tmp_path / "texts.jsonl")]) == 0
    printed = capsys.readouterr().out.splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in printed[4:]]
    assert names == ["cut at 70", "repeated, 140", "repeated, 280", "interpolated, 140", "interpolated, 280"]
    assert printed[4].endswith("| 1.000 |"), "the cut texts agree with themselves"
