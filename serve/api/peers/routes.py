"""The peers' routes: what each is called and answers, the form of its errors, and how OpenAPI describes it."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Header, Request
from pydantic import BaseModel, Field, RootModel, create_model
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import Response

from attenuator import __version__
from attenuator.api import Body, Text
from attenuator.classify_request import ClassifyRequest
from attenuator.runtime import Model
from attenuator.runtime.pairs import SHAPES
from attenuator.serve.api.answers import Form, json_response
from attenuator.serve.api.documentation import CLASSIFY_ANSWERS, Answers, Example, RequestBody
from attenuator.serve.api.errors import OWN_FORM, ErrorForm
from attenuator.serve.api.peers import openinference, rerank, rerank_types, tei, vllm
from attenuator.serve.api.peers import openinference_types as types
from attenuator.serve.api.peers.forms import header_fields, shared_names
from attenuator.serve.api.schema import HEADER, model_name, refuse_elsewhere
from attenuator.serve.edge.arrivals import BINARY_TYPE
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings

PREDICT, INFO, CLASSIFY_PEER, SERVER = "/predict", "/info", "/classify", "/v2"
MODEL = f"{SERVER}/models/{{model}}"
VERSION = f"{MODEL}/versions/{{version}}"
RERANK = "/rerank"
RERANK_PATHS, SCORE_PATHS = ("/v1/rerank", "/v2/rerank", RERANK), ("/v1/score", "/score")
ERROR_FORMS = {  # by a route's path, or its first part
    **dict.fromkeys(RERANK_PATHS, rerank_types.ERROR_FORM),
    **dict.fromkeys(SCORE_PATHS, vllm.ERROR_FORM),
    PREDICT: tei.ERROR_FORM,
    INFO: tei.ERROR_FORM,
    CLASSIFY_PEER: vllm.ERROR_FORM,
    SERVER: openinference.ERROR_FORM,
}

EITHER = "With documents, or with texts as text-embeddings-inference has them."
NamedModel = Annotated[str | None, Header(alias=HEADER, description='which model: {"model": ".."}')]


async def has_version(version: str) -> None:
    """Has the description list the version that a path names; the endpoints read it where there is one."""


class PeerRoute(NamedTuple):
    """A route; it wants a key where 401 is among its answers, and has `needs` besides."""

    path: str
    method: str
    endpoint: Callable[..., Awaitable[Response]]
    summary: str
    answers: Answers
    needs: Sequence[Any] = ()


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
        what = "in the form of text-embeddings-inference"
        predict = answers_of(tei.ERROR_FORM, tei.Scores | tei.ScoresOfAll, "labels with scores, highest first")
        info = only(predict, tei.Info, "labels and limits", 400, 404, 422, 503)
        yield PeerRoute(PREDICT, "POST", self.predict, f"Classify, {what}", predict)
        yield PeerRoute(INFO, "GET", self.info, f"The model, {what}", info)
        classify = answers_of(vllm.ERROR_FORM, vllm.Classes, "one entry per input")
        summary = "Classify, in the form of vLLM"
        yield PeerRoute(CLASSIFY_PEER, "POST", self.classify, summary, classify)

        ranking = answers_of(rerank_types.ERROR_FORM, rerank_types.Ranking, "the documents, best first")
        either = ranking | {200: ranking[200] | {"model": rerank_types.Ranking | rerank_types.Ranks}}
        for path in RERANK_PATHS:
            also = ", or in that of text-embeddings-inference" if path == RERANK else ""
            summary = f"Rank documents, in the form of Cohere, Jina and vLLM{also}"
            endpoint = self.rerank_either if path == RERANK else self.rerank
            yield PeerRoute(path, "POST", endpoint, summary, either if path == RERANK else ranking)
        scores = answers_of(vllm.ERROR_FORM, rerank_types.PairScores, "one score per pair")
        for path in SCORE_PATHS:
            yield PeerRoute(path, "POST", self.score, "Score pairs of texts, in the form of vLLM", scores)

        where = "in the Open Inference Protocol"
        infer = answers_of(openinference.ERROR_FORM, types.Inference, "the outputs")
        infer[200]["content"] = {BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}}}
        server: Answers = {200: {"model": types.ServerMetadata, "description": "name and version"}}
        metadata = only(infer, types.ModelMetadata, "its tensors and version", 404, 503)
        ready = only(infer, types.ModelReady, "it answers requests", 404, 503)
        yield PeerRoute(SERVER, "GET", self.server, f"The server, {where}", server)
        for base, needs in ((MODEL, []), (VERSION, [Depends(has_version)])):
            yield PeerRoute(base, "GET", self.metadata, f"A model, {where}", metadata, needs)
            yield PeerRoute(f"{base}/ready", "GET", self.ready, "Whether a model answers requests", ready, needs)
            yield PeerRoute(f"{base}/infer", "POST", self.infer, f"Classify, {where}", infer, needs)

    async def predict(self, request: Request) -> Response:
        """Classifies, as text-embeddings-inference does."""
        return await self.answer(request, tei.Predict(request))

    async def classify(self, request: Request) -> Response:
        """Classifies, as vLLM does."""
        return await self.answer(request, vllm.Classify(request))

    async def rerank(self, request: Request) -> Response:
        """Ranks documents, as Cohere, Jina and vLLM do."""
        return await self.answer(request, rerank.Rerank(request, self._engine.model))

    async def rerank_either(self, request: Request) -> Response:
        """The same, or as text-embeddings-inference does."""
        return await self.answer(request, rerank.Rerank(request, self._engine.model, takes_texts=True))

    async def score(self, request: Request) -> Response:
        """Scores pairs of texts, as vLLM does."""
        return await self.answer(request, rerank.ScorePairs(request))

    async def infer(self, request: Request, model: str) -> Response:
        """Classifies, as the Open Inference Protocol has it."""
        return await self.answer(request, openinference.Infer(request, model))

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

    async def metadata(self, request: Request, model: str) -> Response:
        """Tensors of a model."""
        return json_response(openinference.metadata(self._served(request, model)))

    async def ready(self, request: Request, model: str) -> Response:
        """Whether a model answers requests."""
        name = self._served(request, model).manifest.name
        self._engine.check_healthy()
        return json_response(types.ModelReady(name=name, ready=True))

    def _served(self, request: Request, name: str) -> Model:
        """A model of a path; UnknownModel where it or the version is not served, NotReady before the start."""
        self._engine.check_started()
        model = self._engine.model(name)
        openinference.check_version(model, request)
        return model


def error_form(path: str) -> ErrorForm:
    """The form of errors at a path, also of those before the endpoint is reached, such as a missing key."""
    return ERROR_FORMS.get(path) or ERROR_FORMS.get("/" + path.strip("/").partition("/")[0], OWN_FORM)


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


class Truncating(ModelName):
    """The same and whether pairs that are too long are cut."""

    truncate: bool = Field(False, description="true or false")


def shared(name: str, base: type[BaseModel], **fields: Any) -> type[BaseModel]:
    """A type with the fields that every protocol takes."""
    described = ClassifyRequest.model_fields
    names = [each for each in shared_names() if each not in base.model_fields]
    more: dict[str, Any] = {each: (described[each].annotation, described[each]) for each in names}
    return create_model(name, __base__=base, __doc__=base.__doc__, **{**more, **fields})


def request_bodies(example: Example) -> dict[str, RequestBody]:
    """Body by path."""
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
    tensor = {"name": "text", "shape": [len(example.inputs)], "datatype": "BYTES", "data": example.inputs}
    header = shared("ParametersAndModel", ModelName)
    infer = RequestBody(inference, {"inputs": [tensor]}, shared("SharedParameters", Shared))
    return {
        **rerank_bodies(example, header),
        PREDICT: RequestBody(predict, example.named | {"inputs": [[text] for text in example.inputs]}, header),
        CLASSIFY_PEER: RequestBody(classify, example.named | {"input": example.inputs}, header),
        f"{MODEL}/infer": infer,
        f"{VERSION}/infer": infer,
    }


def rerank_bodies(example: Example, header: type[BaseModel]) -> dict[str, RequestBody]:
    """Body by path, of the routes that rank and score pairs."""
    described = {name: Field(description=shape) for name, shape in SHAPES.items()}
    query = (Text, described["query"])
    several = (rerank_types.Documents, described["documents"])
    goals = rerank_types.goals()
    documents: Any = shared("RerankRequest", rerank_types.RerankOptions, query=query, documents=several, **goals)
    all_texts = (rerank_types.Texts, described["texts"])
    texts = shared("RankRequest", rerank_types.RankOptions, query=query, texts=all_texts, **goals)
    either: Any = documents | texts
    pair = {name: (Text | rerank_types.Texts, described[name]) for name in ("text_1", "text_2")}
    first, both = example.inputs[0], example.inputs
    ranked = example.named | {"query": first, "documents": both}
    scored = example.named | {"text_1": first, "text_2": both}
    ranking = RequestBody(documents, ranked, shared("ParametersModelTruncate", Truncating))
    scoring = RequestBody(shared("ScoreRequest", vllm.PoolingOptions, **pair), scored, header)
    return {
        **dict.fromkeys(RERANK_PATHS, ranking),
        RERANK: replace(ranking, kind=create_model("Rerank", __base__=RootModel[either], __doc__=EITHER)),
        **dict.fromkeys(SCORE_PATHS, scoring),
    }
