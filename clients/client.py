"""The clients: `Client` blocks, `AsyncClient` is awaited; otherwise they do the same."""

import inspect
import itertools
import math
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio
import httpx

from attenuator import __version__, errors
from attenuator.clients import answers, calls, many, senders
from attenuator.clients.calls import Call
from attenuator.clients.connection import Connection
from attenuator.clients.many import ManyCalls
from attenuator.clients.retries import RetryPolicy
from attenuator.clients.senders import AwaitedOutcomes, Outcomes
from attenuator.ops import KNOBS

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Any])
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)

FAILURES = (httpx.HTTPError, httpx.InvalidURL)
GRACE_MS = 2_000.0
KEEP_ALIVE_S = 60.0  # below the 75 s of the service, so that a call seldom meets a connection that was just closed


class BaseClient(ABC, Generic[Http]):
    """What both clients share: address, key, connections, time limits, retries.

    A call is sent again after 429, 503 and failed connections, and after no other error: every call here may be
    repeated without harm. One that meets a kept connection which the service has just closed is sent at once on
    another one, which counts as no retry.

    Args:
        base_url: where the service listens, such as `http://127.0.0.1:8000`.
        api_key: sent as a bearer token where the service asks for one.
        timeout_s: longest time for a call with all of its attempts and the pauses between them; None for no limit.
            Past it `NoAnswerInTime`, a `TimeoutError`, is raised, or at once where a pause would lead past it the
            error of the last attempt.
        connect_timeout_s: longest wait for a connection.
        read_timeout_s: longest silence of the service within an attempt. A call's own `timeout_ms`, which the service
            keeps, extends it.
        max_retries: how often a call is sent again. The pause is what `Retry-After` asks for and, on top, a random
            time below 0.25 s, 0.5 s, 1 s ... 0: the caller decides whether to wait, to lower a knob or to go
            elsewhere.
        max_pause_s: longest pause; where `Retry-After` asks for more, the error is raised at once.
        max_connections: calls under way at a time; further ones wait for a free connection.
        transport: an httpx transport, for Unix sockets, proxies or own certificates; it has its own `limits`.

    Raises:
        InvalidRequest: a limit is no number above 0, or `max_retries` is below 0.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 120.0,
        max_retries: int = 2,
        max_pause_s: float = 30.0,
        max_connections: int = 100,
        transport: Any = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = math.inf if timeout_s is None else _above_zero("timeout_s", timeout_s)
        self._connect_timeout_s = _above_zero("connect_timeout_s", connect_timeout_s)
        self._read_timeout_s = _above_zero("read_timeout_s", read_timeout_s)
        if max_retries < 0:
            raise errors.InvalidRequest(f"max_retries is {max_retries}, must be 0 or more", param="max_retries")
        self._retries = RetryPolicy(max_retries, _above_zero("max_pause_s", max_pause_s))
        connections = int(_above_zero("max_connections", max_connections))
        headers = {"User-Agent": f"attenuator/{__version__}"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        limits = httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEP_ALIVE_S
        )
        self._http: Http = self._open(headers, limits, transport)

    @abstractmethod
    def _open(self, headers: dict[str, str], limits: httpx.Limits, transport: Any) -> Http:
        """Makes the httpx client."""

    def _deadline_s(self) -> float:
        """When a call that begins now must have ended, by `time.monotonic`."""
        return time.monotonic() + self._timeout_s

    def _request(self, call: Call[T], trace: Callable[..., Any], deadline_s: float) -> httpx.Request:
        remaining_s = max(1e-3, deadline_s - time.monotonic())
        patience_s = min(remaining_s, max(self._read_timeout_s, ((call.patience_ms or 0.0) + GRACE_MS) / 1000))
        connect_s = min(remaining_s, self._connect_timeout_s)
        pool_s = None if remaining_s == math.inf else remaining_s
        return self._http.build_request(
            call.method,
            self.base_url + call.path,
            content=call.content,
            headers={"Content-Type": "application/json"} if call.content is not None else None,
            timeout=httpx.Timeout(patience_s, connect=connect_s, pool=pool_s),
            extensions={"trace": trace},
        )

    def _pause_s(
        self, call: Call[T], answer: httpx.Response | Exception, attempt: int, deadline_s: float
    ) -> float | None:
        """Seconds before the call is sent again; None where this answer is its last."""
        return self._retries.pause_s(answer, attempt, deadline_s) if call.retried else None

    def _outcome(self, call: Call[T], answer: httpx.Response | Exception) -> T:
        """The result of a call's last attempt; raises the error that it ended in."""
        if isinstance(answer, httpx.Response) and answer.is_success:
            return answers.result_of(call, answer)
        error = answers.error_of(answer) if isinstance(answer, httpx.Response) else self._unreachable(answer)
        for kind, result in call.answered_by.items():
            if isinstance(error, kind):
                return result
        raise error from (answer if isinstance(answer, Exception) else None)

    def _unreachable(self, failure: Exception) -> errors.ServiceUnreachable:
        if isinstance(failure, httpx.ConnectTimeout):
            return errors.NoAnswerInTime(f"no connection to {self.base_url} within {self._connect_timeout_s:g} s")
        if isinstance(failure, httpx.PoolTimeout):
            return errors.NoAnswerInTime(f"no connection to {self.base_url} was free within the client's time limit")
        if isinstance(failure, httpx.TimeoutException):
            return errors.NoAnswerInTime(f"{self.base_url} did not answer within the client's time limit")
        return errors.ServiceUnreachable(f"{self.base_url} cannot be reached: {failure or type(failure).__name__}")


