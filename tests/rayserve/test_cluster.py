"""Two replicas on Ray as a user starts them: `make test-ray`.

Answers are compared bit for bit with those of `attenuator serve`, which is what a request that was asked twice, or of
another replica, must give.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from cluster import Cluster
from service import Service

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed"),
    pytest.mark.skipif(os.environ.get("ATTENUATOR_TEST_RAY") != "1", reason="runs with make test-ray"),
]

REQUESTS = 1000
CLIENTS = 16
TEXTS = [" ".join(tiny.WORDS[(i * 7 + j * (i + 1)) % len(tiny.WORDS)] for j in range(4 + i % 60)) for i in range(40)]

LONG = {"inputs": [" ".join(TEXTS) * 8] * 5, "num_hashes": 0}  # heavy, and seconds long, on a fast machine as well
BACK_S = 0.3  # more than an answer takes from a replica to its client
HEAVY = re.compile(r'^attenuator_running_sequences\{lane="heavy",replica="(\w+)"\} [1-9]', re.M)


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
    with contextlib.closing(Cluster()) as started:
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
    """Every request is answered, bit for bit as the service answers, also the one that was being computed."""
    cluster.deploy(revisions[:1], replicas=2)
    before = cluster.wait_for_replicas(2)
    bodies = [body(number) for number in range(REQUESTS)]
    expected = [scores(answer) for answer in ask(str(services[0].client.base_url), bodies)]
    killed: list[str] = []
    long: list[httpx.Response] = []

    def kill() -> None:
        with ThreadPoolExecutor(1) as thread, cluster.client() as client:
            asked = thread.submit(client.post, "/v1/classify", json=LONG)
            while not (computing := HEAVY.findall(client.get("/metrics").text)):
                if asked.done():  # it was computed between two looks at the metrics
                    asked = thread.submit(client.post, "/v1/classify", json=LONG)
            killed.extend(computing)
            os.kill(before[computing[0]], signal.SIGKILL)
            long.append(asked.result())

    answers = ask(cluster.url, bodies, during=kill)
    assert [scores(answer) for answer in answers] == expected
    assert scores(long[0]) == scores(services[0].client.post("/v1/classify", json=LONG))
    assert long[0].headers["X-Attenuator-Replica"] != killed[0]
    assert shares(answers)[killed[0]] > 0, "it answered until it was killed"
    assert killed[0] not in cluster.wait_for_replicas(2)


def test_the_contract_is_that_of_the_service(cluster: Cluster, revisions: list[Path], services: list[Service]) -> None:
    """Status, headers and body of answers and refusals, on the service's routes and on those of other servers."""
    cluster.deploy(revisions[:1], replicas=2)
    big = json.dumps({"inputs": "a " * 3_000_000}).encode()
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/classify", {"json": body(1)}),
        ("POST", "/v1/classify", {"json": body(1) | {"seed": -1}}),
        ("POST", "/v1/classify", {"json": body(1) | {"num_hashs": 1}}),
        ("POST", "/v1/classify", {"json": body(1) | {"model": "other"}}),
        ("POST", "/v1/classify", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        ("POST", "/v1/classify", {"content": b"a=1", "headers": {"Content-Type": "text/plain"}}),
        ("POST", "/v1/classify", {"content": big, "headers": {"Content-Type": "application/json"}}),
        ("POST", "/v1/classify", {"content": iter([big]), "headers": {"Content-Type": "application/json"}}),
        ("POST", "/v1/classify?a=1", {"json": body(1)}),
        ("POST", "/v1/nothing", {"json": body(1)}),
        ("POST", "/v1/nothing", {"content": big}),
        ("DELETE", "/v1/classify", {}),
        ("POST", "/predict", {"json": {"inputs": "good film"}}),
        ("POST", "/predict", {"json": {"inputs": 7}}),
        ("GET", "/v1/models", {}),
        ("HEAD", "/health/ready", {}),
        ("GET", "/openapi.json", {}),
        ("GET", "/", {}),
    ]
    with cluster.client() as client:
        for number, (method, path, extra) in enumerate(requests):
            again = dict(extra)
            if "content" in extra and not isinstance(extra["content"], bytes):
                extra["content"], again["content"] = iter([big]), iter([big])
            ids = {"X-Request-Id": f"contract-{number}"}
            headers = extra.pop("headers", {}) | ids
            again["headers"] = headers
            expected = services[0].client.request(method, path, headers=headers, **extra)
            answer = client.request(method, path, **again)
            assert comparable(answer) == comparable(expected), (method, path)


