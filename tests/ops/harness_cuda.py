"""Runs the CUDA kernels' code on the host: the test device `cuda_on_host`, driven through the C ABI."""

import os
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from harness import BY_NAME, NUMPY_TYPES, Array, AttributeValue

from attenuator.ops.c_api import Memory, device, run_cuda

ROOT = Path(__file__).parents[2]
DATA_TYPES = {"float": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ALIGNMENT = 256


def library_path() -> str:
    """The library whose CUDA kernels are tested: `ATTENUATOR_CUDA_LIBRARY`, or what `make test` builds."""
    return os.environ.get("ATTENUATOR_CUDA_LIBRARY", str(ROOT / "build/cuda_on_host/ops/libattenuator_ops.so"))


def _aligned(size: int) -> Array:
    """So many bytes of garbage, aligned as a device's memory is."""
    memory = np.full(size + ALIGNMENT, 0xCD, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]


def run_on_device(
    op_name: str, inputs: Mapping[str, Array], attributes: Mapping[str, AttributeValue], data: str = "float"
) -> list[Array]:
    """Runs an operator's CUDA kernels once.

    Args:
        op_name: `YosoAttention`, or its key `yoso`.
        inputs: by the names of the spec, float32 where the spec says float; optional ones may be missing.
        attributes: of the node.
        data: element type of the data tensors: float, float16 or bfloat16. Inputs are rounded to it.

    Returns:
        The outputs in the spec's order, data tensors as float32.
    """
    operator = BY_NAME[op_name]
    alive: list[object] = []

    def place(array: Array, dtype: str) -> tuple[Memory, Array]:
        """A copy in aligned memory."""
        copy = _aligned(max(array.nbytes, 1))[: array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        alive.append(copy)
        return Memory(copy.ctypes.data, dtype, array.shape), copy

    memories: list[Memory | None] = []
    for item in operator.inputs:
        if item.name not in inputs:
            memories.append(None)
            continue
        kind = DATA_TYPES[data] if item.data else np.dtype(NUMPY_TYPES[item.dtype])
        array = np.ascontiguousarray(inputs[item.name]).astype(kind)
        memories.append(place(array, data if item.data else item.dtype)[0])
    results, outputs = [], []
    for item in operator.outputs:
        shape = tuple(
            len(inputs["cu_seqlens"]) - 1 if rule is None else inputs[rule[0]].shape[rule[1]] for rule in item.shape
        )
        kind = DATA_TYPES[data] if item.data else np.dtype(NUMPY_TYPES[item.dtype])
        # Not a number wherever the kernel does not write.
        memory, array = place(np.full(shape, np.nan, kind), data if item.data else item.dtype)
        outputs.append(memory)
        results.append(array)

    def allocate(size: int) -> int:
        memory = _aligned(size)
        alive.append(memory)
        return int(memory.ctypes.data)

    run_cuda(library_path(), operator, memories, outputs, dict(attributes), 0, allocate)
    return [array.astype(np.float32) for array in results]


def device_name() -> str | None:
    """`cuda`, `cuda_on_host`, or None where the library was built without CUDA."""
    return device(library_path())
