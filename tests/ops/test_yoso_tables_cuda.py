"""How YosoAttention's CUDA kernels build tables, on the test device and a GPU: sums in their order, bit for bit.

Sums of float32 depend on their order, so equal bits show that neither the sequence's length (one block sorts up to
4,096 keys, many blocks more), nor waves and passes, nor the order of threads change it.
"""

import math
from pathlib import Path

import harness_cuda
import numpy as np
import pytest
from cases import Case, same_bits
from devices import Device
from harness import BY_NAME, Array, AttributeValue, offsets
from harness_cuda import DATA_TYPES, run_on_device
from yoso_cases import make, relative

from attenuator.ops.yoso.reference import codes, yoso_attention

ORDER, MULTIPROCESSORS = "ATTENUATOR_ON_HOST_ORDER", "ATTENUATOR_ON_HOST_MULTIPROCESSORS"
BYTES_EACH = 4 << 20  # of scratch, for each multiprocessor
RUNS, STEP = 8, 32
LAYER = 3


def table_sums(query_codes: Array, key_codes: Array, values: Array) -> Array:
    """Each query's bucket: keys in order, one after another within each of eight equal runs, then the runs: float32."""
    order = np.argsort(key_codes, kind="stable")
    size = math.ceil(math.ceil(len(order) / RUNS) / STEP) * STEP
    sums = np.zeros((len(query_codes), values.shape[1]), np.float32)
    for code in np.unique(query_codes):
        places = np.flatnonzero(key_codes[order] == code)
        total = None
        for run in np.unique(places // size):
            part = np.cumsum(values[order[places[places // size == run]]], axis=0, dtype=np.float32)[-1]
            total = part if total is None else total + part
        if total is not None:
            sums[query_codes == code] = total
    return sums


def long_rows(length: int, head_dim: int, value_dim: int, spread: float = 1.0) -> dict[str, Array]:
    """One head; `spread` 0 puts all keys into one bucket."""
    inputs = make((length,), 1, head_dim, value_dim, 1)
    inputs["key"] = inputs["key"][:1] + np.float32(spread) * inputs["key"]
    inputs["value"] *= 10.0 ** np.random.default_rng(1).integers(-3, 4, (length, 1)).astype(np.float32)
    return inputs


# Type, length, value_dim, hash_bits, spread: around the ends of a block's keys, of steps and runs; odd and wide values.
SHAPES = [
    ("float", 257, 10, 3, 1.0),
    ("bfloat16", 300, 9, 10, 1.0),
    ("float16", 4096, 8, 12, 1.0),
    ("float", 4097, 8, 8, 1.0),
    ("float16", 4097, 8, 8, 1.0),
    ("float", 4200, 9, 10, 1.0),
    ("bfloat16", 4224, 66, 2, 1.0),
    ("float16", 5000, 9, 16, 1.0),
    ("float", 8200, 12, 8, 0.2),
    ("float", 4300, 8, 9, 0.0),
    ("float", 4128, 130, 1, 1.0),
    ("bfloat16", 5000, 64, 4, 1.0),
    ("float16", 300, 130, 3, 1.0),
    ("float16", 290, 256, 2, 1.0),
]


@pytest.mark.parametrize("kind", ["cuda_on_host", pytest.param("torch", marks=pytest.mark.cuda(onnxruntime=False))])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_sums_are_taken_in_their_order(shape: tuple[str, int, int, int, float], kind: str) -> None:
    data, length, value_dim, hash_bits, spread = shape
    dtype = DATA_TYPES[data]
    inputs = long_rows(length, 8, value_dim, spread)
    inputs |= {name: inputs[name].astype(dtype).astype(np.float32) for name in ("query", "key", "value")}
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": hash_bits, "normalize": 0, "layer": LAYER}
    query_codes, key_codes = (
        codes(inputs[name], int(inputs["seed"][0]), LAYER, 0, 1, hash_bits, "gaussian")[:, 0]
        for name in ("query", "key")
    )
    assert (len(np.unique(key_codes)) == 1) == (spread == 0)
    expected = table_sums(query_codes, key_codes, inputs["value"]).astype(dtype).astype(np.float32)
    assert same_bits(Device(kind, data).run(Case(BY_NAME["yoso"], attributes), inputs), [expected])


@pytest.mark.parametrize("hash_bits", [8, 11])
def test_long_sequences_divided_by_their_weights(hash_bits: int) -> None:
    inputs = long_rows(4500, 8, 8)
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": hash_bits, "normalize": 2}
    [actual] = run_on_device("yoso", inputs, attributes)
    assert relative(actual, yoso_attention(**inputs, **attributes)) < 1e-5  # type: ignore[arg-type]


@pytest.mark.parametrize("hash_bits", [7, 9])
def test_long_and_short_sequences_of_a_batch(hash_bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several hashes; each sequence alone, any order of threads, one wave or many."""
    lengths = (4400, 70, 4097)
    inputs = make(lengths, 1, 8, 10, [1, 3, 1])
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": hash_bits}
    [together] = run_on_device("yoso", inputs, attributes)
    monkeypatch.setenv(ORDER, "backward")
    monkeypatch.setenv(MULTIPROCESSORS, "1")
    assert same_bits(run_on_device("yoso", inputs, attributes), [together])
    begin = inputs["cu_seqlens"][2]
    alone = {name: x[begin:] if x.ndim == 2 else x[2:] for name, x in inputs.items()}
    assert same_bits(run_on_device("yoso", alone | {"cu_seqlens": offsets([4097])}, attributes), [together[begin:]])


# Lengths, value_dim, hash_bits, normalize, hash: whole and ragged tiles of 512 or 1024 queries, those of one query
# beside them; columns that fill a row of 32 or 64 or not; full, small and mostly empty tables.
STAGED = [
    ((500, 1, 390), 64, 8, 1, "gaussian"),
    ((1023,), 60, 8, 2, "hadamard"),
    ((401,), 33, 5, 0, "gaussian"),
    ((900, 385), 64, 2, 2, "gaussian"),
    ((790,), 32, 7, 1, "gaussian"),
    ((1537,), 20, 8, 2, "gaussian"),
]


@pytest.mark.parametrize("data", ["float", "bfloat16"])
@pytest.mark.parametrize("case", STAGED, ids=lambda case: "-".join(map(str, case)))
def test_tables_in_shared_memory_give_the_same_bits(
    case: tuple[tuple[int, ...], int, int, int, str], data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rows that are read one by one where a block has less of it, with an even and an odd number of hashes."""
    lengths, value_dim, hash_bits, normalize, hash = case
    inputs = make(lengths, 2, 8, value_dim, [3, 2, 4][: len(lengths)], taps=3)
    attributes: dict[str, AttributeValue] = {
        "num_heads": 2, "hash_bits": hash_bits, "normalize": normalize, "hash": hash,
    }  # fmt: skip
    monkeypatch.setenv(MULTIPROCESSORS, "1")
    outputs, wide_blocks = [], []
    for kib in (99, 163):
        log = tmp_path / str(kib)
        monkeypatch.setenv("ATTENUATOR_ON_HOST_LAUNCHES", str(log))
        monkeypatch.setenv("ATTENUATOR_ON_HOST_SHARED", str(kib << 10))
        outputs.append(run_on_device("yoso", inputs, attributes, data))
        wide_blocks.append([line for line in log.read_text().splitlines() if line.split()[1] == "512"])
    assert len(wide_blocks[0]) == 0
    assert len(wide_blocks[1]) == 1
    assert same_bits(*outputs)


@pytest.mark.parametrize(("name", "bad"), [("query", np.nan), ("key", -np.inf), ("value", np.inf), ("value", np.nan)])
@pytest.mark.parametrize(("lengths", "hash_bits", "num_hashes"), [((260, 280), 16, 40), ((4200, 300), 8, 2)])
def test_what_is_not_finite_in_the_last_head_breaks_those_done_before(
    lengths: tuple[int, int], hash_bits: int, num_hashes: int, name: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head at a time in passes, or both at once by many blocks; the sequence beside it keeps its bits."""
    monkeypatch.setenv(MULTIPROCESSORS, "1")
    inputs = make(lengths, 2, 8, 8, [num_hashes, 2], taps=3)
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "hash_bits": hash_bits}
    [clean] = run_on_device("yoso", inputs, attributes)
    assert np.isfinite(clean).all()
    inputs[name][lengths[0] - 1, -1] = bad
    [broken] = run_on_device("yoso", inputs, attributes)
    assert np.isnan(broken[: lengths[0]]).all()
    assert same_bits([broken[lengths[0] :]], [clean[lengths[0] :]])


@pytest.mark.parametrize("size", [3e35, 1e37])
def test_a_sum_that_overflows_breaks_its_sequence_wherever_it_does(size: float) -> None:
    """Within one of a long bucket's eight runs, or only where they are joined."""
    inputs = make((5000, 700), 1, 8, 8, [2, 2])
    inputs["key"][:5000] = inputs["key"][0]
    inputs["value"][:5000, 1] = np.float32(size)
    [output] = run_on_device("yoso", inputs, {"num_heads": 1, "hash_bits": 4})
    assert np.isnan(output[:5000]).all()
    assert np.isfinite(output[5000:]).all()


def test_scratch_follows_the_card_and_passes_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 hashes of 16 bits take more than 16 MiB: passes on one multiprocessor or four, none on eight."""
    sizes: list[int] = []
    aligned = harness_cuda._aligned

    def record(size: int) -> Array:
        sizes.append(size)
        return aligned(size)

    monkeypatch.setattr(harness_cuda, "_aligned", record)
    inputs = make((260,), 1, 8, 8, 64)
    inputs["query"] = inputs["key"] + np.float32(0.05) * inputs["query"]
    results, needed = [], []
    for multiprocessors in (1, 4, 8):
        monkeypatch.setenv(MULTIPROCESSORS, str(multiprocessors))
        sizes.clear()
        results.append(run_on_device("yoso", inputs, {"num_heads": 1, "hash_bits": 16, "normalize": 2}))
        needed.append(max(sizes))
        assert needed[-1] <= multiprocessors * BYTES_EACH
    assert needed[0] < needed[1] < 4 * BYTES_EACH < needed[2]
    assert all(same_bits(result, results[0]) for result in results[1:])
