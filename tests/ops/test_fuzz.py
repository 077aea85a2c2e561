"""Seeded random hostile inputs for every operator: an error exactly where the contract is broken, never a crash.

Meant to be run under AddressSanitizer and UndefinedBehaviorSanitizer as well (`scripts/sanitize.sh`).
"""

import numpy as np
import pytest
from cases import CASES, Case, axis_of, make_inputs, output_shapes, random_shape, same_bits, split, take
from harness import Array, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.ops import OPERATORS
from attenuator.ops.spec import SEED_HIGH, Operator

TRIALS = 150
HOSTILE = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-40, 0.0, -0.0, 1.0, 1e20, -1e20], np.float32)
LENGTHS = (0, 0, 1, 1, 2, 3, 7, 8, 9, 16, 17, 31, 65, 100, 257)
LONG = (65, 80, 100, 130, 257)
every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.key)


def contract_broken(case: Case, inputs: dict[str, Array]) -> bool:
    """Whether these inputs must be refused: the contract said once more, independently of the operators."""
    cu_seqlens = inputs["cu_seqlens"].astype(np.int64)
    if len(cu_seqlens) == 0 or cu_seqlens[0] != 0 or (np.diff(cu_seqlens) < 0).any():
        return True
    sequences, tokens = len(cu_seqlens) - 1, int(cu_seqlens[-1])
    sizes: dict[str, set[int]] = {"T": {tokens}, "B": {sequences}}
    for item in case.inputs:
        if item.name == "cu_seqlens":
            continue
        shape = inputs[item.name].shape
        sizes.setdefault(axis_of(case, item) or item.axes[0], set()).add(shape[0])
        for name, size in zip(item.axes[1:], shape[1:], strict=True):
            sizes.setdefault(name, set()).add(size)
    if any(len(found) > 1 for found in sizes.values()):
        return True
    heads = int(case.attributes.get("num_heads", 1))
    for name in ("num_heads * head_dim", "num_heads * value_dim"):
        for columns in sizes.get(name, set()):
            if columns % heads or not 8 <= columns // heads <= 256:
                return True
    if sizes.get("num_heads", {heads}) != {heads} or any(size % 2 == 0 for size in sizes.get("c", {1})):
        return True
    for knob in case.operator.knobs:
        values = inputs[knob.name]
        if not ((values >= knob.low) & (values <= knob.high)).all():
            return True
    return case.seeded and not ((inputs["seed"] >= 0) & (inputs["seed"] <= SEED_HIGH)).all()


def damage(case: Case, inputs: dict[str, Array], rng: np.random.Generator) -> None:
    """Changes one input so that it may break the contract."""
    item = case.inputs[rng.integers(len(case.inputs))]
    value = inputs[item.name]
    kind = rng.integers(4)
    if kind == 0 and len(value):  # a row too few
        inputs[item.name] = value[:-1]
    elif kind == 1:  # a row too many
        inputs[item.name] = np.concatenate([value, np.ones((1, *value.shape[1:]), value.dtype)])
    elif kind == 2 and value.ndim == 2 and value.shape[1] > 1:  # other columns
        inputs[item.name] = np.ascontiguousarray(value[:, : rng.integers(1, value.shape[1])])
    elif value.dtype != np.float32 and value.size:  # values from everywhere
        limits = np.iinfo(value.dtype)
        extremes = [limits.min, limits.max, -1, 0, 1, SEED_HIGH + 1, 2**31 - 1]
        allowed = np.array([extreme for extreme in extremes if limits.min <= extreme <= limits.max], value.dtype)
        inputs[item.name] = value.copy()
        inputs[item.name][rng.integers(value.size)] = rng.choice(allowed)
    elif item.name in {knob.name for knob in case.operator.knobs} and value.size:
        inputs[item.name] = value.copy()
        inputs[item.name][rng.integers(value.size)] = rng.choice(HOSTILE)


