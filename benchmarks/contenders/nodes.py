"""One-node graphs of the operators and of what they are compared with, run through ONNX Runtime without copies."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from attenuator.ops import DOMAIN, OPERATORS
from attenuator.runtime import create

Array = np.ndarray[Any, Any]
BY_KEY = {operator.key: operator for operator in OPERATORS}
ELEMENTS = {
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
CACHE_LINE = 64  # bytes
OPSETS = {"": 23, "com.microsoft": 1, DOMAIN: 1}


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any) -> Any:
    """A node; its domain is one of OPSETS."""
    return helper.make_node(op_type, list(inputs), list(outputs), domain=domain, **attributes)


def own(key: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """A node of this project's domain."""
    return node(BY_KEY[key].name, inputs, outputs, DOMAIN, **attributes)


def is_yoso(one: Any) -> bool:
    """Whether a node is YosoAttention."""
    return bool((one.domain, one.op_type) == (DOMAIN, BY_KEY["yoso"].name))


def set_attribute(one: Any, name: str, value: int | str) -> None:
    """Gives a node an attribute, in place of the value that it may have."""
    kept = [attribute for attribute in one.attribute if attribute.name != name]
    del one.attribute[:]
    one.attribute.extend([*kept, helper.make_attribute(name, value)])


class Runner:
    """A graph with its inputs bound: calling it runs it, outputs stay in the same memory.

    Args:
        nodes: the graph.
        feeds: inputs by name.
        outputs: shape and dtype by name.
        constants: weights by name, initializers of the graph.
        threads: intra-op threads; they do not spin.
        arena: whether freed memory is kept for the next run.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        feeds: Mapping[str, Array],
        outputs: Mapping[str, tuple[Sequence[int], Any]],
        *,
        constants: Mapping[str, Array] | None = None,
        threads: int = 1,
        arena: bool = True,
    ) -> None:
        values = [
            helper.make_tensor_value_info(name, ELEMENTS[array.dtype.name], array.shape)
            for name, array in feeds.items()
        ]
        results = [
            helper.make_tensor_value_info(name, ELEMENTS[np.dtype(dtype).name], None)
            for name, (_, dtype) in outputs.items()
        ]
        weights = [
            numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in (constants or {}).items()
        ]
        graph = helper.make_graph(list(nodes), "benchmark", values, results, weights)
        opsets = [helper.make_opsetid(domain, opset) for domain, opset in OPSETS.items()]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            session = create(path, threads=threads, arena=arena)
        self._run, self._outputs = bound(session, feeds, outputs)

    def __call__(self) -> None:
        """One run."""
        self._run()

    def touch(self) -> None:
        """Makes the outputs resident, so that what a run adds to resident memory is temporary."""
        for value in self._outputs.values():
            value.numpy().fill(0)

    def result(self) -> dict[str, Array]:
        """Runs once more and copies the outputs."""
        self._run()
        return {name: value.numpy().copy() for name, value in self._outputs.items()}


def aligned(array: Array) -> Array:
    """A copy that starts at a cache line, as tensors between the nodes of a model do; NumPy's own memory need not."""
    memory = np.empty(array.nbytes + CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % CACHE_LINE
    copy: Array = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def bound(
    session: onnxruntime.InferenceSession,
    feeds: Mapping[str, Array],
    outputs: Mapping[str, tuple[Sequence[int], Any]],
) -> tuple[Callable[[], None], dict[str, Any]]:
    """A run of a session over fixed memory.

    Args:
        session: any.
        feeds: inputs by name.
        outputs: shape and dtype by name.

    Returns:
        What runs it once, and its output values by name.
    """
    binding = session.io_binding()
    ort_values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(aligned(feeds[name])) for name in feeds}
    for name, value in ort_values.items():
        binding.bind_ortvalue_input(name, value)
    taken = {
        name: onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype)
        for name, (shape, dtype) in outputs.items()
    }
    for name, value in taken.items():
        binding.bind_ortvalue_output(name, value)

    def run() -> None:
        session.run_with_iobinding(binding)  # RunOptions would add 24 us to every run

    return run, taken


