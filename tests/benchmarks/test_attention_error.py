"""`benchmarks.operators.attention_error` on short inputs: what it measures, keeps, and says of MCA's bound."""

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.contenders.attention_inputs import drawn, recorded
from benchmarks.operators import attention_error

from attenuator.export.attributes import ESTIMATORS
from attenuator.ops import BASELINE, OPERATORS
from attenuator.ops.softmax.reference import softmax_attention

BY_KEY = {operator.key: operator for operator in OPERATORS}


def test_exact_values_and_recorded_inputs_are_those_of_the_references() -> None:
    for inputs in (drawn(40, 2, 16), recorded(attention_error.BUNDLES / "sentiment", attention_error.text(), 40)):
        tensors = inputs.tensors
        projected = tensors["hidden"] @ tensors["value_weight"] + tensors["value_bias"]
        np.testing.assert_allclose(tensors["value"], projected, rtol=1e-5, atol=1e-5)
        starts = np.array([0, 40], np.int32)
        rows = (tensors["query"], tensors["key"], tensors["value"])
        expected = softmax_attention(*rows, starts, num_heads=inputs.num_heads)
        for key in (BASELINE.key, "mca"):
            output = inputs.run(BY_KEY[key], {knob.name: knob.exact for knob in BY_KEY[key].knobs}, 0)
            np.testing.assert_allclose(output, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert not attention_error.approximates_softmax("yoso")
    assert attention_error.approximates_softmax("mca")


def test_rows_are_measured_once_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [BY_KEY[key] for key in ("mca", "yoso")]
    monkeypatch.setattr(attention_error, "APPROXIMATIONS", chosen)
    output = tmp_path / "attention_error.json"
    command = ["--lengths", "64", "--seeds", "3", "--output", str(output)]
    assert attention_error.main([*command, "--minutes", "0"]) == 0
    assert not output.exists()
    assert attention_error.main(command) == 0
    result = json.loads(output.read_text())
    assert attention_error.main(command) == 0
    assert json.loads(output.read_text())["rows"] == result["rows"]
    estimators = {row["settings"].get("estimator") for row in result["rows"] if row["attention"] == "mca"}
    assert estimators == set(ESTIMATORS["mca"])
    hashes = [row for row in result["rows"] if (row["attention"], row["inputs"]) == ("yoso", "drawn")]
    errors = [row["error"] for row in hashes]
    assert errors == sorted(errors, reverse=True), "more hashes, less error"
    assert errors[0] / errors[-1] == pytest.approx(np.sqrt(hashes[-1]["value"] / hashes[0]["value"]), rel=0.3)
    sampled = [row for row in result["rows"] if row["attention"] == "mca"]
    assert {row["inputs"] for row in sampled} == {"drawn", "sentiment", "reviews-mca"}
    assert max(row["of_bound"] for row in sampled) < 1
    assert max(row["error"] for row in sampled) > 0.05
    shown = capsys.readouterr().out
    assert "| yoso |  | drawn | 64 | num_hashes | 32 | " in shown
    assert shown.startswith("| attention | settings | inputs | n | knob | value | error | spread | angle | of_bound | ")
