"""A progress bar on standard error, the same for everything that asks or runs a model many times."""

import sys

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
    is_drawn = shown and console.is_terminal
    # rich would write what is printed meanwhile to its own console, also where standard output is a file or a pipe.
    redirect = getattr(sys.stdout, "isatty", bool)()
    return Progress(*described, console=console, transient=True, disable=not is_drawn, redirect_stdout=redirect)
