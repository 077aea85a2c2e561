"""Every operator on the CPU keeps its promises, with all choices of attributes; what only ONNX Runtime's CPU has."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import promises
import pytest
from cases import CASES, OF_SEQUENCES, RAGGED, SEQUENCE_CASES, Case, defaults, make_inputs, run_case, same_bits, take
from devices import CPU, Device
from harness import Array, build_model, open_session
from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

from attenuator.ops import OPERATORS
from attenuator.ops.spec import LAST, Attribute, Operator

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_sequence_case = pytest.mark.parametrize("case", SEQUENCE_CASES, ids=str)
every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.key)


def inputs_and_outputs(case: Case) -> tuple[dict[str, Array], list[Array]]:
    return promises.inputs_and_outputs(CPU, case)


@every_sequence_case
@pytest.mark.parametrize("promise", promises.OF_A_CASE, ids=lambda promise: promise.__name__)
def test_promise_of_every_case(promise: Callable[[Device, Case], None], case: Case) -> None:
    promise(CPU, case)


@pytest.mark.parametrize(
    ("promise", "operator"),
    [
        pytest.param(promise, operator, id=f"{promise.__name__}-{operator.key}")
        for operator in OF_SEQUENCES
        for promise in promises.of_operator(operator)
    ],
)
def test_promise_of_every_operator(promise: Callable[[Device, Operator], None], operator: Operator) -> None:
    promise(CPU, operator)


@every_case
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_do_not_change_a_bit(case: Case, threads: int) -> None:
    inputs, outputs = inputs_and_outputs(case)
    assert same_bits(outputs, run_case(case, inputs, threads))


@every_operator
def test_threads_do_not_change_a_bit_of_long_sequences(operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (3, 600, 700, 1500))
    assert same_bits(run_case(case, inputs), run_case(case, inputs, threads=3))


@every_sequence_case
def test_concurrent_runs_of_one_session(case: Case) -> None:
    batches = [
        take(case, make_inputs(case, RAGGED), order) for order in ([0, 1, 2], [3, 4], [5, 6, 7], [7, 3], [2], [1])
    ]
    expected = [run_case(case, batch, threads=2) for batch in batches]
    with concurrent.futures.ThreadPoolExecutor(len(batches)) as pool:
        for _ in range(3):
            assert all(map(same_bits, pool.map(lambda batch: run_case(case, batch, threads=2), batches), expected))


@every_case
def test_every_element_of_the_outputs_is_written(case: Case) -> None:
    inputs, outputs = inputs_and_outputs(case)
    model = build_model(case.operator, list(inputs), case.attributes, {name: inputs[name] for name in case.constants})
    session = open_session(model)
    binding = session.io_binding()
    for name, value in inputs.items():
        if name not in case.constants:
            binding.bind_cpu_input(name, value)
    bound = []
    for item, y in zip(case.outputs, outputs, strict=True):
        garbage = np.frombuffer(b"\xff" * y.nbytes, y.dtype).reshape(y.shape)  # NaN, or -1
        bound.append(onnxruntime.OrtValue.ortvalue_from_numpy(garbage))
        binding.bind_ortvalue_output(item.name, bound[-1])
    session.run_with_iobinding(binding)
    assert same_bits([value.numpy() for value in bound], outputs)


@every_case
def test_shapes_are_inferred(case: Case) -> None:
    inputs = make_inputs(case, (4, 2))
    fed = {name: value for name, value in inputs.items() if name not in case.constants}
    model = build_model(case.operator, list(inputs), case.attributes, {name: inputs[name] for name in case.constants})
    for item, inferred in zip(case.outputs, open_session(model).get_outputs(), strict=True):
        if item.optional:
            continue  # its shape is not inferred
        assert len(inferred.shape) == len(item.axes)
        for rule, axis in zip(item.shape, inferred.shape, strict=True):
            if rule is None or rule[1] == LAST:
                assert isinstance(axis, str)
            elif rule[0] in fed:
                assert axis == f"{rule[0]}_{rule[1]}"
            else:
                assert axis == inputs[rule[0]].shape[rule[1]]


# As ops/README.md has it: 1e10 in every row, or 1e30 in values beside usual queries and keys. Values 256 times as large
# stand for 256 times as many keys as RAGGED's longest sequence has, about the 32,768 of that page.
@every_case
@pytest.mark.parametrize(("size", "value_size"), [(1e10, 1e10), (1.0, 2.56e32)])
def test_rows_as_large_as_the_contract_allows_give_finite_outputs(case: Case, size: float, value_size: float) -> None:
    inputs = make_inputs(case, RAGGED)
    for item in case.inputs:
        if item.axes[0] in ("T", "T or B") and item.dtype == "float":
            rows = inputs[item.name]
            equal = item.name in ("value", "hidden")
            inputs[item.name] = np.full_like(rows, value_size) if equal else np.clip(rows, -1, 1) * np.float32(size)
    assert all(np.isfinite(y).all() for y in run_case(case, inputs))


@every_operator
def test_wrong_ranks_are_refused_by_name(operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (4, 5))
    session = open_session(build_model(operator, list(inputs), case.attributes, {}, ranked=False))
    session.run(None, inputs)
    for item in case.inputs:
        for wrong in (inputs[item.name][None], inputs[item.name].reshape(-1)[0]):
            feeds = inputs | {item.name: np.asarray(wrong)}
            message = promises.refused(CPU, operator, lambda feeds=feeds: session.run(None, feeds))
            assert message.startswith(f"{item.name} has rank {wrong.ndim}, must have rank {len(item.axes)}")


def bad_values(attribute: Attribute) -> list[int | float | str]:
    if attribute.kind == "string":
        return ["", "nonsense", attribute.choices[0].upper()]
    if attribute.kind == "int":
        return [int(attribute.low) - 1, int(attribute.high) + 1, 2**62, -(2**62)]
    beyond = [float(attribute.low - 1), float(attribute.high * 1.001)] if attribute.bounded else []
    return [np.nan, np.inf, *beyond]


WRONG_TYPES: dict[str, tuple[Any, ...]] = {"int": (2, [2]), "float": (2.0, [2.0]), "string": ("2", ["2"])}


@every_operator
def test_an_attribute_of_the_wrong_type_is_refused_when_the_model_is_loaded(operator: Operator) -> None:
    case = defaults(operator)
    inputs = list(make_inputs(case, (4,)))
    for attribute in operator.attributes:
        for kind, (single, several) in WRONG_TYPES.items():
            for wrong, name in ((single, kind), (several, "list or tensor")):
                if name == attribute.kind:
                    continue
                sentence = (
                    f"{operator.name}: attribute {attribute.name} is of type {name}, must be of type {attribute.kind}"
                )
                with pytest.raises(RuntimeException, match=f"{sentence}$"):
                    open_session(build_model(operator, inputs, case.attributes | {attribute.name: wrong}, {}))


@every_operator
def test_attributes_out_of_range_are_refused_when_the_model_is_loaded(operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (4,))
    for attribute in operator.attributes:
        for bad in bad_values(attribute):
            model = build_model(operator, list(inputs), case.attributes | {attribute.name: bad}, {})
            with pytest.raises(RuntimeException, match=rf"{operator.name}: attribute {attribute.name} "):
                open_session(model)
        if attribute.default is None:
            others = {name: value for name, value in case.attributes.items() if name != attribute.name}
            sentence = rf"attribute {attribute.name} is missing, must be in \[{attribute.low}, {attribute.high}\]"
            with pytest.raises(RuntimeException, match=sentence):
                open_session(build_model(operator, list(inputs), others, {}))
