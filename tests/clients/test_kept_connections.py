"""A connection that the server has closed in the meantime: the call is sent once more, and in no other case."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from raw_server import WHOLE, Server

from attenuator import errors
from attenuator.clients import AsyncClient, Client

CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"


def blocking(url: str, calls: int) -> list[Any]:
    with Client(url, max_retries=0) as client:
        return [client.classify("a") for _ in range(calls)]


def awaiting(url: str, calls: int) -> list[Any]:
    async def run() -> list[Any]:
        async with AsyncClient(url, max_retries=0) as client:
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
