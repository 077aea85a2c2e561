"""What an orchestrator asks: whether the service has started, is alive, and can do its work."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from attenuator.api import Health, ServerLive, ServerReady
from attenuator.serve.api.answers import json_response
from attenuator.serve.engine import Engine

Probe = tuple[Callable[[], Awaitable[Response]], str, dict[int | str, Any]]


class Probes:
    """The health routes of one service."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> dict[str, Probe]:
        """Endpoint, summary and answers by path."""
        return {
            "/health/startup": (
                self.startup,
                "200 once every model is loaded, else 503",
                both(Health, "the models are loaded", "they are being loaded"),
            ),
            "/health/live": (
                self.live,
                "200 while the process answers",
                {200: {"model": Health, "description": "the process answers"}},
            ),
            "/health/ready": (
                self.ready,
                "200 while requests are answered, else 503",
                both(Health, "requests are answered", "they are not; reason says why"),
            ),
            "/health": (
                self.ready,
                "As /health/ready, where text-embeddings-inference and vLLM have it",
                both(Health, "requests are answered", "they are not; reason says why"),
            ),
            "/v2/health/live": (
                self.live_v2,
                "As /health/live, in the form of the Open Inference Protocol",
                {200: {"model": ServerLive, "description": "the process answers"}},
            ),
            "/v2/health/ready": (
                self.ready_v2,
                "As /health/ready, in the form of the Open Inference Protocol",
                both(ServerReady, "requests are answered", "they are not; reason says why"),
            ),
        }

    async def startup(self) -> Response:
        """Whether the service has started; it stays so until the process ends."""
        state = self._engine.state
        return json_response(
            Health.model_validate({"status": state}), 503 if state == "starting" else 200, exclude_none=True
        )

    async def live(self) -> Response:
        """Liveness."""
        return json_response(Health(status="live"), 200, exclude_none=True)

    async def ready(self) -> Response:
        """Readiness."""
        state, reason = self._engine.state, self._engine.fault()
        status = "failing" if reason is not None and state == "ready" else state
        return json_response(
            Health.model_validate({"status": status, "reason": reason}), 503 if reason else 200, exclude_none=True
        )

    async def live_v2(self) -> Response:
        """Liveness, as another protocol has it."""
        return json_response(ServerLive(live=True), 200, exclude_none=True)

    async def ready_v2(self) -> Response:
        """Readiness, as another protocol has it."""
        reason = self._engine.fault()
        return json_response(
            ServerReady(ready=reason is None, reason=reason), 503 if reason else 200, exclude_none=True
        )


def both(model: type[BaseModel], yes: str, no: str) -> dict[int | str, Any]:
    """The answers of a probe, as the description has them."""
    return {200: {"model": model, "description": yes}, 503: {"model": model, "description": no}}
