"""The peers' routes: what each is called, what it answers, and in which form its errors are."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import Header, Request
from starlette.responses import Response

from attenuator import __version__
from attenuator.runtime import Model
from attenuator.serve.api.answers import json_response
from attenuator.serve.api.documentation import Answers
from attenuator.serve.api.errors import ErrorForm
from attenuator.serve.api.forms import Form, refuse_query
from attenuator.serve.api.peers import description, openinference, openinference_types, tei, vllm
from attenuator.serve.api.peers.parameters import HEADER, check_names, header_fields
from attenuator.serve.api.schema import model_name
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings

Endpoint = Callable[..., Awaitable[Response]]
NamedModel = Annotated[str | None, Header(alias=HEADER, description='which model: {"model": ".."}')]


@dataclass(frozen=True, slots=True)
class PeerRoute:
    """A route.

    Attributes:
        path: as FastAPI writes it.
        method: GET or POST.
        endpoint: answers it.
        summary: one line.
        answers: by status; with 401 where it wants a key.
        form: of its errors.
    """

    path: str
    method: str
    endpoint: Endpoint
    summary: str
    answers: Answers
    form: ErrorForm


class Peers:
    """The routes of one service in the forms of other servers."""

    def __init__(
        self, engine: Engine, settings: ServeSettings, answer: Callable[[Request, Form], Awaitable[Response]]
    ) -> None:
        """Prepares them.

        Args:
            engine: of the service.
            settings: likewise.
            answer: the path that every classification takes.
        """
        self._engine = engine
        self._settings = settings
        self._answer = answer

    def routes(self) -> list[PeerRoute]:
        """Every route."""
        return [*self._text_embeddings_inference(), *self._vllm(), *self._open_inference()]

    def _text_embeddings_inference(self) -> Iterator[PeerRoute]:
        what, answers = "in the form of text-embeddings-inference", description.PREDICT_ANSWERS
        info = description.only(answers, tei.Info, "labels and limits", 400, 404, 422, 503)
        yield PeerRoute(description.PREDICT, "POST", self.predict, f"Classify, {what}", answers, tei.form)
        yield PeerRoute(description.INFO, "GET", self.info, f"The model, {what}", info, tei.form)

    def _vllm(self) -> Iterator[PeerRoute]:
        summary, answers = "Classify, in the form of vLLM", description.CLASSIFY_PEER_ANSWERS
        yield PeerRoute(description.CLASSIFY_PEER, "POST", self.classify, summary, answers, vllm.form)

    def _open_inference(self) -> Iterator[PeerRoute]:
        where, form, infer = "in the Open Inference Protocol", openinference.form, description.INFER_ANSWERS
        about = partial(description.only, infer)
        server: Answers = {200: {"model": openinference_types.ServerMetadata, "description": "name and version"}}
        metadata = about(openinference_types.ModelMetadata, "its tensors and version", 404, 503)
        ready = about(openinference_types.ModelReady, "it answers requests", 404, 503)
        yield PeerRoute(description.SERVER, "GET", self.server, f"The server, {where}", server, form)
        for base, endpoints in (
            (description.MODEL, (self.metadata, self.ready, self.infer)),
            (description.VERSION, (self.metadata_of, self.ready_of, self.infer_of)),
        ):
            yield PeerRoute(base, "GET", endpoints[0], f"A model, {where}", metadata, form)
            yield PeerRoute(f"{base}/ready", "GET", endpoints[1], "Whether a model answers requests", ready, form)
            yield PeerRoute(f"{base}/infer", "POST", endpoints[2], f"Classify, {where}", infer, form)

    async def predict(self, request: Request) -> Response:
        """Classifies, as text-embeddings-inference does."""
        return await self._answer(request, tei.Predict(request))

    async def classify(self, request: Request) -> Response:
        """Classifies, as vLLM does."""
        return await self._answer(request, vllm.Classify(request))

    async def infer(self, request: Request, model: str) -> Response:
        """Classifies, as the Open Inference Protocol has it."""
        return await self._answer(request, openinference.Infer(request, model))

    async def infer_of(self, request: Request, model: str, version: str) -> Response:
        """As `infer`, of a version; a default in one method would be a query parameter to FastAPI."""
        return await self._answer(request, openinference.Infer(request, model, version))

    async def info(self, request: Request, named: NamedModel = None) -> Response:
        """The model that the header names, or the only one."""
        refuse_query(request, f"the header {HEADER}")
        self._engine.check_started()
        fields = header_fields(request)
        check_names(fields, ["model"], f"{HEADER}.")
        model = self._engine.model(model_name(fields, self._engine.models), f" in the header {HEADER}")
        return json_response(tei.info(model, self._settings))

    async def server(self) -> Response:
        """Name and version."""
        return json_response(openinference_types.ServerMetadata(name="attenuator", version=__version__))

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
        return json_response(openinference_types.ModelReady(name=model.manifest.name, ready=True))

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
