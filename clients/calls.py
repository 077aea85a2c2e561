"""What a client sends and how it reads the answer, without any I/O; both clients share all of it.

A `Call` is one request and the way to read its answer. The functions here build calls; `Client` and `AsyncClient` have
a method for each of them.
"""

import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from attenuator.api import CLASSIFY, MODELS, RERANK, Classification, ModelInfo, ModelList
from attenuator.errors import (
    AttenuatorError,
    InvalidRequest,
    NotReady,
    ServiceUnreachable,
    UnknownField,
)
from attenuator.ops import KNOBS
from attenuator.ops.knobs import KnobValue, check_knob, check_seed
from attenuator.ranking import Ranking

T = TypeVar("T")

Input = str | Mapping[str, Any]
Inputs = Input | Iterable[Input]


class Unset(enum.Enum):
    """Type of `UNSET`."""

    UNSET = "unset"


UNSET = Unset.UNSET
"""A seed left to the server, which then uses its default one; None, in contrast, asks for a fresh draw."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request.

    Attributes:
        method: HTTP method.
        path: below the base URL.
        parse: reads the JSON of a successful answer.
        content: JSON to send, or None.
        patience_ms: how long the server may take, by the caller's own deadline; None without a deadline.
        answered_by: the result to return in place of raising one of these errors.
        retried: whether it may be sent again; every call here may, but not every one is worth it.
    """

    method: str
    path: str
    parse: Callable[[Any], T]
    content: bytes | None = None
    patience_ms: float | None = None
    answered_by: Mapping[type[AttenuatorError], T] = field(default_factory=dict)
    retried: bool = True