def _above_zero(name: str, value: float) -> float:
    if not value > 0:
        raise errors.InvalidRequest(f"{name} is {value}, must be a number above 0", param=name)
    return value


def _documented(verb: V, build: Callable[..., Any], result: Any = None) -> V:
    """Gives a client's method the name, docstring and signature of what it sends, with every option and knob by name.

    Args:
        verb: the method.
        build: makes the call.
        result: what the method returns; by default what the call's answer is read as.
    """
    signature = inspect.signature(build)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for parameter in signature.parameters.values():
        is_rest = parameter.kind is inspect.Parameter.VAR_KEYWORD
        parameters += _named(parameter, signature.parameters) if is_rest else [parameter]
    result = result or typing.get_args(signature.return_annotation)[0]
    method: Any = verb
    method.__name__, method.__doc__ = build.__name__, build.__doc__
    method.__signature__ = signature.replace(parameters=parameters, return_annotation=result)
    return verb


def _named(parameter: inspect.Parameter, beside: Mapping[str, inspect.Parameter]) -> list[inspect.Parameter]:
    """What stands for `**knobs`, or for `**options`, which are those of `classify` with the knobs.

    A knob whose name is one of the arguments beside them, as `window` is in `classify`, does not stand there twice.
    """
    options: list[inspect.Parameter] = []
    if parameter.name == "options":
        beside = inspect.signature(calls.classify).parameters
        options = [option for option in beside.values() if option.kind is inspect.Parameter.KEYWORD_ONLY]
    knob = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    return options + [knob.replace(name=name) for name in KNOBS if name not in beside]


def _blocking(build: Callable[P, Call[T]]) -> Callable[Concatenate["Client", P], T]:
    def verb(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._send(build(*args, **kwargs))

    return _documented(verb, build)


def _awaiting(build: Callable[P, Call[T]]) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    async def verb(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client._send(build(*args, **kwargs))

    return _documented(verb, build)


def _blocking_many(build: Callable[P, ManyCalls]) -> Callable[Concatenate["Client", P], Outcomes]:
    def verb(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Outcomes:
        return senders.blocking(build(*args, **kwargs), client._send)

    return _documented(verb, build, Outcomes)


def _awaiting_many(build: Callable[P, ManyCalls]) -> Callable[Concatenate["AsyncClient", P], AwaitedOutcomes]:
    def verb(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AwaitedOutcomes:
        return senders.awaiting(build(*args, **kwargs), client._send)

    return _documented(verb, build, AwaitedOutcomes)


class Client(BaseClient[httpx.Client]):
    """Blocking client, safe to share between threads; a context manager, else to be closed with `close`.

    Its arguments are those of `BaseClient`.

    Example:
        with Client("http://127.0.0.1:8000") as client:
            answer = client.classify("A quiet, moving film.", top_k=2)
            print(answer.predictions[0].label, answer.knobs)
    """

    def _open(self, headers: dict[str, str], limits: httpx.Limits, transport: Any) -> httpx.Client:
        return httpx.Client(headers=headers, limits=limits, transport=transport)

    def _send(self, call: Call[T], sleep: Callable[[float], None] = time.sleep) -> T:
        deadline_s = self._deadline_s()
        for attempt in itertools.count():
            answer, stale = self._attempt(call, deadline_s)
            if stale:
                answer, _ = self._attempt(call, deadline_s)
            pause_s = self._pause_s(call, answer, attempt, deadline_s)
            if pause_s is None:
                return self._outcome(call, answer)
            sleep(pause_s)
        raise AssertionError

    def _attempt(self, call: Call[T], deadline_s: float) -> tuple[httpx.Response | Exception, bool]:
        connection = Connection()
        try:
            return self._http.send(self._request(call, connection.note, deadline_s)), False
        except FAILURES as failure:
            return failure, connection.was_stale(failure)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Returns the client itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the connections."""
        self.close()

    classify = _blocking(calls.classify)
    classify_many = _blocking_many(many.classify_many)
    rerank = _blocking(calls.rerank)
    models = _blocking(calls.models)
    ready = _blocking(calls.ready)


class AsyncClient(BaseClient[httpx.AsyncClient]):
    """The same to be awaited: `async with`, else to be closed with `await aclose()`; for one event loop at a time.

    Its arguments are those of `BaseClient`.

    Example:
        async with AsyncClient("http://127.0.0.1:8000") as client:
            answers = await asyncio.gather(*(client.classify(text) for text in texts))
    """

    def _open(self, headers: dict[str, str], limits: httpx.Limits, transport: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=headers, limits=limits, transport=transport)

    async def _send(self, call: Call[T]) -> T:
        deadline_s = self._deadline_s()
        for attempt in itertools.count():
            answer, stale = await self._attempt(call, deadline_s)
            if stale:
                answer, _ = await self._attempt(call, deadline_s)
            pause_s = self._pause_s(call, answer, attempt, deadline_s)
            if pause_s is None:
                return self._outcome(call, answer)
            await anyio.sleep(pause_s)
        raise AssertionError

    async def _attempt(self, call: Call[T], deadline_s: float) -> tuple[httpx.Response | Exception, bool]:
        connection = Connection()
        try:
            return await self._http.send(self._request(call, connection.note_async, deadline_s)), False
        except FAILURES as failure:
            return failure, connection.was_stale(failure)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        """Returns the client itself."""
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Closes the connections."""
        await self.aclose()

    classify = _awaiting(calls.classify)
    classify_many = _awaiting_many(many.classify_many)
    rerank = _awaiting(calls.rerank)
    models = _awaiting(calls.models)
    ready = _awaiting(calls.ready)
