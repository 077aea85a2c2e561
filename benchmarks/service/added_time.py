"""What the service adds to a request over a bare run of the model, with everything switched on that a request meets.

    python -m benchmarks.service.added_time examples/bundles/reviews

Starts `attenuator serve` with an API key that has a rate and ceilings, a policy for brownouts, an access log in JSON
and metrics, which are scraped once a second; the request has goals for latency and agreement. One request is under way
at a time, over one connection, with a pause before the next. In turns with blocks of requests this process runs the
model itself on the same tokens, with the same knobs and as many threads. Added time is what a request takes, from the
first byte sent to the last one received, less the median of those runs; at the 99th percentile it thus holds what the
machine does to a run of the model too. `over_bare_ms` leaves that out: the difference of the two percentiles.

During a turn of one side the other sleeps for a second and its caches go cold, which does not happen to a service that
is asked every few milliseconds. So the first `--settle` of each turn are kept apart, on both sides, as `first_ms`.
With them, `all_added_ms` is over the median bare run, `all_over_bare_ms` over bare runs that slept as long.

CPU time is that of the service's process for a request, less that of a bare run: it hardly depends on what else the
machine does. Flags that this program does not know go to the server. Writes benchmarks/results/added_time.json.
"""

import argparse
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from attenuator import runtime
from attenuator.api import CLASSIFY
from attenuator.bundle import Manifest, read_manifest
from attenuator.load_generator import LENGTH, post, quantiles
from benchmarks.measure import record
from benchmarks.measure.cases import Row
from benchmarks.measure.kernels import in_model
from benchmarks.measure.processes import cpu_s, serving

KEY = "measuring"
QUANTILES = ("0.05", "0.5", "0.95", "0.99")
WARM_UP = 200
SCRAPE_EVERY_S = 1.0
TARGETS_MS = {"0.5": 1.0, "0.99": 1.5}


