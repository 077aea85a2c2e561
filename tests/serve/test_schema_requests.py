"""Requests generated from the service's own description: no server error, and every answer is as described.

`make fuzz-http` sends 10,000.
"""

import os

from schema_requests import ask, narrowed
from schemathesis.generation import GenerationMode
from service import Service

REQUESTS = int(os.environ.get("SCHEMA_REQUESTS", "240"))
EACH = REQUESTS // 15  # five operations with a body, three kinds of requests


def test_generated_requests_are_answered_as_described(service: Service) -> None:
    description = service.client.get("/openapi.json").json()
    models = service.client.get("/v1/models").json()["models"]
    narrow = ask(service, narrowed(description, models, "yoso"), EACH, GenerationMode.POSITIVE)
    counts = narrow + ask(service, description, EACH, GenerationMode.POSITIVE)
    counts += ask(service, description, EACH, GenerationMode.NEGATIVE)
    print(sorted(counts.items()))
    assert counts.total() >= REQUESTS
    served = {"/v1/classify", "/predict", "/classify", "/v2/models/{model}/infer"}
    for path in served:
        assert narrow[f"POST {path}", 200] > EACH // 4, narrow
    service.good()
