"""Tokens that a selection leaves out as one row more, their mean: against plain PyTorch, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from checkpoints import load
from exported import LENGTHS, rows, run
from refusals import refuse
from selecting import kept, logits

from attenuator.bundle import MODEL, Manifest, read_manifest
from attenuator.export.selection import DEFAULT, exponents
from attenuator.ops import OPERATORS
from attenuator.runtime import Row, create
from attenuator.runtime.batch import pack
from attenuator.runtime.cost import cost_model
from attenuator.runtime.graph import read_graph

Get = Callable[..., Path]
UNMERGED = "unmerged_cu_seqlens"
INPUTS = {operator.name: [item.name for item in operator.inputs] for operator in OPERATORS}
# One for each operator that can attend to such a row, with each kind of table, and for each way in which rows leave a
# layer: dropped behind each kind of norm, dropped where layers see windows, frozen. Layers of other families hand their
# rows to the same two functions, which tests/export/test_selection.py tries on each.
MERGING = [
    ("bert", "mca"),
    ("encoder-softmax", "softmax"),
    ("modernbert", "softmax"),
    ("deberta-v2", "softmax"),
    ("mpnet", "softmax"),
    ("modernbert-mean", "mca"),
    ("encoder-softmax-post", "softmax"),
]
KEEPS = (1.0, 0.5, 0.05, 0.8, 0.3, 0.25, 0.6)


@pytest.fixture(params=MERGING, ids=lambda case: "-".join(case))
def merging(request: pytest.FixtureRequest, exported: Get) -> tuple[str, str, Path]:
    """A checkpoint, its attention, and its bundle with the option."""
    name, attention = request.param
    return name, attention, exported(name, attention, merge="mean")


@pytest.fixture
def dropping(merging: tuple[str, str, Path], tmp_path: Path) -> Path:
    """The same graph without the rows for those left out: `model.onnx`, cheaper than an export that drops."""
    model = onnx.load(merging[2] / MODEL)
    for node in model.graph.node:
        names = INPUTS.get(node.op_type, [])
        if UNMERGED in names[: len(node.input)]:
            node.input[names.index(UNMERGED)] = ""
        for item in node.attribute:
            if node.op_type == "KeptLengths" and item.name == "merge":
                item.s = b"none"
    onnx.save(model, tmp_path / MODEL)
    return tmp_path / MODEL


def mixed(manifest: Manifest, **knobs: float) -> list[Row]:
    """Sequences of every length at several shares."""
    batch = rows(manifest, LENGTHS * 2, knobs)
    shares = [KEEPS[index % len(KEEPS) - index // len(KEEPS)] for index in range(len(batch))]
    return [
        Row(row.token_ids, row.type_ids, row.knobs | {"keep": share}, seed=row.seed)
        for row, share in zip(batch, shares, strict=True)
    ]


def test_graph_computes_what_pytorch_computes(
    merging: tuple[str, str, Path], dropping: Path, checkpoint: Callable[[str], Path]
) -> None:
    name, _, folder = merging
    manifest = read_manifest(folder)
    assert manifest.provenance.selection is not None
    assert manifest.provenance.selection.merge == "mean"
    model, session = load(checkpoint(name)), create(folder / MODEL)
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
    others = run(create(dropping), manifest, batch)["logits"]
    few = [len(row.token_ids) < 3 or row.knobs["keep"] == 1 for row in batch]
    assert np.array_equal(actual[few], others[few]), "where no row is left out, none is added"
    assert not np.array_equal(actual, others)


def test_a_sequence_gets_the_bits_that_it_gets_alone(merging: tuple[str, str, Path]) -> None:
    _, attention, folder = merging
    manifest = read_manifest(folder)
    batch = mixed(manifest) + (mixed(manifest, alpha=0.5) if attention == "mca" else [])
    sessions = [create(folder / MODEL, threads=threads) for threads in (1, 2)]
    together = [run(session, manifest, batch)["logits"] for session in sessions]
    assert np.array_equal(*together)
    for row, expected in zip(batch, together[0], strict=True):
        assert np.array_equal(run(sessions[0], manifest, [row])["logits"][0], expected)


def test_keep_1_gives_the_bits_of_a_graph_that_drops(merging: tuple[str, str, Path], dropping: Path) -> None:
    _, attention, folder = merging
    manifest = read_manifest(folder)
    batch = rows(manifest, LENGTHS) + rows(manifest, LENGTHS[::-1], {"alpha": 0.5} if attention == "mca" else {})
    ours, theirs = (run(create(path), manifest, batch) for path in (folder / MODEL, dropping))
    for output in manifest.outputs:
        assert np.array_equal(ours[output], theirs[output])


@pytest.mark.parametrize("merging", MERGING[:1], indirect=True)
def test_without_the_row_the_graph_is_an_export_that_drops(
    merging: tuple[str, str, Path], dropping: Path, exported: Get
) -> None:
    name, attention, _ = merging
    folder = exported(name, attention)
    manifest = read_manifest(folder)
    batch = mixed(manifest, alpha=0.5)
    ours, theirs = (run(create(path), manifest, batch) for path in (dropping, folder / MODEL))
    for output in manifest.outputs:
        assert np.array_equal(ours[output], theirs[output])


def test_predicted_work_counts_the_row_more(merging: tuple[str, str, Path], dropping: Path, tmp_path: Path) -> None:
    manifest, folder = read_manifest(merging[2]), merging[2]
    costs = [cost_model(read_graph(path)) for path in (folder / MODEL, dropping)]
    merged = costs[0].work.rows(60, {"keep": 0.4})
    # Each selection lets one row more go on, and the next counts it: behind many, several more than where they drop.
    expected = [60]
    for power in filter(None, exponents(DEFAULT, manifest.attention.layers, manifest.pooling)):
        expected.append(min(expected[-1], kept(expected[-1], 0.4, power) + 1))
    assert merged == expected
    assert merged[1:] == kept_by(folder / MODEL, tmp_path, manifest, 60, 0.4)
    assert costs[0].predict(60, {"keep": 1.0}) == costs[1].predict(60, {"keep": 1.0})


def kept_by(path: Path, tmp_path: Path, manifest: Manifest, length: int, keep: float) -> list[int]:
    """Rows of one sequence that go on behind each selection, as the graph itself computes them."""
    model = onnx.load(path)
    names = [node.output[0] for node in model.graph.node if node.op_type == "KeptLengths"]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    onnx.save(model, tmp_path / "lengths.onnx")
    feeds = pack(rows(manifest, [length], {"keep": keep}), manifest)
    return [int(starts[-1]) for starts in create(tmp_path / "lengths.onnx").run(names, feeds)]


@pytest.mark.parametrize(
    ("name", "attention", "options", "sentence"),
    [
        ("longformer", "softmax", {}, "this model has a first token that is apart from its windows, where merging was"),
        (
            "deberta-v2-convolution",
            "softmax",
            {},
            "this model has a convolution beside its attention, and a row",
        ),
        ("yoso-dense", "yoso", {}, "YosoAttention attends to no row that stands for several; must be none"),
        ("bert", "softmax", {"schedule": "none"}, "this bundle selects no tokens, so that none are left out"),
        ("bert-one-layer", "softmax", {}, "this bundle selects no tokens, so that none are left out"),
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
