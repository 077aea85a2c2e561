"""Live quality: a share of the answered texts runs again at the bundle's exact value while the service is idle.

The exact answers are the bundle's own. Those of a rounded bundle differ from the checkpoint's in fp32, which its
calibration refers to; what rounding changes is seen there alone, and an alarm comes later by as much.

Each text is drawn by lot with the operator's probability, whatever its request, so that neither a caller nor the load
chooses which. What is drawn waits in memory as token ids, with the logits of its answer; nothing of it is logged.

*Nobody waits for it.* A text runs alone, in a thread beside the lanes, once no request has been in progress for
`SETTLE_S` and for `IDLE_FACTOR` times as long as it is predicted to take. A request whose body arrives meanwhile stops
it, before the request itself reaches a lane; but only at the next node of the graph, and of a long text one node may
take a second of the cores that the request wants too. So a long text has to wait for a long pause, which begins anew
after every text. Of requests that come at random, one in 15 at most meets a text where every text is drawn, and one in
200 where one of a hundred is. A text that was stopped waits again, behind the others, and is dropped after `MAX_RUNS`.
Where room is short, the text that needs the longest pause goes. Dropped texts are counted by reason: a busy service
compares fewer texts than it draws, and of long texts fewer than of short ones. Agreement is therefore kept apart by
length.

A text does not keep a model that is replaced: it is dropped with the model.
"""

import asyncio
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from attenuator.errors import EngineError
from attenuator.rate_limited_log import RateLimitedLog
from attenuator.runtime import Cancellation, Model, Row, RowResult
from attenuator.serve.events import Listeners
from attenuator.serve.observe.live_agreement import Comparison, LiveAgreement
from attenuator.serve.observe.metrics import Metrics, knob_ranges

log = logging.getLogger(__name__)

SETTLE_S, IDLE_FACTOR = 0.02, 10
LOOK_S = 0.25  # between two looks at how long the pause has lasted
MAX_RUNS = 5
MAX_TEXTS, MAX_TOKENS = 1024, 2**20  # 16 MiB of ids
LOG_INTERVAL_S = 60.0

QUALITY = "the agreement of model '%s' (revision %.12s) at %s, %s tokens, "


@dataclass(slots=True, eq=False)
class DrawnText:
    """An answered text that waits for its exact run.

    Attributes:
        model: which answered.
        name: the model's name.
        row: the text, with the knobs of its answer.
        logits: of the answer, float32 `[num_labels]`.
        pause_s: how long no request must have been in progress before it runs.
        escalated: whether escalation chose its knobs by its own answer.
        runs: how often it was begun.
    """

    model: weakref.ref[Model]
    name: str
    row: Row
    logits: npt.NDArray[np.float32]
    pause_s: float
    escalated: bool = False
    runs: int = 0


