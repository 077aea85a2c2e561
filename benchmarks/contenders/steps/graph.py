"""A graph of ONNX Runtime's nodes written step by step, and what the attentions of this package have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.contenders.nodes import Runner, node, own
from benchmarks.measure.cases import CHANNELS, HEAD_DIM, HEADS, checked

Array = np.ndarray[Any, Any]
Case = Mapping[str, int]
SEED = 7  # of the operators' random streams
MASKED = -1e30


class Graph:
    """Collects nodes and constants; every method returns the name of a value."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; the name of its first output, of which the others end in their numbers."""
        name = f"v{len(self.nodes)}"
        names = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.nodes.append(node(op_type, inputs, names, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def number(self, value: float) -> str:
        """A float32 scalar."""
        return self.constant(value, np.float32)

    def shaped(self, value: str, *shape: int) -> str:
        """Reshaped."""
        return self.op("Reshape", value, self.constant(shape))

    def turned(self, value: str, axes: int = 3) -> str:
        """The last two axes exchanged."""
        return self.op("Transpose", value, perm=[*range(axes - 2), axes - 1, axes - 2])

    def cut(self, value: str, begin: int, end: int, axis: int) -> str:
        """A slice of one axis."""
        return self.op("Slice", value, *(self.constant([number]) for number in (begin, end, axis)))

    def heads(self, name: str, tokens: int) -> str:
        """`[n, H * D]` to `[H, n, D]`."""
        return self.op("Transpose", self.shaped(name, tokens, HEADS, HEAD_DIM), perm=[1, 0, 2])

    def output(self, mixed: str, tokens: int) -> None:
        """`[H, n, D]` to the graph's output `[n, H * D]`."""
        flat = self.shaped(self.op("Transpose", mixed, perm=[1, 0, 2]), tokens, CHANNELS)
        self.nodes.append(node("Identity", [flat], ["output"]))

    def around(self, rows: str, tokens: int, width: int) -> str:
        """`[H, n, D]` in blocks of w rows, each between its neighbours, zeros at the ends: `[H, n / w, 3 w, D]`."""
        count = tokens // width
        blocks = self.shaped(rows, HEADS, count, width, HEAD_DIM)
        wide = self.op("Pad", blocks, self.constant([0, 1, 0, 0, 0, 1, 0, 0]))
        return self.op("Concat", *(self.cut(wide, first, first + count, 1) for first in range(3)), axis=2)

    def in_band(self, scores: str, tokens: int, width: int) -> str:
        """Scores `[H, n / w, w, 3 w]` of blocks with their surroundings, those beyond a distance of `width` masked."""
        apart = np.abs(np.arange(width)[:, None] - (np.arange(3 * width) - width))
        mask = np.tile(np.where(apart <= width, 0, MASKED), (tokens // width, 1, 1))
        mask[0, :, :width] = mask[-1, :, 2 * width :] = MASKED
        return self.op("Add", scores, self.constant(mask, np.float32))


def rows_of(tokens: int) -> dict[str, Array]:
    """Gaussian rows of one sequence."""
    rng = np.random.default_rng(tokens)
    return {name: rng.standard_normal((tokens, CHANNELS)).astype(np.float32) for name in ("query", "key", "value")}


def compared(
    key: str, rows: Mapping[str, Array], more: Mapping[str, Array], graph: Graph, threads: int, *,
    weights: Mapping[str, Array] | None = None, tolerance: float | None = None, **attributes: Any,
) -> dict[str, Runner]:  # fmt: skip
    """The runners of an operator of one sequence.

    Args:
        key: the operator's.
        rows: `query`, `key` and `value` `[n, H * D]`.
        more: the operator's other inputs that are given at each run, but for the sequence's bounds.
        graph: the same steps.
        threads: of each runner.
        weights: the operator's other inputs that are trained.
        tolerance: largest difference of the two, as a share of the largest element; None where they were compared.
        attributes: of the operator.

    Raises:
        SystemExit: they compute different things.
    """
    packed = {**rows, "cu_seqlens": np.array([0, len(rows["value"])], np.int32)}
    outputs = {"output": (rows["value"].shape, np.float32)}
    names = [*packed, *more, *(weights or {})]
    ours = own(key, names, ["output"], num_heads=HEADS, **attributes)
    exact = own("softmax", list(packed), ["output"], num_heads=HEADS)
    runners = {
        "own": Runner([ours], packed | dict(more), outputs, constants=weights, threads=threads),
        "nodes": Runner(graph.nodes, rows, outputs, constants=graph.constants, threads=threads),
        "softmax": Runner([exact], packed, outputs, threads=threads),
    }
    if tolerance is not None:
        mine, theirs = (runners[name].result()["output"] for name in ("own", "nodes"))
        checked(key, float(np.abs(mine - theirs).max() / np.abs(theirs).max()), tolerance)
    return runners
