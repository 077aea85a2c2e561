"""Inputs for any operator, made from its spec: what the conformance and fuzz tests share."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from harness import NUMPY_TYPES, Array, AttributeValue, offsets, run

from attenuator.ops import OPERATORS
from attenuator.ops.spec import LAST, SEED_HIGH, Knob, Operator, Tensor

HEADS = 3
# Nothing here is a multiple of a vector's width; C is wide enough for MCA to sample columns.
SIZES = {
    "num_heads * head_dim": HEADS * 20,
    "num_heads * value_dim": HEADS * 12,
    "num_heads": HEADS,
    "C": 150,
    "N": 70,
    "c": 5,
    "R": 23,
    "2 * reach + 1": 31,
    "num_heads * k": HEADS * 7,
    "max_tokens": 1600,
    "num_heads * r": HEADS * 7,
    "head_dim": 20,
    "2": 2,
}
HEAD_DIMS = (8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 100, 127, 128, 129, 200, 255, 256)
REQUIRED: dict[str, AttributeValue] = {"num_heads": HEADS, "hash_bits": 5}
# A long sequence stands where `knob_values` has the roughest value, and one where it has the exact one.
RAGGED = (17, 130, 1, 33, 0, 5, 0, 70)
WINDOWS = (0, 6)


@dataclass(frozen=True)
class Case:
    """One operator with one choice of attributes, with or without its optional inputs."""

    operator: Operator
    attributes: dict[str, AttributeValue] = field(hash=False)
    optional: bool = False

    def __str__(self) -> str:
        values = [str(value) if isinstance(value, str) else f"{name}{value}" for name, value in self.attributes.items()]
        return "-".join([self.operator.key, *values, *(["optional"] if self.optional else [])])

    @property
    def constants(self) -> tuple[str, ...]:
        """Weights: inputs without a packed or batch axis."""
        return tuple(item.name for item in self.inputs if axis_of(self, item) is None)

    @property
    def float_constants(self) -> tuple[str, ...]:
        """Those of the constants that may hold any number."""
        return tuple(item.name for item in self.inputs if item.name in self.constants and item.dtype == "float")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(item for item in self.operator.inputs if self.optional or not item.optional)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.operator.outputs_with(self.attributes)

    @property
    def seeded(self) -> bool:
        return any(item.name == "seed" for item in self.operator.inputs)


def axis_of(case: Case, tensor: Tensor) -> str | None:
    """Whether the first axis counts tokens (`T`), kept ones (`K`), sequences (`B`), offsets (`B + 1`), or nothing."""
    axis = tensor.axes[0]
    if axis == "T or B":
        return "B" if case.attributes.get("queries", "all") == "first" else "T"
    return axis if axis in ("T", "K", "B", "B + 1") else None


def defaults(operator: Operator) -> Case:
    """Attributes without a default, and no others."""
    return Case(operator, {item.name: REQUIRED[item.name] for item in operator.attributes if item.default is None})


def variants(operator: Operator) -> Iterator[Case]:
    """Every combination of choices, switches and a window, without what is optional; then a few with it."""
    options: list[list[tuple[str, AttributeValue]]] = []
    optional_outputs = {item.name for item in operator.outputs if item.optional}
    for item in operator.attributes:
        if item.name in optional_outputs or item.name in ("table_precision", "int8_products"):  # comes below
            continue
        if item.kind == "string":
            options.append([(item.name, choice) for choice in item.choices])
        elif (item.low, item.high) in ((0, 1), (0, 2)):  # a third value comes below
            options.append([(item.name, float(value) if item.kind == "float" else value) for value in (0, 1)])
        elif item.name == "window" or (item.name == "trained_window" and item.low == 0):
            options.append([(item.name, window) for window in WINDOWS])
        elif item.name == "chunk_size":  # so small that the long sequence of RAGGED has many
            options.append([(item.name, 8)])
        elif item.name == "block_size":  # of sequences in RAGGED only the longest has blocks that it does not see
            options.append([(item.name, 4)])
    required = defaults(operator).attributes
    for chosen in itertools.product(*options):
        yield Case(operator, required | dict(chosen))
    standard = required | dict(choices[0] for choices in options)
    if any(item.optional for item in operator.inputs):
        yield Case(operator, standard | banded(operator, 0), optional=True)
    for item in operator.attributes:
        if item.name == "norm_lift":
            yield Case(operator, standard | {item.name: 25.0, "normalize": 2})
        if item.name == "table_precision":
            yield Case(operator, standard | {item.name: item.choices[-1]})
        if item.name == "int8_products":
            yield Case(operator, standard | {item.name: 1})
        if item.name in optional_outputs:
            for choice in item.choices[1:]:
                yield Case(operator, standard | {item.name: choice})
                yield Case(operator, standard | banded(operator, 1) | {item.name: choice}, optional=True)


def banded(operator: Operator, global_tokens: int) -> dict[str, AttributeValue]:
    """A window, of operators that have one."""
    attributes: dict[str, AttributeValue] = {"window": WINDOWS[1], "global_tokens": global_tokens}
    known = {item.name for item in operator.attributes}
    return {name: value for name, value in attributes.items() if name in known}


CASES = [case for operator in OPERATORS for case in variants(operator)]
# Operators that are told where sequences begin; the others compute row by row (tests/ops/test_quantized_rows.py).
OF_SEQUENCES = [operator for operator in OPERATORS if any(item.name == "cu_seqlens" for item in operator.inputs)]
SEQUENCE_CASES = [case for case in CASES if case.operator in OF_SEQUENCES]


def knob_values(knob: Knob, count: int) -> Array:
    """The exact value, the roughest of the default and the upper limit, the limits and values between, in turn."""
    middle = [knob.low + (knob.high - knob.low) * share for share in (0.01, 0.1, 0.5)]
    if knob.name == "window":  # beyond the one that was trained it changes nothing
        return np.resize(np.array([knob.exact, 5, 1, knob.high, 30, 64]), count).astype(NUMPY_TYPES[knob.dtype])
    rough, fine = (knob.high, knob.default) if knob.accuracy == "falls" else (knob.default, knob.high)
    values = [knob.exact, rough, knob.low, fine, *middle]
    return np.resize(np.array(values), count).astype(NUMPY_TYPES[knob.dtype])


def make_inputs(
    case: Case, lengths: Sequence[int], seed: int = 0, sizes: Mapping[str, int] = SIZES
) -> dict[str, Array]:
    """Valid inputs: Gaussian rows, knobs over their whole range, seeds small and large."""
    rng = np.random.default_rng(seed)
    knobs = {knob.name: knob for knob in case.operator.knobs}
    rows = {"T": sum(lengths), "B": len(lengths)}
    inputs: dict[str, Array] = {}
    for item in case.inputs:
        if item.name == "cu_seqlens":
            inputs[item.name] = offsets(lengths)
        elif item.name == "kept_cu_seqlens":
            # A mean takes a row more than the first one.
            least = [min(length, 2 if case.optional else 1) for length in lengths]
            kept = [
                length and rng.choice((low, length, rng.integers(low, length + 1)))
                for low, length in zip(least, lengths, strict=True)
            ]
            inputs[item.name] = offsets(kept)
        elif item.name == "unmerged_cu_seqlens":
            more = [length and length + rng.choice((0, 1, 30)) for length in lengths]
            inputs[item.name] = offsets(more)
        elif item.name in knobs:
            inputs[item.name] = knob_values(knobs[item.name], len(lengths))
        elif item.name == "seed":
            inputs[item.name] = np.resize(np.array([7, 0, SEED_HIGH, 12345678901]), len(lengths)).astype(np.int64)
        elif item.name == "positions":
            inputs[item.name] = positions(lengths, rng)
        else:
            axis = axis_of(case, item)
            first = rows[axis] if axis else sizes[item.axes[0]]
            shape = (first, *(sizes[name] for name in item.axes[1:]))
            if item.name == "buckets":
                inputs[item.name] = rng.integers(0, sizes["R"], shape)
            elif item.name == "sums":
                inputs[item.name] = rng.integers(-20, 21, shape, np.int32)
            else:
                inputs[item.name] = rng.standard_normal(shape).astype(np.float32)
    return inputs


def positions(lengths: Sequence[int], rng: np.random.Generator) -> Array:
    """Ascending in each sequence, with gaps, as where tokens were left out."""
    steps = [rng.integers(1, 4, length).cumsum() for length in lengths]
    return np.concatenate([np.arange(0), *steps]).astype(np.int64)


def at_exact_values(case: Case, inputs: dict[str, Array]) -> dict[str, Array]:
    """The inputs with every knob that is there at its exact value; lengths that follow from one say so too."""
    knobs = {
        knob.name: np.full_like(inputs[knob.name], knob.exact) for knob in case.operator.knobs if knob.name in inputs
    }
    lengths = {"kept_cu_seqlens": inputs["cu_seqlens"]} if "kept_cu_seqlens" in inputs else {}
    return inputs | knobs | lengths


def random_shape(case: Case, rng: np.random.Generator) -> tuple[Case, dict[str, int]]:
    """The case with other attributes of kind `int` within their limits, and sizes that go with them."""
    heads = int(rng.integers(1, 6))
    head_dim, value_dim = (int(dim) for dim in rng.choice(HEAD_DIMS, 2))
    chosen: dict[str, AttributeValue] = {"num_heads": heads}
    for item in case.operator.attributes:
        if item.name in ("hash_bits", "layer"):
            chosen[item.name] = int(rng.integers(item.low, item.high + 1))
        elif item.name in ("chunk_size", "num_buckets"):
            chosen[item.name] = int(rng.choice([item.low, 3, 8, item.default, item.high]))
        elif item.name == "trained_window" or (item.name == "window" and case.attributes.get("window")):
            chosen[item.name] = int(rng.choice([1, 2, 31, 64, 100, item.high]))
        elif item.name == "block_size":
            chosen[item.name] = int(rng.choice([1, 2, 3, 7, 16]))
    sizes = {
        "num_heads * head_dim": heads * head_dim,
        "num_heads * value_dim": heads * value_dim,
        "num_heads": heads,
        "C": int(rng.choice([1, 31, 150, 300, 500])),
        "c": int(rng.choice([1, 3, 9, 33])),
        "R": int(rng.choice([1, 2, 23, 100])),
        "2 * reach + 1": int(rng.choice([1, 3, 63, 255])),
        "num_heads * k": heads * int(rng.choice([1, 5, 16, 65])),
        "max_tokens": int(rng.choice([257, 300])),
        "num_heads * r": heads * int(rng.choice([1, 5, 16, 65])),
        "head_dim": head_dim,
        "2": 2,
    }
    attributes = {name: chosen.get(name, value) for name, value in case.attributes.items()}
    attributes |= {name: chosen[name] for name in ("layer", "chunk_size", "num_buckets") if name in chosen}
    return replace(case, attributes=attributes), sizes


def take(case: Case, inputs: dict[str, Array], order: Sequence[int]) -> dict[str, Array]:
    """The inputs of these sequences, in this order."""
    cu_seqlens = inputs["cu_seqlens"]
    rows = [np.arange(cu_seqlens[b], cu_seqlens[b + 1]) for b in order]
    tokens = np.concatenate([np.arange(0), *rows]).astype(np.int64)
    chosen = {}
    for item in case.inputs:
        axis = axis_of(case, item)
        index = {"T": tokens, "B": np.array(order, np.int64)}.get(axis or "")
        if axis == "B + 1":
            chosen[item.name] = offsets([int(length) for length in np.diff(inputs[item.name])[list(order)]])
        else:
            chosen[item.name] = inputs[item.name] if index is None else inputs[item.name][index]
    return chosen


def split(case: Case, outputs: Sequence[Array], inputs: dict[str, Array]) -> list[list[Array]]:
    """For each sequence its part of every output: rows counted from its first one, lengths in place of offsets."""
    cu_seqlens, kept = inputs["cu_seqlens"], inputs.get("kept_cu_seqlens")

    def part(y: Array, item: Tensor, b: int) -> Array:
        axis = axis_of(case, item)
        if axis == "B":
            return y[b : b + 1]
        if axis == "B + 1":
            return np.diff(y[b : b + 2])
        bounds = kept if axis == "K" else cu_seqlens
        rows = y[bounds[b] : bounds[b + 1]]
        return rows - cu_seqlens[b] if item.name == "places" else rows

    return [
        [part(y, item, b) for y, item in zip(outputs, case.outputs, strict=True)] for b in range(len(cu_seqlens) - 1)
    ]


def run_case(case: Case, inputs: dict[str, Array], threads: int = 1) -> list[Array]:
    """Runs it with the weights as initializers, as in a model."""
    return run(case.operator.name, inputs, case.attributes, threads, case.constants)


def output_shapes(case: Case, inputs: dict[str, Array]) -> list[tuple[int, ...]]:
    """The shapes that the spec promises."""
    return [output_shape(item, inputs) for item in case.outputs]


def output_shape(output: Tensor, inputs: Mapping[str, Array]) -> tuple[int, ...]:
    """The shape that the spec promises of one output; of wrong offsets, one that an array may have."""

    def size(rule: tuple[str, int] | None) -> int:
        if rule is None:
            return max(len(inputs["cu_seqlens"]) - 1, 0)
        name, axis = rule
        if axis == LAST:
            rows = len(next(iter(inputs.values())))
            return int(np.clip(inputs[name][-1], 0, rows)) if len(inputs[name]) else 0
        return int(inputs[name].shape[axis])

    return tuple(map(size, output.shape))


def same_bits(first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Equal shapes and equal bits, NaN included."""
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
