"""How the calls of `classify_many` are sent: from threads, or from tasks of an event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

from attenuator.clients import calls
from attenuator.clients.calls import Call
from attenuator.clients.many import ManyCalls, Task
from attenuator.clients.outcomes import Outcome
from attenuator.errors import AttenuatorError

Outcomes = Generator[Outcome, None, None]
AwaitedOutcomes = AsyncGenerator[Outcome, None]

LOOKAHEAD = 4  # calls begun or waiting for each one under way, so that a slow one at the head holds up no others


def blocking(run: ManyCalls, send: Callable[[Call[Any], Callable[[float], None]], Any]) -> Outcomes:
    """Sends the calls from threads. Where the iteration is left, those under way are waited for and kept in the file.

    Args:
        run: the calls.
        send: sends one; gets what to pause with.
    """
    stopped = threading.Event()

    def pause(seconds: float) -> None:
        if stopped.wait(seconds):
            raise CancelledError

    def ask(task: Task, call: Call[Any]) -> Outcome:
        if run.ended:  # they begin in order: the caller meets the error before this
            raise CancelledError
        try:
            answer = send(call, pause)
        except AttenuatorError as error:
            return run.failed(task, error)
        return run.answered(task, answer)

    pending: deque[Future[Outcome] | Outcome] = deque()

    def first() -> Outcome:
        head = pending.popleft()
        return run.passed(head if isinstance(head, Outcome) else head.result())

    if run.by_calibration:
        run.is_of(send(calls.models(), pause))
    with run, ThreadPoolExecutor(run.concurrency, "classify_many") as pool:
        try:
            for task in run.tasks():
                pending.append(pool.submit(ask, task, task.call) if task.call else task.outcome)
                if len(pending) >= LOOKAHEAD * run.concurrency:
                    yield first()
            while pending:
                yield first()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


async def awaiting(run: ManyCalls, send: Callable[[Call[Any]], Awaitable[Any]]) -> AwaitedOutcomes:
    """Sends the calls from tasks. Where the iteration is left, those under way are cancelled.

    Args:
        run: the calls.
        send: sends one.
    """
    places = asyncio.Semaphore(run.concurrency)

    async def ask(task: Task, call: Call[Any]) -> Outcome:
        async with places:
            if run.ended:
                raise asyncio.CancelledError
            try:
                answer = await send(call)
            except AttenuatorError as error:
                return run.failed(task, error)
            return run.answered(task, answer)

    pending: deque[asyncio.Task[Outcome] | Outcome] = deque()

    async def first() -> Outcome:
        head = pending[0]
        outcome = head if isinstance(head, Outcome) else await head
        pending.popleft()
        return run.passed(outcome)

    if run.by_calibration:
        run.is_of(await send(calls.models()))
    with run:
        try:
            for task in run.tasks():
                pending.append(asyncio.create_task(ask(task, task.call)) if task.call else task.outcome)
                if len(pending) >= LOOKAHEAD * run.concurrency:
                    yield await first()
            while pending:
                yield await first()
        finally:
            unfinished = [each for each in pending if isinstance(each, asyncio.Task)]
            for each in unfinished:
                each.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
