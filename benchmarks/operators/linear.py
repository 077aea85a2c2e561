"""Linear layers beside the processor: how near are products in fp32 and int8 to a plain product of large matrices?

    python -m benchmarks.operators.linear

The limit is the best that PyTorch (oneDNN) reaches on square matrices of 2,048, in fp32, bf16 and int8, on the same
thread. Ours are ONNX Runtime's products as an exported graph has them, in fp32 and in int8, there the product alone and
with the rounding of rows and the scaling of sums around it. All run in turns on one thread; medians of CPU time.
Prints the table of linear.md: billions of multiplications and additions a second, and their share of the limit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import TensorProto, helper, numpy_helper

from attenuator.export.int8 import quantise
from attenuator.runtime.device import CPU
from attenuator.runtime.session import make_options, open_session
from benchmarks.measure.timing import interleave

ROWS = (64, 128, 512, 2048, 4096)
SHAPES = ((768, 768), (768, 3072), (3072, 768))
SQUARE = 2048
OPSET = 21

Run = Callable[[], Any]


def linear(channels: int, outputs: int) -> onnx.ModelProto:
    """A layer with bias, weights drawn."""
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((channels, outputs), np.float32) / np.float32(channels**0.5)
    constants = {"weight": weight, "bias": draw.standard_normal(outputs, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Identity", ["sum"], ["y"]),  # export has no layer that ends a graph
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", channels])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", outputs])],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def in_int8(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The layer as an int8 bundle has it."""
    model = ir.serde.deserialize_model(graph)
    quantise(model)
    return ir.serde.serialize_model(model)


def product_alone(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Of an int8 layer the product of integers, which takes rows that are rounded already."""
    [node] = [each for each in graph.graph.node if each.op_type == "MatMulInteger"]
    kept = [each for each in graph.graph.initializer if each.name in node.input]
    rows, outputs = (helper.make_tensor_value_info(name, kind, None) for name, kind in (
        (node.input[0], TensorProto.UINT8), (node.output[0], TensorProto.INT32)
    ))  # fmt: skip
    alone = helper.make_graph([node], "product", [rows], [outputs], kept)
    return helper.make_model(alone, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def run_of(graph: onnx.ModelProto, rows: np.ndarray) -> Run:
    """Runs a graph of one input on one thread."""
    session = open_session(graph.SerializeToString(), make_options(threads=1), CPU)
    feeds = {session.get_inputs()[0].name: rows}
    return lambda: session.run(None, feeds)


def plain(rows: int, channels: int, outputs: int) -> dict[str, Run]:
    """PyTorch's products of those sizes."""
    left, right = torch.randn(rows, channels), torch.randn(channels, outputs)
    halves = left.bfloat16(), right.bfloat16()
    bytes_ = left.mul(40).to(torch.int8), right.mul(40).to(torch.int8)
    return {
        "fp32": lambda: torch.mm(left, right),
        "bf16": lambda: torch.mm(*halves),
        "int8": lambda: torch._int_mm(*bytes_),
    }


def speeds(runs: dict[str, Run], operations: float, seconds: float) -> dict[str, float]:
    """Billions of operations a second, by name."""
    return {name: operations / (1e3 * timing.median) for name, timing in interleave(runs, seconds=seconds).items()}


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each line of the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    limit = speeds(plain(SQUARE, SQUARE, SQUARE), 2 * SQUARE**3, options.seconds)
    print(f"limit, {SQUARE} x {SQUARE} x {SQUARE}:", ", ".join(f"{name} {value:.0f}" for name, value in limit.items()))
    print("| T | layer | fp32 | int8, product alone | int8 | bf16 of PyTorch |")
    print("|---|---|---|---|---|---|")
    draw = np.random.default_rng(1)
    for channels, outputs in SHAPES:
        graph = linear(channels, outputs)
        rounded = in_int8(graph)
        for rows in ROWS:
            x = draw.standard_normal((rows, channels), np.float32)
            integers = draw.integers(1, 256, (rows, channels)).astype(np.uint8)
            runs = {
                "fp32": run_of(graph, x),
                "alone": run_of(product_alone(rounded), integers),
                "int8": run_of(rounded, x),
                "bf16": plain(rows, channels, outputs)["bf16"],
            }
            measured = speeds(runs, 2 * rows * channels * outputs, options.seconds)
            kinds = {"fp32": "fp32", "alone": "int8", "int8": "int8", "bf16": "bf16"}
            cells = [f"{measured[name]:.0f} ({measured[name] / limit[kind]:.2f})" for name, kind in kinds.items()]
            print("|", " | ".join([f"{rows:,}", f"{channels} to {outputs:,}", *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
