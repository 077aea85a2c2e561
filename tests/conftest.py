"""Tests marked `cuda` run where a GPU works, and are skipped with the reason where none does."""

import gc
import os

import pytest

# Tests run in as many processes as cores, on tiny models: more threads of PyTorch's would spin waiting for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Set by `make test-cuda`: a GPU that does not work is a failure there.
REQUIRED = "ATTENUATOR_TEST_CUDA"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if not marked:
        return
    from attenuator.runtime.device import Device, trial

    reason = trial(Device("cuda"))
    if reason is None:
        return
    if os.environ.get(REQUIRED) == "1":
        raise pytest.UsageError(f"no GPU to test on: {reason}")
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=f"no GPU to test on: {reason}"))


def pytest_collection_finish() -> None:
    """Takes what stays for the whole run out of what the garbage collector walks, and lets it walk less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
