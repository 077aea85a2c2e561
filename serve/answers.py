"""From results to what the service answers, in the types of `attenuator.api`."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from attenuator.api import (
    CalibrationInfo,
    Classification,
    KnobInfo,
    LabelScore,
    LengthBucket,
    MeasuredAgreement,
    MeasuredSetting,
    ModelInfo,
    Prediction,
)
from attenuator.runtime import Device, Model, RowResult
from attenuator.runtime.batch import by_output
from attenuator.runtime.explaining import Answered
from attenuator.serve.choosing import Chosen
from attenuator.serve.errors import JSON
from attenuator.serve.schema import ParsedRequest


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


def classification(
    model: Model,
    parsed: ParsedRequest,
    chosen: Chosen,
    seed: int,
    answered: Answered,
    timing_ms: Mapping[str, float],
) -> Classification:
    """The answer to a request.

    Args:
        model: which ran.
        parsed: the request.
        chosen: by whom its knobs were.
        seed: of its random streams.
        answered: what was answered.
        timing_ms: milliseconds by stage.

    Returns:
        The body of the answer.
    """
    knobs, expected_agreement = answered.setting(model)
    return Classification(
        model=model.manifest.name,
        revision=model.manifest.revision,
        device=str(model.device),
        predictions=tuple(
            _prediction(model, result, parsed, fields)
            for result, fields in zip(answered.results, answered.fields(), strict=True)
        ),
        knobs=dict(knobs),
        requested=parsed.requested,
        chosen_by=chosen.by,
        expected_agreement=expected_agreement,
        seed=seed,
        tokens=tuple(len(row.token_ids) for row in answered.rows),
        steps=answered.steps,
        relative_cost=answered.relative_cost,
        timing_ms=dict(timing_ms),
        **by_output(answered.results),
    )


def _prediction(model: Model, result: RowResult, parsed: ParsedRequest, more: Mapping[str, Any]) -> Prediction:
    scored, top_k = model.predict(result.logits), parsed.options.top_k
    best = None if top_k is None else scored.ranking[:top_k]
    return Prediction(
        label=scored.label,
        score=scored.score,
        labels=None if scored.labels is None else tuple(scored.labels),
        scores=None if best is None else tuple(LabelScore(label=label, score=score) for label, score in best),
        logits=tuple(scored.logits) if parsed.options.return_logits else None,
        **more,
    )


def timing_headers(timing_ms: dict[str, float], device: Device, characters: int, tokens: int) -> dict[str, str]:
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
    content: BaseModel, status: int = 200, headers: dict[str, str] | None = None, *, exclude_none: bool = False
) -> Response:
    """An answer; `exclude_none` leaves fields out that are None."""
    return Response(content.model_dump_json(exclude_none=exclude_none), status, headers, JSON)
