"""The command `attenuator tune`."""

from collections.abc import Sequence
from functools import partial

from rich.console import Console

from attenuator.commandline import INTERRUPTED, interrupt_afterwards, note, parse
from attenuator.tune.settings import COMMAND, EXAMPLES, POSITIONALS, SETTINGS, USAGE

say = partial(note, COMMAND)


def main(arguments: Sequence[str]) -> int:
    """Tunes a checkpoint.

    Args:
        arguments: what follows `attenuator tune`.

    Returns:
        0, or 130 where it was interrupted; a failure is raised, and `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the checkpoint, the texts or the output is at fault.
        ModuleNotFoundError: the extra is not installed.
        SystemExit: 2 after a usage error.
    """
    settings, [checkpoint] = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    try:
        with interrupt_afterwards():
            from attenuator.bundle import REPORT
            from attenuator.export.steps import Steps  # seconds of imports, after --help was answered
            from attenuator.tune.pipeline import Run
            from attenuator.tune.result import sentences

        with Steps(Console(stderr=True)) as steps:
            run = Run(checkpoint, settings, say, steps)
            tuned = run.tune()
            steps("")
    except KeyboardInterrupt:
        say("interrupted; the same command goes on where it ended")
        return INTERRUPTED
    if tuned is None:
        print(f"Serve it: attenuator serve {run.output}")
    else:
        print("\n".join(sentences(tuned, str(run.output))))
        say(f"{run.output / REPORT} has the curve, every setting, and texts of yours whose answers change")
    return 0
