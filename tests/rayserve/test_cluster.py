"""Two replicas on Ray as a user starts them: `make test-ray`.

Answers are compared bit for bit with those of `attenuator serve`, which is what a request that was asked twice, or of
another replica, must give.
"""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from cluster import Cluster
from service import Service

pytestmark = [
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed"),
    pytest.mark.skipif(os.environ.get("ATTENUATOR_TEST_RAY") != "1", reason="runs with make test-ray"),
]

REQUESTS = 1000
CLIENTS = 16
TEXTS = [" ".join(tiny.WORDS[(i * 7 + j * (i + 1)) % len(tiny.WORDS)] for j in range(4 + i % 60)) for i in range(40)]


@pytest.fixture(scope="module")
def revisions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two revisions of one model, at places of their own."""
    root = tmp_path_factory.mktemp("bundles")
    return [tiny.write(root / f"yoso-{seed}", "yoso", name="yoso", seed=seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def services(revisions: list[Path]) -> Iterator[list[Service]]:
    """`attenuator serve` of each revision."""
    started = [Service([folder], "--threads", "1") for folder in revisions]
    yield started
    for service in started:
        service.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


def body(number: int) -> dict[str, Any]:
    return {"inputs": TEXTS[number % len(TEXTS)], "num_hashes": 8, "seed": number % 7}


def scores(answer: httpx.Response) -> str:
    """The part of an answer that depends on the request and the bundle alone."""
    fields = answer.json()
    return json.dumps([fields["revision"], fields["predictions"], fields["knobs"], fields["seed"]], sort_keys=True)


async def ask_all(url: str, bodies: list[dict[str, Any]], during: Any = None) -> list[httpx.Response]:
    """Answers to many requests, `CLIENTS` at a time, in their order.

    Args:
        url: of the service.
        bodies: of the requests.
        during: called once, in a thread, when a quarter of them is answered.
    """
    answers: list[httpx.Response | None] = [None] * len(bodies)
    numbers = iter(range(len(bodies)))
    answered = 0
    work: asyncio.Task[None] | None = None

    async def ask(client: httpx.AsyncClient) -> None:
        nonlocal answered, work
        for number in numbers:
            answers[number] = await client.post("/v1/classify", json=bodies[number])
            answered += 1
            if during is not None and work is None and answered >= len(bodies) // 4:
                work = asyncio.create_task(asyncio.to_thread(during))

    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await asyncio.gather(*(ask(client) for _ in range(CLIENTS)))
    if work is not None:
        await work
    return [answer for answer in answers if answer is not None]


def ask(url: str, bodies: list[dict[str, Any]], during: Any = None) -> list[httpx.Response]:
    answers = asyncio.run(ask_all(url, bodies, during))
    assert Counter(answer.status_code for answer in answers) == {200: len(bodies)}
    return answers


def shares(answers: list[httpx.Response]) -> Counter[str]:
    return Counter(answer.headers["X-Attenuator-Replica"] for answer in answers)


def test_one_thousand_requests_with_a_replica_killed_meanwhile(
    cluster: Cluster, revisions: list[Path], services: list[Service]
) -> None:
    """Every request is answered, bit for bit as the service answers, and the replica is replaced."""
    cluster.deploy(bundles=[str(revisions[0])], replicas=2)
    before = cluster.wait_for_replicas(2)
    bodies = [body(number) for number in range(REQUESTS)]
    expected = [scores(service_answer) for service_answer in ask(services[0].client.base_url, bodies)]
    first = next(iter(before))
    answers = ask(cluster.url, bodies, during=lambda: cluster.kill(first))
    assert [scores(answer) for answer in answers] == expected
    assert len(shares(answers)) >= 2
    after = cluster.wait_for_replicas(2)
    assert first not in after
