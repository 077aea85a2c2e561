"""The routes: one path from a body to an answer."""

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from attenuator.bundle import BundleKnob
from attenuator.errors import (
    AttenuatorError,
    DeadlineExceeded,
    EngineError,
    InvalidRequest,
    Unauthorized,
    UnknownField,
)
from attenuator.ops.knobs import shown
from attenuator.ops.spec import SEED_HIGH
from attenuator.runtime import Device, Model, Row
from attenuator.serve import accesslog, schema
from attenuator.serve.admission import check_cost
from attenuator.serve.body import Bodies, ClientDisconnect, client_disconnected
from attenuator.serve.documentation import page
from attenuator.serve.engine import Engine
from attenuator.serve.errors import JSON, ErrorBody, MalformedBody, dump, response_for
from attenuator.serve.jobs import Job
from attenuator.serve.settings import ServeSettings

log = logging.getLogger(__name__)

CLASSIFY = "/v1/classify"

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "the body is not JSON, or is compressed"},
    401: {"model": ErrorBody, "description": "the API key is missing or wrong"},
    404: {"model": ErrorBody, "description": "no served model has that name"},
    408: {"model": ErrorBody, "description": "the body did not arrive in time"},
    413: {"model": ErrorBody, "description": "the body is over the limit"},
    415: {"model": ErrorBody, "description": "the Content-Type is not JSON"},
    422: {"model": ErrorBody, "description": "a field is wrong; param names it"},
    429: {"model": ErrorBody, "description": "too much is waiting; Retry-After says when to come back"},
    500: {"model": ErrorBody, "description": "the engine failed on this request"},
    503: {"model": ErrorBody, "description": "starting or draining"},
    504: {"model": ErrorBody, "description": "timeout_ms passed; the work was dropped"},
}
CLIENT_LEFT = 499  # nobody reads it


