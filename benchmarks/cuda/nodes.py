"""One-node graphs over a device's memory, and PyTorch's attention beside them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attenuator.runtime.device import PROVIDERS, check_providers
from attenuator.runtime.session import load_cuda_libraries, make_options
from benchmarks.contenders.nodes import OPSETS, node, own
from benchmarks.cuda.device import Place

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ELEMENTS = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
}
SDPA = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION}  # fmt: skip

Tensors = Mapping[str, torch.Tensor]
Outputs = Mapping[str, tuple[Sequence[int], torch.dtype]]


class DeviceRunner:
    """A graph whose data lies on the device and whose knobs lie in host memory: calling it queues one run.

    Args:
        place: where it runs.
        model: the graph, as the content of an ONNX file.
        data: inputs in the device's memory, by name.
        outputs: shape and dtype by name, in the device's memory.
        host: inputs in host memory, by name: knobs, seeds, cu_seqlens.
    """

    def __init__(
        self,
        place: Place,
        model: bytes,
        data: Tensors,
        outputs: Outputs,
        host: Mapping[str, Any] | None = None,
    ) -> None:
        self.place = place
        self._data = dict(data)  # bound by address alone: they must outlive the session
        self._session = open_session(place, model)
        self._outputs = {
            name: torch.zeros(tuple(shape), dtype=dtype, device=place.torch_device)
            for name, (shape, dtype) in outputs.items()
        }
        self._binding = self._session.io_binding()
        where = (place.device.kind, place.device.index)
        for name, tensor in self._data.items():
            self._binding.bind_input(name, *where, ELEMENTS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
        for name, array in (host or {}).items():
            self._binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, tensor in self._outputs.items():
            self._binding.bind_output(name, *where, ELEMENTS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
        self._options = onnxruntime.RunOptions()
        # The stream is waited for by whoever times; a wait in every run would leave the device idle in between.
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def __call__(self) -> None:
        """Queues one run."""
        self._session.run_with_iobinding(self._binding, self._options)

    def result(self) -> dict[str, Any]:
        """Runs once more and copies the outputs, as float32."""
        self()
        self.place.wait()
        return {name: tensor.float().cpu().numpy() for name, tensor in self._outputs.items()}


def graph_of(
    place: Place,
    nodes: Sequence[Any],
    data: Tensors,
    outputs: Outputs,
    *,
    host: Mapping[str, Any] | None = None,
    constants: Tensors | None = None,
) -> DeviceRunner:
    """A graph of these nodes over these inputs; see `DeviceRunner`.

    Args:
        place: where it runs.
        nodes: of the graph.
        data: as there.
        outputs: as there.
        host: as there.
        constants: weights by name, initializers of the graph.
    """
    inputs = {name: (ELEMENTS[tensor.dtype], tuple(tensor.shape)) for name, tensor in data.items()}
    for name, array in (host or {}).items():
        inputs[name] = (helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    graph = helper.make_graph(
        list(nodes),
        "benchmark",
        [helper.make_tensor_value_info(name, *item) for name, item in inputs.items()],
        [helper.make_tensor_value_info(name, ELEMENTS[dtype], None) for name, (_, dtype) in outputs.items()],
        [initializer(name, tensor) for name, tensor in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    return DeviceRunner(place, model.SerializeToString(), data, outputs, host)


def initializer(name: str, tensor: torch.Tensor) -> Any:
    """A tensor as a weight of the graph."""
    raw = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return helper.make_tensor(name, ELEMENTS[tensor.dtype], tuple(tensor.shape), raw, raw=True)


def open_session(place: Place, model: bytes) -> onnxruntime.InferenceSession:
    """A session on the place, on its stream, with the options of serving."""
    options = make_options(place.device, threads=1)
    providers: list[Any] = [PROVIDERS["cpu"]]
    if place.stream is not None:
        load_cuda_libraries()
        settings = {"device_id": place.device.index, "user_compute_stream": str(place.stream.cuda_stream)}
        providers.insert(0, (PROVIDERS["cuda"], settings | {"use_tf32": 0}))
    session = onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
    check_providers(session.get_providers(), place.device)
    return session


def yoso(place: Place, rows: Tensors, cu_seqlens: Any, num_hashes: int, num_heads: int, hash_bits: int) -> DeviceRunner:
    """`YosoAttention` on packed rows `[T, num_heads * head_dim]`, one number of hashes for all sequences."""
    count = len(cu_seqlens) - 1
    host = {
        "cu_seqlens": cu_seqlens,
        "num_hashes": np.full(count, num_hashes, np.int32),
        "seed": np.zeros(count, np.int64),
    }
    attention = own("yoso", [*rows, *host], ["output"], num_heads=num_heads, hash_bits=hash_bits)
    query = rows["query"]
    return graph_of(place, [attention], rows, {"output": (query.shape, query.dtype)}, host=host)


def softmax(place: Place, rows: Tensors, cu_seqlens: Any, num_heads: int) -> DeviceRunner:
    """`SoftmaxAttention` on packed rows."""
    attention = own("softmax", [*rows, "cu_seqlens"], ["output"], num_heads=num_heads)
    query = rows["query"]
    host = {"cu_seqlens": cu_seqlens}
    return graph_of(place, [attention], rows, {"output": (query.shape, query.dtype)}, host=host)


def ort_attention(place: Place, rows: Tensors, batch: int, num_heads: int, kind: str) -> DeviceRunner:
    """ONNX Runtime's own attention over equally long sequences: `mha`, or `attention23` of opset 23."""
    batched = {name: tensor.reshape(batch, -1, tensor.shape[1]) for name, tensor in rows.items()}
    if kind == "mha":
        attention = node("MultiHeadAttention", list(batched), ["output"], "com.microsoft", num_heads=num_heads)
    else:
        attention = node("Attention", list(batched), ["output"], q_num_heads=num_heads, kv_num_heads=num_heads)
    query = batched["query"]
    return graph_of(place, [attention], batched, {"output": (query.shape, query.dtype)})


class TorchAttention:
    """PyTorch's attention of one backend, on tensors laid out as it likes them: `[batch, heads, n, head_dim]`."""

    def __init__(self, place: Place, rows: Tensors, batch: int, num_heads: int, backend: SDPBackend) -> None:
        self.place = place
        self.backend = backend
        self._heads = [
            tensor.reshape(batch, -1, num_heads, tensor.shape[1] // num_heads).transpose(1, 2).contiguous()
            for tensor in (rows["query"], rows["key"], rows["value"])
        ]

    def __call__(self) -> torch.Tensor:
        """Queues one run."""
        with torch.inference_mode(), sdpa_kernel(self.backend):
            return scaled_dot_product_attention(*self._heads)

    def result(self) -> dict[str, Any]:
        """The output as float32 rows `[T, num_heads * head_dim]`."""
        with self.place.active():
            heads = self()
        self.place.wait()
        rows = heads.transpose(1, 2).reshape(-1, heads.shape[1] * heads.shape[3])
        return {"output": rows.float().cpu().numpy()}


def attempt(make: Callable[[], Any]) -> tuple[Any, dict[str, Any] | None, str]:
    """A baseline and its first result, or why it refuses these inputs."""
    try:
        runner = make()
        return runner, runner.result(), ""
    except (
        Exception
    ) as error:  # whatever ONNX Runtime or torch raises: a baseline that cannot run is reported, not fatal
        return None, None, str(error).strip().splitlines()[0][:200]
