"""Deadlines, clients that leave, overload, cost limit and stopping."""

import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from service import Service, dumped, request_bytes

SLOW = {"inputs": ["good film " * 2500] * 4, "num_hashes": 0}
QUICK = {"inputs": "good film", "num_hashes": 4}


@contextmanager
def running(one: Service, body: dict[str, object]) -> Iterator[Future[httpx.Response]]:
    """A request that is in progress, in the background."""
    before = in_progress(one)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(httpx.post, f"http://{one.host}:{one.port}/v1/classify", json=body, timeout=120)
        until(lambda: in_progress(one) > before)
        yield future


def in_progress(one: Service) -> int:
    """Requests whose body has arrived and that are not answered."""
    found = re.search(r"^attenuator_requests_in_progress (\d+)", one.client.get("/metrics").text, re.M)
    assert found
    return int(found[1])


def until(happened: Callable[[], bool], within_s: float = 20) -> None:
    end = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def slow_s(one: Service) -> float:
    """Time of one slow input alone."""
    started = time.monotonic()
    assert one.classify({**SLOW, "inputs": SLOW["inputs"][:1]}).status_code == 200
    return time.monotonic() - started


def test_deadline_gives_504_and_drops_the_work(start: Callable[..., Service]) -> None:
    one = start()
    alone_s = slow_s(one)
    started = time.monotonic()
    answer = one.classify({**SLOW, "timeout_ms": 100})
    assert time.monotonic() - started < 0.1 + alone_s
    assert (answer.status_code, answer.json()["error_type"]) == (504, "deadline_exceeded")
    assert "within 100 ms (timeout_ms)" in answer.json()["error"]
    started = time.monotonic()
    slow_s(one)
    # Three of the four inputs never ran, the first was stopped between two nodes.
    assert time.monotonic() - started < 3 * alone_s


def test_deadline_that_is_met_changes_nothing(service: Service) -> None:
    without = service.classify({"model": "yoso", **QUICK}).json()["predictions"]
    assert service.classify({"model": "yoso", **QUICK, "timeout_ms": 30_000}).json()["predictions"] == without


def test_deadline_holds_while_waiting_for_others(start: Callable[..., Service]) -> None:
    one = start()
    with running(one, SLOW):
        answer = one.classify({**SLOW, "timeout_ms": 50})
        assert answer.status_code == 504


def test_client_that_leaves_is_dropped(start: Callable[..., Service]) -> None:
    one = start()
    alone_s = slow_s(one)
    with socket.create_connection((one.host, one.port)) as connection:
        connection.sendall(request_bytes(dumped(model=..., **SLOW)))
        until(lambda: in_progress(one) == 1)
    until(lambda: "the client disconnected" in one.log())
    started = time.monotonic()
    slow_s(one)
    assert time.monotonic() - started < 3 * alone_s
    one.good()


def test_many_clients_that_leave_do_not_stop_the_service(start: Callable[..., Service]) -> None:
    one = start()
    for _ in range(20):
        with socket.create_connection((one.host, one.port)) as connection:
            connection.sendall(request_bytes(dumped(model=..., **SLOW)))
    for at in (0, 20, 90, 200):
        with socket.create_connection((one.host, one.port)) as connection:
            connection.sendall(request_bytes(dumped())[:at])
    one.good()
    until(lambda: one.classify({**SLOW, "inputs": SLOW["inputs"][:1]}).status_code == 200)


def test_a_full_queue_sheds_with_retry_after_and_recovers(start: Callable[..., Service]) -> None:
    one = start("--max-queue-tokens", "12000")
    with running(one, SLOW) as first, running(one, SLOW) as second, running(one, SLOW) as third:
        shed = one.classify(SLOW)
        assert (shed.status_code, shed.json()["error_type"]) == (429, "overloaded")
        assert 1 <= int(shed.headers["Retry-After"]) <= 120
        assert "tokens are waiting" in shed.json()["error"]
        # Short requests have room of their own.
        assert one.classify(QUICK).status_code == 200
        assert [each.result().status_code for each in (first, second, third)] == [200] * 3
    assert one.classify(SLOW).status_code == 200


LARGE = {"inputs": ["good film " * 100] * 100, "num_hashes": 64}


@pytest.mark.parametrize("clients", [1, 6])
@pytest.mark.parametrize("keyed", [True, False])
def test_requests_larger_than_the_queue_shut_nobody_out(
    start: Callable[..., Service], tmp_path: Path, keyed: bool, clients: int
) -> None:
    """Neither other API keys nor, where there are none, the same callers; all that was accepted is answered whole."""
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([{"name": name, "key": f"{name}-key"} for name in ("flood", "other")]))
    flags = ("--api-keys", str(file)) if keyed else ()
    one = start("--max-queue-tokens", "2000", *flags)

    def classify(key: str, body: dict[str, object]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}-key"} if keyed else {}
        return httpx.post(f"http://{one.host}:{one.port}/v1/classify", json=body, headers=headers, timeout=120)

    small: list[httpx.Response] = []
    with ThreadPoolExecutor(clients) as pool:
        large = [pool.submit(classify, "flood", {**LARGE, "priority": "batch"}) for _ in range(clients)]
        while not all(each.done() for each in large):
            small.append(classify("other", QUICK))
    answers = [each.result() for each in large]
    accepted = [each for each in answers if each.status_code == 200]
    assert accepted
    assert all(len(each.json()["predictions"]) == len(LARGE["inputs"]) for each in accepted)
    assert all(1 <= int(each.headers["Retry-After"]) <= 120 for each in answers if each.status_code != 200)
    assert {each.status_code for each in small} == {200}


