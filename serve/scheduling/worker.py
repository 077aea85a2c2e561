"""A thread that runs one call after the other for the event loop.

A thread pool hands each call over in a future of its own, which is then copied to one of the event loop's: on the way
of a short text that costs as much as its tokens. And of a pool's threads, one that has slept for longer is as likely to
get the call as the one whose caches are warm.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Call = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class Worker:
    """One thread, started with the first call; as with a thread pool, the process does not end before its call does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls = SimpleQueue[_Call | None]()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Runs a function once the calls before have ended; called on the event loop.

        Args:
            function: to call.
            arguments: of the function.

        Returns:
            Its result, or what it raises. A future that is cancelled meanwhile stops nothing: the call still runs.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name)
            self._thread.start()
        self._calls.put((future, function, arguments))
        return future

    def stop(self) -> None:
        """Ends the thread after the calls that were made."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            _run(*call)
            del call  # what it holds may be a model's memory


def _run(future: asyncio.Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    result, error = None, None
    if future.cancelled():
        return
    try:
        result = function(*arguments)
    except BaseException as raised:
        error = raised
    with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
        future.get_loop().call_soon_threadsafe(_settle, future, result, error)
    del error  # its traceback holds this frame


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
