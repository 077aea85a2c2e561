"""Runs the scheduler's batches, with one task and one thread per lane, and gives each request its results."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from attenuator.calibration.times import RowTime
from attenuator.errors import AttenuatorError, EngineError
from attenuator.runtime import Cancellation, Model, RowResult
from attenuator.serve.accounts import Accounts
from attenuator.serve.contention import Contention
from attenuator.serve.goals import Forecast
from attenuator.serve.health import RunningBatch
from attenuator.serve.jobs import ANYONE, IDLE, LANES, Displaced, Entry, Flow, Job, Lane, Lower
from attenuator.serve.latency import LatencyModel
from attenuator.serve.metrics import Metrics
from attenuator.serve.scheduler import Queue
from attenuator.serve.worker import Worker

log = logging.getLogger(__name__)
RESTART_S = 1.0
INLINE_S = 0.001  # longest run that the event loop does itself: as long as other steps that it does not hand over
FAILED = "the service failed to run this request"


@dataclass(frozen=True, slots=True)
class Running:
    """A batch that is running.

    Attributes:
        batch: its rows.
        cancellation: stops it.
        started_s: clock when it began.
        mark: of its beginning, for the time that it has run beside a batch of the other lane.
    """

    batch: Sequence[Entry]
    cancellation: Cancellation
    started_s: float
    mark: float

    @property
    def idle(self) -> bool:
        """Whether it is idle work, which makes way for requests."""
        return self.batch[0].job.flow == IDLE

    @property
    def predicted_s(self) -> float:
        """Seconds that it was predicted to take."""
        return sum(entry.seconds for entry in self.batch)


class Lanes:
    """The lanes of one service.

    Everything but `Model.run` happens on the event loop, so that no state needs a lock.
    """

    def __init__(
        self,
        queue: Queue,
        latencies: Mapping[Model, LatencyModel],
        wait_for_more: Callable[[], Awaitable[None]],
        metrics: Metrics,
        contention: Contention,
        accounts: Accounts,
        *,
        lone: Callable[[], bool],
        lower: Callable[[float], Lower],
    ) -> None:
        """Creates the lanes; `start` starts them.

        Args:
            queue: where rows wait.
            latencies: how long each model's rows take.
            wait_for_more: waits briefly for requests that could join a light batch.
            metrics: count lanes that were started again.
            contention: how much they slow each other down.
            accounts: of batches.
            lone: whether one request is in progress and no other.
            lower: what lowers requests that wait, for the forming of a batch at a time of the clock.
        """
        self._queue = queue
        self._latencies = latencies
        self._workers = {lane: Worker(f"compute-{lane}") for lane in LANES}
        self._wait_for_more = wait_for_more
        self._metrics = metrics
        self._contention = contention
        self._accounts = accounts
        self._lone = lone
        self._lower = lower
        self._wake = {lane: asyncio.Event() for lane in LANES}
        self._running: dict[Lane, Running] = {}
        self._jobs: set[Job] = set()
        self._tasks: dict[Lane, asyncio.Task[None]] = {}
        self._stopping = False

    def start(self) -> None:
        """Begins to run batches."""
        for lane in LANES:
            self._start(lane)

    def _start(self, lane: Lane) -> None:
        """Starts a lane's task, with what waits in the lane."""
        if not self._stopping:
            self._wake[lane].set()
            self._tasks[lane] = asyncio.create_task(self._serve(lane))
            self._tasks[lane].add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Lane, task: asyncio.Task[None]) -> None:
        """Starts a lane again whose task has ended; a little later, since the cause may last."""
        if self._stopping:
            return
        error = None if task.cancelled() else task.exception()
        log.error(
            "lane %s stopped (%s) and starts again in %g s", lane, error or "cancelled", RESTART_S, exc_info=error
        )
        self._metrics.lane_restarted(lane)
        asyncio.get_running_loop().call_later(RESTART_S, self._start, lane)

    def dead(self) -> list[Lane]:
        """Lanes whose task has ended."""
        return [lane for lane, task in self._tasks.items() if task.done()]

    def batches(self) -> list[RunningBatch]:
        """What is running."""
        now = time.monotonic()
        return [
            RunningBatch(each.batch[0].job.model.manifest.name, lane, each.predicted_s, now - each.started_s)
            for lane, each in self._running.items()
        ]

    async def finish(self, job: Job, seconds: Sequence[float]) -> None:
        """Queues a request and waits for its results; cancelling the call cancels the work.

        Args:
            job: the request.
            seconds: predicted time of each row.

        Raises:
            EngineError: a row failed.
            NotReady: the lanes were stopped.
            Displaced: it was idle work, and a request came.
        """
        self._jobs.add(job)
        if job.flow != IDLE:
            self._displace()
        try:
            if self._is_quick(job) and await self._is_alone():
                self._run_here(job, seconds)
            else:
                for lane in self._queue.push(job, seconds, time.monotonic()):
                    self._wake[lane].set()
            await job.done
        finally:
            self._jobs.discard(job)
            if any(result is None for result in job.results):
                self._drop(job)

    def _is_quick(self, job: Job) -> bool:
        """Whether the event loop may run a request itself: a short one, while nobody else could use the time.

        Handing it to a thread and back takes a fifth of the time that the service adds to a short text alone.
        """
        if self._running or job.flow == IDLE or not self._lone():
            return False
        return self._latencies[job.model].batch_s(Counter(job.times)) <= INLINE_S

    async def _is_alone(self) -> bool:
        """Whether it is still the only request once those have begun that arrived meanwhile: they may share a batch."""
        for _ in ("what has arrived is read", "its requests begin"):
            await asyncio.sleep(0)
        return self._lone() and not self._running and not self._stopping

    def _run_here(self, job: Job, seconds: Sequence[float]) -> None:
        """Runs a request on the event loop."""
        job.submit(time.monotonic())
        batch = Entry.of_job(job, seconds)
        job.started_s = job.submitted_s
        self._contention.begin("light", job.started_s)
        try:
            results = job.model.run(job.rows)
        except AttenuatorError as error:
            self._accounts.failed([job], "light", error)
            _fail(job, error)
            return
        except Exception:  # the same answer as from a lane
            log.exception("the event loop failed on a request")
            _fail(job, EngineError(FAILED))
            return
        finally:
            ended_s = time.monotonic()
            self._contention.end("light", ended_s)
        account = partial(self._accounts.ended, "light", batch, job.rows, ended_s - job.started_s, 0.0)
        self._deliver(batch, results, account)

    def running(self, lane: Lane) -> int:
        """Number of rows that are running in a lane."""
        return len(self._running[lane].batch) if lane in self._running else 0

    def remaining_s(self, lane: Lane) -> float:
        """Predicted time of what is left of a lane's running batch and of the rows that wait for it, in seconds."""
        now_s = time.monotonic()
        return self._shared_s(lane, self._alone_s(lane, now_s), now_s)

    def forecast(
        self, lane: Lane, latency: LatencyModel, times: Mapping[RowTime, int], flow: Flow = ANYONE
    ) -> Forecast:
        """When a request that comes now would be done with its rows in a lane.

        Args:
            lane: where they would run.
            latency: of the request's model.
            times: of the rows, at least one, by how many there are of each.
            flow: whose they are.
        """
        added_s = [latency.added_s(each) for each in times]
        own_s = sum(seconds * count for seconds, count in zip(added_s, times.values(), strict=True))
        if lane == "light":
            run_s = latency.batch_s(times)
        else:
            run_s = sum(count * latency.batch_s({each: 1}) for each, count in times.items())
        ahead_s = self._queue.lanes[lane].ahead_s(own_s, min(added_s), flow)
        now_s = time.monotonic()
        queue_s = self._running_s(lane, now_s) + ahead_s
        sharing_s = self._shared_s(lane, queue_s + run_s, now_s) - (queue_s + run_s)
        return Forecast(queue_s + sharing_s, latency.upper_s(run_s))

    def _alone_s(self, lane: Lane, now_s: float) -> float:
        """Predicted time of what runs and waits in a lane, without the other one."""
        return self._queue.lanes[lane].load.seconds + self._running_s(lane, now_s)

    def _shared_s(self, lane: Lane, seconds: float, now_s: float) -> float:
        """What work in a lane takes beside what runs and waits in the other one."""
        other_s = sum(self._alone_s(other, now_s) for other in LANES if other != lane)
        return self._contention.shared_s(lane, seconds, other_s, now_s)

    def _running_s(self, lane: Lane, now_s: float) -> float:
        """Predicted time until a lane's running batch ends, without the other lane."""
        running = self._running.get(lane)
        if running is None or running.idle:
            return 0.0
        beside_s = self._contention.beside_s(lane, running.mark, now_s)
        return max(0.0, running.predicted_s - self._contention.alone_s(now_s - running.started_s, beside_s))

    def wait_s(self, now_s: float, flow: Flow = ANYONE) -> float:
        """How long a row of a flow that arrives now would wait, in the lane where that is longer.

        Both count, since they share the cores. Rows of large requests that fair order puts behind a newcomer do not.
        Where predictions are too short, what others of the flow have waited already counts in their place.
        """
        queues = self._queue.lanes
        predicted_s = max(
            self._shared_s(lane, self._running_s(lane, now_s) + queues[lane].wait_s(flow), now_s) for lane in LANES
        )
        return max(predicted_s, *(queue.waited_s(now_s, flow) for queue in queues.values()))

    async def stop(self, error: AttenuatorError) -> bool:
        """Stops the lanes; a batch that is running stops at its next node.

        Args:
            error: the error that waiting requests get.

        Returns:
            Whether a thread is still working: inside a node it cannot be interrupted.
        """
        busy = bool(self._running)
        self._stopping = True
        for job in self._jobs:
            _fail(job, error)
        for running in self._running.values():
            running.cancellation.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for worker in self._workers.values():
            worker.stop()
        return busy

    def _displace(self) -> None:
        """Stops idle work that runs."""
        for running in self._running.values():
            if running.idle:
                for entry in running.batch:
                    _fail(entry.job, Displaced("idle work was stopped: a request came"))
                running.cancellation.cancel()

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
            batch = self._queue.take(lane, self._lower(time.monotonic()))
            if not batch and not self._running:
                batch = self._queue.take_idle(lane)
            if not batch:
                wake.clear()
                continue
            try:
                await self._run(lane, batch)
            except Exception:  # an error in one batch must not end the lane
                log.exception("lane %s failed on a batch", lane)
                for entry in batch:
                    _fail(entry.job, EngineError(FAILED))
            except BaseException:  # the lane ends; nobody else would ever answer these requests
                for entry in batch:
                    _fail(entry.job, EngineError(FAILED))
                raise

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
            results = await self._workers[lane].call(model.run, rows, cancellation)
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
            if self._queue.idle_waits:  # in either lane, for this batch to end
                for wake in self._wake.values():
                    wake.set()
        if failure is not None:
            await self._run_apart(lane, batch, failure)
            return
        account = partial(self._accounts.ended, lane, batch, rows, ended - started, beside_s)
        self._deliver(batch, results, account)

    def _deliver(self, batch: Sequence[Entry], results: Sequence[RowResult], account: Callable[[], None]) -> None:
        """Gives requests the results of a batch, and calls what counts it."""
        if self._accounts.traces is not None:
            account()  # the requests' spans end with their answers
        for entry, result in zip(batch, results, strict=True):
            entry.job.results[entry.index] = result
            if not entry.job.over and None not in entry.job.results:
                entry.job.done.set_result(True)
        if self._accounts.traces is None:
            asyncio.get_running_loop().call_soon(account)  # behind the answers, which need not wait for it

    async def _run_apart(self, lane: Lane, batch: Sequence[Entry], error: AttenuatorError) -> None:
        """Runs each request of a failed batch alone, so that only the request that caused the failure fails."""
        jobs = list(dict.fromkeys(entry.job for entry in batch if not entry.job.over))
        self._accounts.failed(jobs, lane, error)
        if not jobs:
            level = logging.DEBUG if batch[0].job.flow == IDLE else logging.INFO
            log.log(level, "a run in lane %s was cancelled: nobody waits for its results any more", lane)
        elif len(jobs) == 1:
            _fail(jobs[0], error)
        else:
            for job in jobs:
                await self._run(lane, [entry for entry in batch if entry.job is job])


def _fail(job: Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
