"""The service behind the routes: it admits requests, tokenizes and runs them, and starts and stops what this needs."""

import asyncio
import contextlib
import gc
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from attenuator.errors import InvalidRequest, NotReady, Overloaded
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Encoded, Input, Model, Row, RowResult
from attenuator.runtime.explaining import RunOutcome, by_setting
from attenuator.runtime.session import cpu_count
from attenuator.serve.accuracy.brownout import LEAST_SHARE, Brownout, lowered_share
from attenuator.serve.accuracy.cost import Work, seeds_of
from attenuator.serve.accuracy.plan import Limits, Load, Plan
from attenuator.serve.events import Listeners
from attenuator.serve.models.catalog import Catalog
from attenuator.serve.models.tokenizing import STOPPED, TokenizerThreads
from attenuator.serve.models.warmup import Speed
from attenuator.serve.scheduling.admission import Admission
from attenuator.serve.scheduling.lanes import Lanes
from attenuator.serve.scheduling.queue import Queue
from attenuator.serve.scheduling.requests import ANYONE, LANES, Entry, Flow, Forecast, Job, Lane, demand_of
from attenuator.serve.scheduling.times import LatencyModel, Learned
from attenuator.serve.settings import ServeSettings

log = logging.getLogger(__name__)
NO_MODEL = "no model is loaded"
SAMPLE = 16  # texts of a list, at most, that tell how long all are for another model
BODY_MARGIN = 2.0  # a body may have this many times fewer or more tokens than its size suggests


