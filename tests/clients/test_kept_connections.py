"""A connection that the server has closed in the meantime: the call is sent once more, and in no other case."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from attenuator import errors
from attenuator.api import Classification
from attenuator.clients import AsyncClient, Client

FIELDS = {"model": "m", "revision": "", "device": "cpu", "predictions": (), "knobs": {}, "chosen_by": "default"}
BODY = Classification(**FIELDS, seed=0, tokens=(), timing_ms={}).model_dump_json().encode()
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"


class Server:
    """Answers each request with the next of some replies; an empty one closes the connection without a word.

    Attributes:
        requests: how many were read in whole.
    """

    def __init__(self, *replies: bytes) -> None:
        self.requests = 0
        self._replies = list(replies)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._replies:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(20)
                while self._replies and self._read(connection):
                    self.requests += 1
                    reply = self._replies.pop(0)
                    connection.sendall(reply)
                    if reply != WHOLE:
                        break
        self._listener.close()

    @staticmethod
    def _read(connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            part = connection.recv(65536)
            if not part:
                return False
            data += part
        return True

    def end(self) -> None:
        """Waits until every reply was given."""
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()


def blocking(url: str, calls: int) -> list[Any]:
    with Client(url) as client:
        return [client.classify("a") for _ in range(calls)]


def awaiting(url: str, calls: int) -> list[Any]:
    async def run() -> list[Any]:
        async with AsyncClient(url) as client:
            return [await client.classify("a") for _ in range(calls)]

    return asyncio.run(run())


@pytest.fixture(params=[blocking, awaiting])
def ask(request: pytest.FixtureRequest) -> Callable[[str, int], list[Any]]:
    chosen: Callable[[str, int], list[Any]] = request.param
    return chosen


def test_call_on_a_connection_that_was_closed_is_sent_once_more(ask: Callable[[str, int], list[Any]]) -> None:
    server = Server(WHOLE, b"", WHOLE)
    assert [answer.model for answer in ask(server.url, 2)] == ["m", "m"]
    server.end()
    assert server.requests == 3


@pytest.mark.parametrize(
    ("replies", "calls"),
    [((b"",), 1), ((WHOLE, b"", b""), 2), ((WHOLE, CUT_OFF), 2), ((CUT_OFF,), 1)],
    ids=["new connection", "twice in a row", "in the middle of an answer", "new and in the middle"],
)
def test_no_other_call_is_repeated(
    ask: Callable[[str, int], list[Any]], replies: tuple[bytes, ...], calls: int
) -> None:
    server = Server(*replies)
    with pytest.raises(errors.ServiceUnreachable):
        ask(server.url, calls)
    server.end()
    assert server.requests == len(replies)
