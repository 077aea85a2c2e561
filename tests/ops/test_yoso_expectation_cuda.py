"""YosoAttention's expectation in half types on the CUDA test device: only the output's own rounding is left.

Rows are multiplied by tensor cores as they are and weights meet the values in two parts, so that inputs rounded to
the data's type give what the CPU computes of them in float32.
"""

import numpy as np
import pytest
from cases import Case, same_bits, split, take
from harness import BY_NAME, Array, AttributeValue, run
from harness_cuda import DATA_TYPES, run_on_device
from yoso_cases import fresh, make

from attenuator.ops.yoso.reference import yoso_attention

HALVES = ("float16", "bfloat16")
STEP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
LENGTHS = (1, 0, 65, 130, 32)
# heads, head_dim, value_dim, hash_bits, normalize, norm_lift over head_dim, taps: every kernel, odd sizes, all powers
SHAPES = [
    (2, 64, 64, 8, 1, 0.0, 3),
    (2, 32, 64, 8, 1, 0.0, 0),
    (1, 64, 64, 16, 2, 1.0, 0),
    (1, 20, 33, 3, 0, 0.0, 0),
    (3, 8, 8, 1, 2, 1.0, 0),
    (1, 129, 70, 9, 1, 0.0, 1),
    (1, 256, 256, 13, 0, 1.0, 0),
    (1, 255, 130, 16, 2, 0.0, 0),
]


def rounded(inputs: dict[str, Array], data: str) -> dict[str, Array]:
    """The inputs as the device has them."""
    names = [name for name in ("query", "key", "value", "conv_weight") if name in inputs]
    return inputs | {name: inputs[name].astype(DATA_TYPES[data]).astype(np.float32) for name in names}


def hold(actual: Array, expected: Array, data: str, tolerance: float) -> None:
    """Half a step of the type, and `tolerance` of the largest value."""
    most = float(np.abs(expected).max())
    np.testing.assert_array_less(np.abs(actual - expected), 1.01 * STEP[data] * np.abs(expected) + tolerance * most)


@pytest.mark.parametrize("data", HALVES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_a_ragged_batch_is_the_cpus(shape: tuple[int, int, int, int, int, float, int], data: str) -> None:
    num_heads, head_dim, value_dim, hash_bits, normalize, lift, taps = shape
    inputs = rounded(fresh(LENGTHS, num_heads, head_dim, value_dim, num_hashes=0, taps=taps), data)
    attributes: dict[str, AttributeValue] = {
        "num_heads": num_heads, "hash_bits": hash_bits, "normalize": normalize, "norm_lift": lift * head_dim
    }  # fmt: skip
    [actual], [expected] = run_on_device("yoso", inputs, attributes, data), run("yoso", inputs, attributes)
    hold(actual, expected, data, 2e-5)


@pytest.mark.parametrize("data", HALVES)
def test_weights_where_query_and_key_coincide_or_are_opposite(data: str) -> None:
    rng = np.random.default_rng(0)
    inputs = make((70,), 1, 64, 70, 0)
    nudges = 10.0 ** -rng.integers(1, 8, (70, 1)) * rng.standard_normal((70, 64))
    inputs["key"] = (inputs["query"] + nudges).astype(np.float32)
    inputs["key"][::3] *= -1
    inputs["value"] = np.eye(70, dtype=np.float32)
    inputs = rounded(inputs, data)
    for hash_bits in (1, 8):
        attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": hash_bits, "normalize": 0}
        [actual], [expected] = run_on_device("yoso", inputs, attributes, data), run("yoso", inputs, attributes)
        hold(actual, expected, data, 1e-5)


@pytest.mark.parametrize("data", HALVES)
@pytest.mark.parametrize(("normalize", "hash_bits"), [(1, 8), (2, 16)])
def test_all_keys_nearly_opposite_still_have_weights(normalize: int, hash_bits: int, data: str) -> None:
    """Powers of about 1e-9 and 1e-17, which float16 does not have; those of later keys are larger."""
    rng = np.random.default_rng(1)
    length = 150
    inputs = make((length,), 1, 64, 24, 0)
    spread = np.linspace(0.02, 0.08, length)[:, None]
    inputs["query"] = (1 + 0.02 * rng.standard_normal((length, 64))).astype(np.float32)
    inputs["key"] = (-1 + spread * rng.standard_normal((length, 64))).astype(np.float32)
    inputs = rounded(inputs, data)
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": hash_bits, "normalize": normalize}
    [actual] = run_on_device("yoso", inputs, attributes, data)
    hold(actual, yoso_attention(**inputs, **attributes), data, 1e-3)  # type: ignore[arg-type]


def test_zero_tiny_and_huge_rows() -> None:
    inputs = make((70,), 1, 24, 16, 0)
    for name in ("query", "key"):
        for row, factor in enumerate((0, 1e-45, 1e-38, 1e-20, 1e-13, 1e-11, 1e15, 3e37)):
            inputs[name][row] *= np.float32(factor)
    inputs = rounded(inputs, "bfloat16")
    attributes: dict[str, AttributeValue] = {"num_heads": 1, "hash_bits": 6, "normalize": 0}
    [actual], [expected] = run_on_device("yoso", inputs, attributes, "bfloat16"), run("yoso", inputs, attributes)
    hold(actual, expected, "bfloat16", 2e-5)


@pytest.mark.parametrize("data", HALVES)
def test_neither_neighbours_nor_the_order_of_threads_change_a_bit(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(BY_NAME["yoso"], {"num_heads": 2, "hash_bits": 9, "normalize": 2})
    inputs = make(LENGTHS, 2, 40, 24, 0)
    inputs["key"][3, 5] = np.nan
    outputs = run_on_device("yoso", inputs, case.attributes, data)
    parts = split(case, outputs, inputs)
    for b, part in enumerate(parts):
        assert same_bits(run_on_device("yoso", take(case, inputs, [b]), case.attributes, data), part)
        assert np.isnan(part[0]).all() == (b in (1, 2))
    for order in ("backward", "1"):
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        assert same_bits(run_on_device("yoso", inputs, case.attributes, data), outputs)
