"""Tests marked `cuda` run where a GPU works, and are skipped with the reason where none does.

Those marked `cuda(onnxruntime=False)` reach the GPU through PyTorch or the C ABI, and run where ONNX Runtime does not.
"""

import ctypes
import functools
import gc
import os
import sys

import pytest

# Tests run in as many processes as cores, on tiny models: more threads of PyTorch's would spin waiting for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Importing and collecting tests makes many objects that stay: looking through them for garbage finds none.
gc.set_threshold(200_000, 20, 50)
# Set by `make test-cuda`: a GPU that does not work is a failure there.
REQUIRED = "ATTENUATOR_TEST_CUDA"


@functools.cache
def unusable(onnxruntime: bool) -> str | None:
    """Why there is no GPU to test on, with ONNX Runtime or without; None where there is one."""
    if onnxruntime:
        from attenuator.runtime.device import Device, trial

        return trial(Device("cuda"))
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return f"the driver answers with error {code}" if code else None if count.value else "the driver knows none"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("cuda")
    reason = None if marker is None else unusable(marker.kwargs.get("onnxruntime", True))
    if reason is not None:
        message = f"no GPU to test on: {reason}"
        pytest.fail(message, pytrace=False) if os.environ.get(REQUIRED) == "1" else pytest.skip(message)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A command that set PyTorch's threads set them for the whole process, and later tests would spin."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Takes what stays for the whole run out of what the garbage collector walks, and lets it walk less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
