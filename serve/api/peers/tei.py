"""text-embeddings-inference: `POST /predict` and `GET /info`.

https://huggingface.github.io/text-embeddings-inference (version 1.8). The field `parameters`, which that server
ignores, is what clients of Hugging Face's inference API send; its answers hold a list for every input.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from attenuator import __version__, api
from attenuator.api import MAX_INPUTS, WHOLE, Body, LabelScore, Text
from attenuator.bundle import Task
from attenuator.json_body import parse_json
from attenuator.ops.knobs import shown
from attenuator.runtime import Input, Model
from attenuator.runtime.request import check_count, check_values, wrong
from attenuator.runtime.scores import ranked
from attenuator.serve.api.answers import Answer, Write, elements
from attenuator.serve.api.errors import ErrorForm, Refusal
from attenuator.serve.api.peers import forms
from attenuator.serve.api.schema import HEADER, ParsedRequest, assemble
from attenuator.serve.edge.arrivals import JSON
from attenuator.serve.settings import ServeSettings

SHAPES = "a text, a list of one text, a pair of texts, or a list of such lists"
ACTIVATIONS: dict[Task, str] = {
    "single_label": "softmax",
    "multi_label": "sigmoid",
    "regression": "none",
    "token_classification": "softmax",
}
ERROR_TYPES = {424: "Backend", 500: "Backend", 429: "Overloaded", 503: "Unhealthy", 504: "Backend"}


class Parameters(Body):
    """The fields that Hugging Face's clients send in `parameters`."""

    function_to_apply: Literal["none", "sigmoid", "softmax"] | SkipJsonSchema[None] = Field(
        None, description="none, sigmoid or softmax: none gives logits, the others are that of the model's task"
    )
    top_k: Annotated[int, Field(ge=1), WHOLE] | SkipJsonSchema[None] = Field(
        None, description="a whole number from 1 to the number of labels"
    )


class PredictOptions(Body):
    """The fields of `POST /predict` besides inputs, knobs, goals and parameters."""

    raw_scores: bool = Field(False, description="true or false: logits in place of scores")
    truncate: bool | None = Field(False, description="true or false: cut inputs that are too long")
    truncation_direction: Literal["left", "right", "Left", "Right"] | SkipJsonSchema[None] = Field(
        None, description="left or right: must be the side on which the model's inputs are cut"
    )
    model: str | SkipJsonSchema[None] = Field(
        None, description="the name of a served model: may be left out if only one is served"
    )


class Scores(RootModel[tuple[LabelScore, ...]]):
    """Every label of one input, highest score first."""


class ScoresOfAll(RootModel[tuple[tuple[LabelScore, ...], ...]]):
    """The same for each input of a batch, or with the field `parameters`."""


class PredictError(api.Answer):
    """Body of an error of these routes."""

    error: str = Field(description="what is wrong, in one sentence")
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation"]
    param: str | None
    allowed: str | None


