"""The operators: what they are, where their shared library lies, how a session gets them.

Importing this package loads the standard library alone.
"""

import os
from importlib import resources
from pathlib import Path
from typing import Any

from attenuator.errors import OperatorLibraryMissing
from attenuator.ops.mca.spec import SPEC as MCA
from attenuator.ops.pool.spec import SPEC as POOL
from attenuator.ops.softmax.spec import SPEC as SOFTMAX
from attenuator.ops.spec import DOMAIN, Knob, Operator
from attenuator.ops.yoso.spec import SPEC as YOSO

__all__ = ["DOMAIN", "KNOBS", "OPERATORS", "library_path", "register"]

OPERATORS: tuple[Operator, ...] = (SOFTMAX, MCA, YOSO, POOL)
KNOBS: dict[str, Knob] = {knob.name: knob for operator in OPERATORS for knob in operator.knobs}

LIBRARY = "libattenuator_ops.so"


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
