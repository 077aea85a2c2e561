"""The routes: one path from a body to an answer."""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from attenuator.api import CLASSIFY, MODELS, ModelList, Priority
from attenuator.errors import AttenuatorError, DeadlineExceeded, InvalidRequest
from attenuator.ops.spec import SEED_HIGH
from attenuator.runtime import Model, Row
from attenuator.runtime.explaining import Runner, answer
from attenuator.serve import events
from attenuator.serve.access.keys import ApiKey, KeyRing, key_in
from attenuator.serve.accuracy.cost import Work
from attenuator.serve.accuracy.plan import Limits, plan
from attenuator.serve.api import documentation as docs
from attenuator.serve.api import schema
from attenuator.serve.api.admin import Admin
from attenuator.serve.api.answers import (
    Form,
    OwnForm,
    Ran,
    Turns,
    answer_of,
    json_response,
    model_info,
    timing_headers,
)
from attenuator.serve.api.errors import answer_to, stopped
from attenuator.serve.api.peers.routes import Peers, error_form
from attenuator.serve.api.probes import Probes
from attenuator.serve.api.reference_page import REFERENCE_ASSETS, reference_page
from attenuator.serve.api.second_step import second_step
from attenuator.serve.edge.arrivals import JSON, Bodies, client_of
from attenuator.serve.engine import Engine, RequestRun
from attenuator.serve.events import CLIENT_LEFT, STATUS_KEY
from attenuator.serve.page import HEADERS, Page
from attenuator.serve.scheduling.requests import ANYONE, Flow
from attenuator.serve.settings import ServeSettings, read_floors

log = logging.getLogger(__name__)

MOST_PAGES = 16  # of the reference, by the address that it was asked at
INLINE_BYTES = 16_384  # of a body that the event loop parses itself: below 1 ms
Exposition = Callable[[str], Awaitable[tuple[bytes, str]]]
KEY = "api_key"  # where a request's scope holds its key
BEARER = HTTPBearer(auto_error=False, description="an API key of the service")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]


