"""The types of requests and answers: the service documents and serialises with them, the client returns them.

Requests are strict: unknown fields are refused, booleans and strings are not numbers. Answers are not: fields that a
newer service adds are ignored, so that older clients keep working.
"""

from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr
from pydantic.json_schema import SkipJsonSchema

from attenuator.bundle import BundleKnob, Task
from attenuator.ops import SEQUENCE_OUTPUTS
from attenuator.ops.knobs import SEED_ALLOWED, whole_number
from attenuator.ops.spec import SEED_HIGH

CLASSIFY, RERANK, MODELS = "/v1/classify", "/v1/rerank", "/v1/models"  # the routes of this API's own clients
MAX_INPUTS = 256
MAX_TIMEOUT_MS = 3_600_000.0
INPUT_KINDS = (
    'a text, {"text": ..}, {"text": .., "text_pair": ..}, {"token_ids": [..]} or '
    '{"token_ids": [..], "token_type_ids": [..]}'
)


def _whole(value: Any) -> Any:
    """Takes 2.0 for 2, as JSON Schema does; leaves everything else to the check that follows."""
    number = whole_number(value)
    return value if number is None else number


Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
WHOLE = BeforeValidator(_whole)  # must come after the bounds, or they would be missing from the schema
Number = int | float
Priority = Literal["interactive", "batch"]
ChosenBy = Literal["caller", "goal", "brownout", "escalation", "default"]


class Body(BaseModel):
    """Base of what a request consists of."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextInput(Body):
    """A text, or a pair of texts."""

    text: Text
    text_pair: Text | SkipJsonSchema[None] = None


class TokenInput(Body):
    """Token ids, used as given, special tokens included, and their types."""

    token_ids: list[Annotated[int, Field(ge=0), WHOLE]] = Field(min_length=1)
    token_type_ids: list[Annotated[int, Field(ge=0), WHOLE]] | SkipJsonSchema[None] = Field(
        None,
        description="one for each token id, such as 0 in the first text of a pair and 1 in the second; without them "
        "all are 0, as they must be for a model without token types",
    )


INPUT_FIELDS = (*TextInput.model_fields, *TokenInput.model_fields)


class Goals(TypedDict, total=False):
    """The goals that a request states."""

    min_agreement: float
    max_latency_ms: float


class Options(Body):
    """The fields of a request besides inputs and knobs; error sentences say each description, up to a colon."""

    model: str | SkipJsonSchema[None] = Field(
        None, description="the name of a served model; may be left out if only one is served"
    )
    seed: Annotated[int, Field(ge=0, le=SEED_HIGH), WHOLE] | None = Field(None, description=SEED_ALLOWED)
    timeout_ms: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_MS)] | SkipJsonSchema[None] = Field(
        None, description=f"a number of milliseconds above 0, at most {MAX_TIMEOUT_MS:g}"
    )
    min_agreement: Annotated[float, Field(gt=0, le=1)] | SkipJsonSchema[None] = Field(
        None,
        description="a number above 0, at most 1: the cheapest knobs are chosen whose answers agree with the exact "
        "ones on at least this share of inputs",
    )
    max_latency_ms: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_MS)] | SkipJsonSchema[None] = Field(
        None,
        description=f"a number of milliseconds above 0, at most {MAX_TIMEOUT_MS:g}: the most accurate knobs are chosen "
        "that are predicted to answer in this time",
    )
    priority: Priority | SkipJsonSchema[None] = Field(
        None,
        description='"interactive", or "batch" for work that can wait',
    )
    explain: bool = Field(
        False,
        description="true or false: true adds the standard error of each score, which takes about four more runs, and "
        "the probability that each answer agrees with the exact one",
    )
    escalate: bool = Field(
        False,
        description="true or false: true runs again, at surer knobs, what agrees with the exact answer with less "
        "probability than min_agreement, until timeout_ms",
    )
    top_k: Annotated[int, Field(ge=1), WHOLE] | SkipJsonSchema[None] = Field(
        None, description="a whole number from 1 to the number of labels"
    )
    degradable_to: dict[str, Any] | SkipJsonSchema[None] = Field(
        None, description="an object of knobs and the least accurate values that a busy service may lower them to"
    )
    truncate: bool = Field(False, description="true or false")
    return_logits: bool = Field(False, description="true or false")


class Answer(BaseModel):
    """Base of all answers: they do not change."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Received(Answer):
    """An answer to a request of its own, which a client knows more of than its fields."""

    _request_id: str | None = PrivateAttr(None)
    _status: int | None = PrivateAttr(None)

    @property
    def request_id(self) -> str | None:
        """The id under which the service's log has the request; None where no service answered."""
        return self._request_id

    @property
    def status(self) -> int | None:
        """HTTP status; None where no service answered."""
        return self._status

    def received(self, *, request_id: str | None, status: int) -> None:
        """Records the request id and the HTTP status of the answer; for clients."""
        self._request_id, self._status = request_id, status


