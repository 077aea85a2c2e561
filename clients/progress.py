"""A progress bar on standard error, the same for everything that asks or runs a model many times."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bar(*columns: ProgressColumn, shown: bool = True) -> Progress:
    """A bar that vanishes when it is done; tasks are named by their description.

    Args:
        columns: what stands behind the bar; by default how many are done, and the time that remains.
        shown: False draws nothing; nor is anything drawn where standard error is not a terminal.
    """
    console = Console(stderr=True)
    columns = columns or (MofNCompleteColumn(), TimeRemainingColumn())
    described = (TextColumn("{task.description}"), BarColumn(), *columns)
    return Progress(*described, console=console, transient=True, disable=not (shown and console.is_terminal))
