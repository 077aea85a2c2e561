"""The service behind the routes: it admits requests, tokenizes and runs them, and starts and stops what this needs."""

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attenuator.errors import InvalidRequest, NotReady
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Encoded, Input, Model, Row
from attenuator.runtime.session import cpu_count
from attenuator.serve import tracing
from attenuator.serve.accounts import Accounts
from attenuator.serve.brownout import LEAST_SHARE, Brownout, knobs_at, lowered_share
from attenuator.serve.catalog import Catalog
from attenuator.serve.contention import Contention
from attenuator.serve.floors import Floors
from attenuator.serve.health import fault
from attenuator.serve.holdings import EngineHoldings
from attenuator.serve.jobs import ANYONE, IDLE, LANES, Entry, Flow, Job, Lane, demand_of
from attenuator.serve.lanes import Lanes
from attenuator.serve.lowering import Lowering
from attenuator.serve.metrics import Metrics
from attenuator.serve.policy import read_policy
from attenuator.serve.predicting import Predictor
from attenuator.serve.room import Room
from attenuator.serve.scheduler import Queue
from attenuator.serve.seeds import KnownSeeds
from attenuator.serve.sessions import SessionKeeper
from attenuator.serve.settings import ServeSettings
from attenuator.serve.shadow import Shadow
from attenuator.serve.tokenizing import STOPPED, TokenizerThreads
from attenuator.serve.watching import Watch

if TYPE_CHECKING:
    from attenuator.serve.otel import Traces

log = logging.getLogger(__name__)
NO_FLOORS: Floors = {}
BODY_MARGIN = 2.0  # a body may have this many times fewer or more tokens than its size suggests


