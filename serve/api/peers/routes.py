"""The peers' routes: what each is called and answers, the form of its errors, and how OpenAPI describes it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Annotated, Any, NamedTuple

from fastapi import Header, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model
from pydantic.json_schema import SkipJsonSchema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from attenuator import __version__
from attenuator.api import Body, ClassifyRequest
from attenuator.errors import AttenuatorError
from attenuator.runtime import Model
from attenuator.serve.api.answers import Form, json_response
from attenuator.serve.api.documentation import (
    CLASSIFY_ANSWERS,
    EXAMPLE_INPUTS,
    Answers,
    RequestBody,
    model_field,
)
from attenuator.serve.api.errors import ErrorForm, failed, response_for, stopped
from attenuator.serve.api.peers import openinference, tei, vllm
from attenuator.serve.api.peers import openinference_types as types
from attenuator.serve.api.peers.parameters import header_fields, shared_names
from attenuator.serve.api.schema import HEADER, model_name, refuse_elsewhere
from attenuator.serve.edge.bodies import BINARY_TYPE
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings

log = logging.getLogger(__name__)

PREDICT, INFO, CLASSIFY_PEER, SERVER = "/predict", "/info", "/classify", "/v2"
MODEL = f"{SERVER}/models/{{model}}"
VERSION = f"{MODEL}/versions/{{version}}"

NamedModel = Annotated[str | None, Header(alias=HEADER, description='which model: {"model": ".."}')]


class PeerRoute(NamedTuple):
    """A route; it wants a key where 401 is among its answers."""

    path: str
    method: str
    endpoint: Callable[..., Awaitable[Response]]
    summary: str
    answers: Answers
    form: ErrorForm


class Peers:
    """The routes of one service in the forms of other servers.

    Attributes:
        answer: the path that every classification takes.
    """

    def __init__(
        self, engine: Engine, settings: ServeSettings, answer: Callable[[Request, Form], Awaitable[Response]]
    ) -> None:
        self._engine = engine
        self._settings = settings
        self.answer = answer

    def routes(self) -> Iterator[PeerRoute]:
        """Every route."""
        what, form = "in the form of text-embeddings-inference", tei.ERROR_FORM
        predict = answers_of(form, tei.Scores | tei.ScoresOfAll, "labels with scores, highest first")
        info = only(predict, tei.Info, "labels and limits", 400, 404, 422, 503)
        yield PeerRoute(PREDICT, "POST", self.predict, f"Classify, {what}", predict, form)
        yield PeerRoute(INFO, "GET", self.info, f"The model, {what}", info, form)
        classify = answers_of(vllm.ERROR_FORM, vllm.Classes, "one entry per input")
        summary = "Classify, in the form of vLLM"
        yield PeerRoute(CLASSIFY_PEER, "POST", self.classify, summary, classify, vllm.ERROR_FORM)

        where, form = "in the Open Inference Protocol", openinference.ERROR_FORM
        infer = answers_of(form, types.Inference, "the outputs")
        infer[200]["content"] = {BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}}}
        server: Answers = {200: {"model": types.ServerMetadata, "description": "name and version"}}
        metadata = only(infer, types.ModelMetadata, "its tensors and version", 404, 503)
        ready = only(infer, types.ModelReady, "it answers requests", 404, 503)
        yield PeerRoute(SERVER, "GET", self.server, f"The server, {where}", server, form)
        for base, endpoints in (
            (MODEL, (self.metadata, self.ready, self.infer)),
            (VERSION, (self.metadata_of, self.ready_of, self.infer_of)),
        ):
            yield PeerRoute(base, "GET", endpoints[0], f"A model, {where}", metadata, form)
            yield PeerRoute(f"{base}/ready", "GET", endpoints[1], "Whether a model answers requests", ready, form)
            yield PeerRoute(f"{base}/infer", "POST", endpoints[2], f"Classify, {where}", infer, form)

    async def predict(self, request: Request) -> Response:
        """Classifies, as text-embeddings-inference does."""
        return await self.answer(request, tei.Predict(request))

    async def classify(self, request: Request) -> Response:
        """Classifies, as vLLM does."""
        return await self.answer(request, vllm.Classify(request))

    async def infer(self, request: Request, model: str) -> Response:
        """Classifies, as the Open Inference Protocol has it."""
        return await self.answer(request, openinference.Infer(request, model))

    async def infer_of(self, request: Request, model: str, version: str) -> Response:
        """As `infer`, of a version; a default in one method would be a query parameter to FastAPI."""
        return await self.answer(request, openinference.Infer(request, model, version))

    async def info(self, request: Request, named: NamedModel = None) -> Response:
        """The model that the header names, or the only one."""
        refuse_elsewhere(request, f"the header {HEADER}")
        self._engine.check_started()
        fields = header_fields(request, ["model"])
        model = self._engine.model(model_name(fields, self._engine.models), f" in the header {HEADER}")
        return json_response(tei.info(model, self._settings))

    async def server(self) -> Response:
        """Name and version."""
        return json_response(types.ServerMetadata(name="attenuator", version=__version__))

    async def metadata(self, model: str) -> Response:
        """Tensors of a model."""
        return json_response(openinference.metadata(self._served(model)))

    async def metadata_of(self, model: str, version: str) -> Response:
        """Tensors of a version."""
        return json_response(openinference.metadata(self._served(model, version)))

    async def ready(self, model: str) -> Response:
        """Whether a model answers requests."""
        return self._readiness(self._served(model))

    async def ready_of(self, model: str, version: str) -> Response:
        """Whether a version answers requests."""
        return self._readiness(self._served(model, version))

    def _readiness(self, model: Model) -> Response:
        self._engine.check_healthy()
        return json_response(types.ModelReady(name=model.manifest.name, ready=True))

    def _served(self, name: str, version: str | None = None) -> Model:
        """A model of a path.

        Raises:
            UnknownModel: the model or the version is not served.
            NotReady: the service has not started.
        """
        self._engine.check_started()
        model = self._engine.model(name)
        openinference.check_version(model, version)
        return model


def route_class(form: ErrorForm) -> type[APIRoute]:
    """The class of the routes whose errors have a form, key and limits included."""

    class FormedRoute(APIRoute):
        """Answers what goes wrong on the way, also before the endpoint is reached."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def answer(request: Request) -> Response:
                try:
                    return await handler(request)
                except AttenuatorError as error:
                    return response_for(error, form)
                except (HTTPException, ClientDisconnect):
                    raise
                except asyncio.CancelledError:  # the service stops; nobody else cancels a request's task
                    return stopped(form)
                except Exception:
                    log.exception("the service failed on a request")
                    return failed(form)

            return answer

    return FormedRoute


