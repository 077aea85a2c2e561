"""Seeded random hostile inputs for every operator: an error exactly where the contract is broken, never a crash.

`scripts/sanitize.sh` runs them with more seeds under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import os

import numpy as np
import pytest
from cases import CASES, OF_SEQUENCES, Case, make_inputs, output_shapes, random_shape, same_bits, split, take
from fuzzing import HOSTILE, contract_broken, damage, poison
from harness import Array, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops.spec import Operator

TRIALS = 150
SEEDS = range(int(os.environ.get("FUZZ_SEEDS", "2")))
LENGTHS = (0, 0, 1, 1, 2, 3, 7, 8, 9, 16, 17, 31, 65, 100, 257)
LONG = (65, 80, 100, 130, 257)
every_operator = pytest.mark.parametrize("operator", OF_SEQUENCES, ids=lambda operator: operator.key)


def random_lengths(rng: np.random.Generator) -> list[int]:
    """Mostly short; half the second ones, whose knob is the roughest, long enough for MCA to sample."""
    lengths = [int(length) for length in rng.choice(LENGTHS, rng.integers(0, 6))]
    if len(lengths) > 1 and rng.integers(4):
        lengths[1] = int(rng.choice(LONG))
    return lengths


def random_case(operator: Operator, rng: np.random.Generator) -> tuple[Case, dict[str, Array]]:
    cases = [case for case in CASES if case.operator is operator]
    case = cases[rng.integers(len(cases))]
    return case, make_inputs(case, random_lengths(rng), int(rng.integers(2**31)))


@every_operator
@pytest.mark.parametrize("seed", SEEDS)
def test_any_shape_is_finite_and_independent_of_batch_and_threads(operator: Operator, seed: int) -> None:
    rng = np.random.default_rng([seed, 7, len(operator.name)])
    cases = [case for case in CASES if case.operator is operator]
    for _ in range(TRIALS // 5):
        case, sizes = random_shape(cases[rng.integers(len(cases))], rng)
        inputs = make_inputs(case, random_lengths(rng), int(rng.integers(2**31)), sizes)
        outputs = run(operator.name, inputs, case.attributes, 2, case.constants)
        assert [y.shape for y in outputs] == output_shapes(case, inputs)
        assert all(np.isfinite(y).all() for y in outputs)
        for b, parts in enumerate(split(case, outputs, inputs)):
            alone = take(case, inputs, [b])
            [apart] = split(case, run(operator.name, alone, case.attributes), alone)  # weights fed, not constant
            assert same_bits(apart, parts)


@every_operator
@pytest.mark.parametrize("seed", SEEDS)
def test_contract_is_checked_whatever_comes(operator: Operator, seed: int) -> None:
    rng = np.random.default_rng([seed, len(operator.name)])
    refusals = 0
    for _ in range(TRIALS):
        case, inputs = random_case(operator, rng)
        for _ in range(rng.integers(1, 3)):
            damage(case, inputs, rng)
        constants = case.constants if rng.integers(2) else ()
        if contract_broken(case, inputs):
            refusals += 1
            with pytest.raises(InvalidArgument, match=f"{operator.name}: ") as caught:
                run(operator.name, inputs, case.attributes, constants=constants)
            assert any(item.name in str(caught.value).split(f"{operator.name}: ")[-1] for item in case.inputs)
        else:
            outputs = run(operator.name, inputs, case.attributes, constants=constants)
            assert [y.shape for y in outputs] == output_shapes(case, inputs)
            assert all(np.isfinite(y).all() for y in outputs)
    assert 0.3 * TRIALS < refusals < TRIALS


@every_operator
@pytest.mark.parametrize("seed", SEEDS)
def test_hostile_rows_disturb_no_other_sequence(operator: Operator, seed: int) -> None:
    rng = np.random.default_rng([seed, 99, len(operator.name)])
    for _ in range(TRIALS // 3):
        case, inputs = random_case(operator, rng)
        clean = split(case, run(operator.name, inputs, case.attributes, constants=case.constants), inputs)
        with np.errstate(all="ignore"):
            victims = poison(case, inputs, rng)
        outputs = run(operator.name, inputs, case.attributes, 2, case.constants)
        assert [y.shape for y in outputs] == output_shapes(case, inputs)
        hostile = split(case, outputs, inputs)
        assert all(same_bits(hostile[b], clean[b]) for b in range(len(clean)) if b not in victims)


@pytest.mark.parametrize("case", [case for case in CASES if case.float_constants], ids=str)
def test_hostile_weights_give_outputs_of_the_right_shape(case: Case) -> None:
    rng, weights = np.random.default_rng(5), case.float_constants
    for value in HOSTILE:
        inputs = make_inputs(case, (5, 0, 33))
        some = {name: np.where(rng.random(inputs[name].shape) < 0.2, value, inputs[name]) for name in weights}
        every = {name: np.full_like(inputs[name], value) for name in weights}
        for hostile in (some, every):
            outputs = run(case.operator.name, inputs | hostile, case.attributes)
            assert [y.shape for y in outputs] == output_shapes(case, inputs)


def test_many_batches_are_sampled() -> None:
    """Otherwise the tests above would run exact attention only."""
    rng = np.random.default_rng(17)
    sampled = [case for case in CASES if case.attributes.get("estimator") == "sampled"]
    approximated = []
    for case in sampled * 10:
        if case.attributes["queries"] == "all":
            inputs = make_inputs(case, random_lengths(rng), int(rng.integers(2**31)))
            approximated.append((run(case.operator.name, inputs, case.attributes)[1] < 1.0).any())
    assert np.mean(approximated) > 0.3
