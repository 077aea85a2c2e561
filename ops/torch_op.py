"""The operators for PyTorch: `torch.ops.attenuator.yoso_attention` and its like, one for each row of `OPERATORS`.

Schema and shapes are derived from the specs. The fake implementation is what `torch.export` traces; the eager one runs
the kernels of the operator library through its C ABI (`ops/c_api.py`), so that PyTorch computes what serving computes.
No gradients: training has its own differentiable attention.

A PyTorch operator returns all of its outputs; those that the attributes leave out have no elements.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from attenuator.errors import EngineError
from attenuator.ops import DOMAIN, OPERATORS, library_path
from attenuator.ops.c_api import Call, Memory, run, run_cuda
from attenuator.ops.spec import LAST, Operator
from attenuator.ops.spec import Tensor as TensorSpec

__all__ = ["PYTHON_TYPES", "TORCH_DTYPES", "op_name", "overload"]

TORCH_DTYPES = {"float": torch.float32, "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()} | {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
DATA_DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.float16, torch.bfloat16)}
PYTHON_TYPES: dict[str, type] = {"int": int, "float": float, "string": str}
SCHEMA_TYPES = {"int": "int", "float": "float", "string": "str"}
SCRATCH_ALIGNMENT = 256
INPUT_ALIGNMENT = 16  # what CUDA kernels load at once


def op_name(operator: Operator) -> str:
    """Name of the PyTorch operator: `YosoAttention` becomes `yoso_attention`."""
    return re.sub(r"(?<=.)([A-Z])", r"_\1", operator.name).lower()


def overload(operator: Operator) -> Any:
    """The `torch.ops` overload to call or to translate."""
    return getattr(getattr(torch.ops, DOMAIN), op_name(operator)).default


def _schema(operator: Operator) -> str:
    inputs = [f"Tensor? {item.name}=None" if item.optional else f"Tensor {item.name}" for item in operator.inputs]
    attributes = []
    for item in operator.attributes:
        default = "" if item.default is None else f'="{item.default}"' if item.kind == "string" else f"={item.default}"
        attributes.append(f"{SCHEMA_TYPES[item.kind]} {item.name}{default}")
    # Attributes without a default come first, as Python wants it.
    attributes.sort(key=lambda text: "=" in text)
    outputs = ", ".join("Tensor" for _ in operator.outputs)
    returns = f"({outputs})" if len(operator.outputs) > 1 else outputs
    arguments = [*inputs, *(["*", *attributes] if attributes else [])]
    return f"{op_name(operator)}({', '.join(arguments)}) -> {returns}"


def _output_shape(
    output: TensorSpec, inputs: dict[str, torch.Tensor], last_value: Callable[[torch.Tensor], Any]
) -> list[Any]:
    """Each axis by the spec's rule; an axis without one is the batch."""
    sizes: list[Any] = []
    for rule in output.shape:
        if rule is None:
            sizes.append(inputs["cu_seqlens"].shape[0] - 1)
        else:
            name, axis = rule
            sizes.append(last_value(inputs[name]) if axis == LAST else inputs[name].shape[axis])
    return sizes


def _empty_outputs(
    operator: Operator,
    inputs: dict[str, torch.Tensor],
    attributes: dict[str, Any],
    last_value: Callable[[torch.Tensor], Any],
) -> list[torch.Tensor]:
    """Memory for the outputs; without elements for those that the attributes leave out.

    Args:
        operator: which.
        inputs: by name.
        attributes: by name, without those that have their defaults.
        last_value: the last value of a host input, for axes whose size is such a value.
    """
    first = next(iter(inputs.values()))
    present = operator.outputs_with(attributes)
    return [
        torch.empty(
            _output_shape(output, inputs, last_value) if output in present else [0] * len(output.axes),
            dtype=first.dtype if output.data else TORCH_DTYPES[output.dtype],
            device=torch.device("cpu") if output.host else first.device,
        )
        for output in operator.outputs
    ]


def _present(operator: Operator, tensors: tuple[torch.Tensor | None, ...]) -> dict[str, torch.Tensor]:
    return {item.name: tensor for item, tensor in zip(operator.inputs, tensors, strict=False) if tensor is not None}