class Routes:
    """The service's routes over one engine.

    Attributes:
        keyed: whether requests need an API key.
    """

    def __init__(self, engine: Engine, settings: ServeSettings, keys: KeyRing, exposition: Exposition) -> None:
        """Takes what the routes ask; `exposition` gives the metrics for an `Accept` header: body and Content-Type."""
        self._engine = engine
        self._exposition = exposition
        self._keys = keys
        self.keyed = keys.required
        self._settings = settings
        self._floors = read_floors(settings.brownout_to)
        self._bodies = Bodies(settings)
        self._probes = Probes(engine)
        self._turns = Turns()
        self._documents = Documents({}, b"")
        self._parsing = ThreadPoolExecutor(1, thread_name_prefix="parse")

    def router(self) -> APIRouter:
        """Every route."""
        router = APIRouter()
        keyed = [Depends(self.check_key)] if self.keyed else []

        def add(path: str, method: str, endpoint: Callable[..., Awaitable[Response]], **extra: Any) -> None:
            router.add_api_route(path, endpoint, methods=[method], response_class=Response, **extra)
            if method == "GET":  # load balancers ask so; the server sends no body
                needs = extra.get("dependencies")
                router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, dependencies=needs)

        def answers(described: docs.Answers, rate_limited: dict[str, Any] = docs.RATE_LIMITED) -> dict[str, Any]:
            needs_key = {401: described[401], 429: described.get(429, rate_limited)} if keyed else {}
            rest = {status: row for status, row in described.items() if status != 401}
            return {"dependencies": keyed, "responses": dict(sorted((needs_key | rest).items()))}

        add(CLASSIFY, "POST", self.classify, summary="Classify texts", **answers(docs.CLASSIFY_ANSWERS))
        add(MODELS, "GET", self.models, summary="Models, labels and knobs", **answers(docs.MODELS_ANSWERS))
        for path, endpoint, summary, described in self._probes.routes():
            add(path, "GET", endpoint, summary=summary, responses=described)
        if self._settings.metrics != "off":
            needs = [Depends(self.find_key)] if self._settings.metrics == "key" else []
            summary = "Metrics for Prometheus, in its text format or OpenMetrics"
            add(docs.METRICS, "GET", self.metrics, summary=summary, dependencies=needs, responses=docs.METRICS_ANSWERS)
        if self._settings.admin_key is not None:
            Admin(self._engine, self._settings, self._bodies, self._settings.admin_key).add_to(router)
        for row in Peers(self._engine, self._settings, self.answer).routes():
            extra: dict[str, Any] = {"responses": row.answers}
            if 401 in row.answers:
                extra = answers(row.answers, docs.RATE_LIMITED | {"model": row.answers[401]["model"]})
                extra["dependencies"] = [*keyed, *row.needs]
            add(row.path, row.method, row.endpoint, summary=row.summary, **extra)
        add("/docs", "GET", self.documentation, include_in_schema=False)
        add("/openapi.json", "GET", self.description, include_in_schema=False)
        assets = Page(REFERENCE_ASSETS if self._settings.no_page else None)
        if not self._settings.no_page:
            add("/", "GET", assets.index, include_in_schema=False)
        add("/page/{path:path}", "GET", assets.asset, include_in_schema=False)
        return router

    async def find_key(self, request: Request, credentials: Credentials = None) -> ApiKey:
        """The key that a request was sent with, as `KeyRing.check` has it; `credentials` are for the description."""
        key = self._keys.check(key_in(schema.single_header(request, "authorization")))
        request.scope[KEY] = key
        events.note(key=key.name)
        return key

    async def check_key(self, request: Request, credentials: Credentials = None) -> None:
        """As `find_key`; also refuses with RateLimited a key that was used more often than it may be."""
        (await self.find_key(request)).take(time.monotonic())

    async def metrics(self, request: Request) -> Response:
        """What the service counts and holds."""
        content, content_type = await self._exposition(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    async def documentation(self, request: Request) -> Response:
        """The reference as one page that loads nothing from elsewhere."""
        base_url = str(request.base_url)
        page = self._documents_of(request.app).pages.get(base_url)
        if page is None:
            pages = self._documents.pages
            if len(pages) == MOST_PAGES:
                pages.clear()
            page = pages[base_url] = reference_page(self._documents.described, base_url)
        return HTMLResponse(page, headers=HEADERS)

    async def description(self, request: Request) -> Response:
        """The OpenAPI description."""
        return Response(self._documents_of(request.app).content, media_type=JSON)

    def _documents_of(self, app: FastAPI) -> "Documents":
        """The description's documents: each takes milliseconds of the event loop, so they are kept."""
        described = app.openapi()
        if described is not self._documents.described:
            content = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
            self._documents = Documents(described, content)
        return self._documents

    async def models(self) -> Response:
        """Lists the served models."""
        self._engine.check_started()
        return json_response(ModelList(models=tuple(model_info(model) for model in self._engine.models.values())))

    async def classify(self, request: Request) -> Response:
        """Classifies the inputs, all with the same knobs and seed."""
        return await self.answer(request, OwnForm())

    async def answer(self, request: Request, form: Form) -> Response:
        """The path that every classification takes, whatever the form of its request."""
        started_s = time.perf_counter()
        schema.refuse_elsewhere(request, takes_header=form.takes_header)
        key: ApiKey | None = request.scope.get(KEY)
        fair_key = "" if key is None else self._keys.fair_key(key)
        if client_of(request.scope).body is None:  # before it is read; one that is there is checked once, below
            announced = request.headers.get("content-length", "")
            self._engine.check_open(int(announced) if announced.isdecimal() else 0, fair_key)
        body = await self._bodies.read(request, form.types)
        async with self._engine.admitted(len(body), fair_key):
            schema.refuse_encoding(request)
            if len(body) <= INLINE_BYTES:
                fields = form.parse(body)
            else:
                fields = await asyncio.get_running_loop().run_in_executor(self._parsing, form.parse, body)
            del body
            model = self._engine.model(schema.model_name(fields, self._engine.models), form.model_places)
            try:
                parsed = form.request(fields, model)
                del fields
                events.note(model=model.manifest.name, inputs=len(parsed.items), **parsed.asked.goals)
                if key is not None:
                    key.check_priority(parsed.options.priority)
                flow = flow_of(key, fair_key, parsed.options.priority)
                answering = self._answer_parsed(model, parsed, key, flow, started_s, form)
                field = form.own_names.get(schema.TIMEOUT, schema.TIMEOUT)
                return await unless_late(request, parsed.options.timeout_ms, started_s, answering, field)
            except InvalidRequest as error:
                raise schema.in_own_names(error, form.own_names) from None

    def _limits(self, key: ApiKey | None) -> Limits:
        """What others than the caller say about a request's accuracy."""
        ceilings, name = ({}, "") if key is None else (key.ceilings, key.name)
        return Limits(ceilings, name, self._settings.max_cost, self._floors)

    async def _answer_parsed(
        self, model: Model, parsed: schema.ParsedRequest, key: ApiKey | None, flow: Flow, started_s: float, form: Form
    ) -> Response:
        """Runs a checked request and writes its answer."""
        ran = await self._run_parsed(model, parsed, key, flow, started_s)
        timing_ms = timing_of(started_s, ran.tokenize_s, ran.queue_s)
        events.note(tokens=ran.tokens, timing_ms=timing_ms)
        if ran.answered.steps is not None:
            events.note(steps=ran.answered.steps)
        headers = timing_headers(timing_ms, ran.model.device, ran.characters, ran.tokens)
        whole = answer_of(parsed, ran, timing_ms)
        return await form.response(whole, headers, self._turns.write)

    async def _run_parsed(
        self, model: Model, parsed: schema.ParsedRequest, key: ApiKey | None, flow: Flow, started_s: float
    ) -> Ran:
        """Tokenizes the inputs of a checked request, decides what it runs with, and runs it."""
        options, asked = parsed.options, parsed.asked
        limits = self._limits(key)
        usual = plan(model, asked, limits)
        encoded = await self._engine.encode(model, parsed.items, usual, truncate=options.truncate, flow=flow)
        if parsed.rows_of is not None:
            encoded = parsed.rows_of.rows(encoded)
        characters = sum([item.characters for item in parsed.items])
        texts = parsed.take_items()
        tokens = [len(item.token_ids) for item in encoded]
        seed = options.seed if parsed.has_seed else self._settings.seed
        usual_seed = seed == self._settings.seed
        seed = secrets.randbelow(SEED_HIGH + 1) if seed is None else seed
        work = Work(model, tokens, options.explain and not options.escalate, seed, usual_seed)
        spend = None if key is None else key.spend
        again = None if asked.last is None else await self._engine.again(work, asked.last, texts, encoded)
        chosen = plan(model, asked, limits, self._engine.load(work, flow, started_s, again))
        if asked.last is not None and chosen.second is not None and chosen.second.whole:
            events.note(model=asked.last.manifest.name)
            return await self._run_parsed(asked.last, parsed.by_last(texts), key, flow, started_s)
        unlowered = chosen.unlowered if chosen.knobs != chosen.unlowered else None
        run = RequestRun(self._engine, work, limits, flow, started_s, options.timeout_ms, spend, unlowered)
        tokenize_s = time.perf_counter() - started_s
        events.note(knobs=dict(chosen.knobs), chosen_by=chosen.by)
        rows = [Row(item.token_ids, item.type_ids, chosen.knobs, seed) for item in encoded]
        runner = Runner(run.run, run.has_room, partial(limits.permit, work))
        answered = await answer(model, rows, runner, explain=options.explain, reach=chosen.reach)
        for tell in self._engine.listeners.answered:
            tell(model, answered.rows, answered.results, answered.steps is not None)
        ran = Ran(model, chosen, seed, answered, characters, tokenize_s)
        return ran if chosen.second is None or again is None else await second_step(ran, run, again, parsed, texts)


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """What is made of the OpenAPI description.

    Attributes:
        described: the description.
        content: the same in JSON.
        pages: references, by the address that their examples ask.
    """

    described: dict[str, Any]
    content: bytes
    pages: dict[str, str] = field(default_factory=dict)


class ClassifyDirectly:
    """Answers `POST /v1/classify` without the router's machinery, which costs more than refusing a request.

    The route is also in the router, for the description and for other methods. Requests on which the application fails
    or is stopped are answered in the form of every other error.
    """

    def __init__(self, api: ASGIApp, routes: Routes) -> None:
        self._api = api
        self._routes = routes
        self._route = Route(CLASSIFY, routes.classify)  # names the path in the access log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            if scope["type"] != "http" or scope["path"] != CLASSIFY or scope["method"] != "POST":
                await self._api(scope, receive, send)
                return
            scope["route"] = self._route
            request = Request(scope, receive)
            try:
                if self._routes.keyed:
                    await self._routes.check_key(request)
                answer = await self._routes.classify(request)
            except (ClientDisconnect, AttenuatorError) as error:
                answer = answer_to(error)
            await answer(scope, receive, send)
            return
        except asyncio.CancelledError:  # the service stops; nobody else cancels a request's task
            answer = stopped(error_form(scope["path"]))
        except Exception as error:
            log.exception("the service failed on a request")
            answer = answer_to(error, error_form(scope["path"]))
        if STATUS_KEY not in scope:  # no answer has begun
            await answer(scope, receive, send)


def flow_of(key: ApiKey | None, fair_key: str, priority: Priority | None) -> Flow:
    """Whose work a request is: of its key, whose name among several is `fair_key`, in the class that it names."""
    if key is None:
        return ANYONE if priority is None else Flow(priority=priority)
    return Flow(fair_key, priority or key.priority, key.weight)


def timing_of(started_s: float, tokenize_s: float, queue_s: float) -> dict[str, float]:
    """Where the time of a request that is answered now has gone, in milliseconds."""
    total_s = time.perf_counter() - started_s
    parts_s = {
        "tokenize": tokenize_s,
        "queue": queue_s,
        "compute": total_s - tokenize_s - queue_s,
        "total": total_s,
    }
    return {name: round(seconds * 1e3, 3) for name, seconds in parts_s.items()}


async def unless_late(
    request: Request, timeout_ms: float | None, started_s: float, work: Coroutine[Any, Any, Response], field: str
) -> Response:
    """Awaits the work on a request; cancels it if the request's deadline passes or its client disconnects.

    The request calls the deadline's field `field`.

    Raises:
        DeadlineExceeded: the deadline passed.
    """
    remaining_s = None if timeout_ms is None else max(0.0, timeout_ms / 1000 - (time.perf_counter() - started_s))
    working = asyncio.current_task()
    assert working is not None
    client = client_of(request.scope)
    client.when_left = working.cancel
    if client.left:
        working.cancel()
    try:
        if remaining_s is None:
            return await work
        async with asyncio.timeout(remaining_s) as deadline:
            return await work
    except TimeoutError:
        if remaining_s is None or not deadline.expired():
            raise
        raise DeadlineExceeded(
            f"there was no answer within {timeout_ms:g} ms ({field}): the work was cancelled"
        ) from None
    except asyncio.CancelledError:
        if not client.left or working.uncancel():  # the service stops
            raise
        log.info("the client disconnected: its work was cancelled")
        return Response(status_code=CLIENT_LEFT)
    finally:
        client.when_left = None
