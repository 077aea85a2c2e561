"""vLLM: `POST /classify`, whose form SGLang shares.

https://docs.vllm.ai, "Classification API". Knobs and goals are further fields of the body, as `extra_body` of OpenAI's
client sends them.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from attenuator import api
from attenuator.api import MAX_INPUTS, WHOLE, Body, Priority, Text
from attenuator.errors import InvalidRequest
from attenuator.json_body import parse_json
from attenuator.ops.knobs import shown
from attenuator.ranking import TokenUsage
from attenuator.runtime import Input, Model
from attenuator.runtime.request import check_count, check_values, wrong
from attenuator.serve import events
from attenuator.serve.api.answers import Answer, Write, elements
from attenuator.serve.api.errors import ErrorForm, Refusal
from attenuator.serve.api.peers import forms
from attenuator.serve.api.peers.tei import check_side
from attenuator.serve.api.schema import TRUNCATE, ParsedRequest, assemble
from attenuator.serve.edge.arrivals import JSON

SHAPES = "a text, a list of texts, a list of token ids, or a list of such lists"
WHOLE_LENGTH = -1
FIRST_BATCH_PRIORITY = 1  # lower numbers are sooner
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}

TokenIds = Annotated[list[Annotated[int, Field(ge=0), WHOLE]], Field(min_length=1)]
INPUT = (
    Text
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)]
    | TokenIds
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]
)


class PoolingOptions(Body):
    """The fields that every route of that server has besides inputs, knobs and goals."""

    model: str | SkipJsonSchema[None] = Field(
        None, description="the name of a served model: may be left out if only one is served"
    )
    truncate_prompt_tokens: Annotated[int, Field(ge=WHOLE_LENGTH), WHOLE] | None = Field(
        None, description="-1 or the model's length: longer texts are cut to it"
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="left or right: must be the side on which the model's inputs are cut"
    )
    use_activation: bool | None = Field(None, description="true or false: false gives logits in place of scores")
    priority: Priority | Annotated[int, WHOLE] | SkipJsonSchema[None] = Field(
        None, description="interactive or batch, or a whole number: 0 leaves it open, below is interactive, above batch"
    )
    request_id: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")] | SkipJsonSchema[None] = Field(
        None, description="a text of at most 128 visible ASCII characters: ends the id of the answer"
    )
    user: str | SkipJsonSchema[None] = Field(None, description="a text: taken and not used, as there")


class PeerOptions(PoolingOptions):
    """Those of `POST /classify`."""

    add_special_tokens: bool = Field(
        True, description="true or false: false with token ids alone, which are used as given"
    )


NULLABLE = ("truncate_prompt_tokens", "truncation_side", "use_activation")


class ClassLabel(api.Answer):
    """What the model says about one input."""

    index: int
    label: str
    probs: tuple[float, ...] = Field(description="score of every label, in the model's order")
    num_classes: int


class Usage(TokenUsage):
    """Tokens of the request."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None


class Classes(api.Answer):
    """Answer of `POST /classify`."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(description="seconds since 1970")
    model: str
    data: tuple[ClassLabel, ...]
    usage: Usage


class ErrorDetail(api.Answer):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: int = Field(description="the HTTP status")
    allowed: str | None = Field(description="what is allowed in the field; null where that does not apply")


class ClassifyError(api.Answer):
    """Body of an error of this route."""

    error: ErrorDetail


def error_body(refusal: Refusal) -> ClassifyError:
    """The body of an error."""
    detail = ErrorDetail(
        message=refusal.sentence,
        type=TYPES.get(refusal.status, "APIError"),
        param=refusal.param,
        code=refusal.status,
        allowed=refusal.allowed,
    )
    return ClassifyError(error=detail)


ERROR_FORM = ErrorForm(ClassifyError, error_body, {422: 400})


class Classify(forms.PeerForm):
    """One `POST /classify`."""

    def parse(self, body: bytes) -> dict[str, Any]:
        """The fields of body and header."""
        fields = self.read(parse_json(body, '{"input": ..}'), ["input", *PeerOptions.model_fields])
        self.own_names = {**self.own_names, "inputs": "input", TRUNCATE: "truncate_prompt_tokens"}
        return fields

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """To the request that the service answers."""
        self._options = check_values(PeerOptions, forms.selected(fields, PeerOptions.model_fields), NULLABLE)
        check_side("truncation_side", self._options.truncation_side, model)
        own = forms.selected(fields, set(forms.shared_names()) - PeerOptions.model_fields.keys())
        own |= forms.class_of(self._options.priority, FIRST_BATCH_PRIORITY)
        own |= {"truncate": truncates(self._options.truncate_prompt_tokens, model)}
        return assemble(own, model, self._inputs(fields))

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """One entry for each input."""
        labels = answer.model.manifest.labels
        shown = answer.logits if self._options.use_activation is False else answer.scores
        best = answer.scores.argmax(axis=-1).tolist()

        def rows(span: slice) -> bytes:
            return elements(
                [
                    {"index": index, "label": labels[best[index]], "probs": probs, "num_classes": len(labels)}
                    for index, probs in enumerate(shown[span].tolist(), span.start)
                ]
            )

        name, created, usage = answer_id("classify", self._options), int(time.time()), usage_of(answer)
        head = Classes(id=name, created=created, model=answer.fields["model"], data=(), usage=usage)
        data = await write(rows, len(answer.scores), 8 + len(labels), b",")
        return Response(forms.filled(head, "data", data), 200, headers | forms.result_header(answer), JSON)

    def _inputs(self, fields: Mapping[str, Any]) -> Iterator[Input]:
        """Inputs in any of the shapes; a list of numbers is one input."""
        if "input" not in fields:
            raise wrong("input", "is missing", SHAPES)
        value = fields["input"]
        several = isinstance(value, list) and not (value and type(value[0]) in (int, float))
        items = value if several else [value]
        check_count(len(items), "input")
        for index, item in enumerate(items):
            where = f"input[{index}]" if several else "input"
            if isinstance(item, list):
                yield Input(where, token_ids=item)
            elif not isinstance(item, str):
                raise wrong(where, f"is {shown(item)}", SHAPES)
            elif not self._options.add_special_tokens:
                sentence = "add_special_tokens is false, must be true for texts; token ids are used as given"
                raise InvalidRequest(sentence, param="add_special_tokens", allowed="true for texts")
            else:
                yield Input(where, text=item)


def truncates(tokens: int | None, model: Model) -> bool:
    """Whether texts that are too long are cut."""
    most = model.manifest.max_tokens
    if tokens not in (None, WHOLE_LENGTH, most):
        length = f", the length of '{model.manifest.name}'"
        raise wrong("truncate_prompt_tokens", f"is {shown(tokens)}", f"{WHOLE_LENGTH} or {most}", length)
    return tokens is not None


def usage_of(answer: Answer) -> Usage:
    """The tokens of a request."""
    tokens = sum(answer.fields["tokens"])
    return Usage(prompt_tokens=tokens, total_tokens=tokens)


def answer_id(kind: str, options: PoolingOptions) -> str:
    """What an answer of a kind is called."""
    return f"{kind}-{options.request_id or events.request_id.get()}"
