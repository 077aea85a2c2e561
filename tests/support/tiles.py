"""The operators with AMX tiles, emulated where the processor has none: the same machine code either way."""

import ctypes
import functools
import os
from pathlib import Path

import harness
from harness import TESTS

ROOT = TESTS.parents[1]


def amx_library() -> Path:
    """`ATTENUATOR_AMX_LIBRARY`, or what an editable installation leaves in its build folder."""
    override = os.environ.get("ATTENUATOR_AMX_LIBRARY")
    return Path(override) if override else next(ROOT.glob("build/py3-none-*/ops/libattenuator_ops_amx.so"), Path("-"))


# `harness.in_process` with that library.
in_process = functools.partial(harness.in_process, ATTENUATOR_OPS_LIBRARY=str(amx_library()))


def loaded() -> ctypes.CDLL:
    """The library, which also says how many instructions were emulated."""
    assert amx_library().is_file(), "the operators with emulated AMX are not built: run `make build`"
    library = ctypes.CDLL(str(amx_library()))
    library.attenuator_amx_instructions.restype = ctypes.c_int64
    return library