class Labels(api.Answer):
    """The labels of a classifier by their place, and the other way round."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class Classifier(api.Answer):
    """A model of several labels."""

    classifier: Labels


class Reranker(api.Answer):
    """A model with one output."""

    reranker: Labels


class Info(api.Answer):
    """Answer of `GET /info`."""

    model_id: str = Field(description="name of the model")
    model_sha: str = Field(description="SHA-256 that names the bundle's exact content")
    model_dtype: str
    model_type: Classifier | Reranker
    max_concurrent_requests: int
    max_input_length: int = Field(description="tokens of the longest input, special tokens included")
    max_batch_tokens: int
    max_client_batch_size: int
    auto_truncate: bool
    version: str


PairOrText = Annotated[list[Text], Field(min_length=1, max_length=2)]
INPUTS = Text | PairOrText | Annotated[list[PairOrText], Field(min_length=1, max_length=MAX_INPUTS)]


def error_body(refusal: Refusal) -> PredictError:
    """The body of an error."""
    kind = ERROR_TYPES.get(refusal.status, "Validation")
    return PredictError(error=refusal.sentence, error_type=kind, param=refusal.param, allowed=refusal.allowed)


ERROR_FORM = ErrorForm(PredictError, error_body, {500: 424})


class Predict(forms.PeerForm):
    """One `POST /predict`."""

    model_places = f" in the body and in the header {HEADER}"
    _nested = False

    def parse(self, body: bytes) -> dict[str, Any]:
        """The fields of body and header; `parameters` stay apart."""
        header = forms.header_fields(self._request, ["model", *forms.shared_names()])
        fields = parse_json(body)
        parameters = fields.pop("parameters", None)
        forms.check_names(fields, ["inputs", "parameters", *PredictOptions.model_fields, *forms.shared_names()])
        if parameters is not None:
            self._nested = True
            if not isinstance(parameters, dict):
                raise wrong("parameters", f"is {shown(parameters)}", "an object")
            forms.check_names(parameters, [*Parameters.model_fields, *forms.shared_names()], "parameters.")
        places = {"the body": fields, "parameters": parameters or {}, forms.IN_HEADER: header}
        return self.gathered(places)

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """To the request that the service answers."""
        options = check_values(PredictOptions, forms.selected(fields, PredictOptions.model_fields), ["truncate"])
        hub = check_values(Parameters, forms.selected(fields, Parameters.model_fields))
        self._raw = options.raw_scores or hub.function_to_apply == "none"
        self._top_k = hub.top_k
        activation = ACTIVATIONS[model.manifest.task]
        if hub.function_to_apply not in (None, "none", activation):
            allowed = " or ".join(sorted({activation, "none"}))
            trained = f": model '{model.manifest.name}' was trained with {activation}"
            raise wrong("function_to_apply", f"is {hub.function_to_apply}", allowed, trained)
        check_side("truncation_direction", options.truncation_direction, model)
        own = forms.selected(fields, forms.shared_names()) | {"truncate": bool(options.truncate)}
        if hub.top_k is not None:
            own["top_k"] = hub.top_k
        return assemble(own, model, self._inputs(fields))

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """Labels with scores, highest first: a list, or one for each input of a batch."""
        labels = answer.model.manifest.labels

        def rows(span: slice) -> bytes:
            scores = answer.scores[span].tolist()
            shown = answer.logits[span].tolist() if self._raw else scores
            best = [ranked(own)[: self._top_k] for own in scores]
            return elements(
                [
                    [{"label": labels[i], "score": values[i]} for i in places]
                    for places, values in zip(best, shown, strict=True)
                ]
            )

        body = await write(rows, len(answer.scores), 3 * len(labels), b",")
        return Response(b"[%b]" % body if self._nested else body, 200, headers | forms.result_header(answer), JSON)

    def _inputs(self, fields: Mapping[str, Any]) -> Iterator[Input]:
        """Inputs in any of the shapes; a list of lists is a batch."""
        if "inputs" not in fields:
            raise wrong("inputs", "is missing", SHAPES)
        inputs = fields["inputs"]
        if isinstance(inputs, list) and all(isinstance(item, list) for item in inputs):
            self._nested = True
            check_count(len(inputs), "inputs")
            for index, item in enumerate(inputs):
                yield input_of(item, f"inputs[{index}]")
        else:
            yield input_of(inputs, "inputs")


def input_of(value: Any, where: str) -> Input:
    """An input: a text, or a list of one or two."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise wrong(where, f"is {shown(value)}", SHAPES)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise wrong(f"{where}[{index}]", f"is {shown(text)}", "a text")
    if not 1 <= len(texts) <= 2:
        raise wrong(where, f"has {len(texts)} texts", SHAPES, ": texts of a batch are in a list each")
    return Input(where if isinstance(value, str) else f"{where}[0]", *texts)


def check_side(param: str, side: str | None, model: Model) -> None:
    """Refuses to cut an input on another side than the model's."""
    own = model.manifest.truncation_side
    if side is not None and side.lower() != own:
        raise wrong(param, f"is {side}", own, f": inputs of model '{model.manifest.name}' are cut on that side")


def info(model: Model, settings: ServeSettings) -> Info:
    """What the protocol says about a model."""
    labels = model.manifest.labels
    numbered = {str(place): label for place, label in enumerate(labels)}
    both = Labels(id2label=numbered, label2id={label: place for place, label in enumerate(labels)})
    return Info(
        model_id=model.manifest.name,
        model_sha=model.manifest.revision,
        model_dtype=model.manifest.precision,
        model_type=Reranker(reranker=both) if model.manifest.ranks else Classifier(classifier=both),
        max_concurrent_requests=settings.max_requests,
        max_input_length=model.manifest.max_tokens,
        max_batch_tokens=settings.max_batch_tokens,
        max_client_batch_size=MAX_INPUTS,
        auto_truncate=False,
        version=__version__,
    )
