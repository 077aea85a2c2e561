"""The build for CUDA: what its checks find, which toolkit it takes, what it says where there is no GPU."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from harness_cuda import ROOT

SCRIPTS = ROOT / "scripts"
KERNEL = (
    "_ZN10attenuator4pool47_GLOBAL__N__fbc33102_14_kernel_cuda_cu_9a3c03554PoolI6__halfEEv"
    "NS_4cuda5BatchINS0_8PoolItemEEEbPKT_lPS8_"
)


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cuda_check", SCRIPTS / "cuda_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_names_of_nvcc_and_of_the_test_device_meet(checks: ModuleType) -> None:
    host = "attenuator::pool::(anonymous namespace)::Pool<attenuator::cuda::Half>(attenuator::cuda::Batch<int>, bool)"
    assert checks.readable(f"void {host}") == "pool::Pool<float16>"
    assert checks.demangled([KERNEL]) == {KERNEL: "pool::Pool<float16>"}


PTXAS = f"""ptxas info    : Compiling entry function '{KERNEL}' for 'sm_90'
ptxas info    : Function properties for {KERNEL}
    {{stack}} bytes stack frame, {{spill}} bytes spill stores, 8 bytes spill loads
"""
RESOURCES = f"""Fatbin elf code:
arch = sm_90
 Function {KERNEL}:
  REG:40 STACK:16 SHARED:128 LOCAL:0 CONSTANT[0]:3960 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
SASS = f"""arch = sm_90
    Function : {KERNEL}
        /*0010*/  ATOMS.ADD RZ, [R2], R3 ;
        /*0020*/  ATOMS.CAST.SPIN R4, [R2], R3, R4 ;
        /*0030*/  ATOMS.POPC.INC.32 RZ, [R2] ;
"""


def test_what_the_tools_say_is_read(checks: ModuleType) -> None:
    assert list(checks.read_spills(PTXAS.format(stack=16, spill=4))) == [(KERNEL, "sm_90", 4, 8)]
    assert list(checks.read_resources(RESOURCES)) == [(KERNEL, "sm_90", {"REG": 40, "STACK": 16, "SHARED": 128})]
    assert list(checks.read_atomics(SASS)) == [(KERNEL, "sm_90", 2, 1)]


FINE = {"registers": 64, "spill_stores": 0, "spill_loads": 0, "dynamic_shared": 99 * 1024, "threads": 1024}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"spill_stores": 4}, "K on sm_86 spills registers: 4 bytes stored, 0 loaded"),
        ({"spill_stores": None}, "K on sm_86: ptxas reported no spills for it"),
        ({"stack": 72}, "K on sm_86 has a stack frame of 72 bytes"),
        ({"static_shared": 1}, "K on sm_86 asks for 101377 bytes of shared memory, a block has 101376"),
        ({"registers": 65}, "K on sm_86: 1024 threads need 73728 registers, a block has 65536"),
        ({"shared_loops": 2}, "K on sm_86: 2 atomic operations on shared memory are compare-and-swap loops"),
    ],
    ids=lambda value: next(iter(value), "nothing") if isinstance(value, dict) else None,
)
def test_each_fault_is_named(checks: ModuleType, change: dict[str, int | None], expected: str | None) -> None:
    places = list(checks.SHARED_LIMIT)
    kernels = [checks.Kernel("K", place, **(FINE | change if place == "sm_86" else FINE)) for place in places]
    sentences = list(checks.problems(kernels, places, "library.1.sm_120.ptx"))
    assert len(sentences) == (expected is not None)
    assert all(sentence.startswith(str(expected)) for sentence in sentences)


def test_missing_machine_code_is_named(checks: ModuleType) -> None:
    places = list(checks.SHARED_LIMIT)
    kernels = [checks.Kernel("K", place, **FINE) for place in places if place != "sm_100"]
    assert list(checks.problems(kernels, places, "library.1.sm_90.ptx")) == [
        "the library holds no PTX for devices newer than sm_120",
        "K has no machine code for sm_100",
    ]
    assert list(checks.problems([], places, "library.1.sm_120.ptx")) == ["the library holds no kernel"]


def test_what_ptxas_says_is_kept_and_faults_are_shown(tmp_path: Path) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho 'ptxas info    : quiet' >&2\necho 'a warning' >&2\nexit ${1#-}\n")
    compiler.chmod(0o755)
    for code in (0, 3):
        target = tmp_path / f"{code}.o"
        check = [sys.executable, str(SCRIPTS / "cuda_check.py"), "--compile"]
        done = subprocess.run(
            [*check, str(compiler), f"-{code}", "-o", str(target)], capture_output=True, text=True, check=False
        )
        assert done.returncode == code
        assert Path(f"{target}.ptxas").read_text() == "ptxas info    : quiet\na warning\n"
        assert done.stderr.splitlines() == (["a warning"] if code == 0 else ["ptxas info    : quiet", "a warning"])


def test_toolkit_script_refuses_a_word_that_it_does_not_know() -> None:
    done = subprocess.run([str(SCRIPTS / "cuda_toolkit.sh"), "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "cuda_toolkit: 'nonsense' is unknown, must be nvcc, inspect or sanitizer\n"


def test_toolkit_script_takes_the_toolkit_that_it_is_shown(tmp_path: Path) -> None:
    """And passes over one that is too old."""
    for name, version in (("old", "12.8"), ("new", "13.1")):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        answers = (f"--version) echo 'tools, release {version}, V1'", f"*) echo '#$ TOP={folder.parent}'")
        (folder / "nvcc").write_text(f"#!/bin/sh\ncase $1 in {answers[0]} ;; {answers[1]} ;; esac\n")
        (folder / "nvcc").chmod(0o755)
    environment = {"CUDA_HOME": str(tmp_path / "old"), "PATH": f"{tmp_path / 'new' / 'bin'}:/usr/bin:/bin"}
    done = subprocess.run(
        [str(SCRIPTS / "cuda_toolkit.sh")], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout == f"{tmp_path / 'new'}\n"
    assert "old/bin/nvcc is older than 12.9" in done.stderr


@pytest.mark.parametrize("action", ["test", "bench", "sanitize", "all"])
def test_gpu_targets_refuse_in_one_sentence_without_a_gpu(action: str, tmp_path: Path) -> None:
    """A driver that is not there: the loader finds a library of its name that is none."""
    (tmp_path / "libcuda.so.1").write_text("not a library")
    done = subprocess.run(
        [str(SCRIPTS / "cuda_host.sh"), action],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path), "PYTHON": sys.executable},
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"{SCRIPTS / 'cuda_host.sh'} {action} needs an NVIDIA GPU: no NVIDIA driver is here ("
    )
    assert len(done.stderr.splitlines()) == 1
