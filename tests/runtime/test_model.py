"""A loaded bundle: packed batches, batch invariance, errors, threads."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny

from attenuator.errors import EngineError
from attenuator.ops.cost import NodeShape
from attenuator.ops.mca.cost import value_share
from attenuator.runtime import Cancellation, Model, Row, load
from attenuator.runtime.batch import pack

KINDS = ["yoso", "mca", "softmax", "multi"]


def rows(model: Model, count: int, seed: int, longest: int = 90) -> list[Row]:
    draw = np.random.default_rng(seed)
    drawn = []
    for _ in range(count):
        ids = draw.integers(0, len(tiny.VOCAB), draw.integers(1, longest))
        knob_arrays = {
            name: draw.integers(0, 60) if row.dtype == "int32" else draw.random()
            for name, row in model.knobs.rows.items()
        }
        knobs = {name: value.item() if hasattr(value, "item") else value for name, value in knob_arrays.items()}
        drawn.append(Row(ids, draw.integers(0, 2, len(ids)), knobs, int(draw.integers(0, 2**53))))
    return drawn


def same(one: list, other: list) -> bool:
    return all(
        np.array_equal(a.logits, b.logits) and a.value_flops == b.value_flops for a, b in zip(one, other, strict=True)
    )


def test_pack_lays_rows_end_to_end(models: dict[str, Model]) -> None:
    manifest = models["yoso"].manifest.model_copy(update={"position_offset": 2})
    packed_rows = [
        Row(np.array([5, 6, 7]), np.array([0, 0, 1]), {"num_hashes": 4}, 1),
        Row(np.array([8]), np.array([0]), {"num_hashes": 0}, 2**53 - 1),
    ]
    feeds = pack(packed_rows, manifest)
    assert {name: array.tolist() for name, array in feeds.items()} == {
        "input_ids": [5, 6, 7, 8],
        "position_ids": [2, 3, 4, 2],
        "token_type_ids": [0, 0, 1, 0],
        "cu_seqlens": [0, 3, 4],
        "num_hashes": [4, 0],
        "seed": [1, 2**53 - 1],
    }
    dtypes = {name: str(array.dtype) for name, array in feeds.items()}
    assert (dtypes["input_ids"], dtypes["cu_seqlens"], dtypes["num_hashes"], dtypes["seed"]) == (
        "int64",
        "int32",
        "int32",
        "int64",
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3, 7, 16, 48])
def test_every_row_gets_the_bits_it_gets_alone(models: dict[str, Model], kind: str, size: int) -> None:
    model = models[kind]
    batch = rows(model, 48, seed=size)
    alone = [model.run([row])[0] for row in batch]
    for start in range(0, len(batch), size):
        assert same(model.run(batch[start : start + size]), alone[start : start + size])
    turned = list(reversed(batch))
    assert same(model.run(turned), list(reversed(alone)))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_threads(bundles: dict[str, Path], kind: str) -> None:
    results = []
    for threads in (1, 2, 5):
        model = load(bundles[kind], threads=threads, check=False)
        batch = rows(model, 12, seed=3, longest=500)
        results.append(model.run(batch))
    assert same(results[0], results[1])
    assert same(results[0], results[2])


@pytest.mark.parametrize("kind", KINDS)
def test_one_model_runs_in_many_threads(models: dict[str, Model], kind: str) -> None:
    model = models[kind]
    batch = rows(model, 24, seed=8)
    alone = [model.run([row])[0] for row in batch]
    with ThreadPoolExecutor(6) as pool:
        for concurrent in pool.map(lambda _: model.run(batch), range(12)):
            assert same(concurrent, alone)


def test_no_rows_give_no_results(models: dict[str, Model]) -> None:
    assert models["yoso"].run([]) == []


def test_seed_and_knob_belong_to_their_row(models: dict[str, Model]) -> None:
    ids = np.random.default_rng(1).integers(0, len(tiny.VOCAB), 400)
    types = np.zeros_like(ids)
    settings = [(16, 0), (16, 1), (64, 0), (0, 0), (0, 1), (16, 0)]
    results = models["yoso"].run([Row(ids, types, {"num_hashes": m}, seed) for m, seed in settings])
    bits = [result.logits.tobytes() for result in results]
    assert bits[0] == bits[5]
    assert bits[3] == bits[4]  # the exact value draws nothing
    assert len(set(bits)) == 4


def test_failure_is_one_sentence(models: dict[str, Model]) -> None:
    ids = np.array([10**6])
    with pytest.raises(EngineError, match=r"^model 'yoso' failed on this batch$") as caught:
        models["yoso"].run([Row(ids, ids * 0, {"num_hashes": 4})])
    assert caught.value.detail is not None
    assert "out of data bounds" in caught.value.detail, "what ONNX Runtime says is for the log"
    assert "\n" not in caught.value.detail
    bad = Row(np.array([1]), np.array([0]), {"num_hashes": 900})
    with pytest.raises(EngineError) as caught:
        models["yoso"].run([bad])
    assert "num_hashes[0] is 900, must be in [0, 512]" in str(caught.value.detail)


def test_cancellation_stops_a_run(models: dict[str, Model]) -> None:
    ids = np.ones(tiny.MAX_TOKENS, dtype=np.int64)
    row = Row(ids, ids * 0, {"num_hashes": 0})
    started = time.perf_counter()
    models["yoso"].run([row, row])
    whole_s = time.perf_counter() - started
    cancellation = Cancellation()
    with ThreadPoolExecutor(1) as pool:
        started = time.perf_counter()
        run = pool.submit(models["yoso"].run, [row, row], cancellation)
        time.sleep(whole_s / 10)
        cancellation.cancel()
        with pytest.raises(EngineError) as caught:
            run.result()
        assert "terminate" in str(caught.value.detail)
        assert time.perf_counter() - started < 0.9 * whole_s


def test_cost_grows_with_length_and_knob(models: dict[str, Model]) -> None:
    cost = models["yoso"].predict_cost
    assert cost(100, {"num_hashes": 8}) < cost(100, {"num_hashes": 16}) < cost(200, {"num_hashes": 16})
    assert cost(8192, {"num_hashes": 0}) > cost(8192, {"num_hashes": 32})
    layer, head = 4 * tiny.HIDDEN**2 + 2 * tiny.HIDDEN * tiny.FFN, tiny.HIDDEN**2 + 3 * tiny.HIDDEN
    dense = 1000 * tiny.LAYERS * layer + head  # the head sees one row per sequence
    hashing = tiny.LAYERS * 32 * 2 * (8 + 1) * tiny.HIDDEN
    assert cost(1000, {"num_hashes": 32}) == dense + 1000 * hashing
    softmax = tiny.LAYERS * 1000 * 2 * tiny.HIDDEN
    assert models["softmax"].predict_cost(1000, {}) == dense + 1000 * softmax


def test_cost_falls_as_alpha_rises_where_mca_samples(models: dict[str, Model]) -> None:
    cost = models["mca"].predict_cost
    exact = cost(200, {"alpha": 0.0})
    assert exact == models["softmax"].predict_cost(200, {})
    assert exact > cost(200, {"alpha": 0.5}) > cost(200, {"alpha": 1.0})
    projections = 200 * tiny.LAYERS * tiny.HIDDEN**2
    saved = projections * (1 - 1.3 / tiny.HIDDEN**0.5)
    assert 0.9 * saved < exact - cost(200, {"alpha": 1.0}) < saved, "a few heads promise too little"
    # Where sampling cannot pay, the operator computes exactly: alpha^2 C at most 1, and long texts of a narrow model.
    assert cost(200, {"alpha": 0.12}) == exact
    assert all(cost(tokens, {"alpha": 1.0}) == cost(tokens, {"alpha": 0.0}) for tokens in (700, 1000))


@pytest.mark.parametrize(("head_dim", "tokens"), [(8, 64), (16, 64), (20, 51), (32, 51), (64, 45)])
def test_cost_of_short_sequences_is_exact_however_large_alpha(head_dim: int, tokens: int) -> None:
    """From (24 + 256 / D) / (7/8 - 3/2 of the share) tokens on, D in whole vectors, a head has enough to save."""
    node = NodeShape("mca", 2, head_dim, head_dim, 64, {"estimator": "sampled"})
    assert value_share(node, tokens - 1, 1.0) == 1.0
    assert value_share(node, tokens, 1.0) == pytest.approx(1.3 / 8)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_no_answer(models: dict[str, Model], value: float) -> None:
    with pytest.raises(EngineError, match="gave logits that are not finite"):
        models["yoso"].predict(np.array([0.5, value, 1.0], np.float32))
