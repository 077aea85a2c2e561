"""The device that sessions run on: the CPU or one CUDA device, and whether that works."""

import json
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attenuator.errors import BundleError, DeviceUnavailable, OperatorLibraryMissing
from attenuator.ops import OPERATORS

DeviceSetting = Literal["cpu", "cuda", "auto"]
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
TRIAL_TIMEOUT_S = 300
# Option for child processes: without it, `-m` would first look for modules in the current folder, perhaps a bundle's.
SAFE_PATH = "-P"
# The command in the README that installs the operators, ONNX Runtime and the libraries for CUDA.
INSTALL = "pip install -C cmake.define.ATTENUATOR_CUDA=ON '.[gpu]'"
INSTALLED_BY = f"`{INSTALL}` in Attenuator's source folder installs it"
ON_CPU_ALONE = {operator.name for operator in OPERATORS if operator.cpu_only}
ABSENT = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")
CUDA_FAILURE = re.compile(r"CUDA failure \d+: ([^;\n]+)")
ORT_ERROR = re.compile(r"\[E:onnxruntime[^\]]*\] *(.+)")


@dataclass(frozen=True, slots=True)
class Device:
    """A place for sessions to run.

    Attributes:
        kind: `cpu` or `cuda`.
        index: which CUDA device, as the driver counts.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    index: int = 0

    def __str__(self) -> str:
        """What answers call it: `cpu`, `cuda:0`."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device()


def parse_device(text: str) -> Device:
    """The device that `str` wrote."""
    kind, _, index = text.partition(":")
    return Device("cuda", int(index)) if kind == "cuda" else CPU


@dataclass(frozen=True, slots=True)
class Choice:
    """A device and the reason for it.

    Attributes:
        device: where to run.
        reason: why, in words.
    """

    device: Device
    reason: str


def choose(setting: DeviceSetting, index: int = 0) -> Choice:
    """Finds the device to run on.

    Args:
        setting: `auto` is CUDA where it works, else the CPU.
        index: which CUDA device.

    Returns:
        The device; a CUDA device has run one of the operators.

    Raises:
        DeviceUnavailable: the setting is `cuda`, which does not work; one sentence names what is missing.
    """
    if setting == "cpu":
        return Choice(CPU, "as asked")
    device = Device("cuda", index)
    reason = trial(device)
    if reason is None:
        return Choice(device, "as asked" if setting == "cuda" else "CUDA works")
    if setting == "cuda":
        raise DeviceUnavailable(f"CUDA device {index} cannot be used: {reason}")
    return Choice(CPU, f"CUDA device {index} cannot be used: {reason}")


def chosen_for(setting: DeviceSetting, index: int, note: Callable[[str], None]) -> Device:
    """The device that a command's settings ask for, as by `choose`; where `auto` ends on the CPU, a note says why."""
    choice = choose(setting, index)
    if setting == "auto" and choice.device.kind == "cpu":
        note(f"running on {choice.device}: {choice.reason}")
    return choice.device


def trial(device: Device) -> str | None:
    """Runs one operator on a CUDA device, in a child process.

    ONNX Runtime falls back to the CPU without an error, and says why on standard error alone; a broken driver may also
    end the process.

    Args:
        device: a CUDA device.

    Returns:
        None where it works, else what is missing, in words.
    """
    command = [sys.executable, SAFE_PATH, "-m", "attenuator.runtime.trial", str(device.index)]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"an operator that was tried on it took more than {TRIAL_TIMEOUT_S} s"
    log = child.stderr.decode("utf-8", errors="replace")
    try:
        outcome = json.loads(child.stdout.decode("utf-8", errors="replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        code = child.returncode
        ending = signal.Signals(-code).name if code < 0 else f"code {code}"
        return f"the process that tried an operator on it ended with {ending}"
    if outcome.get("ok"):
        return None
    return explained(str(outcome.get("error", "")), log)


def explained(error: str, log: str) -> str:
    """What is missing, in words.

    Args:
        error: what the trial says; empty where ONNX Runtime fell back without an error.
        log: what ONNX Runtime wrote to standard error.

    Returns:
        The reason, without a full stop.
    """
    absent = ABSENT.search(f"{error}\n{log}")
    if absent and absent[1].startswith("libcuda.so"):
        return f"{absent[1]} of the NVIDIA driver is missing: install the driver, or start a container with --gpus all"
    if absent:
        return f"{absent[1]} is missing: {INSTALLED_BY}"
    failure = CUDA_FAILURE.search(f"{error}\n{log}")
    if failure:
        return f"CUDA says '{failure[1].strip()}'"
    if error:
        return error
    logged = ORT_ERROR.findall(log)
    return logged[-1].strip()[:300] if logged else "ONNX Runtime fell back to the CPU and gave no reason"


def check_providers(providers: list[str], device: Device) -> None:
    """Refuses a session that ONNX Runtime has put elsewhere.

    Args:
        providers: what the session says it has.
        device: where it belongs.

    Raises:
        DeviceUnavailable: ONNX Runtime fell back to another provider.
    """
    if providers[:1] != [PROVIDERS[device.kind]]:
        reason = None if device.kind == "cpu" else trial(device)
        raise DeviceUnavailable(
            f"ONNX Runtime put a session for {device} on {providers[0]}: {reason or 'it gives no reason'}"
        )


def check_assignment(placed: dict[str, str], device: Device, library: str) -> None:
    """Refuses operators that run elsewhere than the session.

    Args:
        placed: provider by operator name, of the operators of this product in the graph.
        device: where they belong.
        library: path of the operators' shared library.

    Raises:
        BundleError: they have no kernels for the device anywhere.
        OperatorLibraryMissing: this build of the library has none.
    """
    for name, provider in placed.items():
        if provider != PROVIDERS[device.kind]:
            if name in ON_CPU_ALONE:
                raise BundleError(
                    f"the bundle's graph has {name}, which runs on the CPU alone; the device here is {device}: serve "
                    "it with --device cpu, or export its checkpoint with --precision fp16 where it is in int8"
                )
            raise OperatorLibraryMissing(
                f"the operator library {library} has no kernel of {name} for {device.kind}: {INSTALLED_BY}"
            )


def hardware(device: Device) -> str:
    """The device with the name of the processor, such as `cpu Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz`.

    What was timed on one piece of hardware says little about another; of a CUDA device only the index is known here.
    """
    if device.kind == "cuda":
        return str(device)
    try:
        name = re.search(r"^model name\s*: *(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        name = None
    return f"{device} {name[1] if name else platform.machine()}".strip()