class Engine:
    """Models, queue and lanes of one service.

    Attributes:
        models: those that new requests get, by name.
        state: `starting`, `ready`, `draining` or `stopped`.
        catalog: loads, replaces and unloads them.
        metrics: what is counted and held here.
        brownout: which requests run with cheaper knobs under load, and how far.
        predictor: what rows take, and when requests would be done.
        lowering: lowers requests as they come, and those that wait.
        traces: spans of requests and batches; None where no traces are made.
        watch: keeps the models as a folder is.
        shadow: compares some answers with the exact ones while no request is in progress.
    """

    def __init__(self, settings: ServeSettings, traces: "Traces | None" = None) -> None:
        self.catalog = Catalog(settings)
        self.models = self.catalog.models
        self.state = "starting"
        self.metrics = Metrics()
        holdings = EngineHoldings(self)
        self.metrics.registry.register(holdings)
        self.metrics.before_scrape.append(holdings.read)
        self.brownout = Brownout(settings.brownout_target_ms / 1000, read_policy(settings.brownout_to))
        self.traces = traces
        self.watch = Watch(settings.watch, self.catalog)
        self._settings = settings
        self._queue = Queue(settings.max_batch_tokens)
        self._idle = asyncio.Event()
        self._idle.set()
        self._sessions = SessionKeeper(self.metrics)
        self._tokenizer = TokenizerThreads()
        wait = partial(self._tokenizer.wait_settled, settings.max_wait_ms / 1000)
        latencies, contention = self.catalog.latencies, Contention(settings.threads or cpu_count(), cpu_count())
        seeds = KnownSeeds()
        accounts = Accounts(latencies, contention, self.metrics, self._sessions.failed, seeds, traces)
        self._lanes = Lanes(
            self._queue,
            latencies,
            wait,
            self.metrics,
            contention,
            accounts,
            lone=lambda: self.requests == 1,
            lower=lambda now_s: self.lowering.waiting(now_s),
        )
        self._room = Room(self._queue, settings.max_requests, settings.max_queue_tokens, self._lanes.remaining_s)
        self.predictor = Predictor(latencies, self._lanes, seeds)
        self.lowering = Lowering(self.brownout, self.predictor, self._lanes, self._room)
        self.catalog.on_served = self.lowering.say_what_floors_win
        serving, run_idle, exact_s = self.catalog.serving, partial(self.run, flow=IDLE), self.predictor.exact_s
        self.shadow = Shadow(settings.shadow_share, self._idle, self.metrics, serving, run_idle, exact_s)

    @property
    def requests(self) -> int:
        """Requests in progress."""
        return self._room.requests

    async def start(self, folders: Sequence[Path]) -> None:
        """Loads the bundles, runs each once, and opens for requests.

        Args:
            folders: the bundles.

        Raises:
            BundleError: a bundle is damaged, or two have the same name.
            OperatorLibraryMissing: the operators are not built, or not for the device.
            DeviceUnavailable: the device in the settings cannot be used.
        """
        await self.catalog.start(folders)
        await self.watch.start()
        self._lanes.start()
        self.shadow.start()
        gc.freeze()  # what is loaded by now stays, as a rule, so the garbage collector need not examine it again
        if self.state == "starting":
            self.state = "ready"

    def model(self, name: str | None, places: str = "") -> Model:
        """The model that a request names, or the only one served if it names none.

        Args:
            name: of the model.
            places: where the request may name it, for the sentence on one that does not.

        Raises:
            UnknownModel: no served model has that name.
            InvalidRequest: none is named, and several are served.
        """
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
            return "no model is loaded"
        return fault(self._lanes.dead(), self._lanes.batches(), self._settings.hang_ms / 1000)

    def check_started(self) -> None:
        """Refuses until all models are loaded.

        Raises:
            NotReady: starting.
        """
        if self.state == "starting":
            raise self._not_ready()

    def check_running(self) -> None:
        """Refuses while the service starts, drains or is stopped.

        Raises:
            NotReady: as described.
        """
        if self.state != "ready":
            raise self._not_ready()

    def check_healthy(self) -> None:
        """Refuses while requests are not answered as they should be.

        Raises:
            NotReady: says why.
        """
        reason = self.fault()
        if reason is not None:
            raise NotReady(reason)

    def check_open(self, body_bytes: int = 0, key: str = "") -> None:
        """Refuses a request that could not be served, before its body is read; does not count it as in progress.

        Args:
            body_bytes: size of the body as far as it is known.
            key: its API key's share; empty where there are not several.

        Raises:
            NotReady: starting, draining or stopped.
            Overloaded: too many requests are in progress, or the queue has no room for a body of this size.
        """
        self.check_running()
        self._room.check_requests(key)
        if self._queue.vacant():
            return
        estimates = [self.catalog.estimates[model] for model in self.models.values()]
        least = int(body_bytes * min((each.tokens_per_byte for each in estimates), default=0.0) / BODY_MARGIN)
        if self.brownout.highest(time.monotonic(), key):  # it may be lowered, which only the body tells
            least = int(least * LEAST_SHARE)
        full = [lane for lane in LANES if self._room.full({lane: least}, key)]
        if "light" in full and ("heavy" in full or not self._may_be_heavy(body_bytes)):
            self._room.check_tokens({"light": least}, key)

    @contextlib.asynccontextmanager
    async def admitted(self, body_bytes: int = 0, key: str = "") -> AsyncIterator[None]:
        """Counts a request as in progress; entered once its body has arrived.

        Args:
            body_bytes: size of the body.
            key: as `check_open`.

        Raises:
            NotReady: starting, draining or stopped.
            Overloaded: as `check_open`.
        """
        self.check_open(body_bytes, key)
        self._room.enter(key)
        self._idle.clear()
        self.shadow.pause()
        try:
            yield
        finally:
            self._room.leave(key)
            if not self.requests:
                self._idle.set()

    async def encode(
        self,
        model: Model,
        items: Sequence[Input],
        *,
        knobs: Knobs,
        truncate: bool,
        floors: Floors = NO_FLOORS,
        flow: Flow = ANYONE,
    ) -> list[Encoded]:
        """Tokenizes inputs, long ones off the event loop.

        Args:
            model: the model.
            items: the inputs.
            knobs: a value for every knob of the model; with the inputs' size they predict the cost.
            truncate: cuts texts that are too long instead of refusing them.
            floors: how far the knobs may fall; it is refused only if it finds no room even so.
            flow: whose they are.

        Raises:
            InvalidRequest: names the input.
            Overloaded: too many tokens are waiting, estimated from the inputs' size.
            NotReady: the service was stopped meanwhile.
        """
        estimate = self.catalog.estimates[model]
        demand: dict[Lane, int] = {}
        if not (self._tokenizer.is_quick(items) and self._queue.vacant()):  # else none is refused or comes meanwhile
            # A refusal must be cheap, or refusals would use up the time for answers: tokens are estimated, not counted.
            tokens = [estimate.tokens(item, model.manifest.max_tokens) for item in items]
            demand = self.predictor.demand(model, tokens, knobs_at(model, knobs, floors, 1.0, tokens), knobs)
            self._room.check_tokens(demand, flow.key)
        with self._queue.reserved(demand, flow.key):
            encoded = await self._tokenizer.encode(model, items, truncate)
        estimate.learn(items, encoded)
        return encoded

    async def run(
        self,
        model: Model,
        rows: list[Row],
        asked: Knobs | None = None,
        flow: Flow = ANYONE,
        floors: Floors = NO_FLOORS,
    ) -> Job:
        """Queues a request's rows and waits for their results; cancelling the call cancels the work.

        Args:
            model: the model.
            rows: one per input, and what explains the answers; the first has the request's knobs.
            asked: the knobs before they were lowered; None where they were not.
            flow: whose work it is; `IDLE` finds room always, so its caller bounds how much of it waits.
            floors: how far the knobs may be lowered while it waits; empty where they may not.

        Returns:
            The finished job, whose rows have the knobs that they ran with.

        Raises:
            Overloaded: too many tokens are waiting.
            Displaced: it was idle work, and a request came.
            EngineError: a row failed.
            NotReady: the service was stopped meanwhile.
        """
        tokens = [len(row.token_ids) for row in rows]
        knobs, times = rows[0].knobs, self.predictor.times(model, rows)
        seconds = self.predictor.added_s(model, times)
        share = lowered_share(model, tokens, knobs, knobs if asked is None else asked)
        if flow != IDLE:
            self._room.check_tokens(demand_of(tokens, seconds, share), flow.key)
        done = asyncio.get_running_loop().create_future()
        trace = tracing.current.get()
        job = Job(model, rows, times, done, room_share=share, asked=asked, floors=floors, flow=flow, trace=trace)
        await self._lanes.finish(job, seconds)
        return job

    async def drain(self) -> None:
        """Refuses new requests and waits for those in progress, up to the time limit; watches no more."""
        self.watch.stop()
        self.shadow.stop()
        self.state = "draining"
        log.info("draining: %d requests in progress", self.requests)
        try:
            await asyncio.wait_for(self._idle.wait(), self._settings.drain_timeout_ms / 1000)
        except TimeoutError:
            log.warning("stopping with %d requests in progress", self.requests)

    async def stop(self) -> bool:
        """Stops everything; requests in progress get NotReady, and a batch that is running stops at its next node.

        Returns:
            Whether a thread is still working: inside a node or while loading it cannot be interrupted.
        """
        busy = self.catalog.stop()
        self.state = "stopped"
        self.watch.stop()
        self.shadow.stop()
        busy |= self._tokenizer.stop()
        busy |= await self._lanes.stop(NotReady(STOPPED))
        busy |= self._sessions.stop()
        return busy

    def _may_be_heavy(self, body_bytes: int) -> bool:
        """Whether a body could hold a row for the heavy lane, at the knobs' exact values."""
        for model in self.models.values():
            tokens_per_byte = self.catalog.estimates[model].tokens_per_byte
            tokens = min(int(body_bytes * tokens_per_byte * BODY_MARGIN), model.manifest.max_tokens)
            if self.predictor.lane(model, tokens, model.knobs.exact()) == "heavy":
                return True
        return False

    def _not_ready(self) -> NotReady:
        return NotReady(f"the service is {self.state} and takes no requests")
