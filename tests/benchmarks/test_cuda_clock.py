"""Device time holds no time of the host: groups that the device overtook are measured again."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.cuda import device
from benchmarks.cuda.clock import MOST_RUNS, MOST_WAIT_S, device_time_ns

RUN_NS = 1000.0


class HostAndDevice:
    """A host that takes `queue_s` to queue a run, in front of a device that takes `RUN_NS` for it."""

    def __init__(self, queue_s: float) -> None:
        self.queue_s = queue_s
        self.groups: list[tuple[float, int, bool]] = []
        self._wait_s, self._queued = 0.0, 0

    def begin(self, wait_s: float) -> None:
        self._wait_s, self._queued = wait_s, 0

    def run(self) -> None:
        self._queued += 1

    def finish(self) -> bool:
        in_time = self._queued * self.queue_s <= self._wait_s
        self.groups.append((self._wait_s, self._queued, in_time))
        return in_time

    def elapsed_ns(self) -> float:
        return self._queued * RUN_NS

    def measure(self, count: int) -> float:
        return device_time_ns(self, self.run, count)


@pytest.mark.parametrize("queue_s", [1e-6, 1e-4, 3e-4, 4e-3, 0.04])
@pytest.mark.parametrize("count", [1, 7, MOST_RUNS, 3 * MOST_RUNS + 1])
def test_only_groups_that_were_queued_in_time_count(queue_s: float, count: int) -> None:
    clock = HostAndDevice(queue_s)
    assert clock.measure(count) == count * RUN_NS
    assert sum(size for _, size, in_time in clock.groups if in_time) == count
    assert all(size <= MOST_RUNS and wait_s <= MOST_WAIT_S for wait_s, size, _ in clock.groups)


def test_a_host_that_waits_for_the_device_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="over 50 ms to queue one run"):
        HostAndDevice(0.06).measure(5)


def test_nvidia_smi_is_asked_for_the_card_that_cuda_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        arguments.extend(command)
        return SimpleNamespace(returncode=0, stdout="NVIDIA H100, 580.1, 1980, 700.00\n")

    monkeypatch.setattr(device.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"0000-{index}"))
    assert device.max_sm_mhz(1) == 1980
    assert "--id=GPU-0000-1" in arguments
