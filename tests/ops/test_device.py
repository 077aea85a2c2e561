"""The vocabulary that CUDA kernels are written in (`ops/common/cuda/device.h`), by the probes of `device_probe.cu`.

On the test device always, on a GPU where there is one: what is asserted is CUDA's own semantics, so that a kernel which
runs right on the test device finds the same on a GPU.
"""

import ctypes
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from harness import Array
from harness_cuda import ROOT, library_path

TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
every_type = pytest.mark.parametrize("data", TYPES)
every_device = pytest.mark.parametrize(
    "device", ["cuda_on_host", pytest.param("cuda", marks=pytest.mark.cuda(onnxruntime=False))], scope="module"
)


def probe(device: str, what: str, inputs: Array, out: Array) -> Array:
    """Runs a probe; fills `out` and returns it."""
    built = ROOT / "build/cuda/ops" if device == "cuda" else Path(library_path()).parent
    function = ctypes.CDLL(str(built / "libattenuator_probe.so")).attenuator_probe
    function.restype = ctypes.c_char_p
    inputs = np.ascontiguousarray(inputs)
    sizes = [ctypes.c_int64(array.nbytes) for array in (inputs, out)]
    error = function(
        what.encode(), ctypes.c_void_p(inputs.ctypes.data), sizes[0], ctypes.c_void_p(out.ctypes.data), sizes[1]
    )
    if error is not None:
        raise RuntimeError(error.decode())
    return out


NOTHING = np.zeros(0, np.int32)


@every_device
@every_type
def test_all_values_of_16_bits_widen_exactly(device: str, data: str) -> None:
    values = np.arange(2**16, dtype=np.uint16).view(TYPES[data])
    actual = probe(device, f"widen-{data}", values, np.empty(2**16, np.float32))
    expected = values.astype(np.float32)
    same = actual.view(np.uint32) == expected.view(np.uint32)
    assert (same | (np.isnan(actual) & np.isnan(expected))).all()


@every_device
@every_type
def test_floats_are_rounded_to_nearest_ties_to_even(device: str, data: str) -> None:
    every = np.arange(2**16, dtype=np.uint16).view(TYPES[data]).astype(np.float32)
    finite = np.unique(every[np.isfinite(every)])
    middles = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    # Each middle lies between two neighbours: itself, the float below it and the float above it.
    floats = [every, middles, np.nextafter(middles, np.float32(-np.inf)), np.nextafter(middles, np.float32(np.inf))]
    bits = np.random.default_rng(1).integers(0, 2**32, 2**15, dtype=np.uint32)
    limits = np.float32([65519.996, 65520, 3.4e38, -3.4e38, 1e-45, -0.0])
    inputs = np.concatenate([*floats, bits.view(np.float32), limits])
    actual = probe(device, f"narrow-{data}", inputs, np.empty(inputs.size, TYPES[data]))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = inputs.astype(TYPES[data])
    nan = np.isnan(inputs)
    assert np.isnan(actual[nan].astype(np.float32)).all()
    assert (actual.view(np.uint16) == expected.view(np.uint16))[~nan].all()


@every_device
def test_integer_products(device: str) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(-128, 128, (16, 32), np.int8), rng.integers(-128, 128, (32, 8), np.int8)
    actual = probe(device, "mma-int8", np.concatenate([a.ravel(), b.ravel()]), np.empty((16, 8), np.int32))
    assert (actual == a.astype(np.int32) @ b.astype(np.int32) + 1).all()


@every_device
@every_type
def test_floating_products(device: str, data: str) -> None:
    rng = np.random.default_rng(3)
    # Small integers: every sum is exact, in any order.
    a, b = (rng.integers(-8, 9, shape).astype(TYPES[data]) for shape in ((16, 16), (16, 8)))
    actual = probe(device, f"mma-{data}", np.concatenate([a.ravel(), b.ravel()]), np.empty((16, 8), np.float32))
    assert (actual == a.astype(np.float32) @ b.astype(np.float32) + 1).all()


@every_device
@pytest.mark.parametrize("way", ["straight", "transposed"])
def test_matrix_loads(device: str, way: str) -> None:
    matrices = np.random.default_rng(4).permutation(256).astype(np.uint16).reshape(4, 8, 8)
    actual = probe(device, f"matrices-{way}", matrices, np.empty((32, 4, 2), np.uint16))
    stored = matrices.transpose(0, 2, 1) if way == "transposed" else matrices
    expected = stored.reshape(4, 32, 2).transpose(1, 0, 2)  # lane l: row l / 4, elements 2 (l % 4) and the next
    assert (actual == expected).all()


@every_device
def test_exchanges_of_a_warp(device: str) -> None:
    mine = np.random.default_rng(5).integers(-900, 900, 32).astype(np.int32)
    lane = np.arange(32)
    shuffles = [mine[(lane * 7 + 3) % 32], mine[lane ^ 5], mine[np.where(lane + 3 < 32, lane + 3, lane)]]
    shuffles.append(mine[np.where(lane >= 3, lane - 3, lane)])
    ballot = sum(1 << int(i) for i in lane if mine[i] & 1)
    match = [sum(1 << int(j) for j in lane if mine[j] & 3 == mine[i] & 3) for i in lane]
    expected = np.array([*shuffles, [ballot] * 32, [0] * 32, [1] * 32, match, [mine.sum()] * 32, [mine.max()] * 32])
    actual = probe(device, "exchanges", mine, np.empty((10, 32), np.int32))
    assert (actual.view(np.uint32) == expected & 0xFFFFFFFF).all()


@every_device
@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_barriers_and_shared_atomics(device: str, threads: int) -> None:
    actual = probe(device, "barriers", NOTHING, np.empty(threads + 1, np.int32))
    others = np.arange(threads)[::-1]
    assert (actual[:-1] == others).all()
    assert actual[-1] == others[np.arange(threads) % 32 != 5].sum()


@every_device
def test_asynchronous_copies_fill_with_zeros(device: str) -> None:
    inputs = np.random.default_rng(6).integers(1, 256, (32, 16), np.uint8)
    actual = probe(device, "copies", inputs, np.empty((32, 16), np.uint8))
    assert (actual[::2] == inputs[::2]).all()
    assert not actual[1::2].any()


def test_the_order_of_threads_is_what_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ATTENUATOR_ON_HOST_ORDER" not in os.environ
    survivors = {}
    for order in ("forward", "backward", *map(str, range(8))):
        monkeypatch.setenv("ATTENUATOR_ON_HOST_ORDER", order)
        survivors[order] = int(probe("cuda_on_host", "race", NOTHING, np.empty(1, np.int32))[0])
        assert survivors[order] == int(probe("cuda_on_host", "race", NOTHING, np.empty(1, np.int32))[0])
    assert (survivors["forward"], survivors["backward"]) == (63, 0)
    assert len(set(survivors.values())) > 4


def test_a_barrier_that_some_threads_never_reach_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="hang: some threads of a block wait at a barrier that"):
        probe("cuda_on_host", "hang", NOTHING, np.empty(1, np.int32))
    # The device goes on afterwards.
    assert (probe("cuda_on_host", "leave", NOTHING, np.empty(32, np.int32)) == np.arange(32)).all()


@pytest.mark.parametrize(
    ("what", "message"), [("shared", "bytes of shared memory, may have"), ("threads", "must have 1 to 32 whole warps")]
)
def test_launches_that_no_device_takes_are_refused(what: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        probe("cuda_on_host", what, NOTHING, np.empty(1, np.int32))
