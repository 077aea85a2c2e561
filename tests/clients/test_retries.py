"""Which failures a client repeats a call after, how long it pauses, and what its time limits do."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from raw_server import WHOLE, Server
from wire import Wire

from attenuator import errors
from attenuator.clients import AsyncClient, Client
from attenuator.clients.retries import FIRST_PAUSE_S, RetryPolicy

NEVER_S = float("inf")
AGAIN = {"max_retries": 1}


def blocking(url: str, options: dict[str, Any], transport: Any = None) -> Any:
    with Client(url, transport=transport, **options) as client:
        return client.classify("a")


def awaiting(url: str, options: dict[str, Any], transport: Any = None) -> Any:
    async def run() -> Any:
        async with AsyncClient(url, transport=transport, **options) as client:
            return await client.classify("a")

    return asyncio.run(run())


@pytest.fixture(params=[blocking, awaiting])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    chosen: Callable[..., Any] = request.param
    return chosen


def response(status: int, retry_after: str | None = None) -> httpx.Response:
    return httpx.Response(status, headers={} if retry_after is None else {"Retry-After": retry_after})


@pytest.mark.parametrize("attempt", [0, 2])
@pytest.mark.parametrize("retry_after", [None, "3"])
def test_pauses_are_drawn_evenly_on_top_of_retry_after(attempt: int, retry_after: str | None) -> None:
    policy = RetryPolicy(max_retries=5, max_pause_s=30.0)
    pauses = [policy.pause_s(response(429, retry_after), attempt, NEVER_S) for _ in range(2000)]
    least, widest = float(retry_after or 0), FIRST_PAUSE_S * 2**attempt
    drawn = [(pause or 0) - least for pause in pauses]
    assert min(drawn) >= 0
    assert max(drawn) <= widest
    # The mean of 2,000 draws lies this near to the middle but once in 10^9 runs.
    assert sum(drawn) / len(drawn) == pytest.approx(widest / 2, abs=6 * widest / (12 * 2000) ** 0.5)


def test_no_pause_is_longer_than_allowed() -> None:
    policy = RetryPolicy(max_retries=5000, max_pause_s=2.0)
    assert all((policy.pause_s(response(503), attempt, NEVER_S) or 0) <= 2 for attempt in (0, 10, 4000))
    assert policy.pause_s(response(503, "2.5"), 0, NEVER_S) is None
    assert policy.pause_s(response(503, "1"), 0, time.monotonic() + 0.5) is None, "the call would end later"
    assert policy.pause_s(response(503), 5000, NEVER_S) is None


@pytest.mark.parametrize("status", [429, 503])
def test_overload_is_repeated_by_default(ask: Callable[..., Any], status: int) -> None:
    wire = Wire(response(status, "0"))
    assert ask("http://service", {}, httpx.MockTransport(wire)).model == "m"
    assert len(wire.requests) == 2


@pytest.mark.parametrize(
    "failure",
    [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow"), httpx.ReadError("reset"), httpx.WriteError("reset")],
    ids=lambda failure: type(failure).__name__,
)
def test_failed_connections_are_repeated(ask: Callable[..., Any], failure: httpx.HTTPError) -> None:
    wire = Wire(failure)
    assert ask("http://service", AGAIN, httpx.MockTransport(wire)).model == "m"
    assert len(wire.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 415, 422, 500, 502, 504])
def test_nothing_else_is_repeated(ask: Callable[..., Any], status: int) -> None:
    wire = Wire(response(status, "0"))
    with pytest.raises(errors.AttenuatorError):
        ask("http://service", AGAIN, httpx.MockTransport(wire))
    assert len(wire.requests) == 1


def test_silence_is_not_repeated(ask: Callable[..., Any]) -> None:
    wire = Wire(httpx.ReadTimeout("silence"))
    with pytest.raises(errors.NoAnswerInTime):
        ask("http://service", AGAIN, httpx.MockTransport(wire))
    assert len(wire.requests) == 1


def test_retries_over_a_network(ask: Callable[..., Any]) -> None:
    shed = b"HTTP/1.1 503 No\r\nRetry-After: 0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    server = Server(b"", shed, WHOLE)
    started = time.monotonic()
    assert ask(server.url, {"max_retries": 2}).model == "m"
    assert time.monotonic() - started >= 0.1
    server.end()
    assert server.requests == 3


def test_a_call_ends_at_its_time_limit_as_a_timeout(ask: Callable[..., Any]) -> None:
    with Server.silent() as url, pytest.raises(TimeoutError) as caught:
        ask(url, {"timeout_s": 0.2})
    assert isinstance(caught.value, errors.NoAnswerInTime)
    assert isinstance(errors.DeadlineExceeded("late"), TimeoutError)


def test_a_pause_past_the_time_limit_is_not_made(ask: Callable[..., Any]) -> None:
    wire = Wire(response(429, "20"))
    with pytest.raises(errors.Overloaded):
        ask("http://service", {"timeout_s": 10.0}, httpx.MockTransport(wire))
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"connect_timeout_s": -1},
        {"read_timeout_s": float("nan")},
        {"max_pause_s": 0},
        {"max_connections": 0},
        {"max_retries": -1},
    ],
    ids=str,
)
def test_limits_that_are_none_are_refused(ask: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"^{next(iter(options))} is ") as caught:
        ask("http://service", options)
    assert caught.value.param == next(iter(options))
