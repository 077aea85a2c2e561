"""What the service answers, as types. Fields that a newer service adds are ignored: older clients keep working."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from attenuator.bundle import BundleKnob


class Answer(BaseModel):
    """Base of all answers: they do not change."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class LabelScore(Answer):
    """One label and its probability (softmax or, multi-label, sigmoid)."""

    label: str
    score: float


class Prediction(Answer):
    """What the model says about one input.

    Attributes:
        label: the most probable label.
        score: its probability.
        labels: multi-label only: every label at or above its threshold.
        scores: with `top_k` only: the most probable labels, best first.
        logits: with `return_logits` only: in the order of the model's labels.
    """

    label: str
    score: float
    labels: tuple[str, ...] | None = None
    scores: tuple[LabelScore, ...] | None = None
    logits: tuple[float, ...] | None = None


class Classification(Answer):
    """The answer to one classification request.

    Attributes:
        model: which model answered.
        revision: exact content of its bundle.
        device: where it ran.
        predictions: one per input, in the order sent.
        knobs: the knobs it ran with.
        requested: the knobs that were asked for.
        chosen_by: who chose `knobs`.
        expected_agreement: share of inputs on which these knobs gave the exact value's label when calibrated.
        seed: the seed of the random streams; the same request with this seed gives the same answer.
        tokens: tokens per input, special tokens included.
        value_flops: per input, of models that say so: share of the exact value projection's multiply-adds spent.
        timing_ms: milliseconds by stage.
    """

    model: str
    revision: str
    device: str
    predictions: tuple[Prediction, ...]
    knobs: dict[str, int | float]
    requested: dict[str, int | float] = {}
    chosen_by: Literal["caller", "goal", "brownout", "default"]
    expected_agreement: float | None = None
    seed: int
    tokens: tuple[int, ...]
    value_flops: tuple[float, ...] | None = None
    timing_ms: dict[str, float]


class KnobInfo(BundleKnob):
    """A knob of a served model: default, bounds, exact value, and which way accuracy moves."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=False)


class ModelInfo(Answer):
    """A served model.

    Attributes:
        name: what requests call it.
        revision: exact content of its bundle.
        device: where it runs; empty where the server does not say.
        task: `single_label` or `multi_label`.
        labels: in the order of the logits.
        max_tokens: longest input, special tokens included.
        knobs: what a request may set.
        calibration: what was measured per knob value, or None where the model was not calibrated.
    """

    name: str
    revision: str
    device: str = ""
    task: Literal["single_label", "multi_label"]
    labels: tuple[str, ...]
    max_tokens: int
    knobs: tuple[KnobInfo, ...]
    calibration: dict[str, Any] | None = None


class ModelList(Answer):
    """Body of `GET /v1/models`."""

    models: tuple[ModelInfo, ...]