def answers_of(form: ErrorForm, success: Any, meaning: str) -> Answers:
    """The answers of a route that classifies: those of `POST /v1/classify`, in a protocol's form."""
    answers: Answers = {200: {"model": success, "description": meaning}}
    for status, row in CLASSIFY_ANSWERS.items():
        if status != 200:
            place = form.statuses.get(int(status), status)
            before = f"{answers[place]['description']}; or " if place in answers else ""
            answers[place] = row | {"model": form.kind, "description": before + row["description"]}
    return dict(sorted(answers.items(), key=lambda pair: int(pair[0])))


def only(answers: Answers, success: type[BaseModel], meaning: str, *statuses: int) -> Answers:
    """The answers of a route that says something of a model: some of another's errors."""
    selected: Answers = {200: {"model": success, "description": meaning}}
    return selected | {status: answers[status] for status in (401, *statuses)}


class Shared(Body):
    """Knobs, goals and options that every protocol takes, as the header has them."""


class ModelName(Body):
    """The same and the model, where the path does not name it."""

    model: str | SkipJsonSchema[None] = Field(None, description="the name of a served model")


def shared(name: str, base: type[BaseModel], **fields: Any) -> type[BaseModel]:
    """A type with the fields that every protocol takes."""
    described = ClassifyRequest.model_fields
    names = [each for each in shared_names() if each not in base.model_fields]
    more: dict[str, Any] = {each: (described[each].annotation, described[each]) for each in names}
    return create_model(name, __base__=base, __doc__=base.__doc__, **{**more, **fields})


def request_bodies(model: str | None) -> dict[str, RequestBody]:
    """Body by path; the examples name a served model where one is loaded."""
    note = "as clients of Hugging Face's inference API send it"
    predict = shared(
        "PredictRequest",
        tei.PredictOptions,
        inputs=(tei.INPUTS, Field(description=tei.SHAPES)),
        parameters=(shared("HubParameters", tei.Parameters), Field(None, description=note)),
    )
    classify = shared("PeerRequest", vllm.PeerOptions, input=(vllm.INPUT, Field(description=vllm.SHAPES)))
    inference = create_model(
        "InferenceRequest",
        __base__=types.InferOptions,
        __doc__="Body of infer.",
        inputs=(list[types.InputTensor], Field(min_length=1, max_length=2)),
        outputs=(list[types.OutputTensor], Field(None)),
        parameters=(shared("InferenceParameters", types.InferParameters), Field(None)),
    )
    tensor = {"name": "text", "shape": [len(EXAMPLE_INPUTS)], "datatype": "BYTES", "data": EXAMPLE_INPUTS}
    header = shared("ParametersAndModel", ModelName)
    infer = RequestBody(inference, {"inputs": [tensor]}, shared("SharedParameters", Shared))
    named = model_field(model)
    return {
        PREDICT: RequestBody(predict, named | {"inputs": [[text] for text in EXAMPLE_INPUTS]}, header),
        CLASSIFY_PEER: RequestBody(classify, named | {"input": EXAMPLE_INPUTS}, header),
        f"{MODEL}/infer": infer,
        f"{VERSION}/infer": infer,
    }