class Engine:
    """Models, queue and lanes of one service.

    Attributes:
        models: those that new requests get, by name.
        state: `starting`, `ready`, `draining` or `stopped`.
        catalog: loads, replaces and unloads them.
        listeners: who is told of what happens here.
        latencies: how long each model's rows take, also of models that are replaced and still answer requests.
        brownout: how far load lowers knobs.
        admission: what rows take, when requests would be done, and which find no room.
        idle: set while no request is in progress.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.listeners = Listeners()
        self._learned = Learned(settings.threads or cpu_count(), cpu_count())
        self.latencies = self._learned.latencies
        self.catalog = Catalog(settings, self._served, self.listeners)
        self.models = self.catalog.models
        self.state = "starting"
        self.brownout = Brownout(settings.brownout_target_ms / 1000)
        self._settings = settings
        self.idle = asyncio.Event()
        self.idle.set()
        self._tokenizer = TokenizerThreads()
        self._queue = Queue(settings.max_batch_tokens, settings.max_queue_tokens, settings.max_requests)
        wait = partial(self._tokenizer.wait_settled, settings.max_wait_ms / 1000)
        self.listeners.batch_failed.append(self.catalog.reopen)
        self._lanes = Lanes(self._queue, self._learned, wait, self.listeners)
        self.admission = Admission(self._queue, self._lanes, self._learned)

    def _served(self, model: Model, speed: Speed) -> None:
        """New requests get a model from now on."""
        latency = LatencyModel(model.cost.predict, cost_per_s=speed.cost_per_s, table=speed.table)
        latency.learn(latency.row_times(speed.tokens, speed.knobs), speed.seconds)
        self.latencies[model] = latency

    @property
    def requests(self) -> int:
        """Requests in progress."""
        return self._queue.requests

    async def start(self, folders: Sequence[Path]) -> None:
        """Loads the bundles, runs each once, and opens for requests; raises what `Catalog.start` does."""
        await self.catalog.start(folders)
        self._lanes.start()
        for tell in self.listeners.started:
            tell()
        gc.freeze()  # what is loaded by now stays, as a rule, so the garbage collector need not examine it again
        if self.state == "starting":
            self.state = "ready"

    def model(self, name: str | None, places: str = "") -> Model:
        """The model that a request names, or the only one served if it names none.

        `places` says where the request may name it, for the sentence on one that does not.

        Raises:
            NotReady: no model is loaded.
            UnknownModel: no served model has that name.
            InvalidRequest: none is named, and several are served.
        """
        if not self.models:
            raise NotReady(NO_MODEL)
        if name is not None:
            return self.catalog.named(name)
        if len(self.models) != 1:
            served = self.catalog.served
            raise InvalidRequest(f"model is missing{places}, must be one of {served}", param="model", allowed=served)
        return next(iter(self.models.values()))

    def waiting(self) -> Iterator[tuple[Lane, Entry]]:
        """Rows that wait at this moment, by lane."""
        for lane, queue in self._queue.lanes.items():
            yield from ((lane, entry) for entry in queue.waiting())

    def running(self, lane: Lane) -> int:
        """Rows that run in a lane at this moment."""
        return self._lanes.running(lane)

    def fault(self) -> str | None:
        """Why requests are not answered as they should be, in one sentence; None where nothing is wrong."""
        if self.state != "ready":
            return str(self._not_ready())
        if not self.models:
            return NO_MODEL
        return self._lanes.fault(self._settings.hang_ms / 1000)

    def check_started(self) -> None:
        """Refuses with NotReady until all models are loaded."""
        if self.state == "starting":
            raise self._not_ready()

    def check_running(self) -> None:
        """Refuses with NotReady before that, and while the service drains or is stopped."""
        if self.state != "ready":
            raise self._not_ready()

    def check_healthy(self) -> None:
        """Refuses with NotReady, which says why, while requests are not answered as they should be."""
        if reason := self.fault():
            raise NotReady(reason)

    def check_open(self, body_bytes: int = 0, key: str = "") -> None:
        """Refuses a request that could not be served, before its body is read; does not count it as in progress.

        Args:
            body_bytes: size of the body as far as it is known.
            key: name of its API key; empty where there are not several.

        Raises:
            NotReady: starting, draining or stopped.
            Overloaded: too many requests are in progress, or the queue has no room for a body of this size.
        """
        self.check_running()
        if reason := self._queue.too_many(key):
            raise self.admission.overloaded(reason, "light")
        if self._queue.vacant():
            return
        estimates = [self.catalog.estimates[model] for model in self.models.values()]
        least = int(body_bytes * min((each.tokens_per_byte for each in estimates), default=0.0) / BODY_MARGIN)
        if self.brownout.highest(time.monotonic(), key):  # it may be lowered, which only the body tells
            least = int(least * LEAST_SHARE)
        full = [lane for lane in LANES if self._queue.full({lane: least}, key)]
        if "light" in full and ("heavy" in full or not self._may_be_heavy(body_bytes)):
            self.admission.check_tokens({"light": least}, key)

    @contextlib.asynccontextmanager
    async def admitted(self, body_bytes: int = 0, key: str = "") -> AsyncIterator[None]:
        """Counts a request as in progress; entered once its body has arrived, and refused as by `check_open`."""
        self.check_open(body_bytes, key)
        self._queue.enter(key)
        self.idle.clear()
        try:
            for tell in self.listeners.request_admitted:
                tell()
            yield
        finally:
            self._queue.enter(key, -1)
            if not self._queue.requests:
                self.idle.set()

    async def encode(
        self,
        model: Model,
        items: Sequence[Input],
        usual: Plan,
        *,
        truncate: bool,
        flow: Flow = ANYONE,
    ) -> list[Encoded]:
        """Tokenizes inputs, long ones off the event loop, and cuts texts that are too long or refuses them.

        The plan without their lengths and the inputs' size predict the cost. A request is refused only if it finds no
        room even where load lowers it as far as it may.

        Raises:
            InvalidRequest: names the input.
            Overloaded: too many tokens are waiting, estimated from the inputs' size.
            NotReady: the service was stopped meanwhile.
        """
        estimate = self.catalog.estimates[model]
        if self._tokenizer.is_quick(items) and self._queue.vacant():  # none is refused, and none comes meanwhile
            encoded = await self._tokenizer.encode(model, items, truncate)
        else:
            # A refusal must be cheap, or refusals would use up the time for answers: tokens are estimated, not counted.
            tokens = [estimate.tokens(item, model.manifest.max_tokens) for item in items]
            least = usual.least(model, tokens)
            demand = self.admission.demand(model, tokens, least, lowered_share(model, tokens, least, usual.knobs))
            self.admission.check_tokens(demand, flow.key)
            with self._queue.reserved(demand, flow.key):
                encoded = await self._tokenizer.encode(model, items, truncate)
        estimate.learn(items, encoded)
        return encoded

    async def again(self, work: Work, last: Model, items: Sequence[Input], encoded: Sequence[Encoded]) -> Work:
        """A request's inputs as another model's work: by what its tokenizer makes of a few of them, evenly chosen.

        Raises:
            InvalidRequest: that model takes one of these few in no length.
        """
        if last is work.model:
            return work
        step = math.ceil(len(items) / SAMPLE)
        few = await self._tokenizer.encode(last, items[::step], truncate=True)
        lengths, own = ([len(each.token_ids) + each.truncated for each in some] for some in (encoded, few))
        ratio, most = sum(own) / sum(lengths[::step]), last.manifest.max_tokens
        return replace(work, model=last, tokens=[max(1, min(round(ratio * each), most)) for each in lengths])

    def load(self, work: Work, flow: Flow, started_s: float, last: Work | None = None) -> Load:
        """What the plan of a request depends on that began at some time (`time.perf_counter`).

        `last` is the work of a list's second step, where it has one. A choice for a list asks about many settings.
        """
        tokens = work.tokens if last is None else work.coarse().tokens

        def forecast(knobs: Knobs) -> Forecast:
            draws, seeds = work.draws(knobs), work.seeds(knobs)
            return self.admission.forecast(work.model, tokens, knobs, flow, draws, seeds)

        def pressure() -> tuple[float, float, float]:
            now_s = time.monotonic()
            return self.admission.wait_s(now_s, flow), self._queue.fullness(flow.key), now_s

        def finds_room(knobs: Knobs) -> bool:
            return not self._queue.full(self.admission.demand(work.model, work.tokens, knobs), flow.key)

        level = partial(self.brownout.level, flow.key, flow.priority)
        again = None if last is None else self.load(last, flow, started_s)
        return Load(work, time.perf_counter() - started_s, forecast, pressure, finds_room, level, again)

    async def run(
        self,
        model: Model,
        rows: list[Row],
        unlowered: Knobs | None = None,
        flow: Flow = ANYONE,
    ) -> Job:
        """Queues a request's rows and waits for the finished job; cancelling the call cancels the work.

        The first row has the request's knobs; `unlowered` are those before load lowered them, None where it did not.

        Raises:
            Overloaded: too many tokens are waiting.
            EngineError: a row failed.
            NotReady: the service was stopped meanwhile.
        """
        times = self._learned.times(model, rows)
        seconds, share = self.latencies[model].added_s(times), 1.0
        tokens = [len(row.token_ids) for row in rows]
        if unlowered is not None:
            share = lowered_share(model, tokens, rows[0].knobs, unlowered)
        if not self._queue.vacant():
            self.admission.check_tokens(demand_of(tokens, seconds, share), flow.key)
        done = asyncio.get_running_loop().create_future()
        job = Job(model, rows, times, done, room_share=share, flow=flow)
        await self._lanes.finish(job, seconds)
        return job

    async def drain(self) -> None:
        """Refuses new requests and waits for those in progress, up to the time limit."""
        self._tell_stopping()
        self.state = "draining"
        log.info("draining: %d requests in progress", self.requests)
        try:
            await asyncio.wait_for(self.idle.wait(), self._settings.drain_timeout_ms / 1000)
        except TimeoutError:
            log.warning("stopping with %d requests in progress", self.requests)

    async def stop(self) -> None:
        """Stops everything; requests in progress get NotReady, and a batch that is running stops at its next node."""
        self.catalog.stop()
        self.state = "stopped"
        self._tell_stopping()
        self._tokenizer.stop()
        await self._lanes.stop(NotReady(STOPPED))

    def _tell_stopping(self) -> None:
        for tell in self.listeners.stopping:
            tell()

    def _may_be_heavy(self, body_bytes: int) -> bool:
        """Whether a body could hold a row for the heavy lane, at the knobs' exact values."""
        for model in self.models.values():
            tokens_per_byte = self.catalog.estimates[model].tokens_per_byte
            tokens = min(int(body_bytes * tokens_per_byte * BODY_MARGIN), model.manifest.max_tokens)
            if self.admission.lane(model, tokens, model.knobs.exact()) == "heavy":
                return True
        return False

    def _not_ready(self) -> NotReady:
        return NotReady(f"the service is {self.state} and takes no requests")


