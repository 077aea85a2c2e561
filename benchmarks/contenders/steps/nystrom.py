"""NystromAttention beside nodes that have the published code's steps."""

from typing import Any

import numpy as np

from benchmarks.contenders.nodes import Runner, node, own
from benchmarks.contenders.steps.graph import Case
from benchmarks.measure.cases import checked

CASES = (
    {"tokens": 128, "heads": 12, "head_dim": 64, "num_landmarks": 32, "taps": 0},
    {"tokens": 512, "heads": 12, "head_dim": 64, "num_landmarks": 64, "taps": 0},
    {"tokens": 512, "heads": 12, "head_dim": 64, "num_landmarks": 64, "taps": 65},
    {"tokens": 4096, "heads": 2, "head_dim": 64, "num_landmarks": 64, "taps": 33},
    {"tokens": 1024, "heads": 4, "head_dim": 32, "num_landmarks": 256, "taps": 0},
)
ITERATIONS = 6
TOLERANCE = 1e-3
Arrays = dict[str, np.ndarray[Any, Any]]


def inputs_of(tokens: int, heads: int, head_dim: int, landmarks: int, taps: int, spread: float = 1.0) -> Arrays:
    """Gaussian rows of one sequence, with the operator's other inputs."""
    rng = np.random.default_rng(0)
    rows = {
        name: rng.standard_normal((tokens, heads * head_dim)).astype(np.float32) for name in ("query", "key", "value")
    }
    rows["query"] *= np.float32(spread)
    rows["key"] *= np.float32(spread)
    more = {"cu_seqlens": np.array([0, tokens], np.int32), "num_landmarks": np.array([landmarks], np.int32)}
    weight = {"conv_weight": rng.standard_normal((heads, taps)).astype(np.float32)} if taps else {}
    return rows | more | weight


def steps(tokens: int, heads: int, head_dim: int, landmarks: int, taps: int) -> tuple[list[Any], Arrays]:
    """The method as nodes of ONNX Runtime, as the published code has its steps; nodes and their constants."""
    square = np.eye(landmarks, dtype=np.float32)
    constants: Arrays = {
        "by_head": np.array([tokens, heads, head_dim]),
        "segments": np.array([heads, landmarks, tokens // landmarks, head_dim]),
        "flat": np.array([tokens, heads * head_dim]),
        **{f"axis_{axis}": np.array([axis]) for axis in (0, 1, 2)},
        "root_scale": np.array(head_dim**-0.25, np.float32),
        "quarter": np.array(0.25, np.float32),
        **{f"{factor}_I": factor * square for factor in (7, 13, 15)},
    }
    nodes: list[Any] = []

    def op(kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        nodes.append(node(kind, inputs, [out or f"value_{len(nodes)}"], **attributes))
        return out or f"value_{len(nodes) - 1}"

    def turned(name: str) -> str:
        return op("Transpose", name, perm=[0, 2, 1])

    query, key, value = (
        op("Transpose", op("Reshape", x, "by_head"), perm=[1, 0, 2]) for x in ("query", "key", "value")
    )
    query, key = (op("Mul", side, "root_scale") for side in (query, key))
    of_queries, of_keys = (
        op("ReduceMean", op("Reshape", side, "segments"), "axis_2", keepdims=0) for side in (query, key)
    )
    core, third = (op("Softmax", op("MatMul", of_queries, turned(side)), axis=-1) for side in (of_keys, key))
    first = op("Softmax", op("MatMul", query, turned(of_keys)), axis=-1)
    largest = op("ReduceMax", op("ReduceSum", core, "axis_1"), "axis_2")
    inverse = op("Div", turned(core), largest)
    for _ in range(ITERATIONS):
        both = op("MatMul", core, inverse)
        inner = op("Sub", "15_I", op("MatMul", both, op("Sub", "7_I", both)))
        outer = op("Sub", "13_I", op("MatMul", both, inner))
        inverse = op("MatMul", op("Mul", "quarter", inverse), outer)
    mixed = op("MatMul", first, op("MatMul", inverse, op("MatMul", third, value)))
    if taps:
        reach = taps // 2
        kernel = op("Reshape", "conv_weight", "kernel")
        constants["kernel"] = np.array([heads, 1, taps, 1])
        around = op("Conv", op("Unsqueeze", value, "axis_0"), kernel, group=heads, pads=[reach, 0, reach, 0])
        mixed = op("Add", mixed, op("Squeeze", around, "axis_0"))
    op("Reshape", op("Transpose", mixed, perm=[1, 0, 2]), "flat", out="output")
    return nodes, constants


def contenders(case: Case, threads: int) -> dict[str, Runner]:
    """The operator, the nodes, and exact softmax attention without the convolution."""
    tokens, heads, head_dim, landmarks, taps = case.values()
    inputs = inputs_of(tokens, heads, head_dim, landmarks, taps)
    weight = {name: inputs.pop(name) for name in ("conv_weight",) if taps}
    rows = {name: inputs[name] for name in ("query", "key", "value")}
    output = {"output": ((tokens, heads * head_dim), np.float32)}
    nodes, constants = steps(tokens, heads, head_dim, landmarks, taps)
    ours = own("nystrom", [*inputs, *weight], ["output"], num_heads=heads)
    softmax = own("softmax", [*rows, "cu_seqlens"], ["output"], num_heads=heads)
    runners = {
        "own": Runner([ours], inputs, output, constants=weight, threads=threads),
        "nodes": Runner(nodes, rows, output, constants=constants | weight, threads=threads),
        "softmax": Runner([softmax], rows | {"cu_seqlens": inputs["cu_seqlens"]}, output, threads=threads),
    }
    mine, theirs = (runners[name].result()["output"] for name in ("own", "nodes"))
    checked("nystrom", float(np.abs(mine - theirs).max() / np.abs(theirs).max()), TOLERANCE)
    return runners
