"""A progress bar on standard error, the same for everything that asks or runs a model many times."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar(*, shown: bool = True) -> Progress:
    """A bar that vanishes when it is done; tasks are named by their description.

    Args:
        shown: False draws nothing; nor is anything drawn where standard error is not a terminal.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
