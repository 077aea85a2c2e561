"""The command `attenuator train`."""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from attenuator.commandline import INTERRUPTED, interrupt_afterwards, note, parse
from attenuator.tuning.settings import ABORTED
from attenuator.tuning.train.settings import COMMAND, EXAMPLES, POSITIONALS, SETTINGS, USAGE

say = partial(note, COMMAND)


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

        outcome, lines = train(settings, Path(source), say, shown=True)
    except KeyboardInterrupt:
        say(ABORTED)
        return INTERRUPTED
    if outcome.reason == "interrupted":
        say(outcome.ended)
        return INTERRUPTED
    print("\n".join(lines))
    return 0
