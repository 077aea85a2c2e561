"""The lanes: one task and one thread each, which run the batches of the queue and give each request its results."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from attenuator.calibration.times import RowTime
from attenuator.errors import AttenuatorError, EngineError
from attenuator.runtime import Cancellation, Row, RowResult
from attenuator.serve.events import BatchRun, Listeners
from attenuator.serve.scheduling.queue import Queue
from attenuator.serve.scheduling.requests import LANES, Entry, Job, Lane
from attenuator.serve.scheduling.times import Learned

log = logging.getLogger(__name__)
RESTART_S = 1.0
INLINE_S = 0.003  # longest run that the event loop does itself: who comes meanwhile waits so long at most
HANG_FACTOR = 10  # a batch may take this many times its predicted time, and the time of the setting besides
FAILED = "the service failed to run this request"


@dataclass(frozen=True, slots=True)
class Running:
    """A batch that runs, with what stops it and the mark of its beginning for `Contention.beside_s`."""

    batch: Sequence[Entry]
    cancellation: Cancellation
    started_s: float
    mark: float

    @property
    def predicted_s(self) -> float:
        """Seconds that it was predicted to take."""
        return sum(entry.seconds for entry in self.batch)

    def hangs(self, now_s: float, hang_s: float) -> bool:
        """Whether it has run for some seconds more than ten times its predicted time."""
        return now_s - self.started_s > HANG_FACTOR * self.predicted_s + hang_s


class Lanes:
    """The lanes of one service.

    Everything but `Model.run` happens on the event loop, so that no state needs a lock.
    """

    def __init__(
        self,
        queue: Queue,
        learned: Learned,
        wait_for_more: Callable[[], Awaitable[None]],
        listeners: Listeners,
    ) -> None:
        """Creates the lanes; `wait_for_more` waits briefly for requests that could join a light batch."""
        self._queue = queue
        self._learned = learned
        self._contention = learned.contention
        self._wait_for_more = wait_for_more
        self._listeners = listeners
        self._threads = {lane: ThreadPoolExecutor(1, thread_name_prefix=f"compute-{lane}") for lane in LANES}
        self._wake = {lane: asyncio.Event() for lane in LANES}
        self._running: dict[Lane, Running] = {}
        self._jobs: set[Job] = set()
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        self._stopped: AttenuatorError | None = None

    def start(self) -> None:
        """Begins to run batches."""
        for lane in LANES:
            self._start(lane)

    def _start(self, lane: Lane) -> None:
        """Starts a lane's task, with what waits in the lane."""
        if self._stopped is None:
            self._wake[lane].set()
            self._tasks[lane] = asyncio.create_task(self._serve(lane))
            self._tasks[lane].add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Lane, task: asyncio.Task[None]) -> None:
        """Starts a lane again whose task has ended; a little later, since the cause may last."""
        if self._stopped is not None:
            return
        error = None if task.cancelled() else task.exception()
        log.error(
            "lane %s stopped (%s) and starts again in %g s", lane, error or "cancelled", RESTART_S, exc_info=error
        )
        for tell in self._listeners.lane_restarted:
            tell(lane)
        asyncio.get_running_loop().call_later(RESTART_S, self._start, lane)

    def fault(self, hang_s: float) -> str | None:
        """Why the lanes cannot do their work, in one sentence; None where nothing is wrong.

        A batch hangs once it has run for ten times its predicted seconds and `hang_s` longer.
        """
        for lane, task in self._tasks.items():
            if task.done():
                return f"the {lane} lane has stopped and is about to start again"
        now_s = time.monotonic()
        for lane, running in self._running.items():
            if running.hangs(now_s, hang_s):
                model = running.batch[0].job.model.manifest.name
                return (
                    f"a batch of model '{model}' in the {lane} lane has been running for "
                    f"{now_s - running.started_s:.0f} s, predicted were {running.predicted_s:.2g} s"
                )
        return None

    async def finish(self, job: Job, seconds: Sequence[float]) -> None:
        """Queues a request by its rows' predicted seconds and waits for its results; cancelling this cancels the work.

        Raises:
            EngineError: a row failed.
            NotReady: the lanes were stopped.
        """
        if self._stopped is not None:
            raise self._stopped
        self._jobs.add(job)
        try:
            if await self._is_quick(job):
                self._run_here(job, seconds)
            else:
                for lane in self._queue.push(job, seconds, time.monotonic()):
                    self._wake[lane].set()
            await job.done
        finally:
            self._jobs.discard(job)
            if job.missing:
                self._drop(job)

    async def _is_quick(self, job: Job) -> bool:
        """Whether the event loop may run a request itself: a short one, while nobody else could use the time.

        Handing it to a thread and back takes 0.2 ms of CPU time, and delays the answer by 0.4 ms.
        """
        if self._running or self._queue.requests != 1:
            return False
        if self._learned.latencies[job.model].batch_s(Counter(job.times)) > INLINE_S:
            return False
        await asyncio.sleep(0)  # what has arrived is read
        await asyncio.sleep(0)  # its requests begin: they may share a batch
        return self._queue.requests == 1 and not self._running and self._stopped is None

    def _run_here(self, job: Job, seconds: Sequence[float]) -> None:
        """Runs a request on the event loop."""
        job.submit(time.monotonic())
        batch = [Entry(job, index, len(row.token_ids), seconds[index]) for index, row in enumerate(job.rows)]
        job.started_s = job.submitted_s
        self._contention.begin("light", job.started_s)
        try:
            results = job.model.run(job.rows)
        except AttenuatorError as error:
            self._failed([job], "light", error)
            job.fail(error)
            return
        except Exception:  # the same answer as from a lane
            log.exception("the event loop failed on a request")
            job.fail(EngineError(FAILED))
            return
        finally:
            ended_s = time.monotonic()
            self._contention.end("light", ended_s)
        self._deliver("light", batch, job.rows, results, ended_s - job.started_s, 0.0)

    def running(self, lane: Lane) -> int:
        """Number of rows that are running in a lane."""
        return len(self._running[lane].batch) if lane in self._running else 0

    def remaining_s(self, lane: Lane, now_s: float) -> float:
        """Predicted time until a lane's running batch ends, in seconds; without the other lane."""
        running = self._running.get(lane)
        if running is None:
            return 0.0
        beside_s = self._contention.beside_s(lane, running.mark, now_s)
        return max(0.0, running.predicted_s - self._contention.alone_s(now_s - running.started_s, beside_s))

    async def stop(self, error: AttenuatorError) -> None:
        """Stops the lanes: who waits gets the error, and a batch that is running stops at its next node."""
        self._stopped = error
        for job in self._jobs:
            job.fail(error)
        for running in self._running.values():
            running.cancellation.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for thread in self._threads.values():
            thread.shutdown(wait=False)

    def _drop(self, job: Job) -> None:
        self._queue.drop(job)
        for running in self._running.values():
            if all(entry.job.over for entry in running.batch):
                running.cancellation.cancel()

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
            except BaseException as error:  # also where the lane ends: nobody else would ever answer these requests
                for entry in batch:
                    entry.job.fail(EngineError(FAILED))
                if not isinstance(error, Exception):
                    raise
                log.exception("lane %s failed on a batch", lane)  # which must not end the lane

    async def _run(self, lane: Lane, batch: Sequence[Entry]) -> None:
        batch = [entry for entry in batch if not entry.job.over]
        if not batch:
            return
        model = batch[0].job.model
        rows = [entry.job.rows[entry.index] for entry in batch]
        started = time.monotonic()
        for entry in batch:
            if entry.job.started_s is None:
                entry.job.started_s = started
        cancellation = Cancellation()
        mark = self._contention.begin(lane, started)
        self._running[lane] = Running(batch, cancellation, started, mark)
        failure: AttenuatorError | None = None
        try:
            loop = asyncio.get_running_loop()
            results = await loop.run_in_executor(self._threads[lane], model.run, rows, cancellation)
        except AttenuatorError as error:
            failure = error
        except asyncio.CancelledError:
            cancellation.cancel()  # the next batch wants the thread
            raise
        finally:
            del self._running[lane]
            ended = time.monotonic()
            beside_s = self._contention.beside_s(lane, mark, ended)
            self._contention.end(lane, ended)
        if failure is not None:
            await self._run_apart(lane, batch, failure)
            return
        self._deliver(lane, batch, rows, results, ended - started, beside_s)

    def _deliver(
        self,
        lane: Lane,
        batch: Sequence[Entry],
        rows: Sequence[Row],
        results: Sequence[RowResult],
        seconds: float,
        beside_s: float,
    ) -> None:
        """Gives requests the results of a batch, which took some seconds, of them some beside one of the other lane."""
        for entry, result in zip(batch, results, strict=True):
            job = entry.job
            job.results[entry.index] = result
            job.missing -= 1
            if not (job.missing or job.over):
                job.done.set_result(True)
        # Behind the answers, which need not wait for it.
        asyncio.get_running_loop().call_soon(self._learn, lane, batch, rows, seconds, beside_s)

    def _learn(self, lane: Lane, batch: Sequence[Entry], rows: Sequence[Row], seconds: float, beside_s: float) -> None:
        """Learns from a batch, and tells of it."""
        model = batch[0].job.model
        settings: dict[tuple[int, int], Row] = {}
        tokens, times = 0, list[RowTime]()
        shares: dict[tuple[str, str], float] = defaultdict(float)
        for entry, row in zip(batch, rows, strict=True):
            job = entry.job
            shares[job.flow.key, job.flow.priority] += entry.seconds
            settings[row.seed, id(row.knobs)] = row
            tokens += entry.tokens
            times.append(job.times[entry.index])
        predicted_s = self._learned.learn(model, times, seconds, beside_s)
        for row in settings.values():
            self._learned.seeds.used(model, row.seed, row.knobs)
        run = BatchRun(
            model=model,
            lane=lane,
            settings=list({id(row.knobs): row.knobs for row in settings.values()}.values()),
            tokens=tokens,
            sequences=len(batch),
            predicted_s=predicted_s,
            seconds=seconds,
            shares=shares,
        )
        for tell in self._listeners.batch_ran:
            tell(run)

    def _failed(self, jobs: Sequence[Job], lane: Lane, error: AttenuatorError) -> None:
        """Tells of a batch that failed, where ONNX Runtime did and somebody still waits."""
        if jobs and error.__cause__ is not None:
            for tell in self._listeners.batch_failed:
                tell(jobs[0].model, lane)

    async def _run_apart(self, lane: Lane, batch: Sequence[Entry], error: AttenuatorError) -> None:
        """Runs each request of a failed batch alone, so that only the request that caused the failure fails."""
        jobs = list(dict.fromkeys(entry.job for entry in batch if not entry.job.over))
        self._failed(jobs, lane, error)
        if not jobs:
            log.info("a run in lane %s was cancelled: nobody waits for its results any more", lane)
        elif len(jobs) == 1:
            jobs[0].fail(error)
        else:
            for job in jobs:
                await self._run(lane, [entry for entry in batch if entry.job is job])
