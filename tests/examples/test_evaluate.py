"""The figures that the READMEs of the bundled models show: two bundles of one model compared."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from common import evaluate, smaller_bundle
from common.smaller_bundle import write_int8
from common.text import Document, Task
from onnx import numpy_helper

from attenuator.bundle import read_manifest
from attenuator.errors import ExportError
from attenuator.runtime import Row, load
from attenuator.runtime.graph import read_graph

EXAMPLES = Path(__file__).parents[2] / "examples"

BUNDLES = EXAMPLES / "bundles"
TEXTS = ["a warm , funny film", "a dull mess", "not as good as its makers think", "moving", "tedious and long"]
TASK = Task([], [], [Document(text, text, (row % 2,)) for row, text in enumerate(TEXTS)], ["negative", "positive"])


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "reviews-mca-int8"
    write_int8(BUNDLES / "reviews-mca", folder)
    return folder


unchecked = partial(load, check=False)


def rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """The cells of the table that the program prints."""
    monkeypatch.setitem(evaluate.TASKS, "imdb", lambda folder: TASK)
    monkeypatch.setattr(evaluate, "load", unchecked)  # other tests check these bundles
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--task", "imdb", "--data", ".", *arguments])
    evaluate.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_an_int8_copy_loads_and_keeps_everything_but_its_linear_layers(rounded: Path) -> None:
    before, after = read_manifest(BUNDLES / "reviews-mca"), read_manifest(rounded)
    assert after.precision == "int8"
    changed = {"files", "revision", "precision", "provenance"}
    added = after.attention.other_nodes.keys() - before.attention.other_nodes.keys()
    assert added == {"quantize_rows", "dequantize_product", "requantize_product"}
    kept = before.attention.other_nodes | {key: after.attention.other_nodes[key] for key in added}
    attention = before.attention.model_copy(update={"other_nodes": kept})
    before = before.model_copy(update={"attention": attention})
    assert after.model_dump(exclude=changed) == before.model_dump(exclude=changed)
    assert after.provenance == before.provenance.model_copy(update={"parity": {}})
    kinds = {node.op_type for node in read_graph(rounded / "model.onnx").nodes}
    assert {"MatMulInteger", "McaAttention"} <= kinds
    load(rounded)


def test_only_an_fp32_bundle_is_rounded_and_only_a_bundle_is_replaced(rounded: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has precision int8, must be fp32"):
        write_int8(rounded, tmp_path / "twice")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ExportError, match="not a bundle"):
        write_int8(BUNDLES / "reviews-mca", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_bundle_agrees_with_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own = str(BUNDLES / "reviews-mca")
    sweep = ("--knob", "alpha", "--values", "0", "0.5")
    head, exact, sampled = rows(monkeypatch, capsys, "--bundle", own, "--against", own, *sweep)
    assert head[3:] == ["agreement", "per label", "largest difference"]
    knobs = unchecked(BUNDLES / "reviews-mca").knobs.exact()  # those of which no values are asked for stay exact
    assert [exact[0], sampled[0]] == [evaluate.described(knobs), evaluate.described(knobs | {"alpha": 0.5})]
    assert exact[3:] == sampled[3:] == ["1.0000", "1.0000", "0"]
    assert exact[1] == exact[2]


def test_rounding_moves_logits_and_opposite_labels_do_not_agree(
    rounded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--bundle", str(rounded), "--against", str(BUNDLES / "reviews-mca"))
    head, *body = rows(monkeypatch, capsys, *arguments)
    assert head[1:3] == ["accuracy, reviews-mca (int8)", "accuracy, reviews-mca (fp32)"]
    model = unchecked(BUNDLES / "reviews-mca")
    assert [row[0] for row in body] == [
        evaluate.described(model.knobs.exact()),
        evaluate.described(model.knobs.defaults()),
    ]
    assert all(0 < float(row[5]) < 0.5 for row in body)
    [logits] = [evaluate.run(model, [model.encode("a dull mess")], {"alpha": 0.0}, 0).logits]
    monkeypatch.setattr(
        evaluate,
        "run",
        lambda one, *rest: evaluate.Measured(logits if one.manifest.precision == "int8" else -logits, 1, 1),
    )
    monkeypatch.setattr(sys.modules[__name__], "TASK", replace(TASK, test=TASK.test[:1]))
    assert [row[3:5] for row in rows(monkeypatch, capsys, *arguments)[1:]] == [["0.0000", "0.0000"]] * 2


@pytest.mark.parametrize(
    "pattern", [(), ("--bundle", "reviews-mca", "--against", "contracts")], ids=["alone", "another"]
)
def test_what_cannot_be_compared_is_refused(
    pattern: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [word if word.startswith("--") else str(BUNDLES / word) for word in pattern] or ["--against", "x"]
    with pytest.raises(SystemExit) as caught:
        rows(monkeypatch, capsys, *arguments)
    message = f"{caught.value}{capsys.readouterr().err}"
    assert "their labels or knobs differ" in message if pattern else "--against needs --bundle" in message


def test_half_tables_change_the_looked_up_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer moves by little, no other weight by a bit, and a smaller copy serves like its source."""
    monkeypatch.setattr(smaller_bundle, "LEAST_ROWS", 1)
    source = tiny.write(tmp_path / "source", "keep")
    smaller_bundle.write_half_tables(source, tmp_path / "half")
    before, after = (
        {one.name: one for one in onnx.load(path / "model.onnx").graph.initializer}
        for path in (source, tmp_path / "half")
    )
    changed = {name for name in before if before[name] != after[name]}
    assert changed
    for name in changed:
        table = numpy_helper.to_array(before[name])
        np.testing.assert_array_equal(numpy_helper.to_array(after[name]), table.astype(np.float16))
    exact, half = unchecked(source), unchecked(tmp_path / "half")
    rows = [Row(ids, ids * 0, exact.knobs.exact()) for ids in (np.arange(1, 9), np.arange(3, 40) % 20)]
    for one, other in zip(exact.run(rows), half.run(rows), strict=True):
        assert not np.array_equal(one.logits, other.logits)
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-2)
    write_int8(source, tmp_path / "int8")
    assert smaller_bundle.write_half_tables(tmp_path / "int8", tmp_path / "both").precision == "int8"
    load(tmp_path / "both")
