"""The environment that `make test-cuda` makes has what every test imports: without it, it would end at collection."""

import importlib.metadata as metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


@pytest.mark.timeout(300)
def test_every_test_is_collected_with_the_packages_of_a_gpu_host(tmp_path: Path) -> None:
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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "packages_of_a_gpu_host", "-p", "no:cacheprovider", *others]
    done = subprocess.run(
        [*command, "--collect-only", "-m", "cuda"],
        # What a developer's build folder has is not there.
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path), "ATTENUATOR_AMX_LIBRARY": str(tmp_path / "none.so")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert int(re.findall(r"(\d+)(?:/\d+)? tests collected", done.stdout)[-1]) > 500
