"""What runs on a GPU machine, tried without one: packages that tests import, steps in turn, what travels there."""

import importlib.metadata as metadata
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from attenuator.ops import library_path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = {"pip", "setuptools", "wheel"}
BLOCKER = """
import importlib.machinery, sys

class Present(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {absent!r} else super().find_spec(name, path, target)

sys.meta_path[:] = [Present if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
"""

# A driver that knows one GPU of 8 GiB, and can do nothing with it.
DRIVER = """
#include <stddef.h>
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = (size_t)8 << 30, 0; }
"""


def installed_extras() -> set[str]:
    """The extras that scripts/cuda_host.sh installs."""
    script = (ROOT / "scripts" / "cuda_host.sh").read_text(encoding="utf-8")
    [extras] = re.findall(r"-e '\.\[([\w,]+)\]'", script)
    return set(extras.split(","))


def requirements(extras: set[str]) -> list[Requirement]:
    """What pyproject.toml asks for with these extras, those that an extra names in turn included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [Requirement(text) for text in project["dependencies"]]
    waiting, visited = set(extras), set()
    while waiting:
        extra = waiting.pop()
        visited.add(extra)
        for requirement in map(Requirement, project["optional-dependencies"][extra]):
            if requirement.name == "attenuator":
                waiting |= requirement.extras - visited
            else:
                required.append(requirement)
    return required


def distributions(required: list[Requirement]) -> set[str]:
    """Names of all distributions that these need, by the metadata of this environment."""
    names: set[str] = set()
    waiting = [(requirement.name, requirement.extras) for requirement in required]
    while waiting:
        name, extras = waiting.pop()
        # Both wheels hold the package onnxruntime; this environment has the one for the CPU.
        name = canonicalize_name(name).replace("onnxruntime-gpu", "onnxruntime")
        if name in names:
            continue
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another system, or CUDA's own libraries
        names.add(name)
        for requirement in map(Requirement, needed):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in extras or {""}):
                waiting.append((requirement.name, requirement.extras))
    return names


def test_onnxruntime_for_the_cpu_is_not_installed_over_that_for_cuda() -> None:
    names = {requirement.name for requirement in requirements(installed_extras())}
    assert "onnxruntime-gpu" in names
    assert "onnxruntime" not in names


def cuda_host(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the script in a checkout in which nothing is built, with an interpreter used as it is."""
    tree = tmp_path / "tree"
    for name in ("tests", "scripts"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"], check=True)
    told = {"PYTHON": sys.executable, "OFFLINE": "1", "ATTENUATOR_OPS_LIBRARY": str(library_path())}
    return subprocess.run(
        [tree / "scripts" / "cuda_host.sh", *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, **told, **environment, "LD_LIBRARY_PATH": str(tmp_path)},
    )  # fmt: skip


@pytest.mark.timeout(300)
def test_every_gpu_test_is_collected_with_the_packages_of_a_gpu_host(tmp_path: Path) -> None:
    present = distributions(requirements(installed_extras())) | TOOLS | {"attenuator"}
    absent = {
        module
        for module, owners in metadata.packages_distributions().items()
        if not present & {canonicalize_name(owner) for owner in owners}
    }
    assert {"ruff", "mypy"} <= absent  # the development tools are not needed there
    (tmp_path / "packages_of_a_gpu_host.py").write_text(BLOCKER.format(absent=absent), encoding="utf-8")
    plugins = metadata.entry_points(group="pytest11")
    others = [f"-pno:{each.name}" for each in plugins if each.dist and canonicalize_name(each.dist.name) not in present]
    choice = ["-q", "--collect-only", "-p", "packages_of_a_gpu_host", *others]
    done = cuda_host(tmp_path, "test", *choice, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"mark\.cuda\b", path.read_text())]
    assert {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line} == {
        str(path.relative_to(ROOT)) for path in marked
    }
    assert int(re.findall(r"(\d+)(?:/\d+)? tests collected", done.stdout)[-1]) > 500


@pytest.mark.timeout(300)
def test_each_step_on_a_gpu_host_ends_with_a_line_and_none_ends_the_others(tmp_path: Path) -> None:
    done = cuda_host(tmp_path, "all", "half", "initcheck", OUT=str(tmp_path / "results"), PATH="/usr/bin:/bin")
    assert done.returncode == 1, done.stderr
    half, initcheck = (tmp_path / "results" / "summary.txt").read_text().splitlines()
    assert re.match(r"half: failed with 1 after \d+ s: =+ \d+ errors in ", half)
    assert "no GPU to test on: the installed ONNX Runtime has no CUDA" in (tmp_path / "results/half.log").read_text()
    assert re.match(r"initcheck: failed with 1 after \d+ s: cuda_toolkit: no compute-sanitizer is here", initcheck)
    assert done.stdout.splitlines() == [half, initcheck]


def test_what_is_no_step_is_refused(tmp_path: Path) -> None:
    done = cuda_host(tmp_path, "all", "half", "everything")
    assert done.returncode == 2
    assert "all: 'everything' is no step, must be one of: smoke conformance half " in done.stderr


def test_machine_code_of_other_gpus_does_not_travel() -> None:
    spec = importlib.util.spec_from_file_location("gpu_bundle", ROOT / "scripts" / "gpu_bundle.py")
    assert spec is not None
    assert spec.loader is not None
    gpu_bundle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu_bundle)

    def container(*entries: tuple[int, int, bytes]) -> bytes:
        body = b"".join(
            struct.pack("<HHIQ12xI", kind, 257, 32, len(payload), architecture) + payload
            for kind, architecture, payload in entries
        )
        return gpu_bundle.MAGIC + struct.pack("<HHQ", 1, 16, len(body)) + body

    ptx, code = 1, gpu_bundle.MACHINE_CODE
    before = container((code, 80, b"a" * 24), (code, 90, b"b" * 16), (ptx, 90, b"c" * 8))
    alone = container((code, 90, b"d" * 16))
    data = bytearray(b"\7" * 8 + before + b"\7" * 16 + alone)
    assert gpu_bundle.zero_others(data, 8, len(data), 90) == (16, 48)
    expected = container((code, 80, bytes(24)), (code, 90, b"b" * 16), (ptx, 90, bytes(8)))
    assert data == b"\7" * 8 + expected + b"\7" * 16 + container((code, 90, bytes(16)))
