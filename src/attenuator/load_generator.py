"""Requests over HTTP as load tests send them: a closed loop, and an open loop of Poisson arrivals.

In an open loop requests leave at times that were drawn before, whatever the server does, and latency counts from the
time at which a request was to leave: a load generator or a connection that falls behind makes it longer, not shorter
("coordinated omission", which closed loops have). The generator is one process of plain asyncio streams.
"""

import asyncio
import itertools
import json
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attenuator.api import CLASSIFY
from attenuator.errors import UnexpectedAnswer

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)
ANSWERED, REFUSED = 200, 429
GIVE_UP_S = 60.0  # after which a request counts as one without an answer


@dataclass
class Client:
    """Sends requests over as many connections as are needed at a time.

    Attributes:
        port: of the server.
        host: likewise.
        tls: how connections are encrypted; None for plain ones.
        idle: open connections without a request.
    """

    port: int
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def post(self, request: bytes) -> tuple[int, float]:
        """One request.

        Returns:
            Status and seconds.
        """
        started = time.perf_counter()
        status, _ = await self.exchange(request)
        return status, time.perf_counter() - started

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """One request; gives status and body."""
        for attempt in range(2):
            reused = bool(self.idle) and not attempt
            reader, writer = self.idle.pop() if reused else await self._opened()
            try:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                break
            except (ConnectionError, asyncio.IncompleteReadError):  # it was closed for being idle
                writer.close()
                if not reused:
                    raise
        body = await _body(reader, head)
        if b"connection: close" in head.lower():
            writer.close()
        else:
            self.idle.append((reader, writer))
        return int(head[9:12]), body

    async def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port, ssl=self.tls)

    def close(self) -> None:
        """Closes the idle connections."""
        for _, writer in self.idle:
            writer.close()
        self.idle.clear()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body that follows a head; in chunks where something on the way passes it on so."""
    if not CHUNKED.search(head):
        length = LENGTH.search(head)
        return await reader.readexactly(int(length[1]) if length else 0)
    body = b""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while (await reader.readline()).strip():  # trailers
        pass
    return body


@dataclass(slots=True)
class Exchange:
    """One request and what came of it.

    Attributes:
        at_s: when it was to leave, in seconds since the first one might.
        text: which one it asks about.
        status: of the answer; 0 while there is none.
        latency_s: from `at_s` to the answer.
        late_s: from `at_s` until the load generator came to it.
        answer: its body.
    """

    at_s: float
    text: int
    status: int = 0
    latency_s: float = 0.0
    late_s: float = 0.0
    answer: Any = field(default_factory=dict)


def post(path: str, content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of one request whose body is JSON."""
    return sized(path, json.dumps(content).encode(), headers)


def sized(path: str, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST") -> bytes:
    """The bytes of one request that says how long its body is, and that it is JSON."""
    lines = {
        "Host": "localhost",
        "Content-Type": "application/json",
        **(headers or {}),
        "Content-Length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def request_of(inputs: str | list[str], **fields: Any) -> bytes:
    """The bytes of one classification request to `attenuator serve`."""
    return post(CLASSIFY, {"inputs": inputs} | fields)


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Times of arrival."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, size=round(2 * rate * seconds) + 100)
    times = np.cumsum(gaps)
    return [float(each) for each in times[times < seconds]]


async def closed_loop(
    client: Client, requests: Sequence[bytes], clients: int, seconds: float
) -> tuple[list[dict[str, Any]], float]:
    """Asks for each text, again and again until the time is over, and at least once.

    Args:
        client: to the server.
        requests: one for each text.
        clients: that each send their next request when the last one is answered.
        seconds: after which no more are sent.

    Returns:
        The answers by text, and how many came per second.

    Raises:
        UnexpectedAnswer: the server refused one.
    """
    answers: list[dict[str, Any]] = [{}] * len(requests)
    numbers = itertools.count()
    started = time.perf_counter()
    done = 0

    async def one() -> None:
        nonlocal done
        while (number := next(numbers)) < len(requests) or time.perf_counter() < started + seconds:
            status, body = await client.exchange(requests[number % len(requests)])
            if status != ANSWERED:
                raise UnexpectedAnswer(f"the server answered {status}: {body.decode(errors='replace')}")
            answers[number % len(requests)] = json.loads(body)
            done += 1

    await asyncio.gather(*(one() for _ in range(clients)))
    return answers, done / (time.perf_counter() - started)


async def open_loop(
    client: Client,
    requests: Sequence[bytes],
    arrivals: Sequence[float],
    seed: int,
    give_up_s: float = GIVE_UP_S,
) -> list[Exchange]:
    """Sends each request at its time and waits for all answers.

    Args:
        client: to the server.
        requests: one for each text.
        arrivals: when requests are to leave, in seconds from now.
        seed: draws the text of each; equal seeds ask for the same texts at the same times.
        give_up_s: after which a request counts as one without an answer.
    """
    draw = np.random.default_rng(seed)
    exchanges = [Exchange(at_s, int(draw.integers(len(requests)))) for at_s in arrivals]
    bodies: list[bytes] = [b""] * len(exchanges)
    started = time.perf_counter()

    async def one(index: int) -> None:
        exchange = exchanges[index]
        exchange.late_s = time.perf_counter() - started - exchange.at_s
        try:
            async with asyncio.timeout(give_up_s):
                exchange.status, bodies[index] = await client.exchange(requests[exchange.text])
        except (OSError, EOFError, ValueError):  # it has no answer: the status stays 0
            pass
        exchange.latency_s = time.perf_counter() - started - exchange.at_s

    tasks = []
    for index, exchange in enumerate(exchanges):
        delay_s = started + exchange.at_s - time.perf_counter()
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        tasks.append(asyncio.create_task(one(index)))
    await asyncio.gather(*tasks)
    for exchange, body in zip(exchanges, bodies, strict=True):  # afterwards, so that reading them delays no request
        if exchange.status == ANSWERED:
            exchange.answer = json.loads(body)
    return exchanges


def quantiles(values: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Quantiles by name, such as `0.99`; empty where there are no values."""
    return {name: float(np.quantile(values, float(name))) for name in names} if values else {}
