"""The command `attenuator adapt`."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from attenuator.commandline import INTERRUPTED, interrupt_afterwards, parse
from attenuator.tuning.adapt.settings import COMMAND, EXAMPLES, POSITIONALS, SETTINGS, SYNONYMS, USAGE
from attenuator.tuning.settings import ABORTED


def main(arguments: Sequence[str]) -> int:
    """Adapts a checkpoint.

    Args:
        arguments: what follows `attenuator adapt`.

    Returns:
        0; 1 where the agreement asked for was not reached; 130 where it was interrupted. A failure is raised, and
        `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the checkpoint, the data or the output is at fault, or training diverged.
        ModuleNotFoundError: the extra is not installed.
        SystemExit: 2 after a usage error.
    """
    flags = [argument.partition("=") for argument in arguments]
    known = [SYNONYMS.get(flag, flag) + sign + value for flag, sign, value in flags]
    settings, [source] = parse(SETTINGS, COMMAND, known, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    try:
        with interrupt_afterwards():
            import_module("accelerate")  # transformers would say that it is missing, but not in one sentence
            from attenuator.tuning.adapt.command import run  # seconds of imports, after --help was answered

        adapted, reached = run(settings, Path(source))
    except KeyboardInterrupt:
        print(f"attenuator {COMMAND}: {ABORTED}", file=sys.stderr)
        return INTERRUPTED
    if adapted.outcome.reason == "interrupted":
        print(f"attenuator {COMMAND}: {adapted.outcome.ended}", file=sys.stderr)
        return INTERRUPTED
    return 0 if reached else 1
