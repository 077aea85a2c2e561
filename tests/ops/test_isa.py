"""Every dispatch path below the machine's best passes the tests that do not depend on the instruction set."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, RAGGED, make_inputs, run_case

from attenuator.ops import library_path

FOLDER = Path(__file__).parent
ISAS = ("avx2", "avx512", "avx512_vnni", "avx512_amx")


def active_isa() -> str:
    function = ctypes.CDLL(str(library_path())).attenuator_isa
    function.restype = ctypes.c_char_p
    return str(function().decode())


LOWER = ISAS[: ISAS.index(active_isa())]


def run_with(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=FOLDER.parent.parent, env=os.environ | {"ATTENUATOR_ISA": isa},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_machine_is_new_enough() -> None:
    assert active_isa() in ISAS


@pytest.mark.parametrize("isa", LOWER)
def test_conformance_on(isa: str) -> None:
    """What kernels do, the fuzz tests on shapes and hostile rows too; refusals do not depend on the instruction set."""
    tests = [str(FOLDER / f"test_{name}.py") for name in ("operator", "fuzz", "softmax")]
    chosen = "not refused and not contract and not concurrent and not saves_work and not memory"
    done = run_with(isa, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, *tests)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("isa", LOWER)
def test_results_agree_with_the_best_instruction_set(isa: str, tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np\n"
        "from cases import CASES, RAGGED, make_inputs, run_case\n"
        "for number, case in enumerate(CASES):\n"
        "    np.savez(f'{sys.argv[2]}/{number}.npz', *run_case(case, make_inputs(case, RAGGED)))\n"
    )
    done = run_with(isa, "-c", script, str(FOLDER), str(tmp_path))
    assert done.returncode == 0, done.stderr
    for number, case in enumerate(CASES):
        with np.load(tmp_path / f"{number}.npz") as archive:
            for name, expected in zip(archive.files, run_case(case, make_inputs(case, RAGGED)), strict=True):
                np.testing.assert_allclose(archive[name], expected, atol=5e-5, err_msg=str(case))


def test_an_unknown_instruction_set_is_refused() -> None:
    done = run_with("sse2", "-c", "import sys; sys.path.insert(0, sys.argv[1])\n"
                    "from attenuator.ops import OPERATORS\n"
                    "from cases import defaults, make_inputs, run_case\n"
                    "case = next(defaults(o) for o in OPERATORS if o.key == 'softmax')\n"
                    "run_case(case, make_inputs(case, (3,)))", str(FOLDER))  # fmt: skip
    assert done.returncode != 0
    assert "ATTENUATOR_ISA is 'sse2', must be avx2, avx512, avx512_vnni or avx512_amx" in done.stderr