class Shadow:
    """Draws answered texts, runs them again while the service is idle, and keeps account of their agreement."""

    def __init__(
        self,
        share: float,
        idle: asyncio.Event,
        metrics: Metrics,
        serving: Callable[[Model], bool],
        exact_s: Callable[[Model, int], float],
        random: Random | None = None,
    ) -> None:
        """Makes it; `start` begins to run texts.

        Args:
            share: probability of a text to be drawn; 0 draws none.
            idle: set while no request is in progress.
            metrics: where comparisons and dropped texts are counted.
            serving: whether new requests still get a model.
            exact_s: predicted seconds of a text of a length at the exact value.
            random: draws the texts.
        """
        self._share = share
        self._idle = idle
        self._metrics = metrics
        self._serving = serving
        self._exact_s = exact_s
        self._random = random or Random()
        self._waiting: deque[DrawnText] = deque()
        self._tokens = 0
        self._drawn = asyncio.Event()
        self._agreement: WeakKeyDictionary[Model, LiveAgreement] = WeakKeyDictionary()
        self._running: Cancellation | None = None
        self._pause_anew = True
        self._idle_since_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._low = RateLimitedLog(log, logging.WARNING, LOG_INTERVAL_S)
        self._high = RateLimitedLog(log, logging.INFO, LOG_INTERVAL_S)
        self._failure = RateLimitedLog(log, logging.ERROR, LOG_INTERVAL_S)

    @property
    def waiting(self) -> int:
        """Texts that wait for their exact run."""
        return len(self._waiting)

    def listen(self, listeners: Listeners) -> None:
        """Listens to answers, and to what lets texts run or stops them."""
        listeners.started.append(self.start)
        listeners.request_admitted.append(self.pause)
        listeners.answered.append(self.consider)
        listeners.stopping.append(self.stop)

    def start(self) -> None:
        """Begins to run texts."""
        self._task = asyncio.create_task(self._run_all())

    def stop(self) -> None:
        """Ends, with the text that runs."""
        self.pause()
        if self._task is not None:
            self._task.cancel()

    def consider(
        self, model: Model, rows: Sequence[Row], results: Sequence[RowResult], escalated: bool = False
    ) -> None:
        """Draws from the texts of an answered request; answers at the exact value have nothing to compare."""
        exact = model.knobs.exact()
        for row, result in zip(rows, results, strict=True):
            if row.knobs == exact or self._random.random() >= self._share:
                continue
            pause_s = max(SETTLE_S, IDLE_FACTOR * self._exact_s(model, len(row.token_ids)))
            name, logits = model.manifest.name, result.logits.copy()
            self._push(DrawnText(weakref.ref(model), name, row, logits, pause_s, escalated))
            while len(self._waiting) > MAX_TEXTS or self._tokens > MAX_TOKENS:
                longest = max(self._waiting, key=lambda each: each.pause_s)
                self._remove(longest)
                self._drop(longest, "full")

    def pause(self) -> None:
        """A request has arrived: the text that runs stops."""
        self._pause_anew = True
        if self._running is not None:
            self._running.cancel()

    def low(self) -> Iterator[tuple[tuple[str, str, str], bool]]:
        """Model, knob ranges and lengths, and whether the agreement there is low, wherever enough was compared."""
        low: dict[tuple[str, str, str], bool] = {}
        for model, agreement in self._agreement.items():
            if self._serving(model):
                for knobs, lengths, is_low in agreement.judged():
                    labels = (model.manifest.name, knob_ranges(knobs), lengths)
                    low[labels] = low.get(labels, False) or is_low
        yield from low.items()

    def _push(self, text: DrawnText) -> None:
        self._waiting.append(text)
        self._tokens += len(text.row.token_ids)
        self._drawn.set()

    def _remove(self, text: DrawnText) -> None:
        self._waiting.remove(text)
        self._tokens -= len(text.row.token_ids)

    def _next(self) -> DrawnText | None:
        """The first text for which the pause has been long enough, no longer waiting."""
        now_s = time.monotonic()
        if self._pause_anew:
            self._pause_anew, self._idle_since_s = False, now_s
        ready = next((each for each in self._waiting if each.pause_s <= now_s - self._idle_since_s), None)
        if ready is not None:
            self._remove(ready)
        return ready

    def _drop(self, text: DrawnText, reason: str) -> None:
        self._metrics.shadow_dropped(text.name, reason).inc()

    async def _run_all(self) -> None:
        while True:
            await self._drawn.wait()
            await self._idle.wait()
            if not self._waiting:
                self._drawn.clear()
                continue
            text = self._next()
            if text is None:
                await asyncio.sleep(min(LOOK_S, min(each.pause_s for each in self._waiting)))
                continue
            try:
                await self._run(text)
            except Exception:  # a text on which it fails must not end it
                log.exception("an answer could not be compared with the exact one")
            self._pause_anew = True

    async def _run(self, text: DrawnText) -> None:
        model = text.model()
        if model is None or not self._serving(model):
            self._drop(text, "unloaded")
            return
        text.runs += 1
        row = Row(text.row.token_ids, text.row.type_ids, model.knobs.exact(), text.row.seed)
        self._running = Cancellation()
        try:
            [result] = await asyncio.to_thread(model.run, [row], self._running)
        except EngineError as error:
            if not self._pause_anew:
                self._drop(text, "failed")
                self._failure("model '%s' failed on a text that ran again at the exact value: %s", text.name, error)
            elif text.runs < MAX_RUNS:
                self._push(text)
            else:
                self._drop(text, "interrupted")
            return
        finally:
            self._running = None
        agreement = self._agreement.get(model)
        if agreement is None:
            agreement = self._agreement[model] = LiveAgreement(model)
        tokens = len(row.token_ids)
        knobs = None if text.escalated else text.row.knobs
        comparison = agreement.compare(knobs, tokens, text.logits, result.logits)
        self._report(model, text, agreement.lengths(tokens), comparison)

    def _report(self, model: Model, text: DrawnText, lengths: str, comparison: Comparison) -> None:
        """Counts a comparison, and says so where it changes what is known."""
        name, knobs = text.name, text.row.knobs
        if comparison.agreed is not None:
            self._metrics.shadowed(name, knob_ranges(knobs), lengths, "same" if comparison.agreed else "other").inc()
        window = comparison.changed
        if window is None:
            return
        setting = ", ".join(f"{knob} {value:g}" for knob, value in knobs.items())
        place = (name, model.manifest.revision, setting, lengths)
        measured = (window.agreed, len(window.outcomes), window.bound)
        if window.low:
            self._low(f"{QUALITY}is low: %d of %d answers, calibration promised at least %.4f", *place, *measured)
        else:
            self._high(f"{QUALITY}is as calibrated again: %d of %d answers, at least %.4f", *place, *measured)
