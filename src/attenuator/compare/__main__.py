"""The command `attenuator compare`."""

from collections.abc import Sequence
from functools import partial

from rich.console import Console

from attenuator.commandline import INTERRUPTED, interrupt_afterwards, note, parse
from attenuator.compare.settings import COMMAND, EXAMPLES, POSITIONALS, SETTINGS, USAGE

WIDTH = 120  # characters
say = partial(note, COMMAND)


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

        run = Run(source, settings, say)
        comparison = run.compare()
    except KeyboardInterrupt:
        say("interrupted; the same command goes on where it ended")
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
    say(f"'{run.folder}' has comparison.json and comparison.svg; to export what is recommended:")
    for command in comparison.commands:
        print(command)
    return 0
