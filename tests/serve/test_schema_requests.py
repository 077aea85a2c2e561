"""Requests generated from the service's own description: no server error, and every answer is as described.

`make fuzz-http` sends 10,000.
"""

import os

import pytest
from schema_requests import accepted, ask, narrowed
from schemathesis.generation import GenerationMode
from service import Service

REQUESTS = int(os.environ.get("SCHEMA_REQUESTS", "240"))
EACH = -(-REQUESTS // 30)  # ten operations with a body, three kinds of requests
KINDS = {"narrowed": GenerationMode.POSITIVE, "described": GenerationMode.POSITIVE, "broken": GenerationMode.NEGATIVE}
CLASSIFIES = ("/v1/classify", "/predict", "/classify", "/v2/models/{model}/infer")


@pytest.mark.parametrize("kind", KINDS)
def test_generated_requests_are_answered_as_described(service: Service, kind: str) -> None:
    description = service.client.get("/openapi.json").json()
    models = service.client.get("/v1/models").json()["models"]
    if kind == "narrowed":
        description = narrowed(description, models, "yoso")
    counts = ask(service, description, EACH, KINDS[kind])
    print(sorted(counts.items()))
    assert counts.total() >= REQUESTS // 3
    if kind == "narrowed":
        for path in CLASSIFIES:
            assert accepted(counts, f"POST {path}") > 0.75, counts
    service.good()
