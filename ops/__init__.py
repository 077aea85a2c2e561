"""The operators: what they are, where their shared library lies, how a session gets them.

Importing this package loads the standard library alone.
"""

import os
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attenuator.errors import OperatorLibraryMissing
from attenuator.ops.spec import DOMAIN, Knob, Operator, Tensor, merge_knobs

__all__ = [
    "BASELINE",
    "DOMAIN",
    "FOLDERS",
    "KNOBS",
    "OPERATORS",
    "SEQUENCE_OUTPUTS",
    "TOKENS",
    "attention_with",
    "has_part",
    "library_path",
    "package",
    "part",
    "register",
]

# Every operator is a folder here and one word in this list; ops/CMakeLists.txt reads it from here.
FOLDERS = (
    "softmax",
    "mca",
    "yoso",
    "linear",
    "bigbird",
    "window",
    "linformer",
    "longshort",
    "nystrom",
    "performer",
    "rfa",
    "reformer",
    "relative",
    "pool",
    "kept_lengths",
    "select",
    "quantize_rows",
    "dequantize_product",
    "requantize_product",
)
# Packages of operators beside the product's, separated by commas; the library must hold them (`library_path`).
EXTRA = "ATTENUATOR_EXTRA_OPERATORS"
LIBRARY = "libattenuator_ops.so"


def _specs() -> dict[str, Operator]:
    """Every operator by the package of its folder."""
    extra = [name for name in os.environ.get(EXTRA, "").split(",") if name]
    packages = [*(f"{__name__}.{folder}" for folder in FOLDERS), *extra]
    return {package: import_module(f"{package}.spec").SPEC for package in packages}


_SPECS = _specs()
_PACKAGES = {operator.key: package for package, operator in _SPECS.items()}
OPERATORS: tuple[Operator, ...] = tuple(_SPECS.values())
KNOBS: dict[str, Knob] = merge_knobs(OPERATORS)
# What every approximation is compared with: exact softmax attention.
BASELINE = next(operator for operator in OPERATORS if operator.key == "softmax")
# By name, what operators say of each sequence beside their main output.
SEQUENCE_OUTPUTS: dict[str, Tensor] = {
    tensor.name: tensor for operator in OPERATORS for tensor in operator.outputs[1:] if tensor.axes == ("B",)
}
# What share of each text's tokens goes on.
[TOKENS] = next(row.knobs for row in OPERATORS if any(item.name == "kept_cu_seqlens" for item in row.outputs))


def attention_with(knob: str) -> list[str]:
    """Keys of the attention that bundles with a knob may have, as users ask for it.

    A knob of an operator that is no attention goes with every attention that has an output for such an operator, as a
    selection of tokens goes with attention that says what each of them matters.
    """
    owners = [operator for operator in OPERATORS if knob in {own.name for own in operator.knobs}]
    taken = {tensor.name for operator in OPERATORS if not operator.attention for tensor in operator.inputs}
    gives = [
        operator for operator in OPERATORS if operator.attention and taken & {own.name for own in operator.outputs[1:]}
    ]
    keys = [each.asked_as or each.key for owner in owners for each in ([owner] if owner.attention else gives)]
    return list(dict.fromkeys(keys))


def package(key: str) -> str:
    """The package that an operator's folder is."""
    return _PACKAGES[key]


def part(key: str, name: str) -> Any:
    """A module of an operator's folder, imported now.

    Args:
        key: the operator's key.
        name: such as `cost`, `fallback` or `eager`.

    Returns:
        The module.

    Raises:
        ModuleNotFoundError: the folder has no such file.
    """
    return import_module(f"{package(key)}.{name}")


def has_part(key: str, name: str) -> bool:
    """Whether an operator's folder has a module of this name; nothing is imported."""
    return find_spec(f"{package(key)}.{name}") is not None


def library_path() -> Path:
    """Where the operators' shared library lies.

    `ATTENUATOR_OPS_LIBRARY` overrides the one installed with the package.

    Raises:
        OperatorLibraryMissing: it is not built.
    """
    override = os.environ.get("ATTENUATOR_OPS_LIBRARY")
    path = Path(override) if override else Path(str(resources.files("attenuator.ops") / LIBRARY))
    if not path.is_file():
        raise OperatorLibraryMissing(f"the operator library {path} does not exist: run `make build`")
    return path


def register(session_options: Any) -> None:
    """Makes the operators known to one session.

    Args:
        session_options: an `onnxruntime.SessionOptions` that does not have them yet: ONNX Runtime refuses to register
            a domain twice in the same options.

    Raises:
        OperatorLibraryMissing: the library is not built.
    """
    session_options.register_custom_ops_library(str(library_path()))
