"""The thread of a lane, and the event loop that it works for."""

import asyncio
import sys
import threading

import pytest

from attenuator.serve.__main__ import fastest_loop
from attenuator.serve.scheduling.worker import Worker


def test_calls_run_one_after_the_other_in_one_thread() -> None:
    async def run() -> tuple[list[int], set[str]]:
        worker, names = Worker("lane"), set[str]()

        def double(number: int) -> int:
            names.add(threading.current_thread().name)
            return 2 * number

        try:
            return await asyncio.gather(*(worker.call(double, number) for number in range(20))), names
        finally:
            worker.stop()

    assert asyncio.run(run()) == ([2 * number for number in range(20)], {"lane"})


def test_what_a_call_raises_reaches_its_caller_and_the_next_call_runs() -> None:
    async def run() -> int:
        worker = Worker("lane")
        try:
            with pytest.raises(ZeroDivisionError):
                await worker.call(divmod, 1, 0)
            return await worker.call(pow, 2, 5)
        finally:
            worker.stop()

    assert asyncio.run(run()) == 32


def test_a_call_that_is_cancelled_while_it_waits_never_runs() -> None:
    async def run() -> list[str]:
        worker, done, began = Worker("lane"), list[str](), threading.Event()
        release = threading.Event()

        def hold() -> None:
            began.set()
            release.wait()

        first = worker.call(hold)
        second = worker.call(done.append, "second")
        third = worker.call(done.append, "third")
        while not began.is_set():
            await asyncio.sleep(0.001)
        second.cancel()
        release.set()
        await asyncio.gather(first, third)
        worker.stop()
        return done

    assert asyncio.run(run()) == ["third"]


def test_a_call_that_ends_after_its_event_loop_does_no_harm() -> None:
    worker, release = Worker("lane"), threading.Event()

    async def run() -> None:
        worker.call(release.wait)

    asyncio.run(run())
    release.set()
    worker.stop()
    for thread in threading.enumerate():
        if thread.name == "lane":
            thread.join(30)
            assert not thread.is_alive()


def test_the_event_loop_is_that_of_asyncio_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert fastest_loop() is None
