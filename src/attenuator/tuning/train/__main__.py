"""The command `attenuator train`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from attenuator.commandline import INTERRUPTED, interrupt_afterwards, parse
from attenuator.tuning.settings import ABORTED
from attenuator.tuning.train.settings import COMMAND, EXAMPLES, POSITIONALS, SETTINGS, USAGE


def note(sentence: str) -> None:
    """Says something on stderr."""
    print(f"attenuator {COMMAND}: {sentence}", file=sys.stderr)


def main(arguments: Sequence[str]) -> int:
    """Trains a classifier.

    Args:
        arguments: what follows `attenuator train`.

    Returns:
        0, or 130 where it was interrupted; a failure is raised, and `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the checkpoint, the data or the output is at fault, or training diverged.
        ModuleNotFoundError: the extra is not installed.
        SystemExit: 2 after a usage error.
    """
    settings, [source] = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    try:
        with interrupt_afterwards():
            import_module("accelerate")  # transformers would say that it is missing, but not in one sentence
            from attenuator.tuning.train.pipeline import train  # seconds of imports, after --help was answered

        outcome, lines = train(settings, Path(source), note, shown=True)
    except KeyboardInterrupt:
        note(ABORTED)
        return INTERRUPTED
    if outcome.reason == "interrupted":
        note(outcome.ended)
        return INTERRUPTED
    print("\n".join(lines))
    return 0
