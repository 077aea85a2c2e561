"""An hour's mixed traffic in some minutes, and what it leaves behind: memory, descriptors, unanswered requests.

    python -m benchmarks.service.soak examples/bundles/reviews-mca examples/bundles/reviews

Starts `attenuator serve` on a free port and lets clients ask as fast as they are answered: knobs drawn from their whole
range, goals, batches, brownout floors, the routes of other servers, requests with a mistake, clients that leave before
their answer or in the middle of their body, headers that never end, scrapes. Every `--reload-every` seconds each model
is loaded again, while others ask. Some texts are asked again and again: their answers must stay the same, bit for bit.

Afterwards the server must be as idle as before: no request in progress, nothing queued, as many descriptors as at the
start. Its resident memory, taken every second, must not have grown from the second quarter of the time to the last by
more than `GROWTH`; the slope over the second half stands in the result. Any other status than the one that a request
must get, or an answer that has changed, ends the program with 1.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attenuator.bundle import manifest_content, parse_manifest
from attenuator.load_generator import Client, request_of, sized
from benchmarks.measure import record
from benchmarks.measure.kernels import in_model
from benchmarks.measure.processes import serving
from benchmarks.measure.traffic import Ask, Traffic

ADMIN_KEY = "the-admin-key-of-the-soak"
FLAGS = ("--admin-key", ADMIN_KEY, "--shadow-share", "0.02", "--header-timeout-ms", "1000", "--body-timeout-ms", "2000")
GROWTH = 1.05  # of the median resident memory, beside a fixed allowance for small processes
ALLOWANCE_MIB = 32
SAMPLE_S = 1.0
STALLED = 16  # connections with a header that never ends, at a time
HELD = re.compile(r"^attenuator_(requests_in_progress|queue_tokens\S*|running_sequences\S*) (\S+)$", re.M)


@dataclass(slots=True)
class Soak:
    """What has happened so far.

    Attributes:
        answers: by kind of request and status.
        wrong: what should not have happened, by what it was.
        fixed: predictions of the texts that are asked again and again.
        rss_mib: resident memory, every second.
        descriptors: open files, likewise.
    """

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    fixed: dict[int, str] = field(default_factory=dict)
    rss_mib: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def note(self, ask: Ask, status: int, body: bytes) -> None:
        """Counts an answer, and what is wrong with it."""
        self.answers[ask.kind, status] += 1
        if status not in ask.statuses:
            self.wrong[f"{ask.kind}: {status} {body[:200].decode(errors='replace')}"] += 1
        elif ask.fixed is not None:
            predictions = json.dumps(json.loads(body)["predictions"])
            if self.fixed.setdefault(ask.fixed, predictions) != predictions:
                self.wrong[f"text {ask.fixed} got another answer"] += 1


async def ask_on(soak: Soak, traffic: Traffic, client: Client, end_s: float) -> None:
    """Sends request after request until the time is over; now and then leaves before the answer."""
    while time.perf_counter() < end_s:
        if traffic.random.random() < 0.05:
            await leave(soak, traffic, client.port)
            continue
        ask = traffic.draw()
        try:
            status, body = await client.exchange(ask.request)
        except (OSError, asyncio.IncompleteReadError) as error:
            soak.wrong[f"{ask.kind}: {type(error).__name__}"] += 1
            continue
        soak.note(ask, status, body)


async def leave(soak: Soak, traffic: Traffic, port: int) -> None:
    """Connects and goes away: within the body, or a little after it."""
    request = request_of([traffic.text() for _ in range(20)], model=traffic.model().name, truncate=True)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    whole = traffic.random.random() < 0.7
    writer.write(request if whole else request[: len(request) // 2])
    await asyncio.sleep(traffic.random.uniform(0, 0.03))
    if traffic.random.random() < 0.5:
        writer.transport.abort()
    writer.close()
    soak.answers["left" if whole else "left within the body", 0] += 1


async def stall(soak: Soak, port: int, end_s: float) -> None:
    """Opens a connection whose header never ends, until the server closes it, again and again."""
    while time.perf_counter() < end_s:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        soak.answers["stalled header", 0] += 1


async def reload(
    soak: Soak, port: int, bundles: Sequence[Path], names: Sequence[str], every_s: float, end_s: float
) -> None:
    """Loads the models again, one after the other."""
    client = Client(port)
    for bundle, name in itertools.cycle(zip(bundles, names, strict=True)):
        await asyncio.sleep(every_s)
        if time.perf_counter() > end_s:
            break
        body = json.dumps({"bundle": str(bundle.resolve())}).encode()
        key = {"Authorization": f"Bearer {ADMIN_KEY}"}
        status, answer = await client.exchange(sized(f"/v1/models/{name}", body, key, method="PUT"))
        soak.note(Ask("reload", b"", frozenset({200})), status, answer)
    client.close()


async def sample(soak: Soak, pid: int, end_s: float) -> None:
    """Takes memory and descriptors every second."""
    while time.perf_counter() < end_s:
        soak.rss_mib.append(rss_mib(pid))
        soak.descriptors.append(descriptors(pid))
        await asyncio.sleep(SAMPLE_S)


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid: int) -> int:
    """Open files of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


