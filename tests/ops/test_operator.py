"""What every operator promises, whatever it computes: run over all operators and all their choices of attributes."""

import concurrent.futures
from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from cases import (
    CASES,
    RAGGED,
    Case,
    defaults,
    make_inputs,
    output_shapes,
    run_case,
    same_bits,
    split,
    take,
)
from harness import NUMPY_TYPES, Array, build_model, open_session, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, RuntimeException

from attenuator.ops import OPERATORS
from attenuator.ops.spec import SEED_HIGH, Attribute, Operator

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.key)


def inputs_and_outputs(case: Case) -> tuple[dict[str, Array], list[Array]]:
    inputs = make_inputs(case, RAGGED)
    return inputs, run_case(case, inputs)


@every_operator
def test_runs_with_nothing_but_the_required_attributes(operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (9, 4))
    outputs = run(operator.name, inputs, case.attributes)  # weights fed, not constant
    assert [y.shape for y in outputs] == output_shapes(case, inputs)
    assert [y.dtype for y in outputs] == [NUMPY_TYPES[item.dtype] for item in operator.outputs]
    assert all(np.isfinite(y).all() for y in outputs)
    spelled_out = case.attributes | {
        item.name: item.default for item in operator.attributes if item.default is not None
    }
    assert same_bits(outputs, run(operator.name, inputs, spelled_out))


@every_case
def test_ragged_batch_is_finite_and_empty_sequences_yield_nothing(case: Case) -> None:
    inputs, outputs = inputs_and_outputs(case)
    assert [y.shape for y in outputs] == output_shapes(case, inputs)
    assert all(np.isfinite(y).all() for y in outputs)
    for length, parts in zip(RAGGED, split(case, outputs, inputs["cu_seqlens"]), strict=True):
        for item, part in zip(case.operator.outputs, parts, strict=True):
            if length == 0 and item.name == "output":
                assert not part.any(), "an empty sequence's row must be zeros"


@every_case
def test_equal_inputs_give_equal_bits(case: Case) -> None:
    inputs, outputs = inputs_and_outputs(case)
    assert same_bits(outputs, run_case(case, inputs))
    model = build_model(case.operator, list(inputs), case.attributes, {name: inputs[name] for name in case.constants})
    feeds = {name: value for name, value in inputs.items() if name not in case.constants}
    assert same_bits(outputs, open_session(model).run(None, feeds))


@every_case
def test_a_sequence_alone_gives_the_bits_it_gives_in_a_batch(case: Case) -> None:
    inputs, outputs = inputs_and_outputs(case)
    together = split(case, outputs, inputs["cu_seqlens"])
    for b in range(len(RAGGED)):
        assert same_bits(run_case(case, take(case, inputs, [b])), together[b])


@every_case
def test_permuting_sequences_permutes_outputs(case: Case) -> None:
    inputs, outputs = inputs_and_outputs(case)
    order = np.random.default_rng(3).permutation(len(RAGGED))
    permuted = take(case, inputs, order)
    parts = split(case, run_case(case, permuted), permuted["cu_seqlens"])
    original = split(case, outputs, inputs["cu_seqlens"])
    assert all(same_bits(part, original[b]) for part, b in zip(parts, order, strict=True))


@every_case
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_do_not_change_a_bit(case: Case, threads: int) -> None:
    inputs, outputs = inputs_and_outputs(case)
    assert same_bits(outputs, run_case(case, inputs, threads))


@every_operator
def test_threads_do_not_change_a_bit_of_long_sequences(operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (3, 1500, 600))
    assert same_bits(run_case(case, inputs), run_case(case, inputs, threads=3))


@every_case
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
    for item, y in zip(case.operator.outputs, outputs, strict=True):
        bound.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.full_like(y, np.nan)))
        binding.bind_ortvalue_output(item.name, bound[-1])
    session.run_with_iobinding(binding)
    assert same_bits([value.numpy() for value in bound], outputs)


@every_case
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0, 0), (1,), (0, 1), (1, 0)], ids=str)
def test_smallest_batches(case: Case, lengths: tuple[int, ...]) -> None:
    inputs = make_inputs(case, lengths)
    outputs = run_case(case, inputs)
    assert [y.shape for y in outputs] == output_shapes(case, inputs)
    assert all(np.isfinite(y).all() for y in outputs)


@every_case
def test_shapes_are_inferred(case: Case) -> None:
    inputs = make_inputs(case, (4, 2))
    fed = {name: value for name, value in inputs.items() if name not in case.constants}
    model = build_model(case.operator, list(inputs), case.attributes, {name: inputs[name] for name in case.constants})
    for item, inferred in zip(case.operator.outputs, open_session(model).get_outputs(), strict=True):
        assert len(inferred.shape) == len(item.axes)
        for rule, axis in zip(item.shape, inferred.shape, strict=True):
            if rule is None:
                assert isinstance(axis, str)
            elif rule[0] in fed:
                assert axis == f"{rule[0]}_{rule[1]}"
            else:
                assert axis == inputs[rule[0]].shape[rule[1]]


