"""Requests mutated at random: never a server error, always the same form of answer."""

import json
import random
from typing import Any

import pytest
from service import GOOD, Service

NAMES = [
    "model",
    "inputs",
    "num_hashes",
    "alpha",
    "seed",
    "timeout_ms",
    "top_k",
    "truncate",
    "return_logits",
    "",
    "x" * 300,
]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.5,
    2**53,
    2**64,
    1e308,
    "",
    "good film",
    "\ud800",
    [],
    {},
    [1],
    ["a"],
]
VALUES += [
    [["a"]],
    {"text": "a"},
    [{"text": "b"}],
    [{"token_ids": [1, 2]}],
    [{"token_ids": [None]}],
    [{"token_ids": [1, 2], "token_type_ids": [0, 1]}],
    [{"token_ids": [1, 2], "token_type_ids": [0, 2**70]}],
    [{"token_ids": [1], "token_type_ids": {}}],
    [{"text": "a", "x": 1}],
]
FIELDS = {"error", "error_type", "param", "allowed"}


def mutated(draw: random.Random) -> bytes:
    body: dict[str, Any] = dict(GOOD)
    for _ in range(draw.randint(0, 3)):
        body[draw.choice(NAMES)] = draw.choice(VALUES)
    data = bytearray(json.dumps(body).encode())
    if draw.random() < 0.4:
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data) or 1)
            if draw.random() < 0.5:
                data[at : at + 1] = bytes([draw.randrange(256)])
            else:
                data[at : at + draw.randint(1, 9)] = draw.randbytes(draw.randint(0, 3))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_no_mutation_is_a_server_error(service: Service, seed: int) -> None:
    draw = random.Random(seed)
    statuses = set()
    for _ in range(400):
        data = mutated(draw)
        answer = service.client.post("/v1/classify", content=data)
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 400, 404, 422, 504), (data, answer.text)
        assert answer.status_code == 200 or set(answer.json()) == FIELDS
    assert {200, 400, 422} <= statuses
    service.good()
