"""Runs the scheduler's batches, with one task and one thread per lane, and gives each request its results."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from attenuator.errors import AttenuatorError, EngineError
from attenuator.runtime import Cancellation, Model
from attenuator.serve.jobs import LANES, Entry, Job, Lane, Pace
from attenuator.serve.metrics import BatchRun, Metrics
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
        wait_for_more: Callable[[], Awaitable[None]],
        metrics: Metrics,
    ) -> None:
        """Creates the lanes; `start` starts them.

        Args:
            queue: where rows wait.
            models: loaded models by name.
            paces: how fast each model runs; updated after every batch.
            threads: one per lane.
            wait_for_more: waits briefly for requests that could join a light batch.
            metrics: count batches.
        """
        self._queue = queue
        self._models = models
        self._paces = paces
        self._threads = threads
        self._wait_for_more = wait_for_more
        self._metrics = metrics
        self._wake = {lane: asyncio.Event() for lane in LANES}
        self._running: dict[Lane, tuple[list[Entry], Cancellation]] = {}
        self._jobs: set[Job] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to run batches."""
        self._tasks = [asyncio.create_task(self._serve(lane)) for lane in LANES]

    async def finish(self, job: Job, seconds: Sequence[float]) -> None:
        """Queues a request and waits for its results; cancelling the call cancels the work.

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
        """Number of rows that are running in a lane."""
        return len(self._running[lane][0]) if lane in self._running else 0

    def remaining_s(self, lane: Lane) -> float:
        """Predicted time of a lane's running batch and of the rows that wait for it, in seconds."""
        batch, _ = self._running.get(lane, ((), None))
        return self._queue.lanes[lane].load.seconds + sum(entry.seconds for entry in batch)

    async def stop(self, error: AttenuatorError) -> bool:
        """Stops the lanes; a batch that is running stops at its next node.

        Args:
            error: the error that waiting requests get.

        Returns:
            Whether a thread is still working: inside a node it cannot be interrupted.
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
                await self._wait_for_more()
            batch = self._queue.take(lane)
            if not batch:
                wake.clear()
                continue
            try:
                await self._run(lane, batch)
            except Exception:  # an error in one batch must not end the lane
                log.exception("lane %s failed on a batch", lane)
                for entry in batch:
                    _fail(entry.job, EngineError("the service failed to run this request"))

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
        seconds = time.monotonic() - started
        cost = sum(entry.job.costs[entry.index] for entry in batch)
        self._paces[model.manifest.name].learn(cost, seconds)
        self._metrics.batch_ended(
            BatchRun(
                model=model.manifest.name,
                lane=lane,
                settings=list({id(row.knobs): row.knobs for row in rows}.values()),
                tokens=sum(entry.tokens for entry in batch),
                sequences=len(batch),
                predicted_s=sum(entry.seconds for entry in batch),
                seconds=seconds,
            )
        )
        for entry, result in zip(batch, results, strict=True):
            entry.job.results[entry.index] = result
            if not entry.job.over and None not in entry.job.results:
                entry.job.done.set_result(True)

    async def _run_apart(self, lane: Lane, batch: Sequence[Entry], error: AttenuatorError) -> None:
        """Runs each request of a failed batch alone, so that only the request that caused the failure fails."""
        jobs = list(dict.fromkeys(entry.job for entry in batch if not entry.job.over))
        if jobs and error.__cause__ is not None:
            self._metrics.batch_failed(jobs[0].model, lane)
        if not jobs:
            log.info("a run in lane %s was cancelled: nobody waits for its results any more", lane)
        elif len(jobs) == 1:
            _fail(jobs[0], error)
        else:
            for job in jobs:
                await self._run(lane, [entry for entry in batch if entry.job is job])


def _fail(job: Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
