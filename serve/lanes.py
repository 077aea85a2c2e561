"""Runs what the scheduler hands out: one task and one thread a lane, results back to the requests that wait."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from attenuator.errors import AttenuatorError, EngineError
from attenuator.runtime import Cancellation, Model
from attenuator.serve.jobs import LANES, Entry, Job, Lane, Pace
from attenuator.serve.scheduler import Queue

log = logging.getLogger(__name__)


class Lanes:
    """The lanes of one service.

    Everything but `Model.run` happens on the event loop, so that no state needs a lock.
    """

    def __init__(
        self,
        queue: Queue,
        models: Mapping[str, Model],
        paces: Mapping[str, Pace],
        threads: ThreadPoolExecutor,
        company: Callable[[], Awaitable[None]],
    ) -> None:
        """Makes them; `start` sets them going.

        Args:
            queue: where rows wait.
            models: loaded models by name.
            paces: how fast each runs; learned from what runs.
            threads: one a lane.
            company: waits a little for requests that could join a light batch.
        """
        self._queue = queue
        self._models = models
        self._paces = paces
        self._threads = threads
        self._company = company
        self._wake = {lane: asyncio.Event() for lane in LANES}
        self._running: dict[Lane, tuple[list[Entry], Cancellation]] = {}
        self._jobs: set[Job] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to run what waits."""
        self._tasks = [asyncio.create_task(self._serve(lane)) for lane in LANES]

    async def finish(self, job: Job, seconds: Sequence[float]) -> None:
        """Queues a request and waits for its results; cancelling the call drops the work.

        Args:
            job: the request.
            seconds: predicted time of each row.

        Raises:
            EngineError: a row failed.
            NotReady: the lanes were stopped.
        """
        self._jobs.add(job)
        for lane in self._queue.push(job, seconds, time.monotonic()):
            self._wake[lane].set()
        try:
            await job.done
        finally:
            self._jobs.discard(job)
            if any(result is None for result in job.results):
                self._drop(job)

    def running(self, lane: Lane) -> int:
        """Rows that run in a lane."""
        return len(self._running[lane][0]) if lane in self._running else 0

    def remaining_s(self, lane: Lane) -> float:
        """Predicted time of the batch under way and of what waits."""
        batch, _ = self._running.get(lane, ((), None))
        return self._queue.lanes[lane].load.seconds + sum(entry.seconds for entry in batch)

    async def stop(self, error: AttenuatorError) -> bool:
        """Ends the lanes; a run under way is stopped at its next node.

        Args:
            error: what requests that wait are answered with.

        Returns:
            Whether a thread is still at work, which cannot be interrupted inside a node.
        """
        busy = bool(self._running)
        for job in self._jobs:
            _fail(job, error)
        for _, cancellation in self._running.values():
            cancellation.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return busy

    def _drop(self, job: Job) -> None:
        self._queue.drop(job)
        for batch, cancellation in self._running.values():
            if all(entry.job.over for entry in batch):
                cancellation.cancel()

    async def _serve(self, lane: Lane) -> None:
        wake = self._wake[lane]
        while True:
            await wake.wait()
            if lane == "light":
                await self._company()
            batch = self._queue.take(lane)
            if not batch:
                wake.clear()
                continue
            try:
                await self._run(lane, batch)
            except Exception:  # a lane must outlive whatever happens to one batch
                log.exception("lane %s failed on a batch", lane)
                for entry in batch:
                    _fail(entry.job, EngineError("the engine failed on this request"))

    async def _run(self, lane: Lane, batch: Sequence[Entry]) -> None:
        batch = [entry for entry in batch if not entry.job.over]
        if not batch:
            return
        model = self._models[batch[0].job.model]
        rows = [entry.job.rows[entry.index] for entry in batch]
        started = time.monotonic()
        for entry in batch:
            if entry.job.started_s is None:
                entry.job.started_s = started
        cancellation = Cancellation()
        self._running[lane] = (batch, cancellation)
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._threads, model.run, rows, cancellation)
        except AttenuatorError as error:
            await self._run_apart(lane, batch, error)
            return
        finally:
            del self._running[lane]
        cost = sum(entry.job.costs[entry.index] for entry in batch)
        self._paces[model.manifest.name].learn(cost, time.monotonic() - started)
        for entry, result in zip(batch, results, strict=True):
            entry.job.results[entry.index] = result
            if not entry.job.over and None not in entry.job.results:
                entry.job.done.set_result(True)

    async def _run_apart(self, lane: Lane, batch: Sequence[Entry], error: AttenuatorError) -> None:
        """Runs each request of a failed batch alone: whichever broke it fails, the others are answered."""
        jobs = list(dict.fromkeys(entry.job for entry in batch if not entry.job.over))
        if not jobs:
            log.info("a run in lane %s was stopped: nobody waits for it any more", lane)
        elif len(jobs) == 1:
            _fail(jobs[0], error)
        else:
            for job in jobs:
                await self._run(lane, [entry for entry in batch if entry.job is job])


def _fail(job: Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
