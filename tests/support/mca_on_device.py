"""McaAttention's CUDA kernels on the test device, compared with the NumPy reference and the CPU operator."""

import numpy as np
from harness import Array, AttributeValue, run
from harness_cuda import DATA_TYPES, run_on_device
from mca_cases import clear_heads

from attenuator.ops.mca import reference

SHARED = ("cu_seqlens", "alpha", "seed", "positions")  # of the same type on every device
TOLERANCE = {"float": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def rounded(inputs: dict[str, Array], data: str) -> dict[str, Array]:
    """The inputs as the device sees them, in float32."""
    return {
        name: value if name in SHARED or value.dtype.kind != "f" else value.astype(DATA_TYPES[data]).astype(np.float32)
        for name, value in inputs.items()
    }


def device(inputs: dict[str, Array], attributes: dict[str, AttributeValue], data: str = "float") -> list[Array]:
    return run_on_device("mca", inputs, attributes, data)


def approximates(attributes: dict[str, AttributeValue], data: str) -> bool:
    """Whether the device approximates at all: in half types exact values cost less, unless they are the paper's."""
    return data == "float" or attributes.get("estimator") == "paper"


def check(inputs: dict[str, Array], attributes: dict[str, AttributeValue], data: str = "float") -> Array:
    """Compares every clear head with the reference, in float with the CPU operator too; returns value_flops."""
    inputs = rounded(inputs, data)
    output, flops = device(inputs, attributes, data)
    if not approximates(attributes, data) and attributes.get("queries") != "first":
        inputs = inputs | {"alpha": np.zeros_like(inputs["alpha"])}
    expected, expected_flops = reference.mca_attention(**inputs, **attributes)  # type: ignore[arg-type]
    clear = clear_heads(inputs, attributes)
    assert clear.mean() > 0.7
    batch = np.arange(len(inputs["alpha"]))
    rows = batch if attributes.get("queries") == "first" else np.repeat(batch, np.diff(inputs["cu_seqlens"]))
    whole = clear.all(axis=1)
    on_cpu, cpu_flops = run("mca", inputs, attributes) if data == "float" else (expected, expected_flops)
    for other, other_flops in ((expected, expected_flops), (on_cpu, cpu_flops)):
        error = np.abs(output - other).reshape(len(rows), int(attributes["num_heads"]), -1).max(axis=2, initial=0)
        assert error[clear[rows]].max(initial=0) < TOLERANCE[data] * np.abs(expected).max(initial=1)
        np.testing.assert_allclose(flops[whole], other_flops[whole], rtol=1e-6)
    return flops
