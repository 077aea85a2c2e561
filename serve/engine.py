"""Runs what the scheduler hands out: one thread a lane, results back to the requests that wait.

Everything but `Model.run` and the tokenizer happens on the event loop, so that no state needs a lock.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from attenuator.errors import (
    AttenuatorError,
    BundleError,
    EngineError,
    InvalidRequest,
    NotReady,
    Overloaded,
    UnknownModel,
)
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Cancellation, Encoded, Input, Model, Row, RowResult, choose, load
from attenuator.serve.scheduler import LANES, Entry, Job, Lane, Pace, Queue
from attenuator.serve.settings import ServeSettings

log = logging.getLogger(__name__)
T = TypeVar("T")

LARGE_SIZE = 200_000  # characters or ids
INLINE_SIZE = 4096  # characters or ids that the event loop tokenizes itself: below 1 ms
WARM_UP_TOKENS = (16, 256)
FREE_QUEUE_SHARE = 0.5


class Engine:
    """Models, queue and lanes of one service.

    Attributes:
        models: loaded models by name.
        state: `starting`, `ready`, `draining` or `stopped`.
        arriving: requests that were read and are not in the queue yet.
        requests: requests in progress.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.models: dict[str, Model] = {}
        self.state = "starting"
        self.arriving = 0
        self.requests = 0
        self._settings = settings
        self._queue = Queue(settings.max_batch_tokens)
        self._paces: dict[str, Pace] = {}
        self._wake = {lane: asyncio.Event() for lane in LANES}
        self._settled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running: dict[Lane, tuple[list[Entry], Cancellation]] = {}
        self._lanes: list[asyncio.Task[None]] = []
        self._compute = ThreadPoolExecutor(len(LANES), thread_name_prefix="compute")
        self._tokenize = ThreadPoolExecutor(2, thread_name_prefix="tokenize")
        self._tokenize_large = ThreadPoolExecutor(1, thread_name_prefix="tokenize-large")

    async def start(self, folders: Sequence[Path]) -> None:
        """Loads the bundles, runs each once, and opens for requests.

        Args:
            folders: the bundles.

        Raises:
            BundleError: a bundle is wrong, or two have one name.
            OperatorLibraryMissing: the operators are not built, or not for the device.
            DeviceUnavailable: the device that the settings want cannot be used.
        """
        loop = asyncio.get_running_loop()
        settings = self._settings
        choice = await loop.run_in_executor(self._compute, choose, settings.device, settings.device_id)
        if settings.device != "cpu":
            level = logging.WARNING if choice.device.kind == "cpu" else logging.INFO
            log.log(level, "running on %s: %s", choice.device, choice.reason)
        wanted = [partial(load, folder, device=choice.device, threads=settings.threads) for folder in folders]
        found = await asyncio.gather(*(loop.run_in_executor(self._compute, call) for call in wanted))
        for folder, model in zip(folders, found, strict=True):
            manifest = model.manifest
            if manifest.name in self.models:
                raise BundleError(f"bundle {folder}: bundle.json: name '{manifest.name}' is taken by another bundle")
            self._paces[manifest.name] = await loop.run_in_executor(self._compute, warm_up, model)
            self.models[manifest.name] = model
            log.info("loaded %s (%s, revision %.12s)", manifest.name, manifest.attention.operator, manifest.revision)
        self._lanes = [asyncio.create_task(self._serve(lane)) for lane in LANES]
        if self.state == "starting":
            self.state = "ready"

    def model(self, name: str | None) -> Model:
        """The model a request names; the only one where it names none.

        Raises:
            UnknownModel: no served model has that name.
            InvalidRequest: none is named, and several are served.
        """
        served = ", ".join(self.models)
        if name is None:
            if len(self.models) != 1:
                raise InvalidRequest(f"model is missing, must be one of {served}", param="model", allowed=served)
            return next(iter(self.models.values()))
        if name not in self.models:
            raise UnknownModel(f"model '{name[:128]}' is not served, must be one of {served}")
        return self.models[name]

    def check_started(self) -> None:
        """Refuses while the models are not all there.

        Raises:
            NotReady: starting.
        """
        if self.state == "starting":
            raise NotReady(f"the service is {self.state}")

    def check_open(self) -> None:
        """Refuses a request that could not be served anyway, before its body is read; counts nothing.

        Raises:
            NotReady: starting, draining or stopped.
            Overloaded: too many requests in progress.
        """
        if self.state != "ready":
            raise NotReady(f"the service is {self.state}")
        if self.requests >= self._settings.max_requests:
            raise self._overloaded(f"{self.requests} requests are in progress", "light")

    @contextlib.asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Counts a request in while it is worked on; entered once its body is there.

        Raises:
            NotReady: starting, draining or stopped.
            Overloaded: too many requests in progress.
        """
        self.check_open()
        self.requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.requests -= 1
            if not self.requests:
                self._idle.set()

    async def encode(
        self, model: Model, items: Sequence[Input], *, knobs: Mapping[str, KnobValue], truncate: bool
    ) -> list[Encoded]:
        """Tokenizes inputs, long ones off the event loop.

        Args:
            model: the model.
            items: the inputs.
            knobs: a value for every knob of the model; with the inputs' size they predict what waits.
            truncate: cuts texts that are too long instead of refusing them.

        Raises:
            InvalidRequest: names the input.
            Overloaded: too many tokens are waiting.
        """
        size = sum(item.size for item in items)
        if size <= INLINE_SIZE:
            return [item.encode(model, truncate) for item in items]
        wanted = [True]

        def encode() -> list[Encoded]:
            done = []
            for item in items:
                if not wanted:  # the request is gone; the thread must not go on
                    break
                done.append(item.encode(model, truncate))
            return done

        # A text of megabytes takes seconds: those of usual size do not queue behind it.
        pool = self._tokenize if size <= LARGE_SIZE else self._tokenize_large
        self.arriving += size <= LARGE_SIZE
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, encode)
        finally:
            wanted.clear()
            self.arriving -= size <= LARGE_SIZE
            if not self.arriving:
                self._settled.set()

    async def run(self, model: Model, rows: list[Row]) -> Job:
        """Queues a request's rows and waits for their results; cancelling the call drops the work.

        Args:
            model: the model.
            rows: one an input.

        Returns:
            The finished job.

        Raises:
            Overloaded: too many tokens are waiting.
            EngineError: a row failed.
        """
        name = model.manifest.name
        costs = [model.predict_cost(len(row.token_ids), row.knobs) for row in rows]
        job = Job(name, rows, costs, asyncio.get_running_loop().create_future())
        entries = self._queue.plan(job, self._paces[name], time.monotonic())
        full = self._queue.full(entries, self._settings.max_queue_tokens)
        if full:
            raise self._overloaded(f"{self._queue.load[full].tokens} tokens are waiting", full)
        self._queue.push(entries)
        for lane in {entry.lane for entry in entries}:
            self._wake[lane].set()
        try:
            await job.done
        finally:
            if any(result is None for result in job.results):
                self._drop(job)
        return job

    async def drain(self) -> None:
        """Takes no more requests and waits for those in progress, within the time limit; then stops."""
        self.state = "draining"
        log.info("draining: %d requests in progress", self.requests)
        try:
            await asyncio.wait_for(self._idle.wait(), self._settings.drain_timeout_ms / 1000)
        except TimeoutError:
            log.warning("stopping with %d requests in progress", self.requests)

    async def stop(self) -> bool:
        """Ends the lanes; a run under way is stopped at its next node.

        Returns:
            Whether a thread is still at work, which cannot be interrupted inside a node or while it loads.
        """
        busy = bool(self._running) or self.state == "starting"
        self.state = "stopped"
        for _, cancellation in self._running.values():
            cancellation.cancel()
        for task in self._lanes:
            task.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)
        for pool in (self._compute, self._tokenize, self._tokenize_large):
            pool.shutdown(wait=False, cancel_futures=True)
        return busy

    def _overloaded(self, what: str, lane: Lane) -> Overloaded:
        # By then part of what waits is done, and a new request finds room.
        running = sum(entry.seconds for batch, _ in self._running.values() for entry in batch if entry.lane == lane)
        wait_s = max(1.0, running + self._queue.load[lane].seconds * FREE_QUEUE_SHARE)
        return Overloaded(f"the service is overloaded: {what}; try again in {wait_s:.0f} s", retry_after_s=wait_s)

    def _drop(self, job: Job) -> None:
        self._queue.drop(job)
        for batch, cancellation in self._running.values():
            if all(entry.job.over for entry in batch):
                cancellation.cancel()

    async def _serve(self, lane: Lane) -> None:
        wake = self._wake[lane]
        while True:
            await wake.wait()
            if lane == "light" and self.arriving and self._settings.max_wait_ms:
                self._settled.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._settled.wait(), self._settings.max_wait_ms / 1000)
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

    async def _run(self, lane: Lane, batch: list[Entry]) -> None:
        batch = [entry for entry in batch if not entry.job.over]
        if not batch:
            return
        model = self.models[batch[0].job.model]
        rows = [entry.job.rows[entry.index] for entry in batch]
        started = time.monotonic()
        for entry in batch:
            if entry.job.started_s is None:
                entry.job.started_s = started
        cancellation = Cancellation()
        self._running[lane] = (batch, cancellation)
        try:
            results = await self._thread(lambda: model.run(rows, cancellation))
        except AttenuatorError as error:
            await self._alone(lane, batch, error)
            return
        finally:
            del self._running[lane]
        cost = sum(entry.job.costs[entry.index] for entry in batch)
        self._paces[model.manifest.name].saw(cost, time.monotonic() - started)
        for entry, result in zip(batch, results, strict=True):
            _deliver(entry, result)

    async def _alone(self, lane: Lane, batch: list[Entry], error: AttenuatorError) -> None:
        """Runs each request of a failed batch alone: whichever broke it fails, the others are answered."""
        jobs = list({id(entry.job): entry.job for entry in batch if not entry.job.over}.values())
        if len(jobs) == 1:
            _fail(jobs[0], error)
            return
        for job in jobs:
            await self._run(lane, [entry for entry in batch if entry.job is job])

    async def _thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._compute, call)


def warm_up(model: Model) -> Pace:
    """Runs a model twice on a few lengths, so that the first request finds memory and planes in place.

    Args:
        model: just loaded.

    Returns:
        How fast it runs here.
    """
    pace = Pace()
    knobs = model.knobs.defaults()
    for length in WARM_UP_TOKENS:
        # The last id is the one that the check at load has run.
        ids = np.full(min(length, model.manifest.max_tokens), model.manifest.vocab_size - 1, dtype=np.int64)
        row = Row(ids, np.zeros_like(ids), knobs)
        for _ in range(2):
            started = time.monotonic()
            model.run([row])
            seconds = time.monotonic() - started
        pace = Pace(max(1e8, model.predict_cost(len(ids), knobs) / max(seconds, 1e-5)))
    return pace


def _deliver(entry: Entry, result: RowResult) -> None:
    job = entry.job
    if job.over:
        return
    if not np.isfinite(result.logits).all():
        _fail(job, EngineError(f"model '{job.model}' gave logits that are not finite"))
        return
    job.results[entry.index] = result
    if all(found is not None for found in job.results):
        job.done.set_result(True)


def _fail(job: Job, error: Exception) -> None:
    if not job.done.done():
        job.done.set_exception(error)