class LabelScore(Answer):
    """One label and its probability (softmax or, multi-label, sigmoid); in a regression, the one score."""

    label: str
    score: float


class Entity(Answer):
    """A part of a text that a token classifier has labelled."""

    label: str
    score: float = Field(description="mean over its tokens or words")
    start: int = Field(description="its first character in the text, counted from 0")
    end: int = Field(description="the character behind its last one")
    word: str = Field(description="its tokens as the tokenizer joins them; text[start:end] is what the caller wrote")


class Prediction(Answer):
    """What the model says about one input."""

    label: str = Field(
        description="the label with the highest score; in a regression, the name of the score; of a token classifier, "
        "the label of its surest entity, or O"
    )
    score: float = Field(
        description="score of that label: softmax, sigmoid for multi-label models, the plain number of a regression; "
        "without an entity, the lowest score among a token classifier's tokens, or words where these have one label"
    )
    entities: tuple[Entity, ...] | SkipJsonSchema[None] = Field(
        None, description="of a token classifier only: what it found, in the order of the text"
    )
    labels: tuple[str, ...] | SkipJsonSchema[None] = Field(
        None, description="multi-label only: every label at or above its threshold, 0.5 for candidate_labels"
    )
    scores: tuple[LabelScore, ...] | SkipJsonSchema[None] = Field(
        None, description="with top_k or candidate_labels only: the best labels, highest score first"
    )
    logits: tuple[float, ...] | SkipJsonSchema[None] = Field(
        None,
        description="with return_logits only: the logits, in the order of the model's labels, or of candidate_labels",
    )
    standard_error: float | SkipJsonSchema[None] = Field(
        None,
        description="with explain only: standard error of the score from the knobs' sampling; 0 where nothing is drawn "
        "at random, left out where escalate left no time for it",
    )
    agreement_probability: float | SkipJsonSchema[None] = Field(
        None,
        description="with explain or escalate only: the estimated probability that the label, or the set of labels, is "
        "the exact one; left out at knobs less accurate than all that were measured",
    )
    knobs: dict[str, Number] | SkipJsonSchema[None] = Field(
        None, description="with escalate only: the knobs of this answer"
    )


class Classification(Received):
    """Answer of POST /v1/classify. Fields that are None are left out of the JSON."""

    model: str = Field(description="name of the model that answered")
    revision: str = Field(description="SHA-256 that names the bundle's exact content")
    device: str = Field(description="where it ran: cpu, or cuda:0 with the number of the device")
    predictions: tuple[Prediction, ...] = Field(description="one per input, in the order sent")
    knobs: dict[str, Number] = Field(
        description="value of every knob that the model ran with; with escalate, those of the answer that cost most"
    )
    requested: dict[str, Number] = Field({}, description="the knobs that the caller set")
    chosen_by: ChosenBy = Field(
        description="who chose the knobs: caller, goal, default, escalation, or brownout where load lowered them"
    )
    expected_agreement: float | SkipJsonSchema[None] = Field(
        None,
        description="share of inputs as long as the longest one here on which these knobs gave the exact answer when "
        "the model was calibrated; only where that was measured",
    )
    seed: int = Field(description="seed of the random streams; the same request with this seed gives the same answer")
    tokens: tuple[int, ...] = Field(
        description="number of tokens of each input, special tokens included; of all its pairs or windows"
    )
    value_flops: tuple[float, ...] | SkipJsonSchema[None] = Field(
        None, description=f"{SEQUENCE_OUTPUTS['value_flops'].doc}, per input; only of models that report it"
    )
    steps: int | SkipJsonSchema[None] = Field(
        None, description="with escalate only: how many settings ran, one after the other"
    )
    relative_cost: float | SkipJsonSchema[None] = Field(
        None,
        description="with explain or escalate only: predicted work of all that ran, as a share of the exact knobs'",
    )
    timing_ms: dict[str, float] = Field(description="milliseconds by stage: tokenize, queue, compute, total")

    def columns(self) -> dict[str, list[Any]]:
        """What the answer says of each input, as lists by name: for `pandas.DataFrame`, or an array of NumPy each."""
        rows = [prediction.model_dump(exclude={"scores"}, exclude_none=True) for prediction in self.predictions]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names} | {"tokens": list(self.tokens)}


