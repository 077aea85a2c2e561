"""The application: routes, error answers and the OpenAPI description."""

import logging
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from attenuator import __version__
from attenuator.serve.engine import Engine
from attenuator.serve.errors import error_response
from attenuator.serve.routes import CLASSIFY, Routes
from attenuator.serve.schema import ClassifyRequest
from attenuator.serve.settings import ServeSettings

log = logging.getLogger(__name__)
DESCRIPTION = "Transformer text classifiers whose attention has an accuracy knob, set per request."
KINDS = {404: "not_found", 405: "method_not_allowed"}


def create_app(engine: Engine, settings: ServeSettings) -> FastAPI:
    """Makes the application over an engine.

    Args:
        engine: started or about to be.
        settings: of the service.

    Returns:
        The ASGI application.
    """
    app = FastAPI(title="Attenuator", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.include_router(Routes(engine, settings).router())
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _http_error(request: Request, error: Exception) -> Response:
    """Unknown routes and wrong methods, in the same form as every other error."""
    assert isinstance(error, HTTPException)
    where = f"{request.method[:16]} {request.url.path[:200]}"
    headers = dict(error.headers or {})
    if error.status_code == 405:
        methods = set(headers.get("Allow", "").split(", "))
        if "GET" in methods:  # beside which every route takes HEAD, as a route of its own that is not counted
            methods.add("HEAD")
        allowed = headers["Allow"] = ", ".join(sorted(methods))
        sentence = f"{where} is not served, the route takes {allowed}"
        return error_response(405, sentence, KINDS[405], allowed=allowed, headers=headers)
    if error.status_code == 404:
        return error_response(404, f"{where} is not served, GET /docs lists what is", KINDS[404])
    return error_response(error.status_code, str(error.detail), "http_error", headers=headers)


def _unexpected(request: Request, error: Exception) -> Response:
    return error_response(500, "the service failed on this request; its log says why", "internal_error")


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The description FastAPI makes, with the body that the routes parse themselves."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        request = ClassifyRequest.model_json_schema(ref_template="#/components/schemas/{model}")
        for field in request["properties"].values():
            if field.get("default", 0) is None:  # absent is not null
                del field["default"]
        made["components"]["schemas"] |= request.pop("$defs", {}) | {"ClassifyRequest": request}
        reference = {"schema": {"$ref": "#/components/schemas/ClassifyRequest"}}
        made["paths"][CLASSIFY]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": reference},
        }
        app.openapi_schema = made
    return app.openapi_schema
