"""How OpenAPI describes the peers' routes: bodies with knobs among their fields, statuses in each protocol's form."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, create_model
from pydantic.json_schema import SkipJsonSchema

from attenuator.api import Body, ClassifyRequest, ErrorBody
from attenuator.serve.api.documentation import (
    CLASSIFY_ANSWERS,
    EXAMPLE_INPUTS,
    Answers,
    JsonHeader,
    RequestBody,
    model_field,
)
from attenuator.serve.api.peers import openinference, openinference_types, tei, vllm
from attenuator.serve.api.peers.parameters import HEADER, shared_names
from attenuator.serve.edge.bodies import BINARY_TYPE

PREDICT, INFO, CLASSIFY_PEER, SERVER = "/predict", "/info", "/classify", "/v2"
MODEL = f"{SERVER}/models/{{model}}"
VERSION = f"{MODEL}/versions/{{version}}"
HEADER_NOTE = "knobs, goals and further fields of POST /v1/classify, for clients whose requests have no room for them"


class Shared(Body):
    """Knobs, goals and options that every protocol takes, as the header has them."""


class ModelName(Body):
    """The same and the model, where the path does not name it."""

    model: str | SkipJsonSchema[None] = Field(None, description="the name of a served model")


def _with_shared(name: str, base: type[BaseModel], **fields: Any) -> type[BaseModel]:
    """A type with the fields that every protocol takes."""
    described = ClassifyRequest.model_fields
    names = [each for each in shared_names() if each not in base.model_fields]
    shared: dict[str, Any] = {each: (described[each].annotation, described[each]) for each in names}
    return create_model(name, __base__=base, __doc__=base.__doc__, **{**shared, **fields})


_header = _with_shared("SharedParameters", Shared)
_header_with_model = _with_shared("ParametersAndModel", ModelName)
_hub = _with_shared("HubParameters", tei.Parameters)
_inference = _with_shared("InferenceParameters", openinference_types.InferParameters)
_predict = _with_shared(
    "PredictRequest",
    tei.PredictOptions,
    inputs=(tei.INPUTS, Field(description=tei.SHAPES)),
    parameters=(_hub, Field(None, description="as clients of Hugging Face's inference API send it")),
)
_classify = _with_shared("PeerRequest", vllm.PeerOptions, input=(vllm.INPUT, Field(description=vllm.SHAPES)))
_infer = create_model(
    "InferenceRequest",
    __base__=openinference_types.InferOptions,
    __doc__="Body of infer.",
    inputs=(list[openinference_types.InputTensor], Field(min_length=1, max_length=2)),
    outputs=(list[openinference_types.OutputTensor], Field(None)),
    parameters=(_inference, Field(None)),
)
_tensor = {"name": "text", "shape": [len(EXAMPLE_INPUTS)], "datatype": "BYTES", "data": EXAMPLE_INPUTS}


def request_bodies(model: str | None) -> dict[str, RequestBody]:
    """Body by path.

    Args:
        model: a served one, for the examples; None where none is loaded.
    """
    named = model_field(model)
    header = JsonHeader(HEADER, _header_with_model, HEADER_NOTE)
    infer = RequestBody(_infer, {"inputs": [_tensor]}, JsonHeader(HEADER, _header, HEADER_NOTE))
    return {
        PREDICT: RequestBody(_predict, named | {"inputs": [[text] for text in EXAMPLE_INPUTS]}, header),
        CLASSIFY_PEER: RequestBody(_classify, named | {"input": EXAMPLE_INPUTS}, header),
        f"{MODEL}/infer": infer,
        f"{VERSION}/infer": infer,
    }


def answers_of(error: type[BaseModel], other: Mapping[int, int], success: Any, meaning: str) -> Answers:
    """The answers of a route that classifies.

    Args:
        error: form of an error's body.
        other: the service's own statuses that are others in the protocol.
        success: form of the answer.
        meaning: of it.
    """
    answers: Answers = {200: {"model": success, "description": meaning}}
    for status, row in CLASSIFY_ANSWERS.items():
        if status == 200:
            continue
        place = other.get(int(status), status)
        before = f"{answers[place]['description']}; or " if place in answers else ""
        answers[place] = row | {"model": error, "description": before + row["description"]}
    return dict(sorted(answers.items(), key=lambda pair: int(pair[0])))


def only(answers: Answers, success: type[BaseModel], meaning: str, *statuses: int) -> Answers:
    """The answers of a route that says something of a model: some of another's errors."""
    selected: Answers = {200: {"model": success, "description": meaning}}
    return selected | {status: answers[status] for status in (401, *statuses)}


PREDICT_ANSWERS = answers_of(
    tei.PredictError, tei.OTHER_STATUSES, tei.Scores | tei.ScoresOfAll, "labels with scores, highest first"
)
CLASSIFY_PEER_ANSWERS = answers_of(vllm.ClassifyError, vllm.OTHER_STATUSES, vllm.Classes, "one entry per input")
INFER_ANSWERS = answers_of(ErrorBody, openinference.OTHER_STATUSES, openinference_types.Inference, "the outputs")
INFER_ANSWERS[200]["content"] = {BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}}}
