"""Tokens that a selection leaves out as one row more, their mean: against plain PyTorch, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoints import load
from exported import LENGTHS, rows, run
from refusals import refuse
from selecting import logits

from attenuator.bundle import Manifest, read_manifest
from attenuator.export import export
from attenuator.export.selection import DEFAULT, exponents
from attenuator.ops.kept_lengths.rule import kept_length
from attenuator.runtime import Row, create
from attenuator.runtime.cost import cost_model
from attenuator.runtime.graph import read_graph

Get = Callable[[str, str], Path]
# One for each way in which layers of models that classify by the first token are computed.
MERGING = [("bert", "mca"), ("distilbert", "mca"), ("albert-groups", "mca"), ("encoder-softmax", "softmax")]
KEEPS = (1.0, 0.5, 0.05, 0.8, 0.3, 0.25, 0.6)


@pytest.fixture(scope="module", params=MERGING, ids=lambda case: "-".join(case))
def merging(
    request: pytest.FixtureRequest, checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, Path]:
    """A checkpoint, its attention, and its bundle with the option."""
    name, attention = request.param
    folder = tmp_path_factory.mktemp("merge") / "bundle"
    export(str(checkpoint(name)), attention=attention, output=folder, merge="mean")
    return name, attention, folder


def mixed(manifest: Manifest, **knobs: float) -> list[Row]:
    """Sequences of every length at several shares."""
    batch = rows(manifest, LENGTHS * 2, knobs)
    shares = [KEEPS[index % len(KEEPS) - index // len(KEEPS)] for index in range(len(batch))]
    return [
        Row(row.token_ids, row.type_ids, row.knobs | {"keep": share}, seed=row.seed)
        for row, share in zip(batch, shares, strict=True)
    ]


def test_graph_computes_what_pytorch_computes(
    merging: tuple[str, str, Path], exported: Get, checkpoint: Callable[[str], Path]
) -> None:
    name, attention, folder = merging
    manifest = read_manifest(folder)
    assert manifest.provenance.selection is not None
    assert manifest.provenance.selection.merge == "mean"
    model, session = load(checkpoint(name)), create(folder / "model.onnx")
    powers = exponents(DEFAULT, manifest.attention.layers, manifest.pooling)
    typed = "token_type_ids" in manifest.inputs
    batch = mixed(manifest)
    expected = np.stack(
        [
            logits(model, row.token_ids, row.type_ids if typed else None, row.knobs["keep"], powers, "maximum", "mean")
            for row in batch
        ]
    )
    actual = run(session, manifest, batch)["logits"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))
    dropped = exported(name, attention)
    others = run(create(dropped / "model.onnx"), read_manifest(dropped), batch)["logits"]
    few = [len(row.token_ids) < 3 or row.knobs["keep"] == 1 for row in batch]
    assert np.array_equal(actual[few], others[few]), "where no row is left out, none is added"
    assert not np.array_equal(actual, others)


def test_a_sequence_gets_the_bits_that_it_gets_alone(merging: tuple[str, str, Path]) -> None:
    _, attention, folder = merging
    manifest = read_manifest(folder)
    batch = mixed(manifest) + (mixed(manifest, alpha=0.5) if attention == "mca" else [])
    sessions = [create(folder / "model.onnx", threads=threads) for threads in (1, 2)]
    together = [run(session, manifest, batch)["logits"] for session in sessions]
    assert np.array_equal(*together)
    for row, expected in zip(batch, together[0], strict=True):
        assert np.array_equal(run(sessions[0], manifest, [row])["logits"][0], expected)


def test_keep_1_gives_the_bits_of_a_bundle_that_drops(merging: tuple[str, str, Path], exported: Get) -> None:
    name, attention, folder = merging
    dropped = exported(name, attention)
    ours, theirs = read_manifest(folder), read_manifest(dropped)
    batch = rows(ours, LENGTHS) + rows(ours, LENGTHS[::-1], {"alpha": 0.5} if attention == "mca" else {})
    outputs = [run(create(path / "model.onnx"), each, batch) for path, each in ((folder, ours), (dropped, theirs))]
    for output in theirs.outputs:
        assert np.array_equal(outputs[0][output], outputs[1][output])


def test_predicted_work_counts_the_row_more(merging: tuple[str, str, Path], exported: Get) -> None:
    name, attention, folder = merging
    costs = [cost_model(read_graph(path / "model.onnx")) for path in (folder, exported(name, attention))]
    merged, dropped = (cost.work.rows(60, {"keep": 0.4}) for cost in costs)
    powers = [power for power in exponents(DEFAULT, len(merged), "first") if power]
    expected = [60]
    for power in powers:
        expected.append(kept_length(expected[-1], 0.4, power, "mean"))
    assert merged == expected
    assert all(more > fewer for more, fewer in zip(merged[1:], dropped[1:], strict=True))
    assert costs[0].predict(60, {"keep": 1.0}) == costs[1].predict(60, {"keep": 1.0})


@pytest.mark.parametrize(
    ("name", "attention", "options", "sentence"),
    [
        ("modernbert", "softmax", {}, "this model's attention reads where each token stands"),
        ("mpnet", "softmax", {}, "RelativeAttention attends to no row that stands for several; must be none"),
        ("yoso-dense", "yoso", {}, "YosoAttention attends to no row that stands for several; must be none"),
        ("encoder-softmax-post", "mca", {}, "this model averages its tokens: those that are left out stay as they are"),
        ("bert", "softmax", {"schedule": "none"}, "this bundle selects no tokens, so that none are left out"),
        ("bert-one-layer", "softmax", {}, "this bundle selects no tokens, so that none are left out"),
        ("bert", "softmax", {"precision": "fp16"}, "precision is 'fp16', which runs on CUDA alone, where merge 'mean'"),
        ("bert", "softmax", {"merge": "sum"}, "merge is 'sum', must be one of: none, mean"),
    ],
)
def test_refusals(
    name: str,
    attention: str,
    options: dict[str, str],
    sentence: str,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    assert sentence in refuse(checkpoint(name), tmp_path, attention, **({"merge": "mean"} | options))