def poison(case: Case, inputs: dict[str, Array], rng: np.random.Generator) -> set[int]:
    """Puts hostile numbers into rows of some sequences; returns which."""
    cu_seqlens = inputs["cu_seqlens"]
    victims = {b for b in range(len(cu_seqlens) - 1) if rng.integers(3) == 0}
    for item in case.inputs:
        axis = axis_of(case, item)
        if item.dtype != "float" or axis is None or len(item.axes) < 2:
            continue
        for b in victims:
            rows = inputs[item.name][b : b + 1] if axis == "B" else inputs[item.name][cu_seqlens[b] : cu_seqlens[b + 1]]
            kind = rng.integers(4)
            if kind == 0 and rows.size:  # one number
                rows.flat[rng.integers(rows.size)] = rng.choice(HOSTILE)
            elif kind == 1:  # many
                rows[...] = np.where(rng.random(rows.shape) < 0.3, rng.choice(HOSTILE, rows.shape), rows)
            elif kind == 2:  # everything the same: zero vectors, huge ones, denormal ones
                rows[...] = rng.choice(HOSTILE)
            else:
                rows *= rng.choice(np.array([1e-42, 1e-20, 1e18], np.float32))
    return victims


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
@pytest.mark.parametrize("seed", range(4))
def test_any_shape_is_finite_and_independent_of_batch_and_threads(operator: Operator, seed: int) -> None:
    rng = np.random.default_rng([seed, 7, len(operator.name)])
    cases = [case for case in CASES if case.operator is operator]
    for _ in range(TRIALS // 5):
        case, sizes = random_shape(cases[rng.integers(len(cases))], rng)
        inputs = make_inputs(case, random_lengths(rng), int(rng.integers(2**31)), sizes)
        outputs = run(operator.name, inputs, case.attributes, 2, case.constants)
        assert [y.shape for y in outputs] == output_shapes(case, inputs)
        assert all(np.isfinite(y).all() for y in outputs)
        for b, parts in enumerate(split(case, outputs, inputs["cu_seqlens"])):
            alone = run(operator.name, take(case, inputs, [b]), case.attributes)  # weights fed, not constant
            assert same_bits(alone, parts)


@every_operator
@pytest.mark.parametrize("seed", range(4))
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
@pytest.mark.parametrize("seed", range(4))
def test_hostile_rows_disturb_no_other_sequence(operator: Operator, seed: int) -> None:
    rng = np.random.default_rng([seed, 99, len(operator.name)])
    for _ in range(TRIALS // 3):
        case, inputs = random_case(operator, rng)
        cu_seqlens = inputs["cu_seqlens"]
        clean = split(case, run(operator.name, inputs, case.attributes, constants=case.constants), cu_seqlens)
        with np.errstate(all="ignore"):
            victims = poison(case, inputs, rng)
        outputs = run(operator.name, inputs, case.attributes, 2, case.constants)
        assert [y.shape for y in outputs] == output_shapes(case, inputs)
        hostile = split(case, outputs, cu_seqlens)
        assert all(same_bits(hostile[b], clean[b]) for b in range(len(clean)) if b not in victims)


@pytest.mark.parametrize("case", [case for case in CASES if case.constants], ids=str)
def test_hostile_weights_give_outputs_of_the_right_shape(case: Case) -> None:
    rng = np.random.default_rng(5)
    for value in HOSTILE:
        inputs = make_inputs(case, (5, 0, 33))
        some = {name: np.where(rng.random(inputs[name].shape) < 0.2, value, inputs[name]) for name in case.constants}
        every = {name: np.full_like(inputs[name], value) for name in case.constants}
        for weights in (some, every):
            outputs = run(case.operator.name, inputs | weights, case.attributes)
            assert [y.shape for y in outputs] == output_shapes(case, inputs)


def test_many_batches_are_sampled() -> None:
    """Else what is tested above would be exact attention under MCA's name."""
    rng = np.random.default_rng(17)
    sampled = [case for case in CASES if case.attributes.get("estimator") == "sampled"]
    found = []
    for case in sampled * 10:
        if case.attributes["queries"] == "all":
            inputs = make_inputs(case, random_lengths(rng), int(rng.integers(2**31)))
            found.append((run(case.operator.name, inputs, case.attributes)[1] < 1.0).any())
    assert np.mean(found) > 0.3