async def held(client: Client) -> dict[str, float]:
    """What the server says that it holds, as far as it is not 0."""
    _, body = await client.exchange(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return {name: float(value) for name, value in HELD.findall(body.decode()) if float(value)}


async def idle(soak: Soak, client: Client, pid: int, before: int, limit_s: float = 30) -> None:
    """Waits until the server holds nothing any more; notes what is left after a time."""
    end_s = time.perf_counter() + limit_s
    while True:
        remaining = await held(client)
        client.close()
        await asyncio.sleep(0.2)
        if not remaining and descriptors(pid) <= before:
            return
        if time.perf_counter() > end_s:
            soak.wrong[f"afterwards: {remaining}, {descriptors(pid)} descriptors, before: {before}"] += 1
            return


async def run(bundles: Sequence[Path], pid: int, port: int, arguments: argparse.Namespace) -> Soak:
    """Lets the clients loose on a server that is ready."""
    manifests = [parse_manifest(manifest_content(bundle), bundle) for bundle in bundles]
    calibrated = [(bundle / "calibration.json").exists() for bundle in bundles]
    traffic, soak = Traffic(manifests, calibrated, arguments.seed), Soak()
    client = Client(port)
    for _ in range(20):  # what every service opens once
        ask = traffic.draw()
        soak.note(ask, *await client.exchange(ask.request))
    client.close()
    await asyncio.sleep(0.5)
    before = descriptors(pid)
    end_s = time.perf_counter() + arguments.seconds
    names = [manifest.name for manifest in manifests]
    await asyncio.gather(
        sample(soak, pid, end_s),
        reload(soak, port, bundles, names, arguments.reload_every, end_s),
        *(ask_on(soak, traffic, client, end_s) for _ in range(arguments.clients)),
        *(stall(soak, port, end_s) for _ in range(STALLED)),
    )
    await idle(soak, client, pid, before)
    soak.descriptors = [before, *soak.descriptors, descriptors(pid)]
    return soak


def judged(soak: Soak, seconds: float) -> dict[str, Any]:
    """The result, `wrong` included; notes memory that has grown."""
    quarter = max(1, len(soak.rss_mib) // 4)
    second, last = (statistics.median(part) for part in (soak.rss_mib[quarter : 2 * quarter], soak.rss_mib[-quarter:]))
    half = soak.rss_mib[len(soak.rss_mib) // 2 :]
    slope = float(np.polyfit(np.arange(len(half)) * SAMPLE_S, half, 1)[0]) if len(half) > 1 else 0.0
    if last > GROWTH * second + ALLOWANCE_MIB:
        soak.wrong[f"resident memory grew from {second:.0f} to {last:.0f} MiB"] += 1
    answered = sum(count for (_, status), count in soak.answers.items() if status)
    kinds: dict[str, dict[str, int]] = {}
    for (kind, status), count in sorted(soak.answers.items()):
        kinds.setdefault(kind, {})[str(status) if status else "no answer"] = count
    return {
        "seconds": seconds,
        "requests": sum(soak.answers.values()),
        "answered": answered,
        "answers": kinds,
        "wrong": dict(soak.wrong),
        "rss_mib": {
            "second_quarter": second,
            "last_quarter": last,
            "peak": max(soak.rss_mib),
            "slope_per_minute": slope * 60,
            "every_second": [round(each, 1) for each in soak.rss_mib],
        },
        "descriptors": {
            "before": soak.descriptors[0],
            "most": max(soak.descriptors),
            "afterwards": soak.descriptors[-1],
        },
    }


def soaked(bundles: Sequence[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """Starts a server and returns the result."""
    first, *others = bundles
    roots = ",".join(sorted({str(bundle.resolve().parent) for bundle in bundles}))
    with serving(first, [*map(str, others), *FLAGS, "--bundle-root", roots]) as (pid, port):
        return judged(asyncio.run(run(bundles, pid, port, arguments)), arguments.seconds)


def parser() -> argparse.ArgumentParser:
    """The program's arguments."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.service.soak", description=__doc__.splitlines()[0])
    arguments.add_argument("bundles", nargs="+", type=Path)
    arguments.add_argument("--seconds", type=float, default=240.0)
    arguments.add_argument("--clients", type=int, default=8)
    arguments.add_argument("--reload-every", type=float, default=5.0, help="seconds between two reloads")
    arguments.add_argument("--seed", type=int, default=0)
    return arguments


def main(arguments: Sequence[str]) -> int:
    """Runs it and writes `results/soak.json`."""
    settings = parser().parse_args(arguments)
    head = record.origin(arguments, {key for bundle in settings.bundles for key in in_model(bundle)})
    result = soaked(settings.bundles, settings)
    record.write(record.RAW / "soak.json", head | result)
    memory, files = result["rss_mib"], result["descriptors"]
    print(f"{result['requests']} requests in {settings.seconds:g} s, {result['answers']['reload']} reloads")
    print(f"memory {memory['second_quarter']:.0f} -> {memory['last_quarter']:.0f} MiB, descriptors {files}")
    for what, count in result["wrong"].items():
        print(f"wrong, {count} times: {what}", file=sys.stderr)
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
