"""YosoAttention's CUDA kernels on the test device, against the CPU operator and the reference.

The test device runs every CUDA thread as a fiber, slowly: sizes here are small, and chosen to reach every path.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import Case, make_inputs, same_bits, split, take, variants
from harness import Array, AttributeValue, run
from harness_cuda import DATA_TYPES, device_name, run_on_device
from yoso_cases import check_codes, make, relative

from attenuator.errors import EngineError
from attenuator.ops import OPERATORS
from attenuator.ops.yoso.reference import Hash

YOSO = next(operator for operator in OPERATORS if operator.key == "yoso")
HASHES: tuple[Hash, ...] = ("gaussian", "hadamard")
ORDERS = ("forward", "backward", "1")
ORDER = "ATTENUATOR_ON_HOST_ORDER"
# The paths that cuda/operator.cc chooses, by num_hashes: up to 256 keys are always counted.
COUNTED, TABLES = 150, 270


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    if device_name() != "cuda_on_host":
        pytest.fail("the library of ATTENUATOR_CUDA_LIBRARY has no test device: configure with ATTENUATOR_CUDA_ON_HOST")


def agree(inputs: dict[str, Array], tolerance: float = 1e-5, **attributes: AttributeValue) -> Array:
    """The device's output, held against that of the CPU operator, whose tables alone can be of int16."""
    actual = run_on_device("yoso", inputs, attributes)[0]
    assert relative(actual, run("yoso", inputs, attributes | {"table_precision": "float32"})[0]) < tolerance
    return actual


@pytest.mark.parametrize("case", list(variants(YOSO)), ids=str)
def test_every_combination_of_attributes_on_a_ragged_batch(case: Case) -> None:
    case = replace(case, attributes=case.attributes | {"num_heads": 2})
    sizes = {
        "num_heads * head_dim": 2 * 20, "num_heads * value_dim": 2 * 12, "num_heads": 2, "c": 5,
    }  # fmt: skip
    inputs = make_inputs(case, (17, 0, 1, 70), 1, sizes)
    inputs["num_hashes"] = np.array([7, 0, 512, 0], np.int32)
    agree(inputs, **case.attributes)
    inputs["num_hashes"] = np.array([0, 3, 1, 33], np.int32)
    agree(inputs, **case.attributes)