def _fake(operator: Operator) -> Callable[..., Any]:
    def fake(*tensors: torch.Tensor | None, **attributes: Any) -> Any:
        inputs = _present(operator, tensors)
        for knob in operator.knobs:
            torch._check(inputs[knob.name].shape[0] == inputs["cu_seqlens"].shape[0] - 1)
        # One symbol for all axes of that size, which no earlier axis has.
        last_value = functools.cache(lambda _: torch.library.get_ctx().new_dynamic_size())
        outputs = _empty_outputs(operator, inputs, attributes, last_value)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return fake


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Row-major and aligned: a slice of a tensor may be neither, and is copied."""
    dense = tensor.contiguous()
    return dense.clone() if dense.is_cuda and dense.data_ptr() % INPUT_ALIGNMENT else dense


def _memory(tensor: torch.Tensor) -> Memory:
    return Memory(tensor.data_ptr(), DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))


def _check(operator: Operator, inputs: dict[str, torch.Tensor], device: str) -> None:
    """Raise `EngineError` unless each input has a dtype, a rank and a device that the operator supports."""
    first = next(iter(inputs.values()))
    data = first.dtype
    for item in operator.inputs:
        tensor = inputs.get(item.name)
        if tensor is None:
            continue
        dtypes = (TORCH_DTYPES[item.dtype],) if not item.data else (data,) if data in DATA_DTYPES[device] else ()
        where = torch.device("cpu") if item.host or device == "cpu" else first.device
        if tensor.dtype not in dtypes or tensor.dim() != len(item.axes) or tensor.device != where:
            allowed = " or ".join(map(str, dtypes or DATA_DTYPES[device]))
            raise EngineError(
                f"{operator.name}: {item.name} is {tensor.dtype} with {tensor.dim()} axes on {tensor.device}, "
                f"must be {allowed} with {len(item.axes)} axes on {where}"
            )


def _last_value(offsets: torch.Tensor, rows: int) -> int:
    """The last offset, or the nearest number of rows there can be: what lies beyond is for the operator to refuse."""
    return min(max(int(offsets[-1]), 0), rows) if len(offsets) else 0


def _eager(operator: Operator, device: str) -> Callable[..., Any]:
    def eager(*tensors: torch.Tensor | None, **attributes: Any) -> Any:
        inputs = _present(operator, tensors)
        _check(operator, inputs, device)
        # The list keeps copies alive until the call returns; PyTorch reuses their memory in stream order.
        dense = [_dense(inputs[item.name]) if item.name in inputs else None for item in operator.inputs]
        rows = next(iter(inputs.values())).shape[0]
        outputs = _empty_outputs(operator, inputs, attributes, lambda sizes: _last_value(sizes, rows))
        memories = [None if tensor is None else _memory(tensor) for tensor in dense]
        present = len(operator.outputs_with(attributes))
        call = Call(operator, memories, [_memory(tensor) for tensor in outputs[:present]], attributes)
        if device == "cpu":
            run(str(library_path()), call, torch.get_num_threads())
        else:
            _run_on_device(call, outputs[0].device)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return eager


def _run_on_device(call: Call, device: torch.device) -> None:
    """Scratch comes from PyTorch's caching allocator, which reuses it in stream order once the references are gone."""
    scratch: list[torch.Tensor] = []

    def allocate(size: int) -> int:
        scratch.append(torch.empty(size + SCRATCH_ALIGNMENT, dtype=torch.uint8, device=device))
        return -(-scratch[-1].data_ptr() // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT

    with torch.cuda.device(device):
        stream = torch.cuda.current_stream().cuda_stream
        run_cuda(str(library_path()), call, stream, allocate)


_LIBRARY = torch.library.Library(DOMAIN, "DEF")
for _operator in OPERATORS:
    _LIBRARY.define(_schema(_operator))
    _LIBRARY.impl(op_name(_operator), _eager(_operator, "cpu"), "CPU")
    _LIBRARY.impl(op_name(_operator), _eager(_operator, "cpu" if _operator.host else "cuda"), "CUDA")
    torch.library.register_fake(f"{DOMAIN}::{op_name(_operator)}", _fake(_operator), lib=_LIBRARY)
