"""The operators' C ABI (`ops/c_api.h`) for Python: calls through ctypes, without ONNX Runtime or PyTorch.

`torch_op.py` and the tests of the CUDA kernels stand on it. Standard library only.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attenuator.errors import EngineError
from attenuator.ops.spec import Operator

__all__ = [
    "DTYPE_CODES",
    "Call",
    "HeadRows",
    "Memory",
    "attributes",
    "call_function",
    "device",
    "has_function",
    "rows_of_heads",
    "run",
    "run_cuda",
    "tensors",
]

# Values of the C ABI's enumerations.
DTYPE_CODES = {"float": 0, "int32": 1, "int64": 2, "float16": 3, "bfloat16": 4, "uint8": 5}
KIND_CODES: dict[type, int] = {int: 0, float: 1, str: 2}


class _Tensor(ctypes.Structure):
    """`attenuator_tensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 2),
    )


class _Attribute(ctypes.Structure):
    """`attenuator_attribute`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("float_value", ctypes.c_float),
        ("int_value", ctypes.c_int64),
        ("string_value", ctypes.c_char_p),
    )


class _Rows(ctypes.Structure):
    """`attenuator_rows`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("channels", ctypes.c_int64),
    )


_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class Memory:
    """A row-major tensor somewhere in memory that its owner keeps alive.

    Attributes:
        address: of its first element.
        dtype: a key of `DTYPE_CODES`.
        shape: one or two axes.
    """

    address: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Float32 rows of all heads of a packed batch, channels side by side, in memory that its owner keeps alive.

    Attributes:
        address: of the first element.
        row_stride: floats from a row to the next.
        head_stride: floats from a head to the next.
        channels: of a head.
    """

    address: int
    row_stride: int
    head_stride: int
    channels: int


@dataclass(frozen=True, slots=True)
class Call:
    """One run of an operator.

    Attributes:
        operator: which.
        inputs: in the node's order, None where an optional one is left out.
        outputs: memory to be written, of the shapes the operator gives; None or nothing for an optional one that is not
            to be computed.
        attributes: of the node; those left out have their defaults.
    """

    operator: Operator
    inputs: Sequence[Memory | None]
    outputs: Sequence[Memory | None]
    attributes: dict[str, Any]


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.attenuator_run.restype = ctypes.c_int32
    library.attenuator_run_cuda.restype = ctypes.c_int32
    library.attenuator_last_error.restype = ctypes.c_char_p
    library.attenuator_device.restype = ctypes.c_char_p
    return library


def tensors(memories: Sequence[Memory | None]) -> Any:
    """An array of `attenuator_tensor`, in this order; None is one that is left out."""
    rows = [
        _Tensor(None, 0, 0, (0, 0))
        if item is None
        else _Tensor(
            item.address, len(item.shape), DTYPE_CODES[item.dtype], (ctypes.c_int64 * 2)(*[*item.shape, 0][:2])
        )
        for item in memories
    ]
    return (_Tensor * len(rows))(*rows)


def attributes(operator: Operator, values: dict[str, Any]) -> Any:
    """An array of `attenuator_attribute`, every attribute of the operator's; those left out have their defaults.

    A value goes as the type that it has, so that the operator refuses one of the wrong type; a whole number is a float.
    """
    rows = []
    for item in operator.attributes:
        value: Any = values.get(item.name, item.default)
        if item.kind == "float" and isinstance(value, int):
            value = float(value)
        rows.append(
            _Attribute(
                item.name.encode(),
                next(code for kind, code in KIND_CODES.items() if isinstance(value, kind)),
                value if isinstance(value, float) else 0.0,
                value if isinstance(value, int) else 0,
                value.encode() if isinstance(value, str) else None,
            )
        )
    return (_Attribute * len(rows))(*rows)


def rows_of_heads(rows: Sequence[HeadRows]) -> Any:
    """An array of `attenuator_rows`, in this order."""
    structures = [_Rows(item.address, item.row_stride, item.head_stride, item.channels) for item in rows]
    return (_Rows * len(structures))(*structures)


def _invoke(library: ctypes.CDLL, function: str, call: Call, *more: Any) -> None:
    failed = getattr(library, function)(
        call.operator.name.encode(),
        tensors(call.inputs),
        len(call.inputs),
        tensors(call.outputs),
        len(call.outputs),
        attributes(call.operator, call.attributes),
        len(call.operator.attributes),
        *more,
    )
    if failed:
        raise _last_error(library)


def _last_error(library: ctypes.CDLL) -> EngineError:
    return EngineError(library.attenuator_last_error().decode(errors="replace"))


def device(library_path: str) -> str | None:
    """What `run_cuda` of this library runs on: `cuda`, the test device `cuda_on_host`, or None."""
    name = _library(library_path).attenuator_device()
    return None if name is None else str(name.decode())


def run(library_path: str, call: Call, num_threads: int) -> None:
    """Runs an operator once on the CPU.

    Args:
        library_path: the operators' shared library.
        call: which operator on what; all memory is the host's.
        num_threads: threads of this call.

    Raises:
        EngineError: what the operator refuses, in its words.
    """
    _invoke(_library(library_path), "attenuator_run", call, num_threads)


def run_cuda(library_path: str, call: Call, stream: int, allocate: Callable[[int], int]) -> None:
    """Queues an operator on a stream of the current CUDA device.

    Args:
        library_path: the operators' shared library, built with CUDA.
        call: which operator on what; inputs that the spec keeps on the host lie there, all else lies on the device.
        stream: a `cudaStream_t`, 0 for the default stream.
        allocate: gives the address of so many bytes of device memory, aligned to 256, which must last until the work
            has ended; it may raise, which ends the call.

    Raises:
        EngineError: what the operator or CUDA refuses.
    """
    raised: list[BaseException] = []

    def give(_: object, count: int) -> int:
        try:
            return allocate(count)
        except BaseException as error:  # nothing may be thrown through C
            raised.append(error)
            return 0

    try:
        stream_pointer = ctypes.c_void_p(stream)
        _invoke(_library(library_path), "attenuator_run_cuda", call, stream_pointer, _ALLOCATE(give), None)
    except EngineError:
        if raised:
            raise raised[0] from None
        raise


def has_function(library_path: str, name: str) -> bool:
    """Whether this library has a function, which one built of older sources may lack."""
    return hasattr(_library(library_path), name)


def call_function(library_path: str, name: str, *arguments: Any) -> None:
    """Calls a function that an operator brings (`ops/<operator>/c_api.h`).

    Args:
        library_path: the operators' shared library.
        name: of the function, which returns 0 or 1 as `attenuator_run` does.
        arguments: as ctypes passes them; see `tensors`, `attributes` and `rows_of_heads`.

    Raises:
        EngineError: what the operator refuses, in its words.
    """
    library = _library(library_path)
    if getattr(library, name)(*arguments):
        raise _last_error(library)