class KnobInfo(BundleKnob):
    """A knob of a served model: default, bounds, exact value, and which way accuracy moves."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=False)

    default: Number
    low: Number
    high: Number
    exact: Number

    @classmethod
    def of(cls, knob: BundleKnob) -> "KnobInfo":
        """A bundle's knob; whole numbers are written as such."""
        row = knob.model_dump()
        if knob.dtype == "int32":
            row |= {name: int(row[name]) for name in ("default", "low", "high", "exact")}
        return cls.model_validate(row)


class MeasuredAgreement(Answer):
    """How often a setting gave the exact answer, on texts of one bucket of lengths."""

    value: float = Field(description="share of the texts")
    bound: float = Field(
        description="lower bound at the calibration's confidence, which min_agreement is compared with"
    )


class MeasuredSetting(Answer):
    """One value for every knob, and how often it gave the exact answer."""

    knobs: dict[str, Number] = Field(description="value by knob name")
    agreement: tuple[MeasuredAgreement, ...] = Field(description="one for each bucket of lengths")
    time: tuple[float, ...] = Field(
        (),
        description="predicted time as a share of the exact setting's, one for each bucket; empty where times were not "
        "predicted",
    )


class LengthBucket(Answer):
    """Texts of similar lengths."""

    low: int = Field(description="tokens of the shortest")
    high: int = Field(description="tokens of the longest")
    texts: int = Field(description="texts that were measured")
    settings: tuple[int, ...] = Field(
        description="the settings that goals choose from at these lengths, as places in the list of settings, from the "
        "exact one to the cheapest"
    )
    default: int | None = Field(
        None,
        description="the setting of a request of such length that sets nothing, likewise; null without a "
        "default_agreement",
    )


class CalibrationInfo(Answer):
    """What a model's settings are worth, as goals are chosen by it."""

    confidence: float = Field(description="of every bound")
    data: str = Field(description="name of the file of texts that were measured")
    texts: int = Field(description="texts in it")
    explains: bool = Field(False, description="whether it says how sure single answers are: explain, escalate")
    default_agreement: float | None = Field(
        None,
        description="share of answers that are estimated to be exact at what requests run at that set no knob, no goal "
        "and no escalate; null where they run at the knobs' defaults",
    )
    warning: str | None = Field(
        None, description="a sentence where no small keep keeps the answers, saying what to do; null elsewhere"
    )
    buckets: tuple[LengthBucket, ...] = Field(description="in order of length")
    settings: tuple[MeasuredSetting, ...] = Field(description="the exact one first")


class ModelInfo(Answer):
    """A served model."""

    name: str = Field(description="the name that requests give in model")
    revision: str = Field(description="SHA-256 that names the bundle's exact content")
    device: str = Field("", description="where it runs; empty where the server does not say")
    task: Task = Field(
        description="single_label: softmax; multi_label: sigmoid and thresholds; regression: one plain score; "
        "token_classification: softmax, for each token"
    )
    labels: tuple[str, ...] = Field(
        description="the labels, in the order of the logits; of a regression, the name of its score"
    )
    ranks: bool = Field(False, description=f"whether POST {RERANK} takes it: it has one output for a text")
    max_tokens: int = Field(description="tokens of the longest input, special tokens included")
    knobs: tuple[KnobInfo, ...] = Field(description="the knobs that a request may set")
    calibration: CalibrationInfo | None = Field(
        None, description="what was measured per setting; null where the model was not calibrated and takes no goals"
    )


class ModelList(Answer):
    """Answer of GET /v1/models."""

    models: tuple[ModelInfo, ...]


class Health(Answer):
    """Answer of the health routes."""

    status: Literal["live", "starting", "ready", "draining", "stopped", "failing"]
    reason: str | SkipJsonSchema[None] = Field(None, description="only where the service is not ready: why")


class ServerLive(Answer):
    """Answer of GET /v2/health/live, in the form of the Open Inference Protocol."""

    live: bool


class ServerReady(Answer):
    """Answer of GET /v2/health/ready, in the form of the Open Inference Protocol."""

    ready: bool
    reason: str | SkipJsonSchema[None] = Field(None, description="only where the service is not ready: why")


class ErrorBody(Answer):
    """Body of every answer that is not a success."""

    error: str = Field(description="what is wrong, in one sentence")
    error_type: str = Field(description="kind of error, such as knob_out_of_range")
    param: str | None = Field(description="the field that is wrong, such as inputs[2].text; null where none is")
    allowed: str | None = Field(description="what is allowed there; null where that does not apply")
