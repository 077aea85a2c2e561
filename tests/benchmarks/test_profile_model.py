"""Where whole models' time goes: every node counts in one line, and the tables show what was measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.contenders.graphs import SHAPES
from benchmarks.models import profile_model
from benchmarks.report import profile_tables

LINES = {"attention", "linear layers", "LayerNormalization", "Gelu", "Add", "Cast", "Gather", "SequencePool"}


@pytest.mark.parametrize("precision", profile_model.PRECISIONS)
def test_every_node_counts_in_one_line(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(profile_model.LENGTHS, "contracts", (300,))
    row = profile_model.profile("contracts", 300, precision, 16, seconds=0.0)
    rounded = LINES - {"Gelu"} | {"rounding and scaling around them"}  # Gelu is computed where sums are scaled
    assert set(row["nodes"]) == (rounded if precision == "int8" else LINES)
    assert sum(node["share"] for node in row["nodes"].values()) == pytest.approx(1)
    assert row["nodes"]["attention"]["nodes"] == 2
    assert row["nodes"]["linear layers"]["nodes"] == 13
    assert row["of_free"]["model"]["median"] > 0
    assert row["tokenizing"]["cpu_us"]["min"] > 0


def test_tables_show_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "profile.json"
    monkeypatch.setitem(profile_model.LENGTHS, "paper", (64,))
    monkeypatch.setitem(SHAPES, "paper", replace(SHAPES["paper"], layers=2))
    arguments = ["--seconds", "0", "--output", str(output), "--models", "paper", "--precisions", "fp32"]
    assert profile_model.main(arguments) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    monkeypatch.setattr(profile_tables, "load", lambda name: result)
    text = profile_tables.profiles()
    [row] = result["profiles"]
    assert "6 layers of 256 channels, 64 tokens" in text
    assert f"| attention | {profile_tables.time(row['nodes']['attention']['us'])} (" in text
    assert f"| {row['of_free']['model']['median']:.2f} |" in text
