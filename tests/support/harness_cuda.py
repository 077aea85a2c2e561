"""Runs the CUDA kernels: on the test device `cuda_on_host` through the C ABI, on a GPU through ONNX Runtime."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
from cases import Case, output_shape
from harness import BY_NAME, NUMPY_TYPES, Array, AttributeValue, build_model

from attenuator.ops import register
from attenuator.ops.c_api import Call, Memory, device, run_cuda
from attenuator.ops.spec import Operator
from attenuator.runtime.session import load_cuda_libraries

ROOT = Path(__file__).parents[2]
DATA_TYPES = {"float": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ALIGNMENT = 256


def library_path() -> str:
    """The library of the test device: `ATTENUATOR_CUDA_LIBRARY`, or what `make cuda-on-host` builds."""
    path = os.environ.get("ATTENUATOR_CUDA_LIBRARY", str(ROOT / "build/cuda_on_host/ops/libattenuator_ops.so"))
    assert Path(path).is_file(), f"{path} does not exist: run `make cuda-on-host`"
    return path


def _aligned(size: int) -> Array:
    """So many bytes of garbage, aligned as a device's memory is."""
    memory = np.full(size + ALIGNMENT, 0xCD, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def run_on_device(
    op_name: str,
    inputs: Mapping[str, Array],
    attributes: Mapping[str, AttributeValue],
    data: str = "float",
    offset: int = 0,
    execute: Callable[[Call, Callable[[int], int]], None] | None = None,
) -> list[Array]:
    """Runs an operator's CUDA kernels once.

    Args:
        op_name: `YosoAttention`, or its key `yoso`.
        inputs: by the names of the spec, float32 where the spec says float; optional ones may be missing.
        attributes: of the node.
        data: element type of the data tensors: float, float16 or bfloat16. Inputs are rounded to it.
        offset: bytes by which the inputs are not aligned to 256.
        execute: runs the call, with memory from its second argument; by default once, through the C ABI.

    Returns:
        The outputs in the spec's order, data tensors as float32.
    """
    operator = BY_NAME[op_name]
    alive: list[object] = []

    def place(array: Array, dtype: str) -> tuple[Memory, Array]:
        """A copy in aligned memory."""
        copy = _aligned(array.nbytes + offset)[offset:].view(array.dtype).reshape(array.shape)
        copy[...] = array
        alive.append(copy)
        return Memory(copy.ctypes.data, dtype, array.shape), copy

    memories: list[Memory | None] = []
    for item in operator.inputs:
        if item.name not in inputs:
            memories.append(None)
            continue
        kind = DATA_TYPES[data] if item.data else np.dtype(NUMPY_TYPES[item.dtype])
        with np.errstate(over="ignore", invalid="ignore"):  # what float16 cannot hold becomes infinite
            array = np.ascontiguousarray(inputs[item.name]).astype(kind)
        memories.append(place(array, data if item.data else item.dtype)[0])
    results, outputs = [], []
    present = operator.outputs_with(attributes)
    for item in present:
        kind = DATA_TYPES[data] if item.data else np.dtype(NUMPY_TYPES[item.dtype])
        # Not a number, nor a row, wherever the kernel does not write.
        nothing = np.nan if kind.kind in "fV" else np.array(-1).astype(kind)
        unwritten = np.full(output_shape(item, inputs), nothing, kind)
        memory, array = place(unwritten, data if item.data else item.dtype)
        outputs.append(memory)
        results.append(array)

    def allocate(size: int) -> int:
        memory = _aligned(size)
        alive.append(memory)
        return int(memory.ctypes.data)

    call = Call(operator, memories, outputs, dict(attributes))
    execute(call, allocate) if execute else run_cuda(library_path(), call, 0, allocate)
    return [array.astype(np.float32) if item.data else array for item, array in zip(present, results, strict=True)]


def device_name() -> str | None:
    """`cuda`, `cuda_on_host`, or None where the library was built without CUDA."""
    return device(library_path())


def open_cuda_session(model: bytes) -> onnxruntime.InferenceSession:
    """A session all of whose nodes run on CUDA, or an error."""
    load_cuda_libraries()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failing runs are what many tests are about
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    register(options)
    provider = ("CUDAExecutionProvider", {"use_tf32": 0})
    session = onnxruntime.InferenceSession(model, options, providers=[provider], enable_fallback=0)
    session.disable_fallback()
    assert session.get_providers()[0] == provider[0], "ONNX Runtime fell back to the CPU"
    return session


_open_cached = functools.lru_cache(maxsize=256)(open_cuda_session)


def run_on_cuda(
    case: Case, inputs: Mapping[str, Array], data: str, constants: Sequence[str] = (), fresh: bool = False
) -> list[Array]:
    """Runs a case once on a GPU.

    Args:
        case: operator and attributes.
        inputs: by the names of the spec, float32 where the spec says float.
        data: element type of the data tensors.
        constants: names of the inputs that are initializers.
        fresh: in a session of its own.

    Returns:
        The outputs in the spec's order, float32 where the spec says float.
    """
    weights = {name: inputs[name] for name in constants}
    model = build_model(case.operator, list(inputs), case.attributes, weights, data=data)
    session = (open_cuda_session if fresh else _open_cached)(model)
    feeds = {name: np.ascontiguousarray(value) for name, value in inputs.items() if name not in constants}
    return list(session.run(None, feeds))


def run_on_torch(
    operator: Operator, inputs: Mapping[str, Array], attributes: Mapping[str, AttributeValue], data: str
) -> list[Array]:
    """Runs an operator once on a GPU through PyTorch, that is through the C ABI; as `run_on_device`."""
    import torch

    from attenuator.ops.torch_op import overload

    arguments = []
    for item in operator.inputs:
        if item.name in inputs:
            tensor = torch.from_numpy(np.ascontiguousarray(inputs[item.name]))
            tensor = tensor if item.host else tensor.cuda()
            arguments.append(tensor.to(getattr(torch, data)) if item.data and data != "float" else tensor)
    outputs = overload(operator)(*arguments, **attributes)
    torch.cuda.synchronize()
    results = [outputs] if torch.is_tensor(outputs) else outputs
    return [
        (tensor.float() if item.data else tensor).cpu().numpy()
        for item, tensor in zip(operator.outputs_with(attributes), results, strict=False)
    ]
