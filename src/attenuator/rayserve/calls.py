"""One HTTP request on its way from the front to a replica, and its answer on the way back."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from attenuator.api import MAX_TIMEOUT_MS
from attenuator.serve.edge.arrivals import client_of
from attenuator.serve.settings import ServeSettings

Headers = list[tuple[bytes, bytes]]

REPLICA_HEADER = "X-Attenuator-Replica"
SHARED = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "client", "server")
# Written by the server that sends the answer, Ray Serve's proxy; twice they would contradict each other.
SENT_BY_PROXY = {b"x-request-id", b"connection"}


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose body has arrived.

    Attributes:
        scope: what ASGI says of it.
        headers: as they came.
        body: the whole of it.
        seconds: predicted time that it adds to a replica's work.
        front: id of the front that sends it.
        number: of the call, in that front.
        avoid: ids of replicas that failed to answer it.
    """

    scope: dict[str, Any]
    headers: Headers
    body: bytes
    seconds: float
    front: str
    number: int = 0
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a replica answered.

    Attributes:
        status: of HTTP.
        headers: likewise.
        body: the whole of it.
        replica: id of the replica.
        elsewhere: whether the replica starts or stops, so that another one should be asked.
    """

    status: int
    headers: Headers
    body: bytes
    replica: str
    elsewhere: bool = False

    def response(self) -> Response:
        """The answer as the front sends it."""
        answer = Response(self.body, self.status)
        answer.raw_headers = [pair for pair in self.headers if pair[0].lower() not in SENT_BY_PROXY]
        answer.headers[REPLICA_HEADER] = self.replica
        return answer


def shared_scope(request: Request) -> dict[str, Any]:
    """What a replica needs of a request's scope; the rest belongs to the server that took it."""
    return {name: request.scope[name] for name in SHARED if name in request.scope}


def deadline_of(fields: Mapping[str, Any]) -> float | None:
    """The milliseconds that a body's `timeout_ms` asks for; None where it asks for none that the service takes."""
    timeout_ms = fields.get("timeout_ms")
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float):
        return None
    return timeout_ms if 0 < timeout_ms <= MAX_TIMEOUT_MS else None


def settings_of(settings: Mapping[str, Any]) -> ServeSettings:
    """Settings of a replica, with those of the environment, but for its admin key.

    The admin routes would change one replica of several, and a front asks again where a replica was lost on the way.
    """
    return ServeSettings(**{**settings, "admin_key": None})


async def run(app: ASGIApp, call: Call) -> tuple[int, Headers, bytes]:
    """Answers a call with an application in this process; cancelling it tells the application that its client has left.

    Args:
        app: the application.
        call: the request.

    Returns:
        Status, headers and body.
    """
    scope = {**call.scope, "asgi": {"version": "3.0"}, "root_path": "", "headers": call.headers, "state": {}}
    start: Message = {"status": 500, "headers": []}
    parts: list[bytes] = []
    body_read = False

    async def receive() -> Message:
        nonlocal body_read
        if body_read:
            return {"type": "http.disconnect"}
        body_read = True
        return {"type": "http.request", "body": call.body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
        else:
            parts.append(message.get("body", b""))

    working = asyncio.ensure_future(app(scope, receive, send))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        client_of(scope).leave()
        await asyncio.wait({working})
        raise
    return start["status"], [(bytes(name), bytes(value)) for name, value in start["headers"]], b"".join(parts)
