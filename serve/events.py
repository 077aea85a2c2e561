"""Events of the service and their listeners, and the log fields of the current request.

Every room may tell, and `observe` listens. Every request has a task of its own, so that each sees its own fields.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Unpack

from attenuator.api import ChosenBy, Goals
from attenuator.ops.knobs import Knobs, KnobValue
from attenuator.runtime import Model, Row, RowResult

CLIENT_LEFT = 499  # the status of a request whose client disconnected; it is not sent
STATUS_KEY = "status"  # where a request's scope has that of its answer, once this has begun

request_id: ContextVar[str] = ContextVar("request_id", default="")
trace_id: ContextVar[str] = ContextVar("trace_id", default="")


class Noted(Goals, total=False):
    """What the log, the metrics and the span of a request say of it, as far as it came; its goals besides.

    Attributes:
        key: name of its API key.
        model: that was asked.
        revision: of a model that was loaded.
        inputs: how many texts.
        knobs: that it ran with.
        chosen_by: who chose them.
        tokens: of all its inputs.
        timing_ms: milliseconds by phase.
        steps: of its escalation.
        max_cost: billions of multiply-adds that it may take.
        rescored: documents of its list that a second step scored again.
        error_type: kind of the refusal.
    """

    key: str
    model: str
    revision: str
    inputs: int
    knobs: dict[str, KnobValue]
    chosen_by: ChosenBy
    tokens: int
    timing_ms: dict[str, float]
    steps: int
    max_cost: float
    rescored: int
    error_type: str


fields: ContextVar[Noted | None] = ContextVar("access_fields", default=None)


def note(**values: Unpack[Noted]) -> None:
    """Adds fields to the request that is being answered; each name is listed with the log in docs/operations.md."""
    noted = fields.get()
    if noted is not None:
        noted.update(values)


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A batch that ran.

    Attributes:
        model: which ran it.
        lane: where it ran.
        settings: the knobs of its requests.
        tokens: of all its sequences.
        sequences: how many.
        predicted_s: seconds it was predicted to take.
        seconds: what it took.
        shares: predicted seconds by API key and class; the key is empty where there are not several.
    """

    model: Model
    lane: str
    settings: Sequence[Knobs]
    tokens: int
    sequences: int
    predicted_s: float
    seconds: float
    shares: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told of what happens in one service; filled at its start.

    Attributes:
        started: the models are loaded.
        stopping: no further requests are taken.
        request_began: a request's header has arrived, here its ASGI scope.
        request_admitted: its body has arrived, and it counts as in progress.
        answered: a request has its results: model, rows, results, and whether it has `escalate`.
        request_ended: route (the pattern, not the path that was asked for), status, seconds, fields of its log line.
        batch_ran: a batch ran, and its requests have got their results.
        batch_failed: ONNX Runtime failed on a batch of a model, in a lane, that somebody waited for.
        lane_restarted: a lane's task had ended and starts again.
        session_restarted: a model's session was made again.
    """

    started: list[Callable[[], None]] = field(default_factory=list)
    stopping: list[Callable[[], None]] = field(default_factory=list)
    request_began: list[Callable[[Mapping[str, object]], None]] = field(default_factory=list)
    request_admitted: list[Callable[[], None]] = field(default_factory=list)
    answered: list[Callable[[Model, Sequence[Row], Sequence[RowResult], bool], None]] = field(default_factory=list)
    request_ended: list[Callable[[str, int, float, Noted], None]] = field(default_factory=list)
    batch_ran: list[Callable[[BatchRun], None]] = field(default_factory=list)
    batch_failed: list[Callable[[Model, str], None]] = field(default_factory=list)
    lane_restarted: list[Callable[[str], None]] = field(default_factory=list)
    session_restarted: list[Callable[[Model], None]] = field(default_factory=list)
