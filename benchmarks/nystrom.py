"""NystromAttention beside the same steps as ONNX Runtime's nodes, and its error: the tables of ops/nystrom/README.md.

    python -m benchmarks.nystrom [--threads 1]

Times are of one sequence, contenders in turns, medians of CPU time. The error of a head is the largest difference of
an element from the float64 reference, as a share of the reference's largest element.
"""

import argparse
from typing import Any

import numpy as np

from attenuator.ops.nystrom.reference import nystrom_attention
from benchmarks.contenders.nodes import Runner, node, own
from benchmarks.measure.timing import interleave

# Tokens, heads, head_dim, landmarks, taps of the convolution.
SHAPES = (
    (128, 12, 64, 32, 0),
    (512, 12, 64, 64, 0),
    (512, 12, 64, 64, 65),
    (4096, 2, 64, 64, 33),
    (1024, 4, 32, 256, 0),
)
ITERATIONS = 6
# Standard deviations of queries and keys at head_dim 64; scores have their product over 8.
SPREADS = (0.5, 1.0, 2.0, 4.0)
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


def contenders(shape: tuple[int, int, int, int, int], threads: int) -> dict[str, Runner]:
    """The operator, the nodes, and exact softmax attention."""
    tokens, heads, head_dim, landmarks, taps = shape
    inputs = inputs_of(*shape)
    weight = {name: inputs.pop(name) for name in ("conv_weight",) if taps}
    rows = {name: inputs[name] for name in ("query", "key", "value")}
    output = {"output": ((tokens, heads * head_dim), np.float32)}
    nodes, constants = steps(*shape)
    names = [*inputs, *weight]
    softmax = own("softmax", [*rows, "cu_seqlens"], ["output"], num_heads=heads)
    return {
        "own": Runner(
            [own("nystrom", names, ["output"], num_heads=heads)], inputs, output, constants=weight, threads=threads
        ),
        "nodes": Runner(nodes, rows, output, constants=constants | weight, threads=threads),
        "softmax": Runner([softmax], rows | {"cu_seqlens": inputs["cu_seqlens"]}, output, threads=threads),
    }


def error(landmarks: int, iterations: int, spread: float) -> float:
    """Of four heads of 512 tokens and 64 channels."""
    inputs = inputs_of(512, 4, 64, landmarks, 0, spread)
    attributes = {"num_heads": 4, "iterations": iterations}
    node_of = own("nystrom", list(inputs), ["output"], **attributes)
    output = Runner([node_of], inputs, {"output": ((512, 256), np.float32)}).result()["output"]
    expected = nystrom_attention(
        inputs["query"],
        inputs["key"],
        inputs["value"],
        inputs["cu_seqlens"],
        inputs["num_landmarks"],
        num_heads=4,
        iterations=iterations,
    )
    return float(np.abs(output - expected).max() / np.abs(expected).max())


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    print("| tokens | heads | head_dim | landmarks | taps | own, ms | nodes, ms | own / nodes | softmax, ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shape in SHAPES:
        taken = interleave(contenders(shape, threads), threads=threads)
        mine, theirs, exact = (taken[name].median / 1000 for name in ("own", "nodes", "softmax"))
        print(f"| {' | '.join(map(str, shape))} | {mine:.2f} | {theirs:.2f} | {mine / theirs:.2f} | {exact:.2f} |")
    print("\n| landmarks | iterations |", *(f"spread {spread:g} |" for spread in SPREADS))
    print("|---" * (2 + len(SPREADS)) + "|")
    for landmarks in (16, 64, 256):
        for iterations in (6, 16):
            errors = (f"{error(landmarks, iterations, spread):.0e}" for spread in SPREADS)
            print(f"| {landmarks} | {iterations} | {' | '.join(errors)} |")


if __name__ == "__main__":
    main()
