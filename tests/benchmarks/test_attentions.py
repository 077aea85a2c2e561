"""`benchmarks.operators.attentions`: operators and nodes compute the same, and a stopped run goes on."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from benchmarks.measure import record
from benchmarks.operators import attentions
from benchmarks.report import attention_tables

from attenuator.ops import BASELINE, OPERATORS

# In place of a case's own facts: as little as shows a difference.
SMALL = {
    "bigbird": {"tokens": 768},
    "window": {"tokens": 128, "window": 16},
    "longshort": {"tokens": 128, "window": 32, "global_rows": 5},
    "linformer": {"tokens": 100, "projected_tokens": 12},
    "nystrom": {"tokens": 96, "num_landmarks": 12, "taps": 5},
    "reformer": {"tokens": 256, "num_rounds": 1},
    "performer": {"tokens": 90, "num_features": 40},
    "rfa": {"tokens": 90, "num_features": 40},
    "linear": {"tokens": 90},
}


@pytest.mark.parametrize("key", attentions.ATTENTIONS)
def test_nodes_compute_what_the_operator_computes(key: str) -> None:
    """Runners compare themselves when they are made."""
    module = import_module(f"benchmarks.contenders.steps.{key}")
    runners = module.contenders(module.CASES[0] | SMALL[key], threads=1)
    assert list(runners.keys() ^ {"own", "nodes", "softmax"}) == []


def test_every_attention_in_place_of_softmax_has_nodes_beside_it() -> None:
    """MCA is softmax attention, YOSO has programs of its own."""
    replacing = {each.key for each in OPERATORS if each.attention and not each.asked_as}
    assert set(attentions.ATTENTIONS) == replacing - {BASELINE.key, "mca", "yoso"}


def test_a_run_measures_what_its_file_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "attentions.json"
    module = import_module("benchmarks.contenders.steps.linear")
    monkeypatch.setattr(module, "CASES", ({"tokens": 64}, {"tokens": 80}))
    command = ["--attention", "linear", "--seconds", "0", "--output", str(path)]
    assert attentions.main(command) == 0
    first = json.loads(path.read_text())["rows"]
    assert [row["case"] for row in first] == [{"tokens": 64}, {"tokens": 80}]
    assert first[0]["kernels"].keys() == {"linear", "softmax"}
    record.write(path, json.loads(path.read_text()) | {"rows": first[:1]})
    attentions.main(command)
    rows = json.loads(path.read_text())["rows"]
    assert rows[0] == first[0]
    assert [row["case"] for row in rows] == [{"tokens": 64}, {"tokens": 80}]
    monkeypatch.setattr(attention_tables, "FILE", path)
    text = attention_tables.beside_nodes("linear")
    assert text.count("\n| ") == 4  # head, rule, two cases
    assert "operator / nodes" in text
    assert "No result is committed" in attention_tables.beside_nodes("rfa")
