"""What becomes of one attempt's connection, as httpx reports it."""

from collections.abc import Mapping
from typing import Any

import httpx

# The other side closed the connection, or it broke, after it had been opened.
CLOSED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)


class Connection:
    """What httpx reports of the connection that one attempt used.

    Attributes:
        opened: it was opened for this attempt.
        used: the request was sent on it.
        answered: the head of an answer came.
    """

    def __init__(self) -> None:
        self.opened = self.used = self.answered = False

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Takes an event of httpx's extension `trace`."""
        self.opened |= event.startswith("connection.connect_")
        self.used |= event == "http11.send_request_headers.started"
        self.answered |= event == "http11.receive_response_headers.complete"

    async def note_async(self, event: str, info: Mapping[str, Any]) -> None:
        """The same for the client that awaits."""
        self.note(event, info)

    def was_stale(self, answer: httpx.Response | Exception) -> bool:
        """Whether the server had closed a connection that it kept alive, so that it has not seen the request."""
        return isinstance(answer, CLOSED) and self.used and not self.opened and not self.answered
