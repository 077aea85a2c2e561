"""`benchmarks.papers.efficiency` at one short length: rows of both steps, a run that goes on, the tables."""

import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.contenders.settings import Contender
from benchmarks.measure import record
from benchmarks.papers import efficiency
from benchmarks.report import efficiency_tables


def test_rows_are_measured_once_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(efficiency_tables, "RESULTS", tmp_path)
    text = efficiency_tables.efficiency()
    assert result["commit"][:12] in text
    assert "| `linear` |" in text


def test_what_was_left_out_is_measured_where_it_may_take_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr(efficiency_tables, "RESULTS", tmp_path)
    text = efficiency_tables.efficiency()
    assert (
        "- `softmax`, window 32, inference: not measured from 1,024 tokens on, where a run would take up to 16 s"
        in text
    )
    assert "| `mca`, alpha 0.4 |" in text
    asked.clear()
    stale = json.loads(output.read_text())
    stale["rows"][0]["kernels"] = {"mca": "0"}
    output.write_text(json.dumps(stale))
    assert efficiency.main([*command, "--longest", "9", "--renew"]) == 0
    assert asked == [[128]]
    with pytest.raises(SystemExit):
        efficiency.main(["--attentions", "nothing"])


def test_the_papers_rows_are_of_operators_or_of_none() -> None:
    rows = efficiency_tables.paper()
    assert len(rows) == 156 - 4  # without the four that the paper leaves empty
    softmax = {row["ms"] for row in rows if (row["table"], row["method"].lower(), row["n"]) == ("2", "softmax", "4096")}
    assert softmax == {"101.6"}
    assert record.RESULTS.name == "results"
