"""McaAttention's exact values in float16 and bfloat16, products on tensor cores, on the test device."""

import numpy as np
import pytest
from cases import same_bits
from harness import AttributeValue, offsets
from mca_cases import mca_inputs
from mca_on_device import check, device, rounded


# num_heads, head_dim, channels: not multiples of 8, of a step of 32, of a tile of 128; several tiles
@pytest.mark.parametrize("shape", [(1, 9, 1), (1, 130, 7), (3, 56, 40), (2, 64, 200), (5, 27, 96)], ids=str)
@pytest.mark.parametrize("data", ["float16", "bfloat16"])
def test_exact_values_in_half_types_are_rounded_once(data: str, shape: tuple[int, int, int]) -> None:
    """A token alone attends to itself, so that its output is its value: a product with sums of float32."""
    heads, head_dim, channels = shape
    inputs = rounded(mca_inputs((1, 0, *(1,) * 140), heads, head_dim, channels), data)
    output, flops = device(inputs, {"num_heads": heads}, data)
    values = inputs["hidden"].astype(np.float64) @ inputs["value_weight"] + inputs["value_bias"]
    size = np.abs(inputs["hidden"]).astype(np.float64) @ np.abs(inputs["value_weight"]) + np.abs(inputs["value_bias"])
    step = 2.0**-11 if data == "float16" else 2.0**-8
    np.testing.assert_array_less(np.abs(output - values), step * np.abs(values) + 1e-6 * size)
    assert (flops == 1).all()


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
def test_exact_sequences_beside_others_in_half_types(data: str) -> None:
    """Runs of exact sequences are projected together: neither what lies between them nor their place changes a bit."""
    lengths = (3, 50, 2, 1, 60, 0, 131)
    choices: tuple[dict[str, AttributeValue], ...] = ({"estimator": "paper"}, {"queries": "first"})
    for choice in choices:
        attributes = choice | {"num_heads": 1}
        inputs = mca_inputs(lengths, 1, 24, 150, first="queries" in attributes)
        inputs["alpha"] = np.array([0, 1, 0, 0, 1, 1, 0], np.float32)
        check(inputs, attributes, data)
        output = device(inputs, attributes, data)[0]
        rows = inputs["cu_seqlens"][-2:]
        last = {name: inputs[name][rows[0] : rows[1]] for name in ("key", "hidden")}
        query = slice(len(lengths) - 1, None) if "queries" in attributes else slice(*rows)
        knobs = {name: inputs[name][-1:] for name in ("alpha", "seed")}
        alone = inputs | last | knobs | {"query": inputs["query"][query], "cu_seqlens": offsets(lengths[-1:])}
        assert same_bits(device(alone, attributes, data)[:1], [output[query]])
