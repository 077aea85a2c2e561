"""Which tests of operators are run once more on an instruction set below the machine's best (`pytest -k`).

    python tests/support/instruction_sets.py [ISA]

prints that for one set, or all tests' for none. An operator runs other machine code on a lower set only where something
was written for a set above: its own files in `ops/<operator>/cpu/`, or those in `ops/common/` that all share.
"""

import sys
from pathlib import Path

ISAS = ("avx2", "avx512", "avx512_vnni", "avx512_amx")
OPS = Path(__file__).resolve().parents[2] / "ops"
# Time and memory are for quiet machines; refusals and what threads and heads share depend on no instruction set.
NEVER = "not saves_work and not memory and not on_cuda"
ONCE = "not refused and not contract and not concurrent and not together"


def operators_written_for(isa: str) -> list[str] | None:
    """Folders of the operators that have kernels for exactly this set; None where those that all share do."""
    if any(OPS.glob(f"common/**/*_{isa}.cc")):
        return None
    return sorted({path.parents[1].name for path in OPS.glob(f"*/cpu/*_{isa}.cc")})


def chosen(isa: str = "") -> str:
    """Expression for `pytest -k`: tests to run on a set below the machine's best; without one, those for the best."""
    if not isa:
        return NEVER
    operators = operators_written_for(ISAS[ISAS.index(isa) + 1])
    own = "" if operators is None else f" and ({' or '.join(operators) or 'no_operator'})"
    return f"{NEVER} and {ONCE}{own}"


if __name__ == "__main__":
    print(chosen(*sys.argv[1:]))