class Routes:
    """The service's routes over one engine."""

    def __init__(self, engine: Engine, settings: ServeSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._bodies = Bodies(settings)
        self._key = settings.api_key.get_secret_value().encode() if settings.api_key else None

    def router(self) -> APIRouter:
        """Every route."""
        router = APIRouter()

        def add(path: str, method: str, endpoint: Callable[[Request], Awaitable[Response]], **extra: Any) -> None:
            router.add_api_route(path, endpoint, methods=[method], response_class=Response, **extra)
            if method == "GET":  # load balancers ask so; the server sends no body
                router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)

        add(
            CLASSIFY,
            "POST",
            self.classify,
            summary="Classify texts",
            responses={200: {"model": schema.ClassifyResponse}, **ERRORS},
        )
        add("/v1/models", "GET", self.models, summary="Models, labels and knobs")
        add("/health/live", "GET", self.live, summary="200 while the process answers")
        add("/health/ready", "GET", self.ready, summary="200 while requests are taken, else 503")
        add("/docs", "GET", self.documentation, include_in_schema=False)
        return router

    async def live(self, request: Request) -> Response:
        """Liveness."""
        return Response(dump({"status": "live"}), media_type=JSON)

    async def ready(self, request: Request) -> Response:
        """Readiness."""
        status = 200 if self._engine.state == "ready" else 503
        return Response(dump({"status": self._engine.state}), status, media_type=JSON)

    async def documentation(self, request: Request) -> Response:
        """The reference as one page that loads nothing from elsewhere."""
        return HTMLResponse(page(request.app.openapi()))

    async def models(self, request: Request) -> Response:
        """Lists the served models."""
        try:
            self._check_key(request)
            self._engine.check_started()
        except AttenuatorError as error:
            return response_for(error)
        return Response(dump({"models": [described(model) for model in self._engine.models.values()]}), media_type=JSON)

    async def classify(self, request: Request) -> Response:
        """Classifies the inputs, all with the same knobs and seed."""
        started = time.perf_counter()
        try:
            self._check_key(request)
            refuse_query(request)
            announced = request.headers.get("content-length", "")
            self._engine.check_open(int(announced) if announced.isdecimal() else 0)
            body = await self._bodies.read(request)
            async with self._engine.admitted(len(body)):
                refuse_encoding(request)
                raw = schema.parse_json(body)
                del body
                name = raw.get("model")
                if "model" in raw and not isinstance(name, str):
                    raise InvalidRequest(
                        f"model is {shown(name)}, must be the name of a served model",
                        param="model",
                        allowed=", ".join(self._engine.models),
                    )
                model = self._engine.model(name)
                parsed = schema.parse_request(raw, model)
                del raw
                return await self._answer(request, model, parsed, started)
        except AttenuatorError as error:
            if isinstance(error, EngineError):
                log.error("request failed: %s: %s", error, error.detail)
            return response_for(error)
        except ClientDisconnect:
            return Response(status_code=CLIENT_LEFT)

    def _check_key(self, request: Request) -> None:
        if self._key is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._key):
            raise Unauthorized("the API key is missing or wrong, send the header 'Authorization: Bearer KEY'")

    async def _answer(self, request: Request, model: Model, parsed: schema.Request, started: float) -> Response:
        """Works on a request until it is done, its deadline passes, or its client leaves."""
        accesslog.note(model=model.manifest.name, knobs=parsed.knobs, inputs=len(parsed.items))
        timeout_ms = parsed.options.timeout_ms
        remaining_s = None if timeout_ms is None else max(0.0, timeout_ms / 1000 - (time.perf_counter() - started))
        work = asyncio.create_task(self._work(model, parsed, started))
        gone = asyncio.create_task(client_disconnected(request))
        try:
            await asyncio.wait({work, gone}, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if gone.done():
                log.info("client left: work dropped")
                return Response(status_code=CLIENT_LEFT)
            raise DeadlineExceeded(f"no answer within timeout_ms {timeout_ms:g}: the work was dropped")
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _work(self, model: Model, parsed: schema.Request, started: float) -> Response:
        encoded = await self._engine.encode(model, parsed.items, knobs=parsed.knobs, truncate=parsed.options.truncate)
        check_cost(model, encoded, parsed.knobs, self._settings.max_cost)
        seed = parsed.options.seed if parsed.has_seed else self._settings.seed
        seed = secrets.randbelow(SEED_HIGH + 1) if seed is None else seed
        tokenized = time.perf_counter()
        characters = sum(item.characters for item in parsed.items)
        rows = [Row(item.token_ids, item.type_ids, parsed.knobs, seed) for item in encoded]
        job = await self._engine.run(model, rows)
        ended = time.perf_counter()
        began_s = job.submitted_s if job.started_s is None else job.started_s
        queue_ms = (began_s - job.submitted_s) * 1e3
        timing_ms = {
            "tokenize": (tokenized - started) * 1e3,
            "queue": queue_ms,
            "compute": (ended - tokenized) * 1e3 - queue_ms,
            "total": (ended - started) * 1e3,
        }
        timing_ms = {name: round(value, 3) for name, value in timing_ms.items()}
        tokens = [len(item.token_ids) for item in encoded]
        accesslog.note(tokens=sum(tokens), timing_ms=timing_ms)
        content = answer(model, parsed, seed, job, tokens, timing_ms)
        headers = timing_headers(timing_ms, model.device, characters, sum(tokens))
        return Response(dump(content), headers=headers, media_type=JSON)


def described(model: Model) -> dict[str, Any]:
    """A model as `GET /v1/models` shows it."""
    manifest = model.manifest
    return {
        "name": manifest.name,
        "revision": manifest.revision,
        "device": str(model.device),
        "task": manifest.task,
        "labels": manifest.labels,
        "max_tokens": manifest.max_tokens,
        "knobs": [_knob(knob) for knob in manifest.knobs],
        "calibration": None,
    }


def _knob(knob: BundleKnob) -> dict[str, Any]:
    """A knob's row; whole numbers are written as such."""
    row = knob.model_dump()
    if knob.dtype == "int32":
        row |= {name: int(row[name]) for name in ("default", "low", "high", "exact")}
    return row


def answer(
    model: Model, parsed: schema.Request, seed: int, job: Job, tokens: list[int], timing_ms: dict[str, float]
) -> dict[str, Any]:
    """The body of a successful answer."""
    manifest = model.manifest
    results = [result for result in job.results if result is not None]
    predictions = []
    for result in results:
        found = model.predict(result.logits)
        entry: dict[str, Any] = {"label": found.label, "score": found.score}
        if found.labels is not None:
            entry["labels"] = found.labels
        if parsed.options.top_k is not None:
            entry["scores"] = [{"label": name, "score": s} for name, s in found.ranking[: parsed.options.top_k]]
        if parsed.options.return_logits:
            entry["logits"] = found.logits
        predictions.append(entry)
    content: dict[str, Any] = {
        "model": manifest.name,
        "revision": manifest.revision,
        "device": str(model.device),
        "predictions": predictions,
        "knobs": parsed.knobs,
        "requested": parsed.requested,
        "chosen_by": "caller" if parsed.requested else "default",
        "seed": seed,
        "tokens": tokens,
    }
    flops = [result.value_flops for result in results if result.value_flops is not None]
    if flops:
        content["value_flops"] = flops
    content["timing_ms"] = timing_ms
    return content


def refuse_query(request: Request) -> None:
    """Refuses fields in the address: ignored there, a knob would seem set.

    Raises:
        UnknownField: names the first.
    """
    for name in request.query_params:
        short = name[:64]
        raise UnknownField(
            f"query parameters are not accepted: put {short} in the JSON body", param=short, allowed="no query string"
        )


def refuse_encoding(request: Request) -> None:
    """Refuses a compressed body by name: as bytes it is only no JSON.

    Raises:
        MalformedBody: names the header and what it says, all of them where it comes more than once.
    """
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip()
    if encoding.lower() not in ("", "identity"):
        raise MalformedBody(f"the body has Content-Encoding '{encoding[:40]}', must be sent without one")


def timing_headers(timing_ms: dict[str, float], device: Device, characters: int, tokens: int) -> dict[str, str]:
    """`Server-Timing`, and the headers that text-embeddings-inference sends (whole milliseconds)."""
    return {
        "Server-Timing": ", ".join(f"{name};dur={value}" for name, value in timing_ms.items()),
        "x-compute-type": "cpu" if device.kind == "cpu" else "gpu",
        "x-compute-time": str(round(timing_ms["total"])),
        "x-compute-characters": str(characters),
        "x-compute-tokens": str(tokens),
        "x-total-time": str(round(timing_ms["total"])),
        "x-tokenization-time": str(round(timing_ms["tokenize"])),
        "x-queue-time": str(round(timing_ms["queue"])),
        "x-inference-time": str(round(timing_ms["compute"])),
    }
