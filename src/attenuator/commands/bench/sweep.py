"""Runs of a service at each combination of rate and knob values, and what became of the requests."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from attenuator.api import CLASSIFY, ModelInfo
from attenuator.commands.bench.grid import Setting, exact_of, typed
from attenuator.load_generator import (
    ANSWERED,
    REFUSED,
    Client,
    Exchange,
    closed_loop,
    open_loop,
    poisson,
    post,
    quantiles,
)

Label = str | tuple[str, ...] | None

EXACT_CLIENTS = 8  # that ask for the exact answers
QUANTILES = {"p50_ms": "0.5", "p90_ms": "0.9", "p99_ms": "0.99"}
TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class Row:
    """What became of the requests at one rate and one setting.

    Attributes:
        rate_per_s: at which requests left, on average.
        knobs: value by name.
        requests: that left.
        answered: with status 200.
        refused: with status 429.
        failed: with another status, or without an answer.
        p50_ms, p90_ms, p99_ms: quantiles of the time from when a request was to leave to its answer; None without one.
        goodput_per_s: answers within the target time, a second.
        agreement: share of the answers whose label, or set of labels, is the exact one; None in a regression.
        lowered: share of the answers at knobs that the service lowered under load.
        late_ms: 99th percentile of how late the load generator itself was.
    """

    rate_per_s: float
    knobs: Setting
    requests: int
    answered: int
    refused: int
    failed: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    goodput_per_s: float
    agreement: float | None
    lowered: float
    late_ms: float


@dataclass
class Sweep:
    """Everything that is asked of one service.

    Attributes:
        url: of the service.
        model: which is asked.
        texts: inputs, as the HTTP API takes them.
        fields: of every request, beside inputs and knobs.
        headers: of every request.
        seconds: of each run.
        target_ms: for goodput.
        give_up_s: after which a request has failed.
        seed: of arrivals and texts.
        capacity_per_s: exact answers a second in a closed loop.
        tokens: of each text.
        rows: what was measured.
    """

    url: httpx.URL
    model: ModelInfo
    texts: Sequence[dict[str, Any]]
    fields: Mapping[str, Any]
    headers: Mapping[str, str]
    seconds: float
    target_ms: float
    give_up_s: float
    seed: int
    capacity_per_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    _exact: list[Label] = field(default_factory=list)

    def client(self) -> Client:
        """Connections to the service."""
        tls = ssl.create_default_context() if self.url.scheme == "https" else None
        return Client(self.url.port or (443 if tls else 80), self.url.host, tls)

    def requests(self, knobs: Setting) -> list[bytes]:
        """One request for each text."""
        path = self.url.path.rstrip("/") + CLASSIFY
        headers = {"Host": self.url.netloc.decode(), **self.headers}
        body = {"model": self.model.name, **self.fields, **typed(self.model, knobs)}
        return [post(path, {"inputs": [text], **body}, headers) for text in self.texts]

    async def ask_exact(self, client: Client) -> None:
        """Asks for every text at the exact knobs, and measures how many answers a second that gives.

        Raises:
            UnexpectedAnswer: the service refused a text.
        """
        requests = self.requests(exact_of(self.model))
        answers, self.capacity_per_s = await closed_loop(client, requests, EXACT_CLIENTS, self.seconds)
        self._exact = [label_of(self.model, answer) for answer in answers]
        self.tokens = [answer["tokens"][0] for answer in answers]

    async def run(self, client: Client, rate: float, knobs: Setting) -> Row:
        """One run."""
        arrivals = poisson(rate, self.seconds, self.seed)
        exchanges = await open_loop(client, self.requests(knobs), arrivals, self.seed, self.give_up_s)
        row = self.summary(rate, knobs, exchanges)
        self.rows.append(row)
        return row

    def summary(self, rate: float, knobs: Setting, exchanges: Sequence[Exchange]) -> Row:
        """What became of some requests."""
        answered = [each for each in exchanges if each.status == ANSWERED]
        refused = sum(each.status == REFUSED for each in exchanges)
        latencies = quantiles([1000 * each.latency_s for each in answered], list(QUANTILES.values()))
        late = quantiles([1000 * each.late_s for each in exchanges], ["0.99"])
        labels = [(label_of(self.model, each.answer), self._exact[each.text]) for each in answered]
        lowered = sum(each.answer["chosen_by"] == "brownout" for each in answered)
        compared = answered and self.model.task != "regression"
        return Row(
            rate_per_s=rate,
            knobs=knobs,
            requests=len(exchanges),
            answered=len(answered),
            refused=refused,
            failed=len(exchanges) - len(answered) - refused,
            **{name: latencies.get(quantile) for name, quantile in QUANTILES.items()},
            goodput_per_s=sum(1000 * each.latency_s <= self.target_ms for each in answered) / self.seconds,
            agreement=sum(one == exact for one, exact in labels) / len(labels) if compared else None,
            lowered=lowered / max(1, len(answered)),
            late_ms=late.get("0.99", 0.0),
        )


def label_of(model: ModelInfo, answer: Mapping[str, Any]) -> Label:
    """What agreement compares: the label, multi-label the set; None in a regression."""
    [prediction] = answer["predictions"]
    if model.task == "multi_label":
        return tuple(sorted(prediction["labels"]))
    return None if model.task == "regression" else str(prediction["label"])


@contextlib.asynccontextmanager
async def ticking(advance: Callable[[float], object], limit_s: float) -> AsyncIterator[None]:
    """Calls with the seconds that passed, often, and with the rest up to a limit at the end."""
    begun, counted_s = time.monotonic(), 0.0

    def count(seconds: float) -> None:
        nonlocal counted_s
        advance(min(seconds, limit_s) - counted_s)
        counted_s = min(seconds, limit_s)

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            count(time.monotonic() - begun)

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        task.cancel()
        count(limit_s)
