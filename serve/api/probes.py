"""Health routes for orchestrators: started, alive, ready."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from attenuator.api import Health, ServerLive, ServerReady
from attenuator.serve.api.answers import json_response
from attenuator.serve.engine import Engine

Probe = tuple[str, Callable[[], Awaitable[Response]], str, dict[int | str, Any]]


class Probes:
    """The health routes of one service."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> Iterator[Probe]:
        """Path, endpoint, summary and answers of each."""
        alive, answered, not_so = "the process answers", "requests are answered", "they are not; reason says why"
        started = described(Health, "the models are loaded", "they are being loaded")
        live, ready = described(Health, alive), described(Health, answered, not_so)
        other = "in the form of the Open Inference Protocol"
        yield "/health/startup", self.startup, "200 once every model is loaded, else 503", started
        yield "/health/live", self.live, "200 while the process answers", live
        yield "/health/ready", self.ready, "200 while requests are answered, else 503", ready
        yield "/health", self.ready, "As /health/ready, where text-embeddings-inference and vLLM have it", ready
        yield "/v2/health/live", self.live_v2, f"As /health/live, {other}", described(ServerLive, alive)
        ready_v2 = described(ServerReady, answered, not_so)
        yield "/v2/health/ready", self.ready_v2, f"As /health/ready, {other}", ready_v2

    async def startup(self) -> Response:
        """Whether the service has started; it stays so until the process ends."""
        state = self._engine.state
        return probed(Health.model_validate({"status": state}), failing=state == "starting")

    async def live(self) -> Response:
        """Liveness."""
        return probed(Health(status="live"))

    async def ready(self) -> Response:
        """Readiness."""
        state, reason = self._engine.state, self._engine.fault()
        status = "failing" if reason is not None and state == "ready" else state
        return probed(Health.model_validate({"status": status, "reason": reason}), failing=bool(reason))

    async def live_v2(self) -> Response:
        """Liveness, as another protocol has it."""
        return probed(ServerLive(live=True))

    async def ready_v2(self) -> Response:
        """Readiness, as another protocol has it."""
        reason = self._engine.fault()
        return probed(ServerReady(ready=reason is None, reason=reason), failing=bool(reason))


def probed(state: BaseModel, *, failing: bool = False) -> Response:
    """The answer of a probe: 503 where it fails."""
    return json_response(state, 503 if failing else 200, exclude_none=True)


def described(model: type[BaseModel], yes: str, no: str | None = None) -> dict[int | str, Any]:
    """The answers of a probe, as the description has them; one that never says no has no second."""
    answers = {200: yes} if no is None else {200: yes, 503: no}
    return {status: {"model": model, "description": meaning} for status, meaning in answers.items()}
