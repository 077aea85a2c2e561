"""Every dispatch path below the machine's best passes the tests that do not depend on the instruction set."""

from pathlib import Path

import numpy as np
import pytest
from cases import CASES, RAGGED, make_inputs, run_case
from harness import TESTS, in_process, isa
from instruction_sets import ISAS, chosen

LOWER = ISAS[: ISAS.index(isa())]
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def test_the_machine_is_new_enough() -> None:
    assert isa() in ISAS


@pytest.mark.parametrize("lower", LOWER)
def test_conformance_on(lower: str) -> None:
    """What kernels do, the fuzz tests on shapes and hostile rows too, where other machine code runs than above."""
    tests = [str(TESTS / f"test_{name}.py") for name in ("operator", "fuzz", "softmax", "relative", "yoso_gradient")]
    environment = {"ATTENUATOR_ISA": lower, "FUZZ_SEEDS": "1"}
    done = in_process(PYTEST, "-q", "-p", "no:cacheprovider", "-k", chosen(lower), *tests, **environment)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("lower", LOWER)
def test_results_agree_with_the_best_instruction_set(lower: str, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "import numpy as np\n"
        "from cases import CASES, RAGGED, make_inputs, run_case\n"
        "for number, case in enumerate(CASES):\n"
        "    np.savez(f'{sys.argv[1]}/{number}.npz', *run_case(case, make_inputs(case, RAGGED)))\n"
    )
    done = in_process(script, str(tmp_path), ATTENUATOR_ISA=lower)
    assert done.returncode == 0, done.stderr
    for number, case in enumerate(CASES):
        if case.attributes.get("int8_products") == 1:
            continue  # the sets below multiply in float
        with np.load(tmp_path / f"{number}.npz") as archive:
            for name, expected in zip(archive.files, run_case(case, make_inputs(case, RAGGED)), strict=True):
                np.testing.assert_allclose(archive[name], expected, atol=5e-5, err_msg=str(case))


def test_an_unknown_instruction_set_is_refused() -> None:
    script = (
        "from attenuator.ops import OPERATORS\n"
        "from cases import defaults, make_inputs, run_case\n"
        "case = next(defaults(o) for o in OPERATORS if o.key == 'softmax')\n"
        "run_case(case, make_inputs(case, (3,)))"
    )
    done = in_process(script, ATTENUATOR_ISA="sse2")
    assert done.returncode != 0
    assert "ATTENUATOR_ISA is 'sse2', must be avx2, avx512, avx512_vnni or avx512_amx" in done.stderr
