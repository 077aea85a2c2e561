"""The operator library in CPU sessions, whether it has kernels for CUDA as well or not.

`make test` runs this with the installed library, `make cuda` with the one that it has built; neither needs a GPU.
"""

import subprocess

import numpy as np
import pytest
from cases import CASES, Case, at_exact_values, defaults, make_inputs, output_shapes
from devices import CPU
from harness import Array, build_model, open_session
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from attenuator.ops import OPERATORS, library_path
from attenuator.ops.c_api import device

HAS_CUDA = device(str(library_path())) == "cuda"
STANDARD = [defaults(operator) for operator in OPERATORS]
every_operator = pytest.mark.parametrize("case", STANDARD, ids=str)


def test_library_needs_no_cuda_to_load_and_exports_our_names_alone() -> None:
    needed = subprocess.run(["ldd", library_path()], capture_output=True, text=True, check=True).stdout
    assert "libcu" not in needed
    assert "libnv" not in needed
    listed = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", library_path()]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert "RegisterCustomOps" in names
    assert all(name == "RegisterCustomOps" or name.startswith("attenuator_") for name in names)


@every_operator
def test_cpu_sessions_compute(case: Case) -> None:
    inputs = make_inputs(case, (3, 0, 5))
    outputs = CPU.run(case, inputs)
    assert [y.shape for y in outputs] == output_shapes(case, inputs)
    assert all(np.isfinite(y).all() for y in outputs)


def exact(case: Case) -> dict[str, Array]:
    return at_exact_values(case, make_inputs(case, (3, 0, 5)))


def has_data(case: Case) -> bool:
    """Whether its tensors may be half as wide: a host operator has none that may."""
    return any(item.data for item in case.inputs)


@pytest.mark.parametrize("case", [*filter(has_data, CASES)], ids=str)
def test_half_precision_on_the_cpu(case: Case) -> None:
    """With kernels for CUDA the graph is valid; ONNX Runtime then converts around the CPU's float kernel."""
    inputs = exact(case)
    model = build_model(case.operator, list(inputs), case.attributes, {}, data="float16")
    if not HAS_CUDA:
        with pytest.raises(InvalidGraph, match="float16"):
            open_session(model)
        return
    actual = open_session(model).run(None, inputs)
    for item in case.inputs:
        if item.data:
            inputs[item.name] = inputs[item.name].astype(np.float16).astype(np.float32)
    for y, expected in zip(actual, CPU.run(case, inputs), strict=True):
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("case", [*filter(has_data, STANDARD)], ids=str)
def test_bfloat16_on_the_cpu_is_refused(case: Case) -> None:
    inputs = exact(case)
    model = build_model(case.operator, list(inputs), case.attributes, {}, data="bfloat16")
    with pytest.raises(NoKernel if HAS_CUDA else InvalidGraph, match=case.operator.name):
        open_session(model)