def to_json(body: Mapping[str, Any]) -> bytes:
    """A body as JSON; arrays, generators and other mappings become lists and objects.

    Raises:
        InvalidRequest: something in it has no JSON form (NaN, a set, half a surrogate pair).
    """
    try:
        return json.dumps(body, default=_plain, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the request cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """The JSON counterpart of a value that is none of Python's own types, such as a NumPy array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview | Set):
        return list(value)
    raise TypeError(f"a value is of type {type(value).__name__}, must be a text, number, boolean, list or mapping")


def scalar(value: Any) -> Any:
    """A Python number in place of a NumPy number or an array without axes; any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def check_knobs(knobs: Mapping[str, object]) -> dict[str, KnobValue]:
    """Checks knobs before anything is sent, by the bounds in the operators' specs.

    A model may have fewer knobs or narrower bounds; the server checks those.

    Args:
        knobs: value by name; None leaves a knob to the server.

    Returns:
        The knobs that are set.

    Raises:
        UnknownField: no operator has a knob of that name.
        KnobOutOfRange: wrong type, not finite, or outside the bounds.
    """
    checked: dict[str, KnobValue] = {}
    for name, value in knobs.items():
        knob = KNOBS.get(name)
        if knob is None:
            allowed = ", ".join(KNOBS)
            raise UnknownField(f"{name} is not a knob, must be one of: {allowed}", param=name, allowed=allowed)
        if value is not None:
            checked[name] = check_knob(knob, scalar(value))
    return checked


def check_floors(floors: Mapping[str, object]) -> dict[str, KnobValue]:
    """Checks `degradable_to` by the bounds in the operators' specs.

    Raises:
        UnknownField: no operator has a knob of that name.
        KnobOutOfRange: wrong type, not finite, or outside the bounds.
    """
    try:
        return check_knobs(floors)
    except InvalidRequest as error:
        param = f"degradable_to.{error.param}"
        raise type(error)(f"degradable_to: {error}", param=param, allowed=error.allowed) from None


def classify(
    inputs: Inputs,
    *,
    model: str | None = None,
    seed: int | None | Unset = UNSET,
    timeout_ms: float | None = None,
    min_agreement: float | None = None,
    max_latency_ms: float | None = None,
    degradable_to: Mapping[str, int | float] | None = None,
    priority: str | None = None,
    explain: bool = False,
    escalate: bool = False,
    top_k: int | None = None,
    truncate: bool = False,
    return_logits: bool = False,
    candidate_labels: Iterable[str] | None = None,
    hypothesis_template: str | None = None,
    multi_label: bool = False,
    join: str | None = None,
    window: int | None = None,
    stride: int | None = None,
    aggregation: str | None = None,
    **knobs: int | float | None,
) -> Call[Classification]:
    """Classifies one or more inputs.

    A request changes nothing at the service and, with the same seed (the server's default one too), knobs and bundle
    has the same answer, so that the client may send it again. With the seed None a repeated request draws anew.

    Args:
        inputs: a text; or a list, array or generator of texts, of `{"text": .., "text_pair": ..}`, or of
            `{"token_ids": [..], "token_type_ids": [..]}`, which may be arrays too; without types, all are 0.
        model: name of the model; may be left out where the service has one.
        seed: fixes the random streams. `UNSET`: the server's default seed, so that equal requests give equal
            answers. None: the server draws one and returns it.
        timeout_ms: deadline; past it the server cancels the work and `DeadlineExceeded` is raised.
        min_agreement: a goal in place of knobs: the cheapest ones are chosen whose answers agree with the exact ones on
            at least this share of inputs.
        max_latency_ms: a goal in place of knobs: the most accurate ones are chosen that are predicted to answer in this
            time. It is no deadline; with `min_agreement` beside it, knobs that do not reach that are refused.
        degradable_to: the least accurate value by knob that a busy server may lower them to, so that it need not
            refuse; `chosen_by` of the answer is then `brownout`. An empty one forbids what the server may do by
            default to calls that set no knob.
        priority: `"batch"` for work that can wait; `"interactive"`, or what the API key says, by default.
        explain: also estimate how sure each answer is: `standard_error` of its score, which takes about four more
            runs, and `agreement_probability`, that it is the exact one.
        escalate: run again, at surer knobs, each input whose answer is the exact one with less probability than
            `min_agreement`, up to exact and as long as `timeout_ms` allows. Knobs beside it say where to begin.
        top_k: also return the scores of that many labels.
        truncate: cut inputs that are longer than the model takes, instead of refusing them.
        return_logits: also return the logits.
        candidate_labels: labels to choose from in place of the model's own, for texts and a model of natural language
            inference; without `top_k`, `scores` has all of them.
        hypothesis_template: what the model judges of each text, with a label in place of `{}`; by default
            `This example is {}.`
        multi_label: score each of `candidate_labels` by itself: several or none may be right.
        join: read long texts in windows; an answer has the `"mean"` or the largest (`"max"`) of each label's scores and
            logits over them, or is that of the `"first"` one.
        window: beside `join`, the tokens of a window, special ones included, by default the model's most; else the knob
            of that name.
        stride: from the beginning of a window to that of the next; by default they lie side by side.
        aggregation: how the tokens of a token classifier become `entities`, as in transformers' pipeline: `"none"`,
            `"simple"` (the default), `"first"`, `"max"` or `"average"`.
        **knobs: accuracy against time, by the names that `models()` lists; a knob that is None or
            left out is the server's to choose.

    Returns:
        One prediction per input, with the knobs and the seed that were used.

    Raises:
        InvalidRequest: an argument is wrong (`UnknownField`, `KnobOutOfRange` and `InputTooLong` are kinds of it).
        NotCalibrated: a goal, `explain` or `escalate` for a model whose calibration does not tell.
        GoalOutOfReach: no knobs keep both goals, even on an idle service.
        UnknownModel: no such model is served.
        DeadlineExceeded: `timeout_ms` passed.
        Overloaded: the service is overloaded, or too busy for both goals; `retry_after_s` says when to try again.
        NotReady: the service is starting or stopping.
        Unauthorized: the API key is missing or wrong.
        ServiceUnreachable: no answer came; `NoAnswerInTime` within the client's own time limits.
        UnexpectedAnswer: the answer is not this API's.
    """
    several = [inputs] if isinstance(inputs, Mapping) else inputs
    options: dict[str, Any] = {"model": model, "priority": priority, "timeout_ms": timeout_ms, "top_k": top_k}
    options |= {"min_agreement": min_agreement, "max_latency_ms": max_latency_ms}
    options |= {"candidate_labels": candidate_labels, "hypothesis_template": hypothesis_template}
    options |= {"join": join, "stride": stride, "aggregation": aggregation}
    (knobs if join is None else options).update(window=window)  # without `join` it is a knob
    switches = {"explain": explain, "escalate": escalate, "truncate": truncate, "return_logits": return_logits}
    switches["multi_label"] = multi_label
    body = {"inputs": several, **_fields(seed, degradable_to, options, switches, knobs)}
    return Call("POST", CLASSIFY, Classification.model_validate, to_json(body), body.get("timeout_ms"))


def _fields(
    seed: int | None | Unset,
    degradable_to: Mapping[str, int | float] | None,
    options: Mapping[str, Any],
    switches: Mapping[str, bool],
    knobs: Mapping[str, object],
) -> dict[str, Any]:
    """The fields of a request that are set, besides what it is about."""
    fields: dict[str, Any] = {**check_knobs(knobs)}
    if seed is not UNSET:
        fields["seed"] = None if seed is None else check_seed(scalar(seed))
    fields |= {name: scalar(value) for name, value in options.items() if value is not None}
    if degradable_to is not None:
        fields["degradable_to"] = check_floors(degradable_to)
    return fields | {name: True for name, value in switches.items() if value}


def rerank(
    query: str,
    documents: Iterable[str | Mapping[str, Any]],
    *,
    top_n: int | None = None,
    return_documents: bool = False,
    model: str | None = None,
    rescore: int | None = None,
    max_cost: float | None = None,
    cascade: Sequence[str] | None = None,
    seed: int | None | Unset = UNSET,
    timeout_ms: float | None = None,
    min_agreement: float | None = None,
    max_latency_ms: float | None = None,
    degradable_to: Mapping[str, int | float] | None = None,
    priority: str | None = None,
    truncate: bool = False,
    **knobs: int | float | None,
) -> Call[Ranking]:
    """Ranks documents by how well they answer a query; for rerankers, which are models with one output.

    Args:
        query: a text.
        documents: texts, or mappings `{"text": ..}`: a list, array or iterator of at most 1,000.
        top_n: so many of the best are returned; all by default.
        return_documents: return their texts too.
        model: which one to ask; may be left out where only one is served.
        rescore: score so many of the best again, exactly, in a second step.
        max_cost: a budget for the whole list, both steps together, in billions of multiply-adds.
        cascade: two models: the first scores all documents, the last the best of them again, exactly.
        seed: of the random streams: the server's own by default; None draws one.
        timeout_ms: deadline; past it the server cancels the call and `DeadlineExceeded` is raised.
        min_agreement: a goal in place of knobs: the top of the list is the exact one at least this often.
        max_latency_ms: a budget of time for the whole list.
        degradable_to: the least accurate value by knob that a busy server may lower them to.
        priority: `"batch"` for work that can wait; `"interactive"`, or what the API key says, by default.
        truncate: cut pairs that are longer than the model takes, instead of refusing them.
        **knobs: accuracy against time, of the first step where there are two, by the names that `models()` lists; a
            knob that is None or left out is the server's to choose.

    Returns:
        The documents' places and scores, best first.

    Raises:
        AttenuatorError: the errors of `classify`.
    """
    options = {"top_n": top_n, "model": model, "rescore": rescore, "max_cost": max_cost, "cascade": cascade}
    options |= {"timeout_ms": timeout_ms, "priority": priority}
    options |= {"min_agreement": min_agreement, "max_latency_ms": max_latency_ms}
    switches = {"return_documents": return_documents, "truncate": truncate}
    body = {"query": query, "documents": documents, **_fields(seed, degradable_to, options, switches, knobs)}
    return Call("POST", RERANK, Ranking.model_validate, to_json(body), body.get("timeout_ms"))


def models() -> Call[tuple[ModelInfo, ...]]:
    """Lists the served models with their labels and knobs.

    Raises:
        Unauthorized: the API key is missing or wrong.
        ServiceUnreachable: no answer came.
        UnexpectedAnswer: the answer is not this API's.
    """
    return Call("GET", MODELS, lambda body: ModelList.model_validate(body).models)


def ready() -> Call[bool]:
    """Tells whether the service takes requests now: False where it is starting, stopping, or does not answer.

    Raises:
        UnexpectedAnswer: something else listens there.
    """
    answered_by = {NotReady: False, ServiceUnreachable: False}
    return Call("GET", "/health/ready", lambda body: True, answered_by=answered_by, retried=False)
