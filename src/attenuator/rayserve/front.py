"""The front: takes requests from Ray Serve's proxy, predicts their cost, and finds each a replica that answers.

A request that a replica has accepted and does not answer, because its process or machine is gone, goes to another one.
That is safe, because answers change nothing and depend on nothing but the request: its texts, knobs and seed.
"""

import asyncio
import itertools
import logging
from dataclasses import replace
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from ray import serve
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from attenuator.errors import AttenuatorError, DeadlineExceeded, NotReady, Unauthorized
from attenuator.json_body import parse_json
from attenuator.rayserve.calls import Answer, Call, Headers, deadline_of, settings_of, shared_scope
from attenuator.rayserve.outstanding import of_this_process
from attenuator.rayserve.prices import Prices
from attenuator.rayserve.scraping import merged
from attenuator.serve.access.keys import KeyRing, key_in
from attenuator.serve.api.documentation import METRICS
from attenuator.serve.api.errors import STATUS, answer_to
from attenuator.serve.api.peers.routes import error_form
from attenuator.serve.edge.arrivals import Bodies, BodyTooLarge

log = logging.getLogger(__name__)

PRICES_EVERY_S = 10.0
TRIES = 5
TRY_AGAIN_S = 0.05
INLINE_BYTES = 16_384  # of a body that the event loop parses itself
DEADLINE_MARGIN_S = 0.02  # for the replica, which keeps timeout_ms itself, to say so
WITHOUT_BODY_S = 10.0  # nobody waits longer for a page or a health route
WITHOUT_KEY = {STATUS[Unauthorized], 404, 405}  # a replica's answers to a request without a key


class Front:
    """Passes requests on."""

    def __init__(self, replicas: DeploymentHandle, settings: dict[str, Any], answer_timeout_s: float) -> None:
        """Begins to ask for prices; until they are there, all requests count the same.

        Args:
            replicas: their deployment.
            settings: of the service; those about bodies and keys apply here.
            answer_timeout_s: longest wait for an answer, restarts of replicas included.

        Raises:
            AttenuatorError: the API keys cannot be read.
        """
        self._replicas = replicas
        self._answer_timeout_s = answer_timeout_s
        self._settings = settings_of(settings)
        self._bodies = Bodies(self._settings)
        self._keys = KeyRing(self._settings.api_key, self._settings.api_keys)
        self._watching = asyncio.create_task(self._keys.watch())
        self._name = serve.get_replica_context().replica_id.unique_id
        self._numbers = itertools.count(1)
        self._outstanding = of_this_process()
        self._prices = Prices()
        self._refreshing = asyncio.create_task(self._refresh())

    async def __call__(self, request: Request) -> Response:
        """One request."""
        try:
            headers, body = list(request.scope["headers"]), b""
            if request.method == "POST":
                if (refusal := await self._without_key(request, headers)) is not None:
                    return refusal.response()
                headers, body = await self._read(request)
            if request.scope["path"] == METRICS and request.method == "GET":
                return await self._metrics(request, headers)
            return (await self._answer(request, headers, body)).response()
        except (ClientDisconnect, AttenuatorError) as error:
            return answer_to(error, error_form(request.scope["path"]))
        except Exception as error:
            log.exception("the front failed on a request")
            return answer_to(error, error_form(request.scope["path"]))

    async def _without_key(self, request: Request, headers: Headers) -> Answer | None:
        """The refusal of a request without a known key, whose body nobody reads; None where it may go on.

        A replica gets its headers and refuses it in the words of its route. It may have read a key from the changed
        file before this process did: the request then goes on.
        """
        if not self._keys.required:
            return None
        try:
            self._keys.check(key_in(request.headers.get("authorization")))
        except Unauthorized:
            answer = await self._answer(request, headers, b"")
            return answer if answer.status in WITHOUT_KEY else None
        return None

    async def _read(self, request: Request) -> tuple[Headers, bytes]:
        """Headers and body; of a body that is too large the header alone, by which the replica refuses it."""
        headers: Headers = list(request.scope["headers"])
        try:
            return headers, await self._bodies.read(request, types=None)
        except BodyTooLarge:
            size = str(self._settings.max_body_bytes + 1).encode()
            others = [(name, value) for name, value in headers if name != b"content-length"]
            return [*others, (b"content-length", size)], b""

    async def _answer(self, request: Request, headers: Headers, body: bytes) -> Answer:
        fields = await self._fields(body)
        seconds = self._prices.seconds(fields, len(body)) if body else 0.0
        deadline_ms = deadline_of(fields)
        limit_s = self._answer_timeout_s if body else WITHOUT_BODY_S
        if deadline_ms is not None:
            limit_s = deadline_ms / 1000 + DEADLINE_MARGIN_S
        call = Call(shared_scope(request), headers, body, seconds, self._name, next(self._numbers))
        self._outstanding.begin(call.number, seconds)
        try:
            async with asyncio.timeout(limit_s):
                return await self._ask(call)
        except TimeoutError:
            if deadline_ms is not None:
                raise DeadlineExceeded(
                    f"there was no answer within {deadline_ms} ms (timeout_ms): the work was cancelled"
                ) from None
            raise NotReady(f"no replica answered within {limit_s:g} s") from None
        finally:
            self._outstanding.end(call.number)

    async def _metrics(self, request: Request, headers: Headers) -> Response:
        """What all replicas count and hold, or the refusal of one that did not tell."""
        plain = [(name, value) for name, value in headers if name != b"accept"]
        call = Call(shared_scope(request), plain, b"", 0.0, self._name)
        results = await self._replicas.broadcast("answer", call).results_async(
            timeout_s=WITHOUT_BODY_S, return_exceptions=True
        )
        answers = [answer for answer in results if isinstance(answer, Answer)]
        refused = next((answer for answer in answers if answer.status != 200), None)
        if refused is not None:
            return refused.response()
        page = merged({answer.replica: answer.body.decode() for answer in answers})
        return Response(page, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _fields(self, body: bytes) -> dict[str, Any]:
        """The fields of a body; none where it is not what the service takes, which a replica will say."""
        if not body:
            return {}
        try:
            return parse_json(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(parse_json, body)
        except AttenuatorError:
            return {}

    async def _ask(self, call: Call) -> Answer:
        """Asks replicas until one answers."""
        failure: Exception | None = None
        answer: Answer | None = None
        for _ in range(TRIES):
            try:
                answer = await self._replicas.answer.remote(call)
            except (RayTaskError, TaskCancelledError):
                raise
            except (RayError, RayServeException) as error:
                log.warning("a replica did not answer, asking another one: %s", type(error).__name__)
                failure = error
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            if not answer.elsewhere:
                return answer
            call = replace(call, avoid=call.avoid | {answer.replica})
        if answer is not None:
            return answer
        raise NotReady("no replica answered: the replicas that were asked are gone") from failure

    async def _refresh(self) -> None:
        """Keeps the prices as replicas learn them, and as bundles come and go."""
        while True:
            try:
                self._prices = await self._replicas.prices.remote()
            except (RayError, RayServeException) as error:
                log.warning("prices stay as they are, no replica gave new ones: %s", type(error).__name__)
            await asyncio.sleep(PRICES_EVERY_S)
