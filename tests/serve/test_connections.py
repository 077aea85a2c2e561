"""More connections than there is room for: silent ones, stalled bodies, answers nobody reads."""

import asyncio
import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from service import Service, dumped, read_answer, request_bytes
from starlette.requests import Request

from attenuator.errors import AttenuatorError
from attenuator.serve.edge.arrivals import (
    MAX_DEFAULT_CONNECTIONS,
    Bodies,
    Connections,
    client_of,
    connection_limit,
)
from attenuator.serve.edge.server import Server, fastest_loop, listen
from attenuator.serve.settings import ServeSettings

SPARE = 40  # descriptors, less than `SPARE_DESCRIPTORS`
STALLED = request_bytes(dumped(), length=5000)


@contextlib.contextmanager
def crowd(one: Service, count: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that send the same bytes and then nothing."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((one.host, one.port), timeout=30))
            with contextlib.suppress(ConnectionError):  # closed already, in favour of a later one
                connection.sendall(data)
            connections.append(connection)
        yield connections


def answers(one: Service) -> list[int]:
    """Statuses of requests on connections of their own."""
    return [
        one.raw(data)[0] for data in (b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n", request_bytes(dumped()))
    ]


def test_silent_connections_beyond_the_cap_keep_nobody_out(start: Callable[..., Service]) -> None:
    one = start("--max-connections", "60")
    with crowd(one, 150), crowd(one, 100, b"GET /health/live HTTP/1.1\r\n"):
        assert answers(one) == [200, 200]
        kept = one.client.get("/health/live")
        assert kept.status_code == 200
    assert one.wait_for_log("longest idle ones are closed").count("longest idle ones are closed") == 1
    one.good()


def test_a_flood_takes_no_more_descriptors_than_are_spare(start: Callable[..., Service]) -> None:
    """The server stands still until many more connections than it may have are in the kernel's queue."""
    one = start("--max-connections", "60")
    open_files = len(list(Path(f"/proc/{one.process.pid}/fd").iterdir()))
    resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (open_files + 60 + SPARE, open_files + 60 + SPARE))
    one.process.send_signal(signal.SIGSTOP)
    with crowd(one, 1050):
        one.process.send_signal(signal.SIGCONT)
        for _ in range(5):
            assert answers(one) == [200, 200]
    assert "Too many open files" not in one.log()
    one.good()


def test_stalled_bodies_hold_no_request_and_no_end(start: Callable[..., Service]) -> None:
    one = start("--max-requests", "2", "--drain-timeout-ms", "20000")
    with crowd(one, 30, STALLED) as stalled:
        for _ in range(5):
            assert answers(one) == [200, 200]
        started = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - started < 10
        for connection in stalled:
            answer = read_answer(connection)
            assert answer.startswith(b"HTTP/1.1 503")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_type"] == "not_ready"


@pytest.mark.parametrize("flags", [("--max-arriving-bodies", "10"), ("--max-arriving-bytes", "600")], ids=" ".join)
def test_bodies_over_their_limits_are_given_up_oldest_first(
    start: Callable[..., Service], flags: tuple[str, ...]
) -> None:
    one = start(*flags)
    with crowd(one, 14, STALLED) as stalled:
        assert answers(one) == [200, 200]
        assert read_answer(stalled[0]).startswith(b"HTTP/1.1 408")
        stalled[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            stalled[-1].recv(1)
    one.good()


def test_body_that_trickles_is_cut_off_by_its_rate(start: Callable[..., Service]) -> None:
    one = start("--min-body-bytes-per-s", "1000000000", "--body-timeout-ms", "60000")
    with socket.create_connection((one.host, one.port), timeout=30) as connection:
        connection.sendall(STALLED)
        started = time.monotonic()
        answer = read_answer(connection)
        assert 2 < time.monotonic() - started < 20
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"must arrive at 1000000000 bytes/s or more" in answer
    one.good()


def test_stalled_body_gives_way_to_new_connections(start: Callable[..., Service]) -> None:
    one = start("--max-connections", "20")
    with crowd(one, 20, STALLED) as stalled:
        assert answers(one) == [200, 200]
        answer = read_answer(stalled[0])
        assert answer.startswith(b"HTTP/1.1 503")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_type"] == "not_ready"
    one.wait_for_log("POST /v1/classify 503")


@pytest.mark.parametrize(("data", "status"), [(STALLED, 503), (request_bytes(dumped()), 200)], ids=["part", "whole"])
def test_what_has_arrived_and_is_not_read_yet_gets_its_answer(
    start: Callable[..., Service], data: bytes, status: int
) -> None:
    """The server stands still until more connections than it may have wait for it, each with its bytes."""
    one = start("--max-connections", "20")
    one.process.send_signal(signal.SIGSTOP)
    with crowd(one, 60, data) as connections:
        one.process.send_signal(signal.SIGCONT)
        for connection in connections[:40]:
            assert read_answer(connection).startswith(f"HTTP/1.1 {status}".encode())
    one.good()


def test_client_that_reads_no_answers_is_held_up_and_gives_way(start: Callable[..., Service]) -> None:
    one = start("--max-connections", "20")
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(socket.create_connection((one.host, one.port), timeout=30))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection.send(b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert answers(one) == [200, 200]
    one.good()


def test_larger_bodies_are_handed_over_one_in_a_round_of_the_loop() -> None:
    async def rounds_of_each(size: int) -> list[int]:
        bodies = Bodies(ServeSettings())
        now, ended = 0, []

        async def read() -> None:
            scope: dict[str, Any] = {"type": "http", "headers": [(b"content-type", b"application/json")]}
            client_of(scope).body = bytearray(size)
            assert len(await bodies.read(Request(scope))) == size
            ended.append(now)

        reading = [asyncio.create_task(read()) for _ in range(20)]
        while not all(task.done() for task in reading):
            await asyncio.sleep(0)
            now += 1
        return ended

    larger, small = asyncio.run(rounds_of_each(2000)), asyncio.run(rounds_of_each(500))
    assert len(set(larger)) == 20
    assert max(larger) < 100
    assert set(small) == {0}


def test_many_connections_are_accepted_in_a_round_of_the_loop() -> None:
    """A short request would else wait for one round of the loop for each connection of a crowd that came before it."""

    async def rounds_until_accepted(count: int) -> int:
        bound, connections = listen("127.0.0.1", 0), Connections(1000, lambda status, sentence: b"{}")
        server = Server(FastAPI(), ServeSettings(), connections, bound)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup()
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(socket.create_connection(bound.getsockname()))
            rounds = 0
            while connections.open < count:
                await asyncio.sleep(0)
                rounds += 1
        await server.shutdown()
        return rounds

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        assert runner.run(rounds_until_accepted(64)) <= 64 // 4


@pytest.mark.parametrize(
    ("setting", "files", "limit"),
    [
        (None, 1024, 896),
        (None, 100, 50),
        (None, 2**20, MAX_DEFAULT_CONNECTIONS),
        (20_000, 2**20, 20_000),
        (896, 1024, 896),
    ],
)
def test_limit_leaves_descriptors_for_everything_else(setting: int | None, files: int, limit: int) -> None:
    assert connection_limit(setting, files) == limit


def test_limit_over_the_descriptors_is_refused() -> None:
    with pytest.raises(AttenuatorError, match="--max-connections is 897, must be at most 896"):
        connection_limit(897, 1024)


class Recorded:
    """A connection that remembers whether it gave way."""

    gave_way = False

    def give_way(self) -> bool:
        self.gave_way = True
        return True


def test_longest_wait_gives_way_and_work_never_does() -> None:
    table = Connections(3, lambda status, sentence: b"{}")
    first, second, third, fourth, fifth = (Recorded() for _ in range(5))
    for client in (first, second, third):
        table.add(client)
    table.end_wait(first)
    table.end_wait(second)
    table.begin_wait(second)  # now waits since later than the third
    table.add(fourth)
    assert [client.gave_way for client in (first, second, third, fourth)] == [False, False, True, False]
    assert table.at_work()
    for client in (second, fourth):
        table.end_wait(client)
    table.add(fifth)  # all others are worked on
    assert (table.open, table.at_work()) == (4, True)
    table.begin_wait(second)
    table.add(third)
    assert [client.gave_way for client in (first, second, fourth, fifth)] == [False, True, False, True]
    table.begin_wait(fifth)  # which is gone
    for client in (first, third, fourth):
        table.remove(client)
    assert (table.open, table.at_work()) == (0, False)


def test_too_few_files_are_one_sentence(bundles: dict[str, Path]) -> None:
    command = f"ulimit -n 20; exec {sys.executable} -m attenuator serve {bundles['yoso']} --port 0"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "attenuator serve: the process may open 20 files (ulimit -H -n), must be 32 or more\n"
