"""An id for every request, taken from `X-Request-Id` or made: in its answer's header and in its log lines."""

import logging
import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attenuator.serve.observe import events

HEADER = "X-Request-Id"
RAW_HEADER = HEADER.lower().encode("ascii")
# What else a caller sends would end up in the log as it is.
ALLOWED = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)


class RequestIds:
    """Wraps an application; the whole of it, so that answers to unexpected errors have their id too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = next((value for name, value in scope["headers"] if name == RAW_HEADER), b"")
        text = header.decode("latin-1")
        request_id = text if ALLOWED.fullmatch(text) else secrets.token_hex(16)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (RAW_HEADER, request_id.encode("ascii"))]
            await send(message)

        events.request_id.set(request_id)
        await self._app(scope, receive, send_with_id)


def add_to(record: logging.LogRecord) -> bool:
    """A logging filter: gives a record the id of the request that it belongs to, if there is one."""
    request_id = events.request_id.get()
    record.__dict__ |= {"request_id": request_id, "request": f" [{request_id}]" if request_id else ""}
    return True