def mha_node(inputs: Sequence[str], num_heads: int) -> Any:
    """`com.microsoft.MultiHeadAttention` to `output`."""
    return node("MultiHeadAttention", inputs, ["output"], "com.microsoft", num_heads=num_heads)


def attention23_node(inputs: Sequence[str], num_heads: int) -> Any:
    """ONNX `Attention` of opset 23 to `output`."""
    return node("Attention", inputs, ["output"], q_num_heads=num_heads, kv_num_heads=num_heads)


def multi_head_attention(query: Array, key: Array, value: Array, num_heads: int, **settings: Any) -> Runner:
    """`com.microsoft.MultiHeadAttention` on `[batch, n, num_heads * head_dim]`."""
    feeds = {"query": query, "key": key, "value": value}
    return Runner([mha_node(list(feeds), num_heads)], feeds, {"output": (query.shape, np.float32)}, **settings)


def masked_multi_head_attention(
    query: Array, key: Array, value: Array, lengths: Sequence[int], num_heads: int, **settings: Any
) -> Runner:
    """The same over a padded batch whose keys beyond each length are masked."""
    feeds = {"query": query, "key": key, "value": value, "lengths": np.asarray(lengths, np.int32)}
    names = ["query", "key", "value", "", "lengths"]
    return Runner([mha_node(names, num_heads)], feeds, {"output": (query.shape, np.float32)}, **settings)


def onnx_attention(query: Array, key: Array, value: Array, num_heads: int, **settings: Any) -> Runner:
    """ONNX `Attention` of opset 23 on `[batch, n, num_heads * head_dim]`."""
    feeds = {"query": query, "key": key, "value": value}
    return Runner([attention23_node(list(feeds), num_heads)], feeds, {"output": (query.shape, np.float32)}, **settings)


def masked_onnx_attention(
    query: Array, key: Array, value: Array, lengths: Sequence[int], num_heads: int, **settings: Any
) -> Runner:
    """The same with a boolean mask `[batch, 1, n, n]` over padded keys."""
    real_tokens = np.arange(key.shape[1])[None, :] < np.asarray(lengths)[:, None]
    mask = np.ascontiguousarray(
        np.broadcast_to(real_tokens[:, None, None, :], (len(lengths), 1, query.shape[1], key.shape[1]))
    )
    feeds = {"query": query, "key": key, "value": value, "mask": mask}
    return Runner([attention23_node(list(feeds), num_heads)], feeds, {"output": (query.shape, np.float32)}, **settings)


def softmax(query: Array, key: Array, value: Array, cu_seqlens: Array, num_heads: int, **settings: Any) -> Runner:
    """`SoftmaxAttention` on packed rows."""
    feeds = {"query": query, "key": key, "value": value, "cu_seqlens": cu_seqlens}
    return Runner(
        [own("softmax", list(feeds), ["output"], num_heads=num_heads)],
        feeds,
        {"output": (query.shape, np.float32)},
        **settings,
    )


def yoso(
    query: Array, key: Array, value: Array, cu_seqlens: Array, num_hashes: int, num_heads: int, hash_bits: int,
    seed: int = 0, conv_weight: Array | None = None, table_precision: str = "float32", **settings: Any,
) -> Runner:  # fmt: skip
    """`YosoAttention` on packed rows, one number of hashes for all sequences; with a kernel, YOSO-C."""
    count = len(cu_seqlens) - 1
    feeds = {
        "query": query,
        "key": key,
        "value": value,
        "cu_seqlens": cu_seqlens,
        "num_hashes": np.full(count, num_hashes, np.int32),
        "seed": np.full(count, seed, np.int64),
    }
    kernel = {} if conv_weight is None else {"conv_weight": conv_weight}
    return Runner(
        [
            own(
                "yoso",
                [*feeds, *kernel],
                ["output"],
                num_heads=num_heads,
                hash_bits=hash_bits,
                table_precision=table_precision,
            )
        ],
        feeds,
        {"output": (query.shape, np.float32)},
        constants=kernel,
        **settings,
    )
