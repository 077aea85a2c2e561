"""The CUDA device that is measured: what it is, what it reaches at best, and how time on it is taken.

Everything runs on one stream of torch's, which ONNX Runtime is given too. Device time is taken as `clock` says; wall
time is that of single runs, each waited for.
"""

import argparse
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from attenuator.errors import AttenuatorError
from attenuator.runtime.device import CPU, Device, choose
from benchmarks.cuda.clock import CudaGroupClock, device_time_ns
from benchmarks.measure.timing import Sampler, interleave

WALL_RUNS = 5
COPY_BYTES = 2**30
MATMUL_SIZE = 8192
USUAL_SM_MHZ = 1800.0
SHARED_BYTES_PER_CLOCK = 128  # of a multiprocessor, every generation since Volta
SMI_FIELDS = ("name", "driver_version", "clocks.max.sm", "power.limit")


@dataclass(frozen=True)
class Place:
    """Where tensors lie and what runs on it.

    Attributes:
        device: of the sessions.
        stream: torch's stream; None on the CPU, where the tests run.
    """

    device: Device = CPU
    stream: Any = None

    @property
    def torch_device(self) -> str:
        """As torch calls it."""
        return str(self.device)

    def active(self) -> AbstractContextManager[Any]:
        """Makes the stream torch's current one."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def wait(self) -> None:
        """Waits for all that is queued."""
        if self.stream is not None:
            self.stream.synchronize()


def cuda_place(index: int) -> Place:
    """The CUDA device, tried.

    Raises:
        SystemExit: it cannot be used; one sentence says why.
    """
    try:
        choice = choose("cuda", index)
    except AttenuatorError as error:
        raise SystemExit(f"benchmarks: {error}") from None
    if not torch.cuda.is_available():
        raise SystemExit(f"benchmarks: torch {torch.__version__} has no CUDA, which the baselines and clocks need")
    torch.cuda.set_device(index)
    return Place(choice.device, torch.cuda.Stream(index))


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """The option that says which device."""
    parser.add_argument("--device-id", type=int, default=0, help="which CUDA device, as the driver counts")


def device_sampler(place: Place) -> Sampler:
    """Device time by CUDA events, and wall time of single runs."""
    clock_hz = 1e6 * max_sm_mhz(place.device.index)

    def sample(run: Callable[[], Any], count: int) -> tuple[float, float]:
        with place.active():
            device_ns = device_time_ns(CudaGroupClock(place.stream, clock_hz), run, count)
        singles = min(count, WALL_RUNS)
        began = time.perf_counter_ns()
        with place.active():
            for _ in range(singles):
                run()
                place.wait()
        wall = (time.perf_counter_ns() - began) / singles * count
        return device_ns, wall

    return sample


def smi(index: int) -> dict[str, str]:
    """What nvidia-smi says about the device, empty where there is none.

    It is asked by UUID: nvidia-smi counts all cards of the machine, CUDA those that CUDA_VISIBLE_DEVICES leaves, in its
    order.
    """
    if not shutil.which("nvidia-smi"):
        return {}
    uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
    query = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    if done.returncode:
        return {}
    return dict(zip(SMI_FIELDS, (part.strip() for part in done.stdout.split(",")), strict=False))


def max_sm_mhz(index: int) -> float:
    """The highest clock of the multiprocessors; a usual one where the driver does not tell."""
    try:
        return float(smi(index)["clocks.max.sm"])
    except (KeyError, ValueError):
        return USUAL_SM_MHZ


def card(place: Place) -> dict[str, Any]:
    """What the device is."""
    properties = torch.cuda.get_device_properties(place.device.index)
    facts_of_driver = smi(place.device.index)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": properties.total_memory / 2**30,
        "driver": facts_of_driver.get("driver_version", ""),
        "max_sm_mhz": max_sm_mhz(place.device.index),
        "power_limit_w": facts_of_driver.get("power.limit", ""),
        "cuda": torch.version.cuda or "",
    }


def limits(place: Place, seconds: float) -> dict[str, Any]:
    """What the device reaches at best, measured: a copy, and square matrix products.

    Returns:
        `copy_gb_s` (read and written together), `fp16_tflop_s`, `bf16_tflop_s`, `int8_top_s`, medians; and, computed
        from clock and multiprocessors, `shared_gb_s`.
    """
    on = {"device": place.torch_device}
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, **on) for _ in range(2))
    runs: dict[str, Callable[[], Any]] = {"copy_gb_s": lambda: target.copy_(source)}
    work = {"copy_gb_s": 2 * COPY_BYTES / 1e9}
    products = 2 * MATMUL_SIZE**3 / 1e12
    for name, dtype in (("fp16_tflop_s", torch.float16), ("bf16_tflop_s", torch.bfloat16)):
        a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, **on).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        runs[name] = lambda a=a, b=b, c=out: torch.mm(a, b, out=c)
        work[name] = products
    # Random ones: a card that computes with equal numbers draws less power, and clocks higher.
    integers, others = (torch.randint(-127, 128, (MATMUL_SIZE, MATMUL_SIZE), dtype=torch.int8, **on) for _ in range(2))
    transposed = others.t().contiguous().t()  # the layout that cuBLAS has int8 kernels for
    runs["int8_top_s"] = lambda: torch._int_mm(integers, transposed)
    work["int8_top_s"] = products
    timings = interleave(runs, seconds=seconds, sampler=device_sampler(place), clock="device")
    limits: dict[str, Any] = {name: work[name] / (timings[name].median / 1e6) for name in runs}
    facts = card(place)
    limits["shared_gb_s"] = facts["multiprocessors"] * SHARED_BYTES_PER_CLOCK * facts["max_sm_mhz"] / 1e3
    return limits
