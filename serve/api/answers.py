"""Answers: from results to JSON, written piece by piece, so that a long answer keeps nobody waiting.

256 inputs with every score and logit are 20,000 values. So their JSON is made of plain dicts and lists, a millisecond's
worth at a time, and between two pieces others come first (`Turns`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.responses import Response

from attenuator.api import (
    CalibrationInfo,
    KnobInfo,
    LengthBucket,
    MeasuredAgreement,
    MeasuredSetting,
    ModelInfo,
)
from attenuator.runtime import Device, Model
from attenuator.runtime.batch import by_output
from attenuator.runtime.explaining import Answered
from attenuator.runtime.scores import ranked
from attenuator.serve.accuracy.plan import Plan
from attenuator.serve.api.errors import JSON
from attenuator.serve.api.schema import ParsedRequest

PIECE_VALUES = 4096  # of one piece of an answer: about 1 ms


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer that is not written yet.

    Attributes:
        make: writes it.
        values: about how many numbers, texts and objects it has.
    """

    make: Callable[[], bytes]
    values: int = 0


Write = Callable[[Sequence[Piece]], Awaitable[bytes]]


class Turns:
    """Lets requests write their answers one piece each in turn, one piece in each round of the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # those who wait get it in the order in which they came

    async def write(self, pieces: Sequence[Piece]) -> bytes:
        """Makes the pieces of an answer and joins them; a short one waits for nobody."""
        if sum(piece.values for piece in pieces) <= PIECE_VALUES:
            return b"".join([piece.make() for piece in pieces])
        written = []
        for piece in pieces:
            async with self._turn:
                written.append(piece.make())
                await asyncio.sleep(0)
        return b"".join(written)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The answer to a request, before it has the form of a protocol.

    Attributes:
        model: which answered.
        fields: those of `api.Classification`, in its order, without `predictions`; those that are None are left out.
        scores: float64 `[inputs, labels]`, in the bundle's order of labels.
        logits: float32 `[inputs, labels]`.
        more: by input, what `explain` and `escalate` add to its prediction; None where that is unknown.
    """

    model: Model
    fields: Mapping[str, Any]
    scores: npt.NDArray[np.float64]
    logits: npt.NDArray[np.float32]
    more: Sequence[Mapping[str, Any]]

    def pieces(self, rows: Callable[[slice], Iterable[Any]], values: int, before: bytes, after: bytes) -> list[Piece]:
        """A JSON array with elements for each input, and what stands before and after it, cut into pieces.

        Args:
            rows: the elements of some of the inputs.
            values: about how many numbers, texts and objects those of one input have.
            before: what comes before the first element.
            after: what comes after the last.
        """
        last = len(self.scores)

        def make(span: slice) -> bytes:
            elements = to_json(list(rows(span)))[1:-1]
            return (b"" if span.start else before) + elements + (b"," if span.stop < last else after)

        return self.in_pieces(make, values)

    def in_pieces(self, make: Callable[[slice], bytes], values: int) -> list[Piece]:
        """Cuts the inputs into runs that are worth a piece each.

        Args:
            make: makes the piece of some of the inputs.
            values: as `pieces`.
        """
        step, last = max(1, PIECE_VALUES // values), len(self.scores)
        spans = (slice(first, min(first + step, last)) for first in range(0, last, step))
        return [Piece(partial(make, span), values * (span.stop - span.start)) for span in spans]

    def own_pieces(self, parsed: ParsedRequest) -> list[Piece]:
        """The JSON of `api.Classification`, with what the request asks for of each prediction."""
        head = {name: self.fields[name] for name in ("model", "revision", "device")}
        tail = {name: value for name, value in self.fields.items() if name not in head}
        top_k, logits = parsed.options.top_k, parsed.options.return_logits
        return self.pieces(
            partial(self.predictions, top_k=top_k, with_logits=logits),
            8 + 3 * (top_k or 0) + logits * self.logits.shape[1],
            to_json(head)[:-1] + b',"predictions":[',
            b"]," + to_json(tail)[1:],
        )

    def predictions(self, span: slice, top_k: int | None, *, with_logits: bool) -> Iterator[dict[str, Any]]:
        """Predictions as `api.Prediction` has them."""
        manifest = self.model.manifest
        labels, scores = manifest.labels, self.scores[span]
        chosen = (scores >= manifest.thresholds).tolist() if manifest.task == "multi_label" else None
        logits = self.logits[span].tolist() if with_logits else None
        # As plain numbers from here on: of so few, NumPy takes many times longer.
        for row, (own, more) in enumerate(zip(scores.tolist(), self.more[span], strict=True)):
            best = own.index(max(own))
            prediction = {"label": labels[best], "score": own[best]}
            if chosen is not None:
                prediction["labels"] = list(compress(labels, chosen[row]))
            if top_k is not None:
                prediction["scores"] = [{"label": labels[i], "score": own[i]} for i in ranked(own)[:top_k]]
            if logits is not None:
                prediction["logits"] = logits[row]
            yield prediction | {name: value for name, value in more.items() if value is not None}


def answer_of(
    model: Model,
    parsed: ParsedRequest,
    plan: Plan,
    seed: int,
    answered: Answered,
    timing_ms: Mapping[str, float],
) -> Answer:
    """The answer to a request.

    Args:
        model: which ran.
        parsed: the request.
        plan: what it ran with.
        seed: of its random streams.
        answered: what was answered.
        timing_ms: milliseconds by stage.

    Raises:
        EngineError: a logit is not finite.
    """
    knobs, expected_agreement = answered.setting(model)
    fields = {
        "model": model.manifest.name,
        "revision": model.manifest.revision,
        "device": str(model.device),
        "knobs": dict(knobs),
        "requested": parsed.asked.requested,
        "chosen_by": plan.by,
        "expected_agreement": expected_agreement,
        "seed": seed,
        "tokens": [len(row.token_ids) for row in answered.rows],
        **by_output(answered.results),
        "steps": answered.steps,
        "relative_cost": answered.relative_cost,
        "timing_ms": timing_ms,
    }
    logits = np.array([result.logits for result in answered.results])
    known = {name: value for name, value in fields.items() if value is not None}
    return Answer(model, known, model.scores(logits), logits, [*answered.fields()])


def model_info(model: Model) -> ModelInfo:
    """A model as `GET /v1/models` shows it."""
    manifest = model.manifest
    return ModelInfo(
        name=manifest.name,
        revision=manifest.revision,
        device=str(model.device),
        task=manifest.task,
        labels=tuple(manifest.labels),
        max_tokens=manifest.max_tokens,
        knobs=tuple(KnobInfo.of(knob) for knob in manifest.knobs),
        calibration=_calibration_info(model),
    )


def _calibration_info(model: Model) -> CalibrationInfo | None:
    calibration = model.calibration
    if calibration is None:
        return None
    buckets = (
        LengthBucket(low=row.low, high=row.high, texts=row.texts, settings=tuple(calibration.places(index)))
        for index, row in enumerate(calibration.buckets)
    )
    settings = (
        MeasuredSetting(
            knobs=model.knobs.check(setting.knobs),
            agreement=tuple(MeasuredAgreement(value=each.value, bound=each.bound) for each in setting.agreement),
            time=tuple(setting.time),
        )
        for setting in calibration.settings
    )
    return CalibrationInfo(
        confidence=calibration.confidence,
        data=calibration.data,
        texts=calibration.texts,
        explains=calibration.certainty is not None,
        buckets=tuple(buckets),
        settings=tuple(settings),
    )


def timing_headers(timing_ms: Mapping[str, float], device: Device, characters: int, tokens: int) -> dict[str, str]:
    """`Server-Timing`, and the headers that text-embeddings-inference sends (whole milliseconds)."""
    return {
        "Server-Timing": ", ".join(f"{name};dur={value}" for name, value in timing_ms.items()),
        "x-compute-type": "cpu" if device.kind == "cpu" else "gpu",
        "x-compute-time": str(round(timing_ms["total"])),
        "x-compute-characters": str(characters),
        "x-compute-tokens": str(tokens),
        "x-total-time": str(round(timing_ms["total"])),
        "x-tokenization-time": str(round(timing_ms["tokenize"])),
        "x-queue-time": str(round(timing_ms["queue"])),
        "x-inference-time": str(round(timing_ms["compute"])),
    }


def json_response(
    content: BaseModel | bytes,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    exclude_none: bool = False,
) -> Response:
    """An answer; `exclude_none` leaves fields out that are None."""
    body = content if isinstance(content, bytes) else content.model_dump_json(exclude_none=exclude_none)
    return Response(body, status, headers, JSON)
