"""One archive below 60 MB with all that a GPU machine without a network lacks; made where there is one, without a GPU.

    make gpu-bundle                                # for Python 3.12 and sm_90 (H100, H200)
    .venv/bin/python scripts/gpu_bundle.py --python 3.13 --architecture 120

It holds this checkout, the operators compiled for one GPU architecture, and the packages that the GPU tests and
benchmarks import. The GPU machine brings a driver for CUDA 13, a Python of that version with PyTorch for CUDA 13, its
NVIDIA wheels, transformers, onnx and tokenizers, and for the last three steps compute-sanitizer. There:

    python3 -m tarfile -e attenuator-gpu.tar.xz . && PYTHON=python3 attenuator/scripts/cuda_host.sh all

ONNX Runtime's CUDA provider holds 208 MiB of machine code for six architectures. That of others becomes zeros, which
compress away: CUDA picks the code of its own architecture, and loads it when a kernel is first used. Zeros become also
the containers that have this architecture alone: products of mixtures of experts and of 8-bit floats, by the names of
their kernels, which no graph of ours has.
"""

import argparse
import mmap
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "gpu_bundle"
PACKAGES = WORK / "packages"
PROVIDER = "onnxruntime/capi/libonnxruntime_providers_cuda.so"
# What the GPU machine has itself: too large to travel.
THERE = {"torch", "numpy", "onnx", "ml-dtypes", "transformers", "tokenizers", "huggingface-hub", "scipy"}
LEFT_OUT = {"uvloop"}  # serves without
# Of the extra `test`, what tests of a GPU import.
TESTING = {"pytest", "pytest-timeout", "pytest-xdist"}
# Of the bundles the small ones travel.
NOT_PACKED = (
    "examples/bundles/reviews",
    "benchmarks/results/",
    "docs/",
    "deploy/",
    "clients/js/",
)
UNUSED = (
    "providers_tensorrt",
    "onnxruntime/transformers",
    "onnxruntime/tools",
    "onnxruntime/quantization",
    "capi/libonnxruntime.so",
)
PLATFORMS = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (34, 28, 27, 26, 24, 17, 12, 5)]
MAGIC, MACHINE_CODE = b"\x50\xed\x55\xba", 2
LIMIT_MB = 60


def extras() -> dict[str, list[str]]:
    """The optional dependencies in pyproject.toml by extra, and under an empty name those of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["optional-dependencies"] | {"": project["dependencies"]}


def pinned(python: str) -> Iterator[str]:
    """`NAME==VERSION` of each package that is packed, in the versions that this environment tests with."""
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    waiting = [Requirement(text) for text in extras()[""]]
    waiting += [each for each in map(Requirement, extras()["test"]) if each.name in TESTING]
    visited = THERE | LEFT_OUT
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in visited or (requirement.marker and not requirement.marker.evaluate(environment)):
            continue
        visited.add(name)
        yield f"{name}=={metadata.version(name)}"
        waiting += map(Requirement, metadata.requires(name) or [])


def install(requirements: list[str], python: str) -> None:
    """Puts wheels for another Python into the folder of packages."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:"]
    target = [f"--target={PACKAGES}", f"--python-version={python}", "--implementation=cp", *PLATFORMS]
    subprocess.run([*pip, *target, *requirements], check=True)


def entries(code: bytearray | mmap.mmap, begin: int, end: int) -> Iterator[list[tuple[int, int, int, int]]]:
    """The fat binaries between two offsets, as nvcc embeds them.

    Yields:
        For each, of all entries: kind, architecture, offset and bytes of the payload.
    """
    position = begin
    while position < end:
        if bytes(code[position : position + 4]) != MAGIC:
            position += 8
            continue
        header, size = struct.unpack_from("<HQ", code, position + 6)
        at, position = position + header, position + header + size
        container = []
        while at < position:
            kind, _, length, payload = struct.unpack_from("<HHIQ", code, at)
            [architecture] = struct.unpack_from("<I", code, at + 28)
            container.append((kind, architecture, at + length, payload))
            at += length + payload
        yield container


