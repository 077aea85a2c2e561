"""The routes that load, replace and unload models; they exist only where there is an admin key."""

import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr
from starlette.responses import Response

from attenuator import errors
from attenuator.json_body import parse_json
from attenuator.ops.knobs import shown
from attenuator.runtime.request import wrong
from attenuator.serve import events
from attenuator.serve.access.keys import not_accepted
from attenuator.serve.api.answers import json_response, model_info
from attenuator.serve.api.documentation import DELETE_ANSWERS, MODEL, PUT_ANSWERS
from attenuator.serve.api.schema import refuse_elsewhere, refuse_encoding
from attenuator.serve.edge.arrivals import Bodies
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings

ADMIN_BEARER = HTTPBearer(auto_error=False, scheme_name="AdminKey", description="the admin key of the service")
ALLOWED = "the path of a bundle inside a folder of --bundle-root"


class Admin:
    """The admin routes of one service."""

    def __init__(self, engine: Engine, settings: ServeSettings, bodies: Bodies, key: SecretStr) -> None:
        self._engine = engine
        self._roots = settings.bundle_root
        self._bodies = bodies
        self._key = key.get_secret_value().encode()

    def add_to(self, router: APIRouter) -> None:
        """Adds the routes."""
        keyed: dict[str, Any] = {"dependencies": [Depends(self.check_key)], "response_class": Response}
        summary = "Load a model, or replace it"
        router.add_api_route(MODEL, self.put, methods=["PUT"], summary=summary, responses=PUT_ANSWERS, **keyed)
        summary, answers = "Unload a model", DELETE_ANSWERS
        keyed["status_code"] = 204
        router.add_api_route(MODEL, self.delete, methods=["DELETE"], summary=summary, responses=answers, **keyed)

    async def check_key(
        self, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(ADMIN_BEARER)]
    ) -> None:
        """Refuses requests without the admin key; the comparison takes the same time for every key."""
        sent = credentials.credentials.strip() if credentials else ""
        if not hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), self._key):
            raise not_accepted("admin key", sent)

    async def put(self, request: Request, name: str) -> Response:
        """Loads a bundle; new requests get it once it has passed every check, and the old one answers those before."""
        refuse_elsewhere(request)
        self._engine.check_running()
        body = await self._bodies.read(request)
        refuse_encoding(request)
        folder = bundle_folder(parse_json(body, '{"bundle": ..}'), self._roots)
        try:
            model, replaces = await self._engine.catalog.put(name, folder)
        except (errors.BundleError, errors.OperatorLibraryMissing, errors.DeviceUnavailable) as error:
            raise errors.InvalidRequest(str(error), param="bundle", allowed=ALLOWED) from None
        events.note(model=model.manifest.name, revision=model.manifest.revision[:12])
        return json_response(model_info(model), 200 if replaces else 201)

    async def delete(self, request: Request, name: str) -> Response:
        """Unloads a model; requests that have begun are answered."""
        refuse_elsewhere(request, None)
        self._engine.check_running()
        await self._engine.catalog.remove(name)
        events.note(model=name)
        return Response(status_code=204)


def bundle_folder(body: dict[str, Any], roots: Sequence[Path]) -> Path:
    """The folder that a body names, without symbolic links, which must lie inside one of the roots.

    A path that is not absolute is looked for in each root. An error does not tell which other folders exist.
    """
    for name in body:
        if name != "bundle":
            sentence = f"the field '{name[:64]}' is unknown, must be bundle"
            raise errors.UnknownField(sentence, param=name[:64], allowed="bundle")
    path = body.get("bundle")
    if not isinstance(path, str) or not path or "\0" in path:
        state = "is missing" if "bundle" not in body else f"is {shown(path)}"
        if isinstance(path, str):
            state = "has a zero byte" if path else "is empty"
        raise wrong("bundle", state, ALLOWED)
    for root in roots:
        inside = root.resolve()
        try:
            folder = (inside / path).resolve(strict=True)
        except (OSError, RuntimeError, UnicodeEncodeError):  # RuntimeError: links in a circle; a lone surrogate
            continue
        if folder.is_dir() and folder.is_relative_to(inside):
            return folder
    reason = "is not a folder inside one of --bundle-root" if roots else "cannot be loaded: --bundle-root is not set"
    raise errors.InvalidRequest(f"bundle '{path[:200]}' {reason}", param="bundle", allowed=ALLOWED)
