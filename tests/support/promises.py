"""What every operator promises on every device, whatever it computes: functions of a device and a case."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cases import Case, defaults, make_inputs, output_shapes, same_bits, split, take
from devices import Device
from harness import NUMPY_TYPES, Array

from attenuator.ops.spec import SEED_HIGH, Operator


def inputs_and_outputs(device: Device, case: Case) -> tuple[dict[str, Array], list[Array]]:
    inputs = make_inputs(case, device.ragged)
    return inputs, device.run(case, inputs)


def refused(device: Device, operator: Operator, call: Callable[[], object]) -> str:
    """The message of the refusal, which must name the operator."""
    with pytest.raises(device.refusal) as caught:
        call()
    message = str(caught.value)
    assert f"{operator.name}: " in message
    return message.split(f"{operator.name}: ")[-1]


def ragged_batch_is_finite_and_empty_sequences_yield_nothing(device: Device, case: Case) -> None:
    inputs, outputs = inputs_and_outputs(device, case)
    assert [y.shape for y in outputs] == output_shapes(case, inputs)
    assert all(np.isfinite(y).all() for y in outputs)
    for length, parts in zip(device.ragged, split(case, outputs, inputs), strict=True):
        for item, part in zip(case.outputs, parts, strict=True):
            if length == 0 and item.name == "output":
                assert not part.any(), "an empty sequence's row must be zeros"


def equal_inputs_give_equal_bits(device: Device, case: Case) -> None:
    inputs, outputs = inputs_and_outputs(device, case)
    assert same_bits(outputs, device.run(case, inputs))
    assert same_bits(outputs, device.run(case, inputs, fresh=True))


def a_sequence_alone_gives_the_bits_it_gives_in_a_batch(device: Device, case: Case) -> None:
    inputs, outputs = inputs_and_outputs(device, case)
    together = split(case, outputs, inputs)
    for b in range(len(device.ragged)):
        alone = take(case, inputs, [b])
        assert same_bits(split(case, device.run(case, alone), alone)[0], together[b])


def permuting_sequences_permutes_outputs(device: Device, case: Case) -> None:
    inputs, outputs = inputs_and_outputs(device, case)
    order = np.random.default_rng(3).permutation(len(device.ragged))
    permuted = take(case, inputs, order)
    parts = split(case, device.run(case, permuted), permuted)
    original = split(case, outputs, inputs)
    assert all(same_bits(part, original[b]) for part, b in zip(parts, order, strict=True))


def smallest_batches(device: Device, case: Case) -> None:
    for lengths in ((), (0,), (0, 0, 0), (1,), (0, 1), (1, 0)):
        inputs = make_inputs(case, lengths)
        outputs = device.run(case, inputs)
        assert [y.shape for y in outputs] == output_shapes(case, inputs)
        assert all(np.isfinite(y).all() for y in outputs)


def non_finite_rows_stay_in_their_sequence(device: Device, case: Case) -> None:
    inputs, outputs = inputs_and_outputs(device, case)
    clean = split(case, outputs, inputs)
    longest, last = int(np.argmax(device.ragged)), int(np.flatnonzero(device.ragged)[-1])
    for victim, value in ((longest, np.nan), (longest, np.inf), (last, -np.inf), (last, 3e38)):
        begin, end = inputs["cu_seqlens"][victim], inputs["cu_seqlens"][victim + 1]
        hostile = {name: array.copy() for name, array in inputs.items()}
        for item in case.inputs:
            if item.axes[0] in ("T", "T or B") and item.dtype == "float":
                per_token = len(hostile[item.name]) == inputs["cu_seqlens"][-1]
                hostile[item.name][(begin + end) // 2 if per_token else victim] = value
        parts = split(case, device.run(case, hostile), inputs)
        assert all(same_bits(parts[b], clean[b]) for b in range(len(device.ragged)) if b != victim)


def attributes_left_out_have_their_defaults(device: Device, operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (9, 4))
    outputs = device.run(case, inputs, constant=False)
    assert [y.shape for y in outputs] == output_shapes(case, inputs)
    assert [y.dtype for y in outputs] == [NUMPY_TYPES[item.dtype] for item in case.outputs]
    assert all(np.isfinite(y).all() for y in outputs)
    spelled_out = case.attributes | {
        item.name: item.default for item in operator.attributes if item.default is not None
    }
    assert same_bits(outputs, device.run(Case(operator, spelled_out), inputs, constant=False))


def knobs_beyond_their_limits_are_refused_by_name(device: Device, operator: Operator) -> None:
    optional = {item.name for item in operator.inputs if item.optional}
    for knob in operator.knobs:
        case = replace(defaults(operator), optional=knob.name in optional)
        inputs = make_inputs(case, (3, 4, 5))
        step = 1 if knob.dtype == "int32" else 1e-3
        for good in (knob.low, knob.high, knob.exact):
            device.run(case, inputs | {knob.name: np.full(3, good, NUMPY_TYPES[knob.dtype])})
        beyond = [knob.low - step, knob.high + step] + ([np.nan, np.inf] if knob.dtype == "float" else [-(2**31)])
        for index, bad in enumerate(beyond):
            values = inputs[knob.name].copy()
            values[index % 3] = bad
            wrong = inputs | {knob.name: values}
            message = refused(device, operator, lambda case=case, wrong=wrong: device.run(case, wrong))
            assert message.startswith(f"{knob.name}[{index % 3}] is ")
            assert f"must be in [{knob.low:g}, {knob.high:g}]" in message
            if knob.dtype == "int32":
                assert str(int(bad)) in message


def seeds_out_of_range_are_refused(device: Device, operator: Operator) -> None:
    case = defaults(operator)
    inputs = make_inputs(case, (3, 4))
    for bad in (-1, SEED_HIGH + 1, -(2**63), 2**63 - 1):
        seeds = np.array([0, bad], np.int64)
        message = refused(device, operator, lambda seeds=seeds: device.run(case, inputs | {"seed": seeds}))
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


def wrong_offsets_are_refused(device: Device, case: Case) -> None:
    counts_rows = any(item.axes[0] == "T" for item in case.inputs)
    for values, expected in BAD_OFFSETS.values():
        if values[:1] == [0] and sorted(values) == values and not counts_rows:
            continue  # offsets of nothing end anywhere
        lengths = (4, 5) if len(values) < 4 else (4, 1, 4)
        inputs = make_inputs(case, lengths) | {"cu_seqlens": np.array(values, np.int32)}
        assert expected in refused(device, case.operator, lambda inputs=inputs: device.run(case, inputs))


def sizes_that_do_not_fit_are_refused_by_name(device: Device, case: Case) -> None:
    inputs = make_inputs(case, (4, 5))
    for item in case.inputs:
        for axis in range(len(item.axes)):
            name = item.axes[axis]
            if name in ("C", "max_tokens") and sum(name in other.axes for other in case.inputs) == 1:
                continue  # any width is one
            for change in (-1, 1):
                value = inputs[item.name]
                grown = np.concatenate([value, value.take([0], axis)], axis)
                wrong = grown if change > 0 else value.take(range(1, value.shape[axis]), axis)
                changed = inputs | {item.name: np.ascontiguousarray(wrong)}
                message = refused(
                    device, case.operator, lambda changed=changed: device.run(case, changed, constant=False)
                )
                assert any(tensor.name in message for tensor in case.inputs)


def query_rows_that_do_not_fit_are_refused_in_the_same_words(device: Device, operator: Operator) -> None:
    standard = defaults(operator)
    modes = [({}, 9, "the number of rows of key")]
    if any(item.name == "queries" for item in operator.attributes):
        modes.append(({"queries": "first"}, 2, "one row per sequence"))
    for mode, rows, because in modes:
        case = replace(standard, attributes=standard.attributes | mode)
        inputs = make_inputs(case, (4, 5))
        inputs["query"] = inputs["query"][:-1]
        message = refused(device, operator, lambda case=case, inputs=inputs: device.run(case, inputs))
        assert f"query has size {rows - 1} on axis 0, must be {rows} ({because}" in message


OF_A_CASE = (
    ragged_batch_is_finite_and_empty_sequences_yield_nothing,
    equal_inputs_give_equal_bits,
    a_sequence_alone_gives_the_bits_it_gives_in_a_batch,
    permuting_sequences_permutes_outputs,
    smallest_batches,
    non_finite_rows_stay_in_their_sequence,
    wrong_offsets_are_refused,
    sizes_that_do_not_fit_are_refused_by_name,
)


def of_operator(operator: Operator) -> list[Callable[[Device, Operator], None]]:
    """Those that there is something to try of."""
    input_names = {item.name for item in operator.inputs}
    promises = [attributes_left_out_have_their_defaults]
    if operator.knobs:
        promises.append(knobs_beyond_their_limits_are_refused_by_name)
    if "seed" in input_names:
        promises.append(seeds_out_of_range_are_refused)
    if {"query", "key"} <= input_names:
        promises.append(query_rows_that_do_not_fit_are_refused_in_the_same_words)
    return promises