def zero_others(code: bytearray | mmap.mmap, begin: int, end: int, architecture: int) -> tuple[int, int]:
    """Zeros what one architecture does not run; headers stay.

    Returns:
        Bytes of machine code that stay, and that are zeros now.
    """
    kept = zeroed = 0
    for container in entries(code, begin, end):
        alone = {each[1] for each in container} == {architecture}
        for kind, built_for, offset, size in container:
            if kind == MACHINE_CODE and built_for == architecture and not alone:
                kept += size
            else:
                code[offset : offset + size] = bytes(size)
                zeroed += size
    return kept, zeroed


def make_lean(architecture: int) -> None:
    """Takes out of ONNX Runtime what is not used on such a GPU."""
    for path in list(PACKAGES.glob("onnxruntime/**/*")):
        if any(part in str(path.relative_to(PACKAGES)) for part in UNUSED) and path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    library = PACKAGES / PROVIDER
    sections = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True).stdout
    place = re.search(r" \.nv_fatbin +PROGBITS +\w+ (\w+) (\w+)", sections)
    if place is None:
        raise SystemExit(f"gpu_bundle: {library} has no section .nv_fatbin")
    begin, size = (int(each, 16) for each in place.groups())
    with open(library, "r+b") as file, mmap.mmap(file.fileno(), 0) as code:
        kept, zeroed = zero_others(code, begin, begin + size, architecture)
    if not kept:
        raise SystemExit(f"gpu_bundle: ONNX Runtime has no machine code for sm_{architecture}")
    print(f"gpu_bundle: ONNX Runtime keeps {kept >> 20} MiB of machine code, {zeroed >> 20} MiB are zeros", flush=True)


def compile_operators(architecture: int) -> None:
    """Builds the operators and the tests' probe."""
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DATTENUATOR_CUDA=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    cmake = Path(sys.executable).with_name("cmake")
    configure = [cmake, "-S", ROOT, "-B", WORK / "cuda", "-G", "Ninja", *options]
    subprocess.run([*configure, f"-DATTENUATOR_CUDA_ARCHITECTURES={architecture}-real"], check=True)
    subprocess.run([cmake, "--build", WORK / "cuda", "--parallel"], check=True)


def pack(output: Path) -> None:
    """Writes the archive: the tracked files that tests and benchmarks read, libraries, packages."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with tarfile.open(output, "w:xz", preset=6) as archive:
        for name in tracked.splitlines():
            if not name.startswith(NOT_PACKED):
                archive.add(ROOT / name, f"attenuator/{name}")
        for library in sorted((WORK / "cuda" / "ops").glob("libattenuator_*.so")):
            archive.add(library, f"attenuator/build/cuda/ops/{library.name}")
        archive.add(PACKAGES, "attenuator/build/cuda_packages")


def main() -> int:
    """Makes the archive; 1 where it is larger than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="of the GPU machine (default: %(default)s)")
    parser.add_argument("--architecture", type=int, default=90, help="of its GPU (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "attenuator-gpu.tar.xz")
    options = parser.parse_args()
    compile_operators(options.architecture)
    print("gpu_bundle: fetching packages", flush=True)
    shutil.rmtree(PACKAGES, ignore_errors=True)
    [runtime] = (each for each in extras()["gpu"] if each.startswith("onnxruntime-gpu"))
    install([*pinned(options.python), re.sub(r"\[.*?\]", "", runtime)], options.python)
    make_lean(options.architecture)
    print("gpu_bundle: packing, for minutes", flush=True)
    pack(options.output)
    size = options.output.stat().st_size / 1e6
    print(f"gpu_bundle: {options.output}: {size:.1f} MB")
    if size > LIMIT_MB:
        print(f"gpu_bundle: at most {LIMIT_MB} MB can be carried to some machines", file=sys.stderr)
    return int(size > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
