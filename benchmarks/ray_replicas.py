"""Requests a second of the Ray Serve application with more and more replicas of one core, and of the service itself.

    python -m benchmarks.ray_replicas examples/bundles/reviews --tokens 1000

Clients each send their next request when the last one is answered. On one machine Ray's proxy, the front and the
clients share the cores with the replicas, so that replicas on machines of their own do better. The service runs with
as many threads as there are replicas. Writes benchmarks/results/ray_replicas.json.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from attenuator.bundle import read_manifest
from attenuator.load import Client, closed_loop, request_of
from benchmarks.measure import record
from benchmarks.measure.cases import Row
from benchmarks.measure.cluster import Cluster
from benchmarks.measure.kernels import in_model
from benchmarks.measure.processes import serving
from benchmarks.report.results_files import RESULTS

TEXTS = 32
CLIENTS = 4  # for each replica, so that none waits for the next request


def requests_of(tokens: int) -> list[bytes]:
    """Requests of about so many tokens each, all different."""
    return [request_of(f"{number} " + "film " * (tokens - 3)) for number in range(TEXTS)]


def rates(port: int, options: argparse.Namespace, clients: int) -> list[float]:
    """Answers a second by length, each once a round of the texts has warmed everything up."""

    async def measured(tokens: int) -> float:
        client = Client(port)
        requests = requests_of(tokens)
        await closed_loop(client, requests, clients, 0.0)
        _, per_s = await closed_loop(client, requests, clients, options.seconds)
        client.close()
        return per_s

    return [asyncio.run(measured(tokens)) for tokens in options.tokens]


def with_ray(options: argparse.Namespace, replicas: int) -> list[float]:
    """Answers a second of so many replicas."""
    with contextlib.closing(Cluster(replicas)) as cluster:
        cluster.deploy([options.bundle.absolute()], replicas=replicas)
        return rates(cluster.port, options, CLIENTS * replicas)


def with_service(options: argparse.Namespace, threads: int) -> list[float]:
    """Answers a second of `attenuator serve` with so many threads."""
    with serving(options.bundle, ["--threads", str(threads)]) as (_, port):
        return rates(port, options, CLIENTS * threads)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 1000], help="of a text, about")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--output", type=Path, default=RESULTS / "ray_replicas.json", help="result file")
    command_line = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(command_line)
    head = {"benchmark": "ray_replicas", **record.origin(command_line, in_model(options.bundle)), **record.cpu()}
    head |= {"bundle": read_manifest(options.bundle).name, "cores": len(os.sched_getaffinity(0))}
    rows: list[Row] = []
    for replicas in options.replicas:
        measured = zip(options.tokens, with_ray(options, replicas), with_service(options, replicas), strict=True)
        for tokens, ray_per_s, service_per_s in measured:
            rows.append(
                {"replicas": replicas, "tokens": tokens, "ray_per_s": ray_per_s, "service_per_s": service_per_s}
            )
            print(json.dumps(record.rounded(rows[-1])))
    record.write(options.output, head | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