def test_too_many_requests_in_progress_are_shed_before_their_body_is_read(start: Callable[..., Service]) -> None:
    one = start("--max-requests", "1")
    with running(one, SLOW) as slow:
        for _ in range(3):
            shed = one.classify(QUICK)
            assert shed.status_code == 429
            assert int(shed.headers["Retry-After"]) >= 1
        assert slow.result().status_code == 200
    one.good()


def test_cost_over_the_limit_names_settings_that_fit(start: Callable[..., Service]) -> None:
    one = start("--max-cost", "2")
    text = "good film " * 2000
    refused = one.classify({"inputs": text, "num_hashes": 512})
    body = refused.json()
    assert (refused.status_code, body["param"], body["error_type"]) == (422, "num_hashes", "invalid_request")
    named = re.search(
        r"cheapest setting that fits is num_hashes (\d+), the most accurate num_hashes (\d+)", body["error"]
    )
    assert named, body["error"]
    cheapest, best = int(named[1]), int(named[2])
    assert body["allowed"] == f"num_hashes from {cheapest} to {best}"
    assert one.classify({"inputs": text, "num_hashes": cheapest}).status_code == 200
    assert one.classify({"inputs": text, "num_hashes": best}).status_code == 200
    assert one.classify({"inputs": text, "num_hashes": best + 1}).status_code == 422
    assert one.classify({"inputs": text, "num_hashes": 0}).status_code == 422
    # A batch is one request: its inputs count together.
    assert one.classify({"inputs": [text] * 8, "num_hashes": best}).status_code == 422
    hopeless = one.classify({"inputs": [text] * 200, "num_hashes": 1}).json()
    assert (hopeless["param"], "no setting fits" in hopeless["error"]) == ("inputs", True)
    one.good()


def test_body_that_never_ends_is_cut_off(start: Callable[..., Service]) -> None:
    one = start("--body-timeout-ms", "300")
    started = time.monotonic()
    status, headers, body = one.raw(request_bytes(dumped(), length=5000))
    assert time.monotonic() - started < 5
    assert status == 408
    assert b"did not arrive within 300 ms" in body
    assert headers["connection"] == "close"
    one.good()


def test_stopping_answers_what_is_in_progress_and_refuses_the_rest(start: Callable[..., Service]) -> None:
    one = start()
    with running(one, SLOW) as slow:
        one.process.send_signal(signal.SIGTERM)
        until(lambda: one.client.get("/health/ready").status_code == 503)
        assert one.client.get("/health/ready").json()["status"] == "draining"
        assert one.client.get("/health/live").status_code == 200
        refused = one.classify(QUICK)
        assert (refused.status_code, refused.json()["error"]) == (503, "the service is draining and takes no requests")
        assert slow.result().status_code == 200
    assert one.stop() == 0


@pytest.mark.parametrize("flags", [("--drain-timeout-ms", "200"), ()], ids=["time limit", "second signal"])
def test_stopping_can_be_hurried(start: Callable[..., Service], flags: tuple[str, ...]) -> None:
    one = start(*flags)
    with running(one, SLOW):
        started = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        if not flags:
            time.sleep(0.2)
            one.process.send_signal(signal.SIGINT)
        one.process.wait(timeout=20)
        assert time.monotonic() - started < 8


def memory_mib(one: Service, field: str) -> float:
    """A memory field of the server's process: VmRSS now, VmHWM at its peak."""
    with open(f"/proc/{one.process.pid}/status") as status:
        return int(re.search(rf"{field}:\s+(\d+)", status.read())[1]) / 1024


def test_memory_of_a_large_text_comes_back(start: Callable[..., Service]) -> None:
    one = start()
    one.good()
    before = memory_mib(one, "VmRSS")
    answer = one.classify({"inputs": "good" + " " * 3_000_000 + "film"})  # of few tokens, so that it is tokenized whole
    assert answer.json()["tokens"] == [4]
    until(lambda: memory_mib(one, "VmRSS") < before + 80)
    assert memory_mib(one, "VmHWM") > before + 100, "the text was too small to show anything"


def test_memory_stays_bounded_under_many_requests(service: Service) -> None:
    def hammer() -> None:
        with httpx.Client(base_url=f"http://{service.host}:{service.port}", timeout=60) as client:
            for index in range(40):
                body = {
                    "model": "yoso",
                    "inputs": "good film " * (index * 7 % 50 + 1),
                    "num_hashes": index,
                    "seed": index,
                }
                assert client.post("/v1/classify", json=body).status_code == 200

    def round_of_load() -> float:
        threads = [threading.Thread(target=hammer) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return memory_mib(service, "VmRSS")

    round_of_load()
    before = round_of_load()
    assert round_of_load() - before < 64