@every_case
def test_non_finite_rows_stay_in_their_sequence(case: Case) -> None:
    inputs, outputs = inputs_and_outputs(case)
    clean = split(case, outputs, inputs["cu_seqlens"])
    for victim, value in ((3, np.nan), (3, np.inf), (6, -np.inf), (2, 3e38)):
        begin, end = inputs["cu_seqlens"][victim], inputs["cu_seqlens"][victim + 1]
        hostile = {name: array.copy() for name, array in inputs.items()}
        for item in case.inputs:
            if item.axes[0] in ("T", "T or B") and item.dtype == "float":
                per_token = len(hostile[item.name]) == inputs["cu_seqlens"][-1]
                hostile[item.name][(begin + end) // 2 if per_token else victim] = value
        parts = split(case, run_case(case, hostile), inputs["cu_seqlens"])
        assert all(same_bits(parts[b], clean[b]) for b in range(len(RAGGED)) if b != victim)


def refused(operator: Operator, call: Callable[[], object]) -> str:
    """The message of the refusal, which must name the operator."""
    with pytest.raises(InvalidArgument) as caught:
        call()
    message = str(caught.value)
    assert f"{operator.name}: " in message
    return message.split(f"{operator.name}: ")[-1]


@every_operator
def test_knobs_beyond_their_limits_are_refused_by_name(operator: Operator) -> None:
    case = defaults(operator)
    for knob in operator.knobs:
        inputs = make_inputs(case, (3, 4, 5))
        step = 1 if knob.dtype == "int32" else 1e-3
        for good in (knob.low, knob.high, knob.exact):
            run_case(case, inputs | {knob.name: np.full(3, good, NUMPY_TYPES[knob.dtype])})
        beyond = [knob.low - step, knob.high + step] + ([np.nan, np.inf] if knob.dtype == "float" else [-(2**31)])
        for index, bad in enumerate(beyond):
            values = inputs[knob.name].copy()
            values[index % 3] = bad
            wrong = inputs | {knob.name: values}
            message = refused(operator, lambda wrong=wrong: run_case(case, wrong))
            assert message.startswith(f"{knob.name}[{index % 3}] is ")
            assert f"must be in [{knob.low:g}, {knob.high:g}]" in message
            if knob.dtype == "int32":
                assert str(int(bad)) in message


@pytest.mark.parametrize("case", [case for case in map(defaults, OPERATORS) if case.seeded], ids=str)
def test_seeds_out_of_range_are_refused(case: Case) -> None:
    inputs = make_inputs(case, (3, 4))
    for bad in (-1, SEED_HIGH + 1, -(2**63), 2**63 - 1):
        seeds = np.array([0, bad], np.int64)
        message = refused(case.operator, lambda seeds=seeds: run_case(case, inputs | {"seed": seeds}))
        assert message.startswith(f"seed[1] is {bad}, must be in [0, {SEED_HIGH}]")


BAD_OFFSETS = {
    "does not start at 0": ([1, 4, 9], "cu_seqlens[0] is 1"),
    "starts below 0": ([-1, 4, 9], "cu_seqlens[0] is -1"),
    "falls": ([0, 5, 4, 9], "cu_seqlens[2] is 4"),
    "goes below 0": ([0, -5, 9], "cu_seqlens[1] is -5"),
    "rises beyond the rows and falls": ([0, 2**31 - 1, 9], "cu_seqlens[2] is 9"),
    "ends too early": ([0, 4, 8], "cu_seqlens[2] is 8"),
    "ends too late": ([0, 4, 10], "cu_seqlens[2] is 10"),
    "is empty": ([], "cu_seqlens is empty"),
}


@every_operator
@pytest.mark.parametrize("what", BAD_OFFSETS)
def test_wrong_offsets_are_refused(operator: Operator, what: str) -> None:
    values, expected = BAD_OFFSETS[what]
    for case in (case for case in CASES if case.operator is operator):
        lengths = (4, 5) if len(values) < 4 else (4, 1, 4)
        inputs = make_inputs(case, lengths) | {"cu_seqlens": np.array(values, np.int32)}
        assert expected in refused(operator, lambda case=case, inputs=inputs: run_case(case, inputs))


@every_operator
def test_sizes_that_do_not_fit_are_refused_by_name(operator: Operator) -> None:
    for case in (case for case in CASES if case.operator is operator):
        inputs = make_inputs(case, (4, 5))
        for item in case.inputs:
            for axis in range(len(item.axes)):
                if (operator.key, item.name, axis) == ("pool", "hidden", 1):
                    continue  # any width is one
                for change in (-1, 1):
                    value = inputs[item.name]
                    grown = np.concatenate([value, value.take([0], axis)], axis)
                    wrong = grown if change > 0 else value.take(range(1, value.shape[axis]), axis)
                    changed = inputs | {item.name: np.ascontiguousarray(wrong)}
                    call = lambda changed=changed, case=case: run(operator.name, changed, case.attributes)  # noqa: E731
                    assert any(tensor.name in refused(operator, call) for tensor in case.inputs)


@every_operator
def test_wrong_ranks_are_refused_by_name(operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (4, 5))
    session = open_session(build_model(operator, list(inputs), case.attributes, {}, ranked=False))
    session.run(None, inputs)
    for item in case.inputs:
        for wrong in (inputs[item.name][None], inputs[item.name].reshape(-1)[0]):
            feeds = inputs | {item.name: np.asarray(wrong)}
            message = refused(operator, lambda feeds=feeds: session.run(None, feeds))
            assert message.startswith(f"{item.name} has {wrong.ndim} axes, must have {len(item.axes)}")


def bad_values(attribute: Attribute) -> list[int | float | str]:
    if attribute.kind == "int":
        return [attribute.low - 1, attribute.high + 1, 2**62, -(2**62)]
    return ["", "nonsense", attribute.choices[0].upper()] if attribute.kind == "string" else [np.nan, np.inf]


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
            with pytest.raises(RuntimeException, match=rf"attribute {attribute.name} is missing"):
                open_session(build_model(operator, list(inputs), others, {}))