# heads, head_dim, value_dim, hash_bits, hash, normalize, num_hashes, length, taps
SHAPES = [
    (2, 64, 64, 8, "gaussian", 1, 3, 300, 3),
    (1, 64, 8, 8, "hadamard", 0, 2, 300, 0),
    (1, 9, 33, 9, "gaussian", 1, 2, 290, 0),
    (1, 33, 130, 12, "gaussian", 0, 1, 513, 0),
    (1, 256, 256, 16, "gaussian", 1, 1, 270, 0),
    (1, 8, 17, 1, "gaussian", 0, 2, 600, 0),
    (1, 65, 255, 2, "hadamard", 1, 1, 90, 1),
    (1, 200, 8, 1, "hadamard", 0, 3, 20, 0),
    (1, 40, 65, 16, "hadamard", 1, 1, 260, 0),
    (1, 255, 129, 10, "gaussian", 1, 0, 70, 0),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_odd_sizes(shape: tuple[int, int, int, int, str, int, int, int, int]) -> None:
    num_heads, head_dim, value_dim, hash_bits, hash, normalize, num_hashes, length, taps = shape
    inputs = make((length,), num_heads, head_dim, value_dim, num_hashes, taps=taps)
    agree(inputs, num_heads=num_heads, hash_bits=hash_bits, hash=hash, normalize=normalize, layer=3)


@pytest.mark.parametrize(("num_hashes", "hash_bits"), [(0, 8), (5, 3), (3, 11)])
@pytest.mark.parametrize("value_dim", [8, 33, 100, 256])
def test_one_query_over_several_runs_of_keys(value_dim: int, num_hashes: int, hash_bits: int) -> None:
    inputs = make((515, 1, 256), 1, 24, value_dim, num_hashes, "first", taps=3)
    agree(inputs, num_heads=1, hash_bits=hash_bits, queries="first", normalize=0)


@pytest.mark.parametrize(
    ("head_dim", "hash_bits", "num_hashes", "length"),
    [
        (64, 8, 34, 40),
        (20, 3, 5, TABLES),
        (37, 7, 2, TABLES),
        (8, 12, 17, 40),
        (31, 16, 2, TABLES),
        (129, 2, 3, 40),
        (96, 4, 3, 40),
    ],
)
@pytest.mark.parametrize("hash", HASHES)
def test_codes_equal_the_reference_bit_for_bit(
    hash: Hash, head_dim: int, hash_bits: int, num_hashes: int, length: int
) -> None:
    check_codes(hash, head_dim, hash_bits, num_hashes, length, layer=2, call=run_on_device)


@pytest.mark.parametrize("length", [COUNTED, TABLES])
@pytest.mark.parametrize("hash", HASHES)
def test_blocks_that_share_hashes_change_no_bit(hash: Hash, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts of 32 hashes, two of 64, the last not whole: a block takes all, every second, or one."""
    inputs = make((length,), 1, 64, 8, 67)
    outputs = set()
    for multiprocessors in ("1", "2", "64"):
        monkeypatch.setenv("ATTENUATOR_ON_HOST_MULTIPROCESSORS", multiprocessors)
        outputs.add(agree(inputs, num_heads=1, hash_bits=7, hash=hash).tobytes())
    assert len(outputs) == 1


@pytest.mark.parametrize("hash", HASHES)
def test_rows_of_few_values_tie_as_on_the_cpu(hash: Hash) -> None:
    inputs = make((64,), 1, 32, 64, 16)
    inputs |= {"query": np.eye(32, dtype=np.float32).repeat(2, 0), "key": -np.eye(32, dtype=np.float32).repeat(2, 0)}
    inputs["key"][::3] *= -1
    inputs["key"][5] = 0
    inputs["value"] = np.eye(64, dtype=np.float32)
    agree(inputs, 1e-6, num_heads=1, hash_bits=4, hash=hash, normalize=0)


@pytest.mark.parametrize("length", [COUNTED, TABLES])
@pytest.mark.parametrize("num_hashes", [0, 3])
def test_zero_tiny_and_huge_rows(num_hashes: int, length: int) -> None:
    inputs = make((length,), 1, 24, 16, num_hashes)
    for name in ("query", "key"):
        for row, factor in enumerate((0, 1e-45, 1e-38, 1e-20, 1e-13, 1e-11, 1e15, 3e37)):
            inputs[name][row] *= np.float32(factor)
    inputs["value"][3] = 0
    inputs["value"][4] *= np.float32(1e-42)
    assert np.isfinite(agree(inputs, num_heads=1, hash_bits=6, normalize=0)).all()


def test_expectation_keeps_its_accuracy_where_query_and_key_coincide() -> None:
    inputs = make((70,), 1, 64, 70, 0)
    rng = np.random.default_rng(0)
    nudges = 10.0 ** -rng.integers(1, 8, (70, 1)) * rng.standard_normal((70, 64)) * (np.arange(70) % 2)[:, None]
    inputs["key"] = (inputs["query"] + nudges).astype(np.float32) * np.where(np.arange(70) % 3, 1, -1)[:, None].astype(
        np.float32
    )
    inputs["value"] = np.eye(70, dtype=np.float32)
    agree(inputs, 1e-6, num_heads=1, hash_bits=8, normalize=0)
    agree(inputs, 1e-6, num_heads=1, hash_bits=1, normalize=0)


@pytest.mark.parametrize("outlier", [1, 1e6])
@pytest.mark.parametrize("same", [True, False], ids=["one bucket", "buckets"])
def test_full_buckets_and_values_of_any_size(same: bool, outlier: float) -> None:
    """All keys in one bucket with the largest values overflow fixed-point sums, an outlier takes their digits."""
    inputs = make((600,), 1, 8, 9, 2)
    if same:
        inputs["key"][:] = inputs["key"][0]
    inputs["value"] = np.full_like(inputs["value"], 1e30)
    inputs["value"][300:] *= np.float32(-1 / 3)
    agree(inputs, num_heads=1, hash_bits=2, normalize=0)
    inputs = make((600,), 1, 8, 9, 2) | {name: inputs[name] for name in ("query", "key")}
    inputs["value"][77, 3] = outlier
    bystanders = np.setdiff1d(np.arange(9), [3])
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": 6, "normalize": 0}
    actual, expected = run_on_device("yoso", inputs, attributes)[0], run("yoso", inputs, attributes)[0]
    assert relative(actual[:, bystanders], expected[:, bystanders]) < 1e-5


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("num_hashes", "length", "head_dim"), [(0, 60, 20), (0, 60, 64), (9, 60, 20), (9, 60, 72), (2, TABLES, 64)]
)
def test_halves_within_their_rounding(num_hashes: int, length: int, head_dim: int, data: str) -> None:
    """Rounded inputs, fp32 sums: only the output's own rounding is left."""
    inputs = make((length,), 2, head_dim, 24, num_hashes, taps=3)
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "hash_bits": 6}
    for name in ("query", "key", "value", "conv_weight"):
        inputs[name] = inputs[name].astype(DATA_TYPES[data]).astype(np.float32)
    actual, expected = run_on_device("yoso", inputs, attributes, data)[0], run("yoso", inputs, attributes)[0]
    step = 2.0**-11 if data == "float16" else 2.0**-8
    np.testing.assert_array_less(np.abs(actual - expected), 1.01 * step * np.abs(expected) + 1e-5)


MIXED = (33, 0, TABLES, 1, 64)


def mixed(queries: str = "all") -> tuple[Case, dict[str, Array]]:
    """Sequences of every path, in one batch."""
    case = Case(YOSO, {"num_heads": 2, "hash_bits": 5, "queries": queries})
    return case, make(MIXED, 2, 16, 12, [5, 1, 2, 0, 0], queries)


@pytest.mark.parametrize("queries", ["all", "first"])
def test_a_sequences_bits_do_not_depend_on_its_batch(queries: str) -> None:
    case, inputs = mixed(queries)
    whole = split(case, run_on_device("yoso", inputs, case.attributes), inputs)
    for b in range(len(MIXED)):
        alone = run_on_device("yoso", take(case, inputs, [b]), case.attributes)
        assert alone[0].tobytes() == whole[b][0].tobytes()
    order = [2, 4, 0, 2, 3]
    some = take(case, inputs, order)
    parts = split(case, run_on_device("yoso", some, case.attributes), some)
    assert all(part[0].tobytes() == whole[b][0].tobytes() for b, part in zip(order, parts, strict=True))


@pytest.mark.parametrize("hash", HASHES)
def test_the_order_of_threads_changes_nothing(hash: Hash, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that depends on it is a missing barrier."""
    case, inputs = mixed()
    outputs = set()
    for order in ORDERS:
        monkeypatch.setenv(ORDER, order)
        outputs.add(run_on_device("yoso", inputs, case.attributes | {"hash": hash, "hash_bits": 9})[0].tobytes())
    assert len(outputs) == 1


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_what_is_not_finite_stays_in_its_sequence(name: str, bad: float) -> None:
    case, inputs = mixed()
    clean = split(case, run_on_device("yoso", inputs, case.attributes), inputs)
    for b in (0, 2, 4):  # one at a time, so that it stands in one head of one path
        row = inputs["cu_seqlens"][b] + MIXED[b] // 2
        before = inputs[name][row, 3]
        inputs[name][row, 3] = bad
        parts = split(case, run_on_device("yoso", inputs, case.attributes), inputs)
        inputs[name][row, 3] = before
        assert np.isnan(parts[b][0]).all()
        assert all(parts[c][0].tobytes() == clean[c][0].tobytes() for c in range(len(MIXED)) if c != b)


def test_empty_batches_and_sequences() -> None:
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "hash_bits": 4}
    for lengths in ((), (0,), (0, 0, 0)):
        assert run_on_device("yoso", make(lengths), attributes)[0].shape == (0, 24)
        first = run_on_device("yoso", make(lengths, queries="first"), attributes | {"queries": "first"})[0]
        assert np.array_equal(first, np.zeros((len(lengths), 24)))
    inputs = make((0, 4, 0), queries="first", taps=3)
    output = agree(inputs, **attributes, queries="first")
    assert not output[[0, 2]].any()
    assert output[1].any()


def test_bad_inputs_are_refused_in_the_cpus_words() -> None:
    inputs = make((4, 5))
    inputs["num_hashes"][1] = 900
    with pytest.raises(EngineError, match=r"YosoAttention: num_hashes\[1\] is 900, must be in \[0, 512\]"):
        run_on_device("yoso", inputs, {"num_heads": 2, "hash_bits": 4})


def test_64_sequences_take_one_launch_of_each_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And their blocks find them: each sequence has the bits that it has alone."""
    log = tmp_path / "launches"
    lengths = tuple(1 + i % 3 for i in range(64))
    case = Case(YOSO, {"num_heads": 1, "hash_bits": 3})
    inputs = make(lengths, 1, 8, 8, 2)
    monkeypatch.setenv("ATTENUATOR_ON_HOST_LAUNCHES", str(log))
    together = split(case, run_on_device("yoso", inputs, case.attributes), inputs)
    kernels = [line.split()[0] for line in log.read_text().splitlines()]
    assert len(kernels) == len(set(kernels)) > 3
    for b in (0, 1, 31, 63):
        assert same_bits(run_on_device("yoso", take(case, inputs, [b]), case.attributes), together[b])