def test_a_request_without_a_key_is_refused_before_its_body_is_read(
    cluster: Cluster, revisions: list[Path], services: list[Service]
) -> None:
    """Its body never comes: whoever read it would wait for the rest."""
    cluster.deploy(revisions[:1], replicas=1, settings={"api_key": "a-key"})
    cluster.wait_for_replicas(1)

    def status_without_body(path: str) -> str:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
        with socket.create_connection(("127.0.0.1", cluster.port), timeout=30) as connection:
            connection.sendall(head.encode() + b"Authorization: Bearer another\r\n\r\n{")
            return connection.makefile("rb").readline().decode().split()[1]

    assert [status_without_body(path) for path in ("/v1/classify", "/predict", "/v1/nothing")] == ["401", "401", "404"]
    with cluster.client() as client:
        refused = client.post("/v1/classify", json=body(1))
        answered = client.post("/v1/classify", json=body(1), headers={"Authorization": "Bearer a-key"})
    assert refused.json()["error_type"] == "unauthorized"
    assert scores(answered) == scores(services[0].client.post("/v1/classify", json=body(1)))


def comparable(answer: httpx.Response) -> tuple[int, dict[str, str], Any]:
    """What of an answer does not depend on the moment."""
    momentary = {"date", "server-timing", "content-length", "x-attenuator-replica", "connection", "transfer-encoding"}
    momentary.add("server")  # Ray's own proxy names its web server
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in momentary and not name.endswith("-time") and answer.headers.get_list(name)[1:] == []
    }
    content: Any = answer.content
    if answer.headers.get("content-type", "").startswith("application/json") and content:
        content = answer.json()
        if isinstance(content, dict):
            content.pop("timing_ms", None)
    return answer.status_code, headers, content


def test_requests_spread_by_predicted_cost(cluster: Cluster, revisions: list[Path]) -> None:
    """While one replica has a long request, short ones go to the other; a count of requests would halve them."""
    cluster.deploy(revisions[:1], replicas=2)
    cluster.wait_for_replicas(2)

    async def scenario() -> tuple[httpx.Response, list[httpx.Response]]:
        async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
            heavy = asyncio.create_task(client.post("/v1/classify", json=LONG))
            await asyncio.sleep(0.2)  # until the front has sent it to a replica
            light: list[tuple[float, httpx.Response]] = []
            while not heavy.done():
                answer = await client.post("/v1/classify", json=body(len(light)))
                light.append((time.monotonic(), answer))
            # On its way back to the client the long answer keeps no replica busy: the last moments say nothing.
            end_s = time.monotonic() - BACK_S
            return await heavy, [answer for answered_s, answer in light if answered_s < end_s]

    heavy, light = asyncio.run(scenario())
    assert heavy.status_code == 200
    assert len(light) > 10
    assert heavy.headers["X-Attenuator-Replica"] not in shares(light)
    even = shares(ask(cluster.url, [body(number) for number in range(200)]))
    assert len(even) == 2
    assert min(even.values()) > 40, "a replica that is slower gets fewer, not none"


def test_a_bundle_is_rolled_over_under_load(cluster: Cluster, revisions: list[Path], services: list[Service]) -> None:
    """Every answer is, bit for bit, that of one of the two revisions; in the end all are of the new one."""
    cluster.deploy(revisions[:1], replicas=2)
    before = cluster.wait_for_replicas(2)
    bodies = [body(number) for number in range(REQUESTS)]
    old, new = ([scores(answer) for answer in ask(service.client.base_url, bodies)] for service in services)
    answers = ask(cluster.url, bodies, during=lambda: cluster.deploy(revisions[1:], replicas=2))
    kinds = Counter(
        "old" if scores(answer) == old[number] else "new" if scores(answer) == new[number] else "neither"
        for number, answer in enumerate(answers)
    )
    assert kinds["old"] > 0
    assert kinds["neither"] == 0
    assert cluster.replicas().keys() == before.keys(), "a bundle is replaced inside the replicas"
    assert [scores(answer) for answer in ask(cluster.url, bodies[:100])] == new[:100]


def test_replicas_follow_the_predicted_work(cluster: Cluster, revisions: list[Path]) -> None:
    """More while work waits, and their metrics are one page."""
    cluster.deploy(revisions[:1], replicas=1, max_replicas=2, target_queue_s=0.01)
    cluster.wait_for_replicas(1)
    many = [{"inputs": TEXTS, "num_hashes": 256, "seed": 1} for _ in range(40)]
    end_s = time.monotonic() + 120
    while len(cluster.replicas()) < 2:
        assert time.monotonic() < end_s, "no replica was added"
        ask(cluster.url, many)
    with cluster.client() as client:
        while len(told := set(re.findall(r'replica="(\w+)"', (page := client.get("/metrics")).text))) < 2:
            assert time.monotonic() < end_s, f"{len(told)} replicas told what they count (status {page.status_code})"
            time.sleep(0.2)  # the added one lives before it serves
    assert page.status_code == 200
