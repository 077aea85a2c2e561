"""The steps of long work on standard error: which one runs, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

__all__ = ["Steps"]


class Steps:
    """Shows on stderr which step runs, and how long each took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.status = console.status("start")
        self.step = ""
        self.begun = time.monotonic()

    def __enter__(self) -> Steps:
        """Begins to show them."""
        self.status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Shows none any more."""
        self.status.stop()

    def detail(self, phrase: str) -> None:
        """Says more about the running step, until the next one begins."""
        self.status.update(f"{self.step}: {phrase}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Shows nothing meanwhile: something else draws a bar."""
        self.status.stop()
        try:
            yield
        finally:
            self.status.start()

    def __call__(self, step: str) -> None:
        """Ends the running step and begins the next."""
        now = time.monotonic()
        if self.step:
            self.console.print(f"[green]done[/] {self.step} [dim]{now - self.begun:.1f} s[/]", highlight=False)
        self.step, self.begun = step, now
        self.status.update(step)
