"""The clients: `Client` blocks, `AsyncClient` is awaited; otherwise they do the same."""

import inspect
import itertools
import random
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio
import httpx

from attenuator import __version__, errors
from attenuator.clients import answers, calls
from attenuator.clients.calls import Call
from attenuator.ops import KNOBS

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Any])
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)

FAILURES = (httpx.HTTPError, httpx.InvalidURL)
CLOSED = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)
RETRIED_STATUS = (429, 503)
FIRST_PAUSE_S = 0.25
GRACE_MS = 2_000.0


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


@dataclass(frozen=True, slots=True)
class Pause:
    """Asks to send a call again after a while."""

    seconds: float


class BaseClient(ABC, Generic[Http]):
    """What both clients share: address, key, time limits, retries.

    A call that meets a connection which the server has closed since the last call is sent once more, on another one.

    Args:
        base_url: where the service listens, such as `http://127.0.0.1:8000`.
        api_key: sent as a bearer token where the service asks for one.
        connect_timeout_ms: longest wait for a connection.
        read_timeout_ms: longest wait for an answer. A call's own `timeout_ms`, which the server keeps, extends it.
        max_retries: how often a call that was shed (429) or met a server that is not ready (503) is sent again, after
            the pause that `Retry-After` asks for, else after about 0.25 s, 0.5 s, 1 s ... None by default: the caller
            knows better whether to wait, to lower a knob, or to go elsewhere.
        max_pause_s: longest pause; where `Retry-After` asks for more, the error is raised at once.
        transport: an httpx transport, for Unix sockets, proxies or own certificates.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        connect_timeout_ms: float = 5_000.0,
        read_timeout_ms: float = 120_000.0,
        max_retries: int = 0,
        max_pause_s: float = 30.0,
        transport: Any = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._connect_timeout_ms = connect_timeout_ms
        self._read_timeout_ms = read_timeout_ms
        self._max_retries = max_retries
        self._max_pause_s = max_pause_s
        headers = {"User-Agent": f"attenuator/{__version__}"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._http: Http = self._open(headers, transport)

    @abstractmethod
    def _open(self, headers: dict[str, str], transport: Any) -> Http:
        """Makes the httpx client."""

    def _request(self, call: Call[T], trace: Callable[..., Any]) -> httpx.Request:
        patience_ms = max(self._read_timeout_ms, (call.patience_ms or 0.0) + GRACE_MS)
        return self._http.build_request(
            call.method,
            self.base_url + call.path,
            content=call.content,
            headers={"Content-Type": "application/json"} if call.content is not None else None,
            timeout=httpx.Timeout(patience_ms / 1000, connect=self._connect_timeout_ms / 1000),
            extensions={"trace": trace},
        )

    def _outcome(self, call: Call[T], answer: httpx.Response | Exception, attempt: int) -> T | Pause:
        """The result of an attempt, or the pause before the next one; raises the error that an attempt ended in."""
        error: errors.AttenuatorError
        if isinstance(answer, httpx.Response):
            if answer.is_success:
                return answers.result_of(call, answer)
            if answer.status_code in RETRIED_STATUS and attempt < self._max_retries:
                pause_s = answers.retry_after_s(answer)
                if pause_s is None:
                    pause_s = min(FIRST_PAUSE_S * 2**attempt, self._max_pause_s) * random.uniform(0.5, 1.0)
                if pause_s <= self._max_pause_s:
                    return Pause(pause_s)
            error = answers.error_of(answer)
        else:
            error = self._unreachable(answer)
        for kind, result in call.answered_by.items():
            if isinstance(error, kind):
                return result
        raise error from (answer if isinstance(answer, Exception) else None)

    def _unreachable(self, failure: Exception) -> errors.ServiceUnreachable:
        if isinstance(failure, httpx.ConnectTimeout):
            return errors.ServiceUnreachable(f"no connection to {self.base_url} within {self._connect_timeout_ms:g} ms")
        if isinstance(failure, httpx.TimeoutException):
            return errors.ServiceUnreachable(f"{self.base_url} did not answer within the client's time limit")
        return errors.ServiceUnreachable(f"{self.base_url} cannot be reached: {failure or type(failure).__name__}")


def _documented(verb: V, build: Callable[..., Any]) -> V:
    """Gives a client's method the name, docstring and signature of the call that it sends, with every knob by name."""
    signature = inspect.signature(build)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            knob = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
            parameters += [knob.replace(name=name) for name in KNOBS]
        else:
            parameters.append(parameter)
    result = typing.get_args(signature.return_annotation)[0]
    method: Any = verb
    method.__name__, method.__doc__ = build.__name__, build.__doc__
    method.__signature__ = signature.replace(parameters=parameters, return_annotation=result)
    return verb


def _blocking(build: Callable[P, Call[T]]) -> Callable[Concatenate["Client", P], T]:
    def verb(client: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._send(build(*args, **kwargs))

    return _documented(verb, build)


def _awaiting(build: Callable[P, Call[T]]) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    async def verb(client: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client._send(build(*args, **kwargs))

    return _documented(verb, build)


class Client(BaseClient[httpx.Client]):
    """Blocking client, safe to share between threads; a context manager, else to be closed with `close`.

    Its arguments are those of `BaseClient`.

    Example:
        with Client("http://127.0.0.1:8000") as client:
            answer = client.classify("A quiet, moving film.", top_k=2)
            print(answer.predictions[0].label, answer.knobs)
    """

    def _open(self, headers: dict[str, str], transport: Any) -> httpx.Client:
        return httpx.Client(headers=headers, transport=transport)

    def _send(self, call: Call[T]) -> T:
        for attempt in itertools.count():
            answer, stale = self._attempt(call)
            if stale:
                answer, _ = self._attempt(call)
            outcome = self._outcome(call, answer, attempt)
            if not isinstance(outcome, Pause):
                return outcome
            time.sleep(outcome.seconds)
        raise AssertionError

    def _attempt(self, call: Call[T]) -> tuple[httpx.Response | Exception, bool]:
        connection = Connection()
        try:
            return self._http.send(self._request(call, connection.note)), False
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
    models = _blocking(calls.models)
    ready = _blocking(calls.ready)


class AsyncClient(BaseClient[httpx.AsyncClient]):
    """The same to be awaited: `async with`, else to be closed with `await aclose()`; for one event loop at a time.

    Its arguments are those of `BaseClient`.

    Example:
        async with AsyncClient("http://127.0.0.1:8000") as client:
            answers = await asyncio.gather(*(client.classify(text) for text in texts))
    """

    def _open(self, headers: dict[str, str], transport: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=headers, transport=transport)

    async def _send(self, call: Call[T]) -> T:
        for attempt in itertools.count():
            answer, stale = await self._attempt(call)
            if stale:
                answer, _ = await self._attempt(call)
            outcome = self._outcome(call, answer, attempt)
            if not isinstance(outcome, Pause):
                return outcome
            await anyio.sleep(outcome.seconds)
        raise AssertionError

    async def _attempt(self, call: Call[T]) -> tuple[httpx.Response | Exception, bool]:
        connection = Connection()
        try:
            return await self._http.send(self._request(call, connection.note_async)), False
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
    models = _awaiting(calls.models)
    ready = _awaiting(calls.ready)