@dataclass(frozen=True, slots=True)
class RequestRun:
    """A request between its tokenized inputs and its results: what it asks of the engine.

    Attributes:
        engine: which runs it.
        work: what it makes run.
        limits: those of others on its accuracy.
        flow: whose it is.
        started_s: clock (`time.perf_counter`) when it began.
        timeout_ms: its deadline; None without one.
        spend: counts tokens that run in a key's rate.
        unlowered: its knobs before load lowered them; None where it did not.
    """

    engine: Engine
    work: Work
    limits: Limits
    flow: Flow
    started_s: float
    timeout_ms: float | None = None
    spend: Callable[[int], None] | None = None
    unlowered: Knobs | None = None

    async def run(self, rows: list[Row]) -> RunOutcome:
        """Runs rows, together with what else waits; for those that find no room nobody pays."""
        tokens = 0 if self.spend is None else sum(len(row.token_ids) for row in rows)
        if self.spend is not None:
            self.spend(tokens)
        try:
            job = await self.engine.run(self.work.model, rows, self.unlowered, self.flow)
        except Overloaded:
            if self.spend is not None:
                self.spend(-tokens)
            raise
        queue_s = 0.0 if job.started_s is None else job.started_s - job.submitted_s
        return RunOutcome(cast(list[RowResult], job.results), queue_s)

    def has_room(self, rows: Sequence[Row], spent: float) -> bool:
        """Whether the limit on cost and the deadline leave room for further rows."""
        if not self.limits.leave_room(self.work, rows, spent):
            return False
        if self.timeout_ms is None:
            return True
        (tokens, knobs), *others = by_setting(rows)
        forecast = self.engine.admission.forecast(self.work.model, tokens, knobs, self.flow, others, seeds_of(rows))
        return time.perf_counter() + forecast.total_s <= self.started_s + self.timeout_ms / 1000
