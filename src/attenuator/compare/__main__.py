"""The command `attenuator compare`."""

import sys
from collections.abc import Sequence

from rich.console import Console

from attenuator.commandline import INTERRUPTED, interrupt_afterwards, parse
from attenuator.compare.settings import COMMAND, EXAMPLES, POSITIONALS, SETTINGS, USAGE

WIDTH = 120  # characters


def note(sentence: str) -> None:
    """Says something on stderr."""
    print(f"attenuator {COMMAND}: {sentence}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Compares attentions for a checkpoint.

    Args:
        arguments: what follows `attenuator compare`.

    Returns:
        0, or 130 where it was interrupted; a failure is raised, and `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the checkpoint, the data or the output is at fault.
        ModuleNotFoundError: the extra is not installed.
        SystemExit: 2 after a usage error.
    """
    settings, [source] = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    try:
        with interrupt_afterwards():
            from attenuator.compare.pipeline import Run  # seconds of imports, after --help was answered
            from attenuator.compare.report import show

        run = Run(source, settings, note)
        comparison = run.compare()
    except KeyboardInterrupt:
        note("interrupted; the same command goes on where it ended")
        return INTERRUPTED
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:  # of unknown width: a table's row stays one line
        console.width = max(console.width, WIDTH)
    show(
        console,
        comparison.verdicts,
        comparison.candidates,
        comparison.absent,
        comparison.sentences,
    )
    note(f"'{run.folder}' has comparison.json and comparison.svg; to export what is recommended:")
    for command in comparison.commands:
        print(command)
    return 0
