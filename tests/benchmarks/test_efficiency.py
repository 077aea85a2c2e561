"""`benchmarks.papers.efficiency` at one short length: rows of both steps, a run that goes on, the tables."""

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.contenders.settings import Contender
from benchmarks.papers import efficiency


def test_rows_are_measured_once_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "efficiency.json"
    command = ["--attentions", "linear", "--most-training", "128", "--output", str(output)]
    assert efficiency.main([*command, "--most-inference", "128", "--minutes", "0", "--steps", "training"]) == 0
    assert not output.exists()
    assert efficiency.main([*command, "--steps", "training"]) == 0
    assert efficiency.main([*command, "--most-inference", "256"]) == 0
    with pytest.MonkeyPatch.context() as nothing_more:
        nothing_more.setattr(efficiency, "child", lambda *_: pytest.fail("measured again"))
        assert efficiency.main([*command, "--most-inference", "256"]) == 0
    result = json.loads(output.read_text())
    assert [(row["step"], row["n"]) for row in result["rows"]] == [
        ("training", 128),
        ("inference", 128),
        ("inference", 256),
    ]
    training, *inference = result["rows"]
    # The fewest that a layer must keep: its input, query, key, value, attention, and twice the feed-forward's width.
    kept = 6 * 128 * (5 * 256 + 2 * 1024) * 4 / 2**20
    assert kept < training["mib"] < 5 * kept
    assert all(0 < row["mib"] < training["mib"] for row in inference)
    assert all(row["ms"] > 0 for row in result["rows"])
    assert "| linear |  | inference |  | 256 | " in capsys.readouterr().out


def test_what_was_left_out_is_measured_where_it_may_take_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "efficiency.json"
    asked: list[list[int]] = []

    def child(one: Contender, step: str, lengths: list[int], options: Namespace, seconds: float) -> Iterator[Any]:
        asked.append(lengths)
        for n in lengths:
            if n / 64 > options.longest:
                yield {"n": n, "left_out": "by the length before", "s": n / 64, "gib": 0.0}
                return
            yield {"n": n, "ms": 1e3 * n / 128, "mib": 1.0, "rounds": 1, "elapsed": 1.0}

    monkeypatch.setattr(efficiency, "child", child)
    command = ["--attentions", "mca:alpha=0.4", "softmax:window=32", "--steps", "inference"]
    command += ["--most-inference", "1024", "--output", str(output)]
    for longest in ("5", "5", "9"):
        assert efficiency.main([*command, "--longest", longest]) == 0
    assert asked == [[128, 256, 512, 1024]] * 2 + [[512, 1024]] * 2
    rows = json.loads(output.read_text())["rows"]
    assert [(row["attention"], row["n"], "ms" in row) for row in rows if row["n"] > 256] == [
        (key, n, n == 512) for key in ("mca", "softmax") for n in (512, 1024)
    ]
    shown = capsys.readouterr().out
    assert "| softmax | window 32 | inference | 1024 |  |  |  |  | by the length before | 16 | 0 |" in shown
    assert "| mca | alpha 0.4 |" in shown
    asked.clear()
    stale = json.loads(output.read_text())
    stale["rows"][0]["kernels"] = {"mca": "0"}
    output.write_text(json.dumps(stale))
    assert efficiency.main([*command, "--longest", "9", "--renew"]) == 0
    assert asked == [[128]]
    with pytest.raises(SystemExit):
        efficiency.main(["--attentions", "nothing"])
