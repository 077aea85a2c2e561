"""The operators with AMX tiles, emulated where the processor has none: the same machine code either way."""

import ctypes
import functools
import os
from pathlib import Path

import harness
import numpy as np
from harness import TESTS, Array

ROOT = TESTS.parents[1]
LOAD, STORE, MULTIPLY, CONFIGURE, RELEASE, STORE_CONFIGURATION = range(6)
ROWS, BYTES = 16, 64
GUARD = 0xA5


class Step(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32), ("tile", ctypes.c_int32), ("memory", ctypes.c_void_p), ("stride", ctypes.c_int64)
    ]  # fmt: skip


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


def configuration(shapes: dict[int, tuple[int, int]]) -> Array:
    """The 64 bytes that LDTILECFG reads, for tiles of (rows, bytes per row)."""
    palette = np.zeros(64, np.uint8)
    palette[0] = 1
    for tile, (rows, width) in shapes.items():
        palette[16 + 2 * tile : 18 + 2 * tile] = np.array([width], np.uint16).view(np.uint8)
        palette[48 + tile] = rows
    return palette


def run_steps(library: ctypes.CDLL, steps: list[tuple[int, int, Array | None, int]]) -> None:
    records = [
        Step(kind, tile, None if memory is None else memory.ctypes.data, stride) for kind, tile, memory, stride in steps
    ]
    library.attenuator_amx_run((Step * len(records))(*records), len(records))


def guarded(rows: int, stride: int) -> Array:
    return np.full((rows, stride), GUARD, np.uint8)


def saved_by_each(script: str, folder: Path) -> dict[str, dict[str, Array]]:
    """The arrays that a script saves to its argument, with VNNI, with tiles and with tiles that compute wrongly."""
    environments = {
        "vnni": {"ATTENUATOR_ISA": "avx512_vnni"},
        "amx": {"ATTENUATOR_ISA": "avx512_amx"},
        "broken": {"ATTENUATOR_ISA": "avx512_amx", "ATTENUATOR_AMX_BROKEN": "1"},
    }
    for name, environment in environments.items():
        done = in_process(script, str(folder / f"{name}.npz"), **environment)
        assert done.returncode == 0, done.stderr[-2000:]
    return {name: dict(np.load(folder / f"{name}.npz")) for name in environments}