class Connection:
    """One connection over a plain socket, which adds next to nothing to what it times."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[float, bytes]:
        """One request.

        Returns:
            Milliseconds until the whole answer was there, and its body.

        Raises:
            SystemExit: its status is not 200, or the server closes the connection.
        """
        started = time.perf_counter()
        self._socket.sendall(request)
        received = b""
        while not (complete := whole(received)):
            piece = self._socket.recv(65536)
            if not piece:
                raise SystemExit(f"benchmarks: the server closed the connection after {len(received)} bytes")
            received += piece
        taken_ms = 1000 * (time.perf_counter() - started)
        if received[9:12] != b"200":
            raise SystemExit(f"benchmarks: the server answered {received.decode(errors='replace')}")
        return taken_ms, complete

    def close(self) -> None:
        """Closes it."""
        self._socket.close()


def whole(received: bytes) -> bytes:
    """The body of an answer that has arrived, empty while some of it is missing."""
    head, _, body = received.partition(b"\r\n\r\n")
    length = LENGTH.search(head)
    return body if length and len(body) >= int(length[1]) else b""


def server_flags(manifest: Manifest, options: argparse.Namespace, folder: Path) -> list[str]:
    """Of a server with everything switched on."""
    keys = [{"name": "measuring", "key": KEY, "requests_per_s": 1e6, "ceilings": {}}]
    floors = []
    for knob in manifest.knobs:
        keys[0]["ceilings"] |= {knob.name: knob.exact}  # type: ignore[operator]
        floors.append(f"{knob.name}={knob.default:g}")
    keyfile = folder / "keys.json"
    keyfile.write_text(json.dumps(keys), encoding="utf-8")
    flags = ["--threads", str(options.threads), "--api-keys", str(keyfile), "--log-format", "json"]
    return [*flags, "--brownout-to", ",".join(floors), "--max-cost", "1e6", *options.flags]


class Times(NamedTuple):
    """Milliseconds, in the order in which they were taken.

    Attributes:
        first: those at the beginnings of turns.
        settled: all others.
    """

    first: list[float]
    settled: list[float]


def blocks(ask: Callable[[], float], run: Callable[[], float], options: argparse.Namespace) -> tuple[Times, Times]:
    """Times of requests and of bare runs, in turns."""
    requests, runs = Times([], []), Times([], [])
    for _ in range(options.blocks):
        for one, times in ((ask, requests), (run, runs)):
            for place in range(options.requests // options.blocks):
                time.sleep(options.pause_ms / 1000)
                (times.first if place < options.settle else times.settled).append(one())
    return requests, runs


def measure(pid: int, port: int, options: argparse.Namespace) -> Row:
    """Everything, on a running server."""
    goals = {"min_agreement": options.min_agreement, "max_latency_ms": options.max_latency_ms}
    request = post(CLASSIFY, {"inputs": options.text, **goals}, {"Authorization": f"Bearer {KEY}"})
    connection = Connection(port)
    for _ in range(WARM_UP):
        _, body = connection.ask(request)
    answer = json.loads(body)
    model = runtime.load(options.bundle, threads=options.threads, check=False)
    encoded = model.encode(options.text)
    row = runtime.Row(encoded.token_ids, encoded.type_ids, model.knobs.check(answer["knobs"]), answer["seed"])
    in_route: list[float] = []

    def ask() -> float:
        taken_ms, body = connection.ask(request)
        in_route.append(json.loads(body)["timing_ms"]["total"])
        return taken_ms

    def run() -> float:
        started = time.perf_counter()
        model.run([row])
        return 1000 * (time.perf_counter() - started)

    for _ in range(WARM_UP):
        run()
    server_cpu, own_cpu, own = cpu_s(pid), 0.0, time.process_time

    def run_counting() -> float:
        nonlocal own_cpu
        before = own()
        taken_ms = run()
        own_cpu += own() - before
        return taken_ms

    requests, runs = blocks(ask, run_counting, options)
    server_cpu = cpu_s(pid) - server_cpu
    connection.close()
    bare, taken = quantiles(runs.settled, QUANTILES), quantiles(requests.settled, QUANTILES)
    all_bare, all_taken = (quantiles([*each.first, *each.settled], QUANTILES) for each in (runs, requests))
    count = options.requests // options.blocks * options.blocks  # of each
    return {
        "tokens": answer["tokens"][0],
        "knobs": answer["knobs"],
        "chosen_by": answer["chosen_by"],
        "requests": len(requests.settled),
        "request_ms": taken,
        "bare_ms": bare,
        "added_ms": {name: value - bare["0.5"] for name, value in taken.items()},
        "over_bare_ms": {name: value - bare[name] for name, value in taken.items()},
        "all_added_ms": {name: value - bare["0.5"] for name, value in all_taken.items()},
        "all_over_bare_ms": {name: value - all_bare[name] for name, value in all_taken.items()},
        "first_ms": {"request": quantiles(requests.first, QUANTILES), "bare": quantiles(runs.first, QUANTILES)},
        "in_route_ms": quantiles(in_route, QUANTILES),
        "server_cpu_ms": 1000 * server_cpu / count,
        "added_cpu_ms": 1000 * (server_cpu - own_cpu) / count,
        "targets_ms": TARGETS_MS,
    }


def scrape(port: int, ended: Event) -> None:
    """Reads the metrics once a second, as Prometheus would do more seldom; in a process of its own."""
    while not ended.wait(SCRAPE_EVERY_S):
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            answer.read()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--text", default="A quiet, moving film.", help="what is asked about")
    parser.add_argument("--min-agreement", type=float, default=0.9)
    parser.add_argument("--max-latency-ms", type=float, default=1000.0)
    parser.add_argument("--requests", type=int, default=4000, help="and as many bare runs")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--settle", type=int, default=10, help="first ones of each block, which are kept apart")
    parser.add_argument("--pause-ms", type=float, default=2.0, help="before each request")
    parser.add_argument("--threads", type=int, default=1, help="inside one run of the model")
    parser.add_argument("--output", type=Path, default=record.RAW / "added_time.json", help="result file")
    command_line = sys.argv[1:] if arguments is None else arguments
    options, options.flags = parser.parse_known_args(command_line)
    manifest = read_manifest(options.bundle)
    head = {
        "benchmark": "added_time",
        **record.origin(command_line, in_model(options.bundle)),
        **record.cpu(),
        "bundle": manifest.name,
    }
    head |= {
        "pause_ms": options.pause_ms,
        "settle": options.settle,
        "threads": options.threads,
        "server_flags": options.flags,
    }
    processes = multiprocessing.get_context("spawn")
    ended = processes.Event()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(options.bundle, server_flags(manifest, options, Path(folder)), "info") as (pid, port),
    ):
        scraping = processes.Process(target=scrape, args=(port, ended), daemon=True)
        scraping.start()
        result: dict[str, Any] = measure(pid, port, options)
        ended.set()
        scraping.join()
    record.write(options.output, head | result)
    print(json.dumps(record.rounded(result), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
