"""Gives memory that large requests have used back to the system."""

import asyncio
import ctypes
import functools
import gc
from collections.abc import Callable
from concurrent.futures import Executor

DELAY_S = 0.5


@functools.cache
def trimmer() -> Callable[[int], int] | None:
    """The `malloc_trim` of glibc; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


class MemoryReturn:
    """Trims the heap a little after a large request, once for all that end meanwhile.

    glibc keeps what a thread has freed for later: after a text of megabytes, hundreds of MiB.
    """

    def __init__(self, threads: Executor) -> None:
        """Makes it.

        Args:
            threads: where to trim; it takes milliseconds.
        """
        self._threads = threads
        self._due: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Asks for a trim, once what the request held is freed."""
        if self._due is None and trimmer() is not None:
            self._due = asyncio.get_running_loop().call_later(DELAY_S, self._trim)

    def cancel(self) -> None:
        """Forgets the trim that was asked for."""
        if self._due is not None:
            self._due.cancel()

    def _trim(self) -> None:
        self._due = None
        trim = trimmer()
        if trim is not None:
            self._threads.submit(release, trim)


def release(trim: Callable[[int], int]) -> None:
    """Frees what is in cycles, such as an error with the frames that held a text, and then what the heap keeps."""
    gc.collect()
    trim(0)
