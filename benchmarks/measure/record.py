"""What a result file says about its origin: machine, instruction set, versions, commit, command."""

import ctypes
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attenuator.json_lines import in_lines
from attenuator.ops import library_path
from benchmarks.measure import summaries
from benchmarks.measure.kernels import fingerprints

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
RAW = RESULTS / "raw"  # ignored by git, which has summaries
FORMAT_VERSION = 1
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "torch", "numpy")
# Vector extensions that decide which kernels the baselines choose.
EXTENSIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
# What a result depends on; changes to these alone make a commit "modified".
MEASURED = ("ops", "export", "src", "benchmarks/**/*.py")
BASELINES = "ONNX Runtime and PyTorch choose their kernels by the processor alone, whatever isa says"


def isa() -> str:
    """Best instruction set of the operators, YosoAttention's; the environment variable ATTENUATOR_ISA restricts it."""
    library = ctypes.CDLL(str(library_path()))
    library.attenuator_isa.restype = ctypes.c_char_p
    return str(library.attenuator_isa(b"YosoAttention").decode())


def processor() -> dict[str, Any]:
    """Name and vector extensions of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    fields = dict(line.partition(":")[::2] for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    flags = fields.get("flags", "").split()
    return {
        "processor": fields.get("model name", platform.processor()),
        "family": fields.get("cpu family", ""),
        "model": fields.get("model", ""),
        "extensions": [name for name in EXTENSIONS if name in flags],
    }


def git(*arguments: str) -> str:
    """Output of a git command in this repository, empty where there is none, and where there is no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def versions() -> dict[str, str]:
    """Versions of what is measured against."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def program(path: Path) -> str:
    """A benchmark's name for `python -m`, by the path of its file."""
    inside = path.parts[path.parts.index("benchmarks") :] if "benchmarks" in path.parts else ("benchmarks", path.name)
    return ".".join(inside).removesuffix(".py").removesuffix(".__main__")


def origin(arguments: Sequence[str], operators: Iterable[str], *, cuda: bool = False) -> dict[str, Any]:
    """Head of a result file.

    Args:
        arguments: the program's own, without its name.
        operators: keys of those whose kernels are measured.
        cuda: on CUDA.

    Returns:
        machine, versions, commit, command, and fingerprints of the kernels (`measure/kernels.py`). `modified` tells
        whether the measured sources differed from the commit; `load_average` is that of the last minute before the run.
    """
    # Results are committed: what a file is called may stand there, where it lies on this machine may not.
    named = [Path(each).name if Path(each).is_absolute() else each for each in arguments]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "format_version": FORMAT_VERSION,
        "machine": processor() | {"cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory / 2**30, 1)},
        "versions": versions(),
        "commit": git("rev-parse", "HEAD"),
        "modified": bool(git("status", "--porcelain", "--", *MEASURED)),
        "kernels": fingerprints(operators, cuda=cuda),
        "command": shlex.join(["python", "-m", program(Path(sys.argv[0])), *named]),
        "load_average": os.getloadavg()[0],
    }


def cpu() -> dict[str, Any]:
    """What the head of a result file says where the operators run on the CPU."""
    return {"isa": isa(), "baselines": BASELINES}


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes a result file, whole or not at all; beside one in `RAW`, its summary in `RESULTS`."""
    _replace(path, json.dumps(rounded(content), indent=1) + "\n")
    if path.parent == RAW and path.suffix == ".json":
        _replace(RESULTS / path.name, in_lines(summaries.summary(rounded(content))))


def earlier(path: Path) -> Path:
    """The file from which a run to a result file goes on: itself, or its committed summary."""
    return RESULTS / path.name if path.parent == RAW and not path.is_file() else path


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(path.name + ".new")
    staging.write_text(text, encoding="utf-8")
    staging.replace(path)


def rounded(value: Any) -> Any:
    """Floats with five significant digits: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value
