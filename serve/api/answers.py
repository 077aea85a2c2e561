"""Answers: from results to JSON, in the form of a protocol.

256 inputs with every score and logit are 20,000 values. So the JSON of a long answer is made of plain dicts and lists,
a millisecond's worth at a time, and between two pieces others come first (`Turns`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.responses import Response

from attenuator.api import CalibrationInfo, KnobInfo, LengthBucket, MeasuredAgreement, MeasuredSetting, ModelInfo
from attenuator.calibration import keeping_default
from attenuator.calibration.payoff import cannot_pay
from attenuator.json_body import parse_json
from attenuator.ops import TOKENS
from attenuator.runtime import Device, Model, Row, RowResult
from attenuator.runtime.batch import by_output
from attenuator.runtime.entities import Tagging
from attenuator.runtime.explaining import Answered
from attenuator.runtime.grouping import GROUPING, split_fields
from attenuator.runtime.scores import ranked
from attenuator.runtime.windows import Windows
from attenuator.runtime.zero_shot import Candidates
from attenuator.serve.accuracy.list_steps import Steps
from attenuator.serve.accuracy.plan import Plan
from attenuator.serve.api.schema import ParsedRequest, parse_request
from attenuator.serve.edge.arrivals import JSON

PIECE_VALUES = 4096  # of one piece of an answer: about 1 ms
VALUES_OF_TOKEN = 16  # as long as so many take, at most, the entities of a token take

Make = Callable[[slice], bytes]
Write = Callable[[Make, int, int, bytes], Awaitable[bytes]]


class Turns:
    """Lets requests write their answers one piece each in turn, one piece in each round of the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # those who wait get it in the order in which they came

    async def write(self, make: Make, inputs: int, values: int, between: bytes) -> bytes:
        """Writes what an answer says of each input; a short answer waits for nobody.

        Args:
            make: writes it for some of the inputs.
            inputs: how many there are.
            values: about how many numbers, texts and objects the whole answer has for one of them.
            between: what separates two pieces.
        """
        if inputs * values <= PIECE_VALUES:
            return make(slice(0, inputs))
        pieces, step = [], max(1, PIECE_VALUES // values)
        for first in range(0, inputs, step):
            async with self._turn:
                pieces.append(make(slice(first, min(first + step, inputs))))
                await asyncio.sleep(0)
        return between.join(pieces)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The answer to a request, before it has the form of a protocol.

    Attributes:
        model: which answered.
        fields: those of `api.Classification`, in its order, with an empty list in place of its predictions; those that
            are None are left out.
        scores: float64 `[inputs, labels]`, in the bundle's order of labels; of a token classifier `[T, labels]`, those
            of one input's tokens after another's.
        logits: float32, of the same shape.
        more: by input, what `explain` and `escalate` add to its prediction; None where that is unknown.
        again: places of the inputs that a second step has scored; empty without one.
    """

    model: Model
    fields: Mapping[str, Any]
    scores: npt.NDArray[np.float64]
    logits: npt.NDArray[np.float32]
    more: Sequence[Mapping[str, Any]]
    again: Collection[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """The second step of a list.

    Attributes:
        model: that ran it.
        places: of the documents in the list, those of the first step's best scores first.
        rows: one for each of them.
        results: likewise.
        queue_s: until the first of them ran.
        tokenize_s: seconds that it took to tokenize them.
    """

    model: Model
    places: Sequence[int]
    rows: Sequence[Row]
    results: Sequence[RowResult]
    queue_s: float
    tokenize_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What a request ran.

    Attributes:
        model: that answered, or ran the first step.
        chosen: what was decided.
        seed: of the random streams.
        answered: what it gave.
        characters: of all inputs.
        first_tokenize_s: seconds from the request's begin to the tokens.
        again: the second step; None without one.
    """

    model: Model
    chosen: Plan
    seed: int
    answered: Answered
    characters: int
    first_tokenize_s: float
    again: Again | None = None

    @property
    def tokens(self) -> int:
        """Of all that ran."""
        rows = [*self.answered.rows, *(self.again.rows if self.again else ())]
        return sum([len(row.token_ids) for row in rows])

    @property
    def tokenize_s(self) -> float:
        """Of both steps."""
        return self.first_tokenize_s + (self.again.tokenize_s if self.again else 0.0)

    @property
    def queue_s(self) -> float:
        """Of both steps."""
        return self.answered.queue_s + (self.again.queue_s if self.again else 0.0)


class Form:
    """One request and its answer, in the form of a protocol.

    Attributes:
        types: that its bodies may have besides JSON; an empty one where they may have none.
        takes_header: whether fields may stand in the header `schema.HEADER`.
        model_places: where a request may name its model, for the sentence on one that does not; empty where only its
            body can.
        own_names: what the request calls fields that have another name in `POST /v1/classify`, by that name.
    """

    types: Collection[str] = ()
    takes_header = False
    model_places = ""
    own_names: Mapping[str, str] = {}

    def parse(self, body: bytes) -> dict[str, Any]:
        """Reads the fields, among them `model` where the request names one; may run in a thread.

        Raises:
            MalformedBody: the body is not what the protocol sends.
            InvalidRequest: it is not an object, or has too many values.
        """
        return parse_json(body)

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """Checks the fields against their model.

        Raises:
            InvalidRequest: names the field, what was given and what is allowed.
            UnknownModel: the model is not served as the request wants it.
        """
        raise NotImplementedError

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """The answer in the protocol's form."""
        raise NotImplementedError


class OwnForm(Form):
    """The form of `POST /v1/classify`.

    With labels of the request's own (`runtime.zero_shot`) or windows (`runtime.windows`), the path answers several rows
    of each text, and the answer is put together from these; of a token classifier from its tokens (`runtime.entities`).
    """

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """The request as it is, or the rows that it asks about."""
        grouped = None
        if model.manifest.reads_tokens or not fields.keys().isdisjoint(GROUPING):
            grouped, fields = split_fields(fields, model.knobs.rows, model.manifest)
        parsed = parse_request(fields, model, grouped)
        self._top_k, self._with_logits = parsed.options.top_k, parsed.options.return_logits
        if isinstance(grouped, Candidates) and self._top_k is None:
            self._top_k = len(grouped.labels)
        self._tagging = grouped if isinstance(grouped, Tagging) else None
        self._grouped = None if isinstance(grouped, Tagging) else grouped
        return parsed

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """The answer as it is, or one for each text."""
        if self._tagging is not None:
            return await self._entities(answer, self._tagging, headers, write)
        if self._grouped is not None:
            answer = by_text(answer, self._grouped)
        values = 8 + 3 * (self._top_k or 0) + self._with_logits * answer.logits.shape[1]
        predictions = await write(partial(self._predictions, answer), len(answer.scores), values, b",")
        return self._whole(answer.fields, predictions, headers)

    async def _entities(self, answer: Answer, tagging: Tagging, headers: dict[str, str], write: Write) -> Response:
        """The answer of a token classifier."""
        ahead = tagging.predictions(answer.scores)  # in the order of the texts, as they are written
        texts = len(tagging.texts)
        values = 8 + VALUES_OF_TOKEN * max(sum(len(row.token_ids) for row in rows) for rows in tagging.texts)
        predictions = await write(
            lambda span: to_json(list(islice(ahead, span.stop - span.start)))[1:-1], texts, values, b","
        )
        return self._whole(tagging.by_text(answer.fields), predictions, headers)

    def _whole(self, fields: Mapping[str, Any], predictions: bytes, headers: dict[str, str]) -> Response:
        """The answer with its predictions in place."""
        before, start, after = to_json(fields).partition(b'"predictions":[')
        return Response(before + start + predictions + after, headers=headers, media_type=JSON)

    def _predictions(self, answer: Answer, span: slice) -> bytes:
        """Predictions as `api.Prediction` has them."""
        chosen_from, predictions = self._grouped or answer.model.manifest, []
        labels, scores = chosen_from.labels, answer.scores[span]
        chosen = (scores >= chosen_from.thresholds).tolist() if chosen_from.task == "multi_label" else None
        logits = answer.logits[span].tolist() if self._with_logits else None
        # As plain numbers from here on: of so few, NumPy takes many times longer.
        for row, (own, more) in enumerate(zip(scores.tolist(), answer.more[span], strict=True)):
            best = own.index(max(own))
            prediction = {"label": labels[best], "score": own[best]}
            if chosen is not None:
                prediction["labels"] = list(compress(labels, chosen[row]))
            if self._top_k is not None:
                prediction["scores"] = [{"label": labels[i], "score": own[i]} for i in ranked(own)[: self._top_k]]
            if logits is not None:
                prediction["logits"] = logits[row]
            for name, value in more.items():
                if value is not None:
                    prediction[name] = value
            predictions.append(prediction)
        return to_json(predictions)[1:-1]


def by_text(answer: Answer, grouped: Candidates | Windows) -> Answer:
    """The answer to texts, from the one to the rows that they make."""
    scores, logits = grouped.answers(answer.logits)
    return Answer(answer.model, grouped.by_text(answer.fields), scores, logits, [{}] * len(scores))


def elements(values: list[Any]) -> bytes:
    """The JSON of a list's elements, without its brackets."""
    return to_json(values)[1:-1]


def answer_of(parsed: ParsedRequest, ran: Ran, timing_ms: Mapping[str, float]) -> Answer:
    """The answer to a request.

    Raises:
        EngineError: a logit is not finite.
    """
    model, answered = ran.model, ran.answered
    knobs, expected_agreement = answered.setting(model)
    fields = {
        "model": model.manifest.name,
        "revision": model.manifest.revision,
        "device": model.device_name,
        "predictions": (),
        "knobs": dict(knobs),
        "requested": parsed.asked.requested,
        "chosen_by": ran.chosen.by,
        "expected_agreement": expected_agreement,
        "seed": ran.seed,
        "tokens": [len(row.token_ids) for row in answered.rows],
        **by_output(answered.results),
        "steps": answered.steps,
        "relative_cost": answered.relative_cost,
        "timing_ms": timing_ms,
    }
    for name in ("expected_agreement", "steps", "relative_cost"):
        if fields[name] is None:
            del fields[name]
    logits = np.concatenate([result.logits for result in answered.results]).reshape(-1, len(model.manifest.labels))
    answer = Answer(model, fields, model.scores(logits), logits, [*answered.fields()])
    return answer if parsed.asked.steps is None else in_steps(answer, parsed.asked.steps, ran)


def in_steps(answer: Answer, steps: Steps, ran: Ran) -> Answer:
    """The answer about a list that may have run in two steps: the first one's, with what the second has scored."""
    documents, again = len(ran.answered.rows), ran.again
    knobs, count = ran.answered.rows[0].knobs, 0 if again is None else len(again.places)
    fields = dict(answer.fields)
    expected = steps.expected(knobs, count, documents)
    if expected is not None and not steps.whole:
        fields["expected_agreement"] = expected
    if again is None:
        return replace(answer, fields=fields)
    if expected is None:
        fields.pop("expected_agreement", None)
    manifest, logits = again.model.manifest, answer.logits.copy()
    logits[list(again.places)] = [result.logits for result in again.results]
    exact = again.rows[0].knobs
    fields |= {"model": manifest.name, "revision": manifest.revision, "knobs": dict(exact)}
    fields["tokens"] = [*fields["tokens"], *(len(row.token_ids) for row in again.rows)]
    fields["steps"] = [
        {"model": ran.model.manifest.name, "knobs": dict(knobs), "documents": documents},
        {"model": manifest.name, "knobs": dict(exact), "documents": count},
    ]
    again.model.scores(logits)  # refuses what is not finite
    return replace(answer, model=again.model, fields=fields, logits=logits, again=frozenset(again.places))


def model_info(model: Model) -> ModelInfo:
    """A model as `GET /v1/models` shows it."""
    manifest = model.manifest
    return ModelInfo(
        name=manifest.name,
        revision=manifest.revision,
        device=model.device_name,
        task=manifest.task,
        labels=tuple(manifest.labels),
        ranks=manifest.ranks,
        max_tokens=manifest.max_tokens,
        knobs=tuple(KnobInfo.of(knob) for knob in model.knobs.rows.values()),
        calibration=_calibration_info(model),
    )


def _calibration_info(model: Model) -> CalibrationInfo | None:
    calibration = model.calibration
    if calibration is None:
        return None
    default = calibration.default_agreement
    buckets = (
        LengthBucket(
            low=row.low,
            high=row.high,
            texts=row.texts,
            settings=tuple(calibration.places(index)),
            default=None if default is None else calibration.places(index)[keeping_default(calibration, index) - 1],
        )
        for index, row in enumerate(calibration.buckets)
    )
    exact = [calibration.bounds(index)[0] for index in range(len(calibration.buckets))]
    settings = (
        MeasuredSetting(
            knobs=model.knobs.check(setting.knobs),
            agreement=tuple(
                MeasuredAgreement(value=each.value, bound=each.bound if place else bound)
                for each, bound in zip(setting.agreement, exact, strict=True)
            ),
            time=tuple(setting.time),
        )
        for place, setting in enumerate(calibration.settings)
    )
    return CalibrationInfo(
        confidence=calibration.confidence,
        data=calibration.data,
        texts=calibration.texts,
        explains=calibration.certainty is not None,
        default_agreement=default,
        warning=cannot_pay(calibration, TOKENS.name),
        buckets=tuple(buckets),
        settings=tuple(settings),
    )


def timing_headers(timing_ms: Mapping[str, float], device: Device, characters: int, tokens: int) -> dict[str, str]:
    """`Server-Timing`, and the headers that text-embeddings-inference sends (whole milliseconds)."""
    return {
        "Server-Timing": ", ".join(map("{};dur={}".format, timing_ms, timing_ms.values())),
        "x-compute-type": "cpu" if device.kind == "cpu" else "gpu",
        "x-compute-time": str(round(timing_ms["total"])),
        "x-compute-characters": str(characters),
        "x-compute-tokens": str(tokens),
        "x-total-time": str(round(timing_ms["total"])),
        "x-tokenization-time": str(round(timing_ms["tokenize"])),
        "x-queue-time": str(round(timing_ms["queue"])),
        "x-inference-time": str(round(timing_ms["compute"])),
    }


def json_response(content: BaseModel, status: int = 200, *, exclude_none: bool = False) -> Response:
    """An answer; `exclude_none` leaves fields out that are None."""
    return Response(content.model_dump_json(exclude_none=exclude_none), status, media_type=JSON)
