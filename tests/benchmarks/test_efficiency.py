"""`benchmarks.efficiency` at one short length: rows of both steps, a run that goes on, the tables."""

import json
from pathlib import Path

import pytest
from benchmarks import efficiency
from benchmarks.measure import record
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


def test_the_papers_rows_are_of_operators_or_of_none() -> None:
    rows = efficiency_tables.paper()
    assert len(rows) == 156 - 4  # without the four that the paper leaves empty
    softmax = {row["ms"] for row in rows if (row["table"], row["attention"], row["n"]) == ("2", "softmax", "4096")}
    assert softmax == {"101.6"}
    assert record.RESULTS.name == "results"
