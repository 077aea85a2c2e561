"""The operators for PyTorch: `torch.ops.attenuator.yoso_attention` and its like, one for each row of `OPERATORS`.

Schema and shapes are derived from the specs. The fake implementation is what `torch.export` traces; the eager one runs
the kernels of the operator library through its C ABI (`ops/c_api.h`), so that PyTorch computes what serving computes.
No gradients: training has its own differentiable attention.
"""

import ctypes
import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from attenuator.errors import EngineError
from attenuator.ops import DOMAIN, OPERATORS, library_path
from attenuator.ops.spec import Operator
from attenuator.ops.spec import Tensor as TensorSpec

__all__ = ["PYTHON_TYPES", "TORCH_DTYPES", "op_name", "overload"]

TORCH_DTYPES = {"float": torch.float32, "int32": torch.int32, "int64": torch.int64}
PYTHON_TYPES: dict[str, type] = {"int": int, "float": float, "string": str}
SCHEMA_TYPES = {"int": "int", "float": "float", "string": "str"}
# Values of the C ABI's enumerations.
DTYPE_CODES = {torch.float32: 0, torch.int32: 1, torch.int64: 2}
KIND_CODES = {"int": 0, "float": 1, "string": 2}


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
    return f"{op_name(operator)}({', '.join(inputs)}, *, {', '.join(attributes)}) -> {returns}"


def _output_shape(output: TensorSpec, inputs: dict[str, torch.Tensor]) -> list[Any]:
    """Each axis by the spec's rule; an axis without one is the batch."""
    return [
        inputs["cu_seqlens"].shape[0] - 1 if rule is None else inputs[rule[0]].shape[rule[1]] for rule in output.shape
    ]


def _empty_outputs(operator: Operator, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    device = next(iter(inputs.values())).device
    return [
        torch.empty(_output_shape(output, inputs), dtype=TORCH_DTYPES[output.dtype], device=device)
        for output in operator.outputs
    ]


def _present(operator: Operator, tensors: tuple[torch.Tensor | None, ...]) -> dict[str, torch.Tensor]:
    return {item.name: tensor for item, tensor in zip(operator.inputs, tensors, strict=False) if tensor is not None}


def _fake(operator: Operator) -> Callable[..., Any]:
    def fake(*tensors: torch.Tensor | None, **attributes: Any) -> Any:
        inputs = _present(operator, tensors)
        for knob in operator.knobs:
            torch._check(inputs[knob.name].shape[0] == inputs["cu_seqlens"].shape[0] - 1)
        outputs = _empty_outputs(operator, inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return fake


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.attenuator_run.restype = ctypes.c_int32
    library.attenuator_last_error.restype = ctypes.c_char_p
    return library


def _as_c(tensor: torch.Tensor | None) -> _Tensor:
    if tensor is None:
        return _Tensor(None, 0, 0, (0, 0))
    shape = [*tensor.shape, 0][:2]
    return _Tensor(tensor.data_ptr(), tensor.dim(), DTYPE_CODES[tensor.dtype], (ctypes.c_int64 * 2)(*shape))


def _attributes(operator: Operator, values: dict[str, Any]) -> Any:
    rows = []
    for item in operator.attributes:
        value: Any = values.get(item.name, item.default)
        rows.append(
            _Attribute(
                item.name.encode(),
                KIND_CODES[item.kind],
                float(value) if item.kind == "float" else 0.0,
                int(value) if item.kind == "int" else 0,
                str(value).encode() if item.kind == "string" else None,
            )
        )
    return (_Attribute * len(rows))(*rows)


def _eager(operator: Operator) -> Callable[..., Any]:
    def eager(*tensors: torch.Tensor | None, **attributes: Any) -> Any:
        inputs = _present(operator, tensors)
        for item in operator.inputs:
            given = inputs.get(item.name)
            if given is not None and (given.dtype != TORCH_DTYPES[item.dtype] or given.dim() != len(item.axes)):
                raise EngineError(
                    f"{operator.name}: {item.name} is {given.dtype} with {given.dim()} axes, "
                    f"must be {TORCH_DTYPES[item.dtype]} with {len(item.axes)}"
                )
        # The kernels take row-major memory; the list keeps copies alive until the call returns.
        dense = [inputs[item.name].contiguous() if item.name in inputs else None for item in operator.inputs]
        outputs = _empty_outputs(operator, inputs)
        library = _library(str(library_path()))
        failed = library.attenuator_run(
            operator.name.encode(),
            (_Tensor * len(dense))(*map(_as_c, dense)),
            len(dense),
            (_Tensor * len(outputs))(*map(_as_c, outputs)),
            len(outputs),
            _attributes(operator, attributes),
            len(operator.attributes),
            torch.get_num_threads(),
        )
        if failed:
            raise EngineError(library.attenuator_last_error().decode(errors="replace"))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return eager


_LIBRARY = torch.library.Library(DOMAIN, "DEF")
for _operator in OPERATORS:
    _LIBRARY.define(_schema(_operator))
    _LIBRARY.impl(op_name(_operator), _eager(_operator), "CPU")
    torch.library.register_fake(f"{DOMAIN}::{op_name(_operator)}", _fake(_operator), lib=_LIBRARY)
