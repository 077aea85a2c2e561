"""The CUDA kernels of every operator: they keep the promises of the CPU's, and compute what the CPU computes.

They run on the test device `cuda_on_host` always, and on a GPU where there is one (marker `cuda`).
"""

import itertools
from collections.abc import Callable

import numpy as np
import promises
import pytest
from _pytest.mark.structures import ParameterSet
from cases import CASES, Case, at_exact_values, defaults, make_inputs, same_bits
from devices import CPU, CPU_OPERATORS, CUDA, CUDA_OPERATORS, HOST_OPERATORS, ON_HOST, Device
from harness import Array
from harness_cuda import DATA_TYPES, device_name, run_on_device

from attenuator.errors import EngineError
from attenuator.ops.spec import Operator

# Of the largest magnitude of an output: sums in another order, and the rounding of the output itself.
TOLERANCE = {"float": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
ORDERS = ("forward", "backward", "1")


def one_choice_each(operator: Operator) -> list[Case]:
    """The cases that differ from the defaults in at most one attribute."""
    standard = {item.name: item.default for item in operator.attributes}

    def changed(case: Case) -> int:
        values = [value != standard[name] for name, value in case.attributes.items() if standard[name] is not None]
        return sum(values) + case.optional

    return [case for case in CASES if case.operator is operator and changed(case) <= 1]


def on_host(cases: list[Case]) -> list[ParameterSet]:
    """Each case in one element type, all types in turn."""
    devices = itertools.cycle(ON_HOST)
    return [pytest.param(device, case, id=f"{device}-{case}") for device, case in zip(devices, cases, strict=False)]


def on_cuda(cases: list[Case]) -> list[ParameterSet]:
    """Each case in every element type."""
    return [
        pytest.param(device, case, id=f"{device}-{case}", marks=pytest.mark.cuda) for device in CUDA for case in cases
    ]


ALL = [case for case in CASES if case.operator in CUDA_OPERATORS]
FEW = [case for operator in CUDA_OPERATORS for case in one_choice_each(operator)]
STANDARD = [defaults(operator) for operator in CUDA_OPERATORS]
every_case = pytest.mark.parametrize(("device", "case"), [*on_host(STANDARD), *on_cuda(ALL)])


def test_the_test_device_is_what_it_says() -> None:
    assert device_name() == "cuda_on_host"


@every_case
@pytest.mark.parametrize("promise", promises.OF_A_CASE, ids=lambda promise: promise.__name__)
def test_promise_of_every_case(promise: Callable[[Device, Case], None], device: Device, case: Case) -> None:
    promise(device, case)


@pytest.mark.parametrize(
    ("promise", "device", "case"),
    [
        pytest.param(promise, device, case, id=f"{promise.__name__}-{param.id}", marks=param.marks)
        for param in [*on_host(STANDARD), *on_cuda(STANDARD)]
        for device, case in [param.values]
        for promise in promises.of_operator(case.operator)
    ],
)
def test_promise_of_every_operator(promise: Callable[[Device, Operator], None], device: Device, case: Case) -> None:
    promise(device, case.operator)


def exact_and_rounded(device: Device, case: Case) -> dict[str, Array]:
    """Inputs at the exact values of the knobs, data rounded to what the device has."""
    inputs = at_exact_values(case, make_inputs(case, device.ragged, seed=11))
    for item in case.inputs:
        if item.data:
            inputs[item.name] = inputs[item.name].astype(DATA_TYPES[device.data]).astype(np.float32)
    return inputs


@pytest.mark.parametrize(("device", "case"), [*on_host(FEW), *on_cuda(ALL)])
def test_exact_values_are_those_of_the_cpu(device: Device, case: Case) -> None:
    inputs = exact_and_rounded(device, case)
    attributes = {name: value for name, value in case.attributes.items() if name != "int8_products"}
    in_float = Case(case.operator, attributes, case.optional)  # as this device multiplies in any case
    for actual, expected in zip(device.run(case, inputs), CPU.run(in_float, inputs), strict=True):
        allowed = TOLERANCE[device.data] * max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=allowed)


@pytest.mark.parametrize(("device", "case"), on_host(FEW))
def test_no_result_depends_on_the_order_of_a_blocks_threads(
    device: Device, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_inputs(case, device.ragged)
    runs = []
    for order in ORDERS:
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        runs.append(device.run(case, inputs))
    assert all(same_bits(outputs, runs[0]) for outputs in runs[1:])


@pytest.mark.parametrize("operator", CUDA_OPERATORS, ids=lambda operator: operator.key)
def test_memory_that_is_not_aligned_is_refused_by_name(operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (3,))
    first = operator.inputs[0].name
    run_on_device(operator.name, inputs, case.attributes, offset=16)
    with pytest.raises(EngineError, match=f"{operator.name}: {first} starts 8 bytes past a multiple of 16 bytes"):
        run_on_device(operator.name, inputs, case.attributes, offset=8)


# Shared memory of a block: sm_80, and sm_90 and sm_100; the default is that of sm_86, sm_89 and sm_120.
@pytest.mark.parametrize("shared_bytes", [163 * 1024, 227 * 1024])
@pytest.mark.parametrize(("device", "case"), on_host(STANDARD))
def test_no_launch_asks_for_more_shared_memory_than_a_block_has(
    device: Device, case: Case, shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = exact_and_rounded(device, case)
    outputs = device.run(case, inputs)
    monkeypatch.setenv("ATTENUATOR_ON_HOST_SHARED", str(shared_bytes))
    for actual, expected in zip(device.run(case, inputs), outputs, strict=True):
        np.testing.assert_allclose(
            actual, expected, rtol=0, atol=TOLERANCE[device.data] * max(1, np.abs(expected).max())
        )


@pytest.mark.parametrize("data", DATA_TYPES)
@pytest.mark.parametrize("operator", CPU_OPERATORS, ids=lambda operator: operator.key)
def test_an_operator_on_cpu_only_says_so(operator: Operator, data: str) -> None:
    case = defaults(operator)
    sentence = f"{operator.name}: runs on the CPU only: it has no CUDA kernel, so load the model on the CPU"
    with pytest.raises(EngineError, match=f"^{sentence}$"):
        run_on_device(operator.name, make_inputs(case, (3, 0)), case.attributes, data)


@pytest.mark.parametrize("operator", HOST_OPERATORS, ids=lambda operator: operator.key)
def test_a_host_operator_computes_on_the_host_whatever_the_device(operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (3, 0, 60))
    assert same_bits(run_on_device(operator.name, inputs, case.attributes), CPU.run(case, inputs))
