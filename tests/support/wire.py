"""What lies between a client and a service in tests without a service: answers by list, and keeps what was sent."""

import json
from typing import Any

import httpx

ANSWER = {
    "model": "m",
    "revision": "0" * 64,
    "device": "cpu",
    "predictions": [{"label": "good", "score": 0.75}],
    "knobs": {"num_hashes": 8},
    "requested": {"num_hashes": 8},
    "chosen_by": "caller",
    "seed": 3,
    "tokens": [5],
    "timing_ms": {"total": 1.5},
    "a field of a newer server": True,
}

ONCE: dict[str, Any] = {"max_retries": 0}


class Wire:
    """Stands for what lies between a client and a service; keeps what was sent."""

    def __init__(self, *responses: httpx.Response | Exception) -> None:
        self.responses = list(responses)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        response = self.responses.pop(0) if self.responses else httpx.Response(200, json=ANSWER)
        if isinstance(response, Exception):
            raise response
        # A response object is spent by one client; parametrised ones serve several.
        return httpx.Response(response.status_code, headers=response.headers, content=response.content)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]
