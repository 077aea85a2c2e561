"""YosoAttention across instruction sets, threads and memory: each in a process of its own."""

import json

import numpy as np
import pytest
from harness import Array, in_process
from instruction_sets import ISAS

COMPUTE = """
import sys
import numpy as np
from yoso_cases import HASHES, collisions, make
from harness import run
saved = {}
rng = np.random.default_rng(1)
for hash in HASHES:
    sizes = ((60, 64, 8, 32), (90, 37, 11, 9), (700, 64, 8, 32), (700, 100, 5, 37))
    for length, head_dim, hash_bits, num_hashes in sizes:
        key = rng.standard_normal((length, head_dim)).astype(np.float32)
        query = key + 0.5 * rng.standard_normal(key.shape).astype(np.float32)
        name = f"{hash}{length}x{head_dim}"
        saved["codes " + name] = collisions(query, key, num_hashes, hash_bits, hash)
    for normalize in (0, 1):
        inputs = make((0, 3, 50, 130, 900), 2, 48, 40, [5, 33, 0, 12, 40], taps=9)
        attributes = {"num_heads": 2, "hash_bits": 7, "hash": hash, "normalize": normalize}
        saved[f"output {hash}{normalize}"] = run("yoso", inputs, attributes)[0]
    for normalize in (0, 1, 2):
        inputs = make((0, 3, 50, 90, 130, 260, 900), 2, 48, 40, [5, 33, 70, 12, 40], taps=9)
        attributes = {"num_heads": 2, "hash_bits": 7, "hash": hash, "normalize": normalize, "table_precision": "int16"}
        saved[f"rounded {hash}{normalize}"] = run("yoso", inputs, attributes)[0]
np.savez(sys.argv[1], **saved)
"""


def output_of(script: str, *arguments: str, **environment: str) -> str:
    done = in_process(script, *arguments, OMP_NUM_THREADS="1", **environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def by_isa(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Array]]:
    folder = tmp_path_factory.mktemp("isa")
    for isa in ISAS:
        output_of(COMPUTE, str(folder / f"{isa}.npz"), ATTENUATOR_ISA=isa)
    return {isa: dict(np.load(folder / f"{isa}.npz")) for isa in ISAS}


@pytest.mark.parametrize("isa", ISAS[1:])
def test_instruction_sets_agree(by_isa: dict[str, dict[str, Array]], isa: str) -> None:
    """Codes and rounded tables bit for bit, outputs within rounding.

    A set the machine lacks falls back to the best below it.
    """
    for name, expected in by_isa["avx2"].items():
        actual = by_isa[isa][name]
        if name.startswith(("codes", "rounded")):
            assert np.array_equal(actual, expected), name
        else:
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=name)


MEMORY = """
import ctypes, json, sys
import numpy as np
from attenuator.ops import library_path

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("rank", ctypes.c_int32), ("dtype", ctypes.c_int32),
                ("shape", ctypes.c_int64 * 2)]

class Attribute(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("kind", ctypes.c_int32), ("float_value", ctypes.c_float),
                ("int_value", ctypes.c_int64), ("string_value", ctypes.c_char_p)]

DTYPES = {"float32": 0, "int32": 1, "int64": 2}

def tensor(array):
    shape = (*array.shape, 0)[:2]
    return Tensor(array.ctypes.data, array.ndim, DTYPES[array.dtype.name], (ctypes.c_int64 * 2)(*shape))

library = ctypes.CDLL(str(library_path()))
library.attenuator_last_error.restype = ctypes.c_char_p

def record(name, value):
    if isinstance(value, str):
        return Attribute(name.encode(), 2, 0.0, 0, value.encode())
    return Attribute(name.encode(), 0, 0.0, value, None)

def run(inputs, output, threads, **attributes):
    tensors = (Tensor * len(inputs))(*map(tensor, inputs))
    outputs = (Tensor * 1)(tensor(output))
    records = (Attribute * len(attributes))(*(record(name, value) for name, value in attributes.items()))
    failed = library.attenuator_run(b"YosoAttention", tensors, len(inputs), outputs, 1, records, len(records), threads)
    assert not failed, library.attenuator_last_error()

def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024

def peak_of(body):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM starts again from here
    before = memory("VmRSS")
    body()
    return memory("VmHWM") - before

def inputs_of(length, num_heads, dim, num_hashes, seed=1):
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((length, num_heads * dim), np.float32) for _ in range(3)]
    return [*rows, np.array([0, length], np.int32), np.array([num_hashes], np.int32), np.array([seed], np.int64)]
"""


def test_temporary_memory_is_linear_in_length() -> None:
    """At N = 8192, H = 12, D = 64, m = 64, two threads: at most 8 MiB beside inputs and output."""
    script = (
        MEMORY
        + """
tables, exact = inputs_of(8192, 12, 64, 64), inputs_of(8192, 1, 64, 0)
small = inputs_of(8, 12, 64, 64)
outputs = [np.ones_like(inputs[0]) for inputs in (small, tables, exact)]
run(small, outputs[0], 2, num_heads=12, hash_bits=8)  # planes into their cache, code into memory
run(inputs_of(2000, 12, 64, 64), np.ones((2000, 768), np.float32), 1, num_heads=12, hash_bits=8)
print(json.dumps([
    peak_of(lambda: run(tables, outputs[1], 2, num_heads=12, hash_bits=8)),
    peak_of(lambda: run(tables, outputs[1], 2, num_heads=12, hash_bits=8, table_precision="int16")),
    peak_of(lambda: run(exact, outputs[2], 2, num_heads=1, hash_bits=8)),
]))
"""
    )
    tables, rounded, exact = json.loads(output_of(script))
    assert tables <= 8 * 2**20
    assert rounded <= 8 * 2**20
    assert exact <= 2 * 2**20


def test_cached_planes_stay_within_their_limit() -> None:
    """A seed's planes here take 2 MiB, the cache holds 64 MiB: a hundred seeds must not take 200 MiB."""
    script = (
        MEMORY
        + """
inputs = inputs_of(2, 1, 256, 512)
output = np.ones_like(inputs[0])
def many():
    for seed in range(100):
        inputs[-1][0] = seed
        run(inputs, output, 1, num_heads=1, hash_bits=16)
        if seed == 0:
            global first
            first = output.copy()
    inputs[-1][0] = 0
    run(inputs, output, 1, num_heads=1, hash_bits=16)  # drawn again
    assert np.array_equal(output, first)
print(json.dumps(peak_of(many)))
"""
    )
    peak = json.loads(output_of(script, ATTENUATOR_ISA="avx512_vnni"))
    assert 32 * 2**20 < peak < 150 * 2**20
