"""Runs one operator through ONNX Runtime: one-node models made from the specs, symbolic axes, cached sessions.

Beside it: the instruction set in use, and processes of their own, since a process chooses that once.
"""

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from attenuator.ops import DOMAIN, OPERATORS, library_path, register
from attenuator.ops.spec import Operator

Array = np.ndarray
AttributeValue = int | float | str

HERE = Path(__file__).parent
TESTS = HERE.parent / "ops"

ONNX_TYPES = {
    "float": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
NUMPY_TYPES = {"float": np.float32, "int32": np.int32, "int64": np.int64, "uint8": np.uint8}
BY_NAME = {operator.name: operator for operator in OPERATORS} | {operator.key: operator for operator in OPERATORS}


def offsets(lengths: Sequence[int]) -> Array:
    """`cu_seqlens` of sequences of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)


def build_model(
    operator: Operator,
    input_names: Sequence[str],
    attributes: Mapping[str, AttributeValue],
    constants: Mapping[str, Array],
    ranked: bool = True,
    data: str = "float",
) -> bytes:
    """A model of one node, beside those that convert data tensors from and to float where it has others.

    Args:
        operator: which.
        input_names: the inputs that are fed or constant; the others are omitted.
        attributes: as the node has them; nothing is added.
        constants: inputs that become initializers.
        ranked: False leaves the ranks of the inputs open, so that ONNX Runtime does not check them itself.
        data: element type of the node's data tensors: float, float16 or bfloat16.

    Returns:
        The serialised model. Every axis is symbolic, with a name of its own: `query_0`, `query_1`.
    """
    names = [item.name if item.name in input_names else "" for item in operator.inputs]
    while names and not names[-1]:
        names.pop()
    results = operator.outputs_with(attributes)
    converted = {item.name for item in (*operator.inputs, *results) if item.data and data != "float"}
    inner = {name: f"{name}_{data}" if name in converted else name for name in [*names, *(o.name for o in results)]}
    nodes = [
        *(helper.make_node("Cast", [name], [inner[name]], to=ONNX_TYPES[data]) for name in names if name in converted),
        helper.make_node(
            operator.name,
            [inner[name] for name in names],
            [inner[item.name] for item in results],
            domain=DOMAIN,
            **dict(attributes),
        ),
        *(
            helper.make_node("Cast", [inner[item.name]], [item.name], to=TensorProto.FLOAT)
            for item in results
            if item.name in converted
        ),
    ]
    feeds = [
        helper.make_tensor_value_info(
            item.name,
            ONNX_TYPES[item.dtype],
            [f"{item.name}_{axis}" for axis in range(len(item.axes))] if ranked else None,
        )
        for item in operator.inputs
        if item.name in input_names and item.name not in constants
    ]
    outputs = [helper.make_tensor_value_info(item.name, ONNX_TYPES[item.dtype], None) for item in results]
    initializers = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "one_node", feeds, outputs, initializers)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, operator.version)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def open_session(model: bytes, threads: int = 1) -> onnxruntime.InferenceSession:
    """A session with the operators registered; its threads do not spin."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # failing runs are what many tests are about
    options.enable_cpu_mem_arena = False  # one allocation a tensor, so that a sanitizer sees a write beyond it
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    register(options)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


_open_cached = functools.lru_cache(maxsize=256)(open_session)


def session(
    op_name: str,
    inputs: Mapping[str, Array],
    attributes: Mapping[str, AttributeValue],
    threads: int = 1,
    constants: Sequence[str] = (),
) -> onnxruntime.InferenceSession:
    """The cached session that `run` uses."""
    model = build_model(BY_NAME[op_name], list(inputs), attributes, {name: inputs[name] for name in constants})
    return _open_cached(model, threads)


def run(
    op_name: str,
    inputs: Mapping[str, Array],
    attributes: Mapping[str, AttributeValue],
    threads: int = 1,
    constants: Sequence[str] = (),
) -> list[Array]:
    """Runs an operator once.

    Args:
        op_name: `YosoAttention`, or its key `yoso`.
        inputs: by the names of the spec, with exactly the dtypes of the spec; optional ones may be missing.
        attributes: of the node.
        threads: intra-op threads of the session.
        constants: names of the inputs that are initializers of the graph (weights), the others are fed.

    Returns:
        The outputs that the node has by its attributes, in the spec's order.
    """
    opened = session(op_name, inputs, attributes, threads, constants)
    feeds = {name: np.ascontiguousarray(value) for name, value in inputs.items() if name not in constants}
    return list(opened.run(None, feeds))


def isa(op_name: str = "YosoAttention") -> str:
    """The best instruction set that an operator uses in this process; YosoAttention asks the system for AMX."""
    function = ctypes.CDLL(str(library_path())).attenuator_isa
    function.restype = ctypes.c_char_p
    return str(function(op_name.encode()).decode())


def in_process(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python script in a process that can import what this one can, and the modules of both test folders.

    Args:
        script: the program.
        arguments: its `sys.argv[1:]`.
        environment: variables beside those of this process.

    Returns:
        Its status and what it printed, whether it succeeded or not.
    """
    search = os.pathsep.join([str(HERE), str(TESTS), *(path for path in sys.path if path)])
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], env={**os.environ, "PYTHONPATH": search, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
