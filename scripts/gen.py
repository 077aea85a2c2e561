"""Writes the generated blocks of README.md from the operators' specs; with --check, tells whether they are current.

Run it as `make gen`; it needs nothing but the package itself.
"""

import argparse
import sys
from pathlib import Path

from attenuator.ops import OPERATORS
from attenuator.ops.spec import Knob, Operator

README = Path(__file__).resolve().parent.parent / "README.md"
WHAT_IT_IS = {"int32": "integer", "float": "number"}
ACCURACY = {"rises": "rises with it", "falls": "falls with it"}


def row(operator: Operator, knob: Knob) -> str:
    """One line of the table of knobs."""
    cells = (
        f"`{knob.name}`",
        f"`{operator.key}`",
        f"{WHAT_IT_IS[knob.dtype]}, {knob.low:g} to {knob.high:g}",
        f"{knob.default:g}",
        f"{knob.exact:g}",
        ACCURACY[knob.accuracy],
        f"{knob.doc} ({knob.source})",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def knob_table() -> str:
    """The table of knobs, in Markdown."""
    head = ("knob", "attention", "values", "default", "exact value", "accuracy", "what it does")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [row(operator, knob) for operator in OPERATORS for knob in operator.knobs]
    return "\n".join(lines)


BLOCKS = {"knobs": knob_table}


def filled(text: str) -> str:
    """The text with every generated block replaced by its current content.

    Raises:
        ValueError: a block's markers are missing.
    """
    for name, content in BLOCKS.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"{README.name} has no block {begin} ... {end}")
        text = f"{before}{begin}\n{content()}\n{end}{after}"
    return text


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; 0 where all is current or was written, 1 where --check found something stale."""
    parser = argparse.ArgumentParser(prog="scripts/gen.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a block is not current")
    options = parser.parse_args(arguments)
    try:
        old = README.read_text(encoding="utf-8")
        new = filled(old)
    except (OSError, ValueError) as error:
        print(f"scripts/gen.py: {error}", file=sys.stderr)
        return 1
    if new == old:
        return 0
    if options.check:
        print(f"scripts/gen.py: the generated blocks of {README.name} are not current: run `make gen`", file=sys.stderr)
        return 1
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
