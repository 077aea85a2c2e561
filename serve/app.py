"""The application: routes, error answers, the OpenAPI description, and who is told of what happens."""

import functools
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from attenuator import __version__
from attenuator.api import CLASSIFY, MODELS
from attenuator.errors import AttenuatorError
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.api.documentation import LOAD_BODY, MODEL, Example, classify_body, description
from attenuator.serve.api.errors import HTTP_ERROR, ROUTING_KINDS, Refusal, answer_to, error_response
from attenuator.serve.api.peers.forms import RESULT_HEADER
from attenuator.serve.api.peers.routes import error_form, request_bodies
from attenuator.serve.api.routes import ClassifyDirectly, Routes
from attenuator.serve.api.schema import HEADER
from attenuator.serve.engine import Engine
from attenuator.serve.observe.logs import RequestLog
from attenuator.serve.observe.metrics import STATES, Gauges, Metrics, Values, waiting_values
from attenuator.serve.observe.shadow import Shadow
from attenuator.serve.scheduling.requests import LANES
from attenuator.serve.settings import ServeSettings

if TYPE_CHECKING:
    from attenuator.serve.observe.otel import Traces

DESCRIPTION = "Transformer text classifiers whose attention has an accuracy knob, set per request."
CORS_EXPOSED = ("X-Request-Id", "Retry-After", "Server-Timing", RESULT_HEADER)


def observe(engine: Engine, settings: ServeSettings, traces: "Traces | None" = None) -> Metrics:
    """Has metrics, traces and live quality told of what happens in a service; gives the metrics."""
    metrics, listeners, shadow = Metrics(), engine.listeners, None
    metrics.listen(listeners)
    if traces is not None:
        traces.listen(listeners)
    if settings.shadow_share:
        serving, exact_s = engine.catalog.serving, engine.admission.exact_s
        shadow = Shadow(settings.shadow_share, engine.idle, metrics, serving, exact_s)
        shadow.listen(listeners)
    Gauges(metrics, partial(held, engine, shadow))
    return metrics


def held(engine: Engine, shadow: Shadow | None) -> dict[str, Values]:
    """The values of the gauges of `observe/metrics.py`, those of connections aside."""
    serving = engine.models.values()
    return waiting_values(engine.waiting()) | {
        "running_sequences": {(lane,): engine.running(lane) for lane in LANES},
        "requests_in_progress": {(): engine.requests},
        "brownout_level": {(): engine.brownout.highest(time.monotonic())},
        "service_state": {(each,): each == engine.state for each in STATES},
        "ready": {(): engine.fault() is None},
        "models": {
            (
                model.manifest.name,
                model.manifest.revision[:12],
                model.device_name,
                "serving" if model in serving else "draining",
            ): 1
            for model in engine.latencies
        },
        "build_info": {(__version__,): 1},
        "shadow_waiting_texts": {(): shadow.waiting if shadow else 0},
        "agreement_low": dict(shadow.low()) if shadow else {},
    }


def create_app(engine: Engine, settings: ServeSettings, keys: KeyRing, metrics: Metrics | None = None) -> ASGIApp:
    """Makes the ASGI application over an engine: FastAPI inside the layers that every request passes."""
    routes = Routes(engine, settings, keys, (metrics or observe(engine, settings)).exposition)
    app: ASGIApp = ClassifyDirectly(create_api(routes, engine), routes)
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Type", "X-Request-Id", HEADER),
            expose_headers=CORS_EXPOSED,
        )
    return RequestLog(app, engine.listeners)


def create_api(routes: Routes, engine: Engine) -> FastAPI:
    """The routes, their errors and their description."""
    app = FastAPI(
        title="Attenuator", version=__version__, description=DESCRIPTION, openapi_url=None
    )  # shown by `Routes`
    app.router.redirect_slashes = False
    app.include_router(routes.router())
    # After the routes, so that the page comes first where it is served.
    app.add_api_route("/", _root, methods=["GET", "HEAD"], include_in_schema=False, response_class=Response)
    app.add_exception_handler(HTTPException, _http_error)
    for kind in (AttenuatorError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _ended)

    @functools.cache  # whoever asks for it again and again would keep the event loop busy
    def described(example: Example) -> dict[str, Any]:
        return description(app, {CLASSIFY: classify_body(example), MODEL: LOAD_BODY, **request_bodies(example)})

    def example() -> Example:
        for name, model in engine.models.items():
            return Example(name, tuple(model.manifest.labels), model.manifest.reads_tokens)
        return Example()

    app.openapi = lambda: described(example())  # type: ignore[method-assign]
    return app


async def _root(request: Request) -> Response:
    """Leads browsers to the reference, and says in JSON where everything is."""
    content = {"service": "attenuator", "version": __version__, "docs": "/docs", "classify": f"POST {CLASSIFY}"}
    content |= {"models": MODELS, "ready": "/health/ready", "openapi": "/openapi.json"}
    return JSONResponse(content, 307, headers={"Location": "docs"})


# Handlers are coroutines: others would be run in a thread each.
async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown routes and wrong methods, in the same form as every other error."""
    assert isinstance(error, HTTPException)
    where = f"{request.method[:16]} {request.url.path[:200]}"
    headers = dict(error.headers or {})
    if error.status_code == 405:
        methods = set(headers.get("Allow", "").split(", "))
        if "PUT" in methods:  # the route of a model; DELETE is a second one on the same path
            methods.add("DELETE")
        if "GET" in methods:  # every GET route also takes HEAD, through a second route that is not in this list
            methods.add("HEAD")
        allowed = headers["Allow"] = ", ".join(sorted(methods))
        sentence = f"{where} is not served, the method must be {' or '.join(sorted(methods))}"
        return error_response(Refusal(405, sentence, ROUTING_KINDS[405], allowed=allowed), headers=headers)
    if error.status_code == 404:
        return error_response(Refusal(404, f"{where} is not served; GET /docs lists the routes", ROUTING_KINDS[404]))
    return error_response(Refusal(error.status_code, str(error.detail), HTTP_ERROR), headers=headers)


async def _ended(request: Request, error: Exception) -> Response:
    """The answer to a failed request; what nobody expected Starlette raises again, and `ClassifyDirectly` logs it."""
    return answer_to(error, error_form(request.scope["path"]))
