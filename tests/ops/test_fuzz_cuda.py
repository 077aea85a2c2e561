"""Seeded random hostile inputs for the CUDA kernels: on the test device, and on a GPU through PyTorch.

`make sanitize-cuda` runs those of the GPU under compute-sanitizer, where each tensor is an allocation of its own.
"""

import numpy as np
import pytest
from cases import CASES, Case, make_inputs, output_shapes, random_shape, same_bits, split, take
from devices import CUDA_OPERATORS, ON_HOST, TORCH, Device
from fuzzing import contract_broken, damage, poison

from attenuator.ops.spec import Operator

# On the test device every thread is a fiber.
TRIALS = {"cuda_on_host": 4, "torch": 40}
LENGTHS = {"cuda_on_host": (0, 1, 2, 7, 17), "torch": (0, 0, 1, 2, 7, 8, 17, 31, 65, 100, 257, 600)}
every_operator = pytest.mark.parametrize("operator", CUDA_OPERATORS, ids=lambda operator: operator.key)
every_device = pytest.mark.parametrize(
    "device",
    [*ON_HOST, *(pytest.param(device, marks=pytest.mark.cuda(onnxruntime=False)) for device in TORCH)],
    ids=str,
)


def draw(device: Device, operator: Operator, rng: np.random.Generator) -> tuple[Case, dict[str, np.ndarray]]:
    """A random case with random sizes and a batch of random lengths."""
    cases = [case for case in CASES if case.operator is operator]
    case, sizes = random_shape(cases[rng.integers(len(cases))], rng)
    lengths = [int(length) for length in rng.choice(LENGTHS[device.kind], rng.integers(0, 5))]
    return case, make_inputs(case, lengths, int(rng.integers(2**31)), sizes)


@every_operator
@every_device
def test_any_shape_is_finite_and_independent_of_the_batch(device: Device, operator: Operator) -> None:
    rng = np.random.default_rng([7, len(operator.name)])
    for _ in range(TRIALS[device.kind]):
        case, inputs = draw(device, operator, rng)
        outputs = device.run(case, inputs)
        assert [y.shape for y in outputs] == output_shapes(case, inputs)
        assert all(np.isfinite(y).all() for y in outputs)
        for b, parts in enumerate(split(case, outputs, inputs)):
            alone = take(case, inputs, [b])
            assert same_bits(split(case, device.run(case, alone), alone)[0], parts)


@every_operator
@every_device
def test_contract_is_checked_whatever_comes(device: Device, operator: Operator) -> None:
    rng = np.random.default_rng([8, len(operator.name)])
    refusals = 0
    for _ in range(4 * TRIALS[device.kind]):
        case, inputs = draw(device, operator, rng)
        damage(case, inputs, rng)
        if contract_broken(case, inputs, on_device=True):
            refusals += 1
            with pytest.raises(device.refusal, match=f"{operator.name}: "):
                device.run(case, inputs)
        else:
            assert [y.shape for y in device.run(case, inputs)] == output_shapes(case, inputs)
    assert refusals > 0


@every_operator
@every_device
def test_hostile_rows_disturb_no_other_sequence(device: Device, operator: Operator) -> None:
    rng = np.random.default_rng([9, len(operator.name)])
    for _ in range(TRIALS[device.kind]):
        case, inputs = draw(device, operator, rng)
        clean = split(case, device.run(case, inputs), inputs)
        with np.errstate(all="ignore"):
            victims = poison(case, inputs, rng)
        hostile = split(case, device.run(case, inputs), inputs)
        assert all(same_bits(hostile[b], clean[b]) for b in range(len(clean)) if b not in victims)
