"""An operator with two knobs, compiled for tests alone, is carried through everything that follows from its spec.

A process knows the operators of its environment from its start, so the tests run in processes of their own.
"""

from pathlib import Path

import pytest
from harness import HERE, in_process

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = "libattenuator_ops_two_knobs.so"
PYTEST = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"


@pytest.mark.parametrize(
    ("files", "chosen"),
    [(["support/two_knobs/carried.py"], ""), (["ops/test_operator.py", "ops/test_fuzz.py"], "two_knobs")],
    ids=["carried", "conformance"],
)
def test_in_a_process_that_knows_the_operator(files: list[str], chosen: str) -> None:
    library = next(ROOT.glob(f"build/py3-none-*/ops/{LIBRARY}"))
    done = in_process(
        PYTEST,
        *(str(HERE.parent / file) for file in files),
        *(["-k", chosen] if chosen else []),
        FUZZ_SEEDS="1",
        ATTENUATOR_EXTRA_OPERATORS="two_knobs",
        ATTENUATOR_OPS_LIBRARY=str(library),
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
