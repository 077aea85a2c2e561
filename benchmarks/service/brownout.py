"""A server at twice its capacity, with brownout and without: who is answered, how soon, and how often as exactly.

    python -m benchmarks.service.brownout examples/bundles/reviews --texts FILE.jsonl --floor num_hashes=8

Starts `attenuator serve` on a free port. First every text is asked for at the knobs' exact values, by clients that each
send their next request when the last one is answered: that gives the exact answers, and the capacity. The same at the
floors gives the most that a brownout could reach. Then requests for
these exact values leave at the times of a Poisson process, at `--load` times the capacity, whatever the server does:
once as they are, once with `degradable_to`, at the same times. Latency counts from the time at which a request was to
leave, so a load generator that falls behind makes it longer, not shorter. What is reported leaves out the first
`--settle` seconds, in which the queue fills; the plot shows them.

The load generator is one process of plain asyncio streams beside the server, and takes time from it; its CPU time
stands in the result. Flags that this program does not know go to the server.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attenuator.bundle import Manifest, read_manifest
from attenuator.load_generator import (
    ANSWERED,
    REFUSED,
    Client,
    Exchange,
    closed_loop,
    open_loop,
    poisson,
    quantiles,
    request_of,
)
from attenuator.runtime import KnobTable
from attenuator.serve.settings import read_floors
from benchmarks.measure import record
from benchmarks.measure.intervals import share
from benchmarks.measure.kernels import in_model
from benchmarks.measure.processes import cpu_s, serving

CAPACITY_CLIENTS = 4
QUANTILES = ("0.05", "0.5", "0.95", "0.99")


def label_set(answer: dict[str, Any]) -> tuple[str, ...]:
    """What agreement compares: the label, or the set of them."""
    [prediction] = answer["predictions"]
    return tuple(sorted(prediction.get("labels", [prediction["label"]])))


def summary(
    exchanges: Sequence[Exchange], exact: Sequence[dict[str, Any]], target_s: float, labels: int
) -> dict[str, Any]:
    """What became of requests: shares with intervals, percentiles in seconds.

    Args:
        exchanges: at least one of them answered.
        exact: answers at the exact values, by text.
        target_s: latency to hold.
        labels: that the model has.
    """
    answered = [each for each in exchanges if each.status == ANSWERED]
    latencies = [each.latency_s for each in answered]
    pairs = [(label_set(each.answer), label_set(exact[each.text])) for each in answered]
    differing = sum(len(set(one) ^ set(other)) for one, other in pairs)
    by_knob = {
        name: quantiles([each.answer["knobs"][name] for each in answered], QUANTILES)
        for name in answered[0].answer["knobs"]
    }
    return {
        "requests": len(exchanges),
        "answered": len(answered),
        "refused": share([each.status == REFUSED for each in exchanges]),
        "other": sum(each.status not in (ANSWERED, REFUSED) for each in exchanges),
        "latency_s": quantiles(latencies, QUANTILES),
        "within_target": share([latency <= target_s for latency in latencies]),
        "agreement": share([one == other for one, other in pairs]),
        "labels_differing": differing / (len(pairs) * labels),
        "lowered": sum(each.answer["chosen_by"] == "brownout" for each in answered) / len(answered),
        "knobs": by_knob,
    }


def by_second(exchanges: Sequence[Exchange], knob: str) -> list[dict[str, Any]]:
    """The same over time, by the second in which requests were to leave; for the plot."""
    rows = []
    for second, group in itertools.groupby(exchanges, key=lambda each: int(each.at_s)):
        requests = list(group)
        answered = [each for each in requests if each.status == ANSWERED]
        latencies = [each.latency_s for each in answered]
        rows.append(
            {
                "second": second,
                "requests": len(requests),
                "refused": sum(each.status == REFUSED for each in requests),
                "median_s": float(np.median(latencies)) if latencies else None,
                "longest_s": max(latencies, default=None),
                "knob": float(np.median([each.answer["knobs"][knob] for each in answered])) if answered else None,
            }
        )
    return rows


def texts_of(path: Path, words: int, count: int) -> list[str]:
    """The first words of the texts that have as many."""
    texts = (json.loads(line)["text"].split() for line in path.read_text(encoding="utf-8").splitlines())
    return [" ".join(text[:words]) for text in texts if len(text) >= words][:count]


async def measure(pid: int, port: int, options: argparse.Namespace, manifest: Manifest) -> dict[str, Any]:
    """Both runs on one server."""
    client = Client(port)
    exact_knobs = KnobTable(manifest.name, manifest.knobs).exact()
    texts = texts_of(options.texts, options.words, options.count)
    plain = [request_of(text, truncate=True, **exact_knobs) for text in texts]
    degradable = [request_of(text, truncate=True, **exact_knobs, degradable_to=options.floor) for text in texts]
    at_floor = [request_of(text, truncate=True, **exact_knobs | options.floor) for text in texts]
    await closed_loop(client, plain[:8], CAPACITY_CLIENTS, options.capacity_seconds / 5)
    exact, capacity = await closed_loop(client, plain, CAPACITY_CLIENTS, options.capacity_seconds)
    _, floor_capacity = await closed_loop(client, at_floor, CAPACITY_CLIENTS, options.capacity_seconds)
    tokens = [answer["tokens"][0] for answer in exact]
    result: dict[str, Any] = {
        "texts": len(texts),
        "tokens": {"least": min(tokens), "median": float(np.median(tokens)), "most": max(tokens)},
        "exact_knobs": exact_knobs,
        "capacity_per_s": capacity,
        "floor_capacity_per_s": floor_capacity,
        "rate_per_s": options.load * capacity,
    }
    arrivals = poisson(options.load * capacity, options.settle + options.seconds, options.seed)
    for name, requests in (("without", plain), ("with", degradable)):
        used, own = cpu_s(pid), time.process_time()
        exchanges = await open_loop(client, requests, arrivals, options.seed)
        result[name] = summary(
            [each for each in exchanges if each.at_s >= options.settle],
            exact,
            options.target_ms / 1000,
            len(manifest.labels),
        )
        result[name] |= {"server_cpu_s": cpu_s(pid) - used, "generator_cpu_s": time.process_time() - own}
        result[name]["by_second"] = by_second(exchanges, next(iter(options.floor)))
        shown = {key: value for key, value in result[name].items() if key != "by_second"}
        print(name, json.dumps(record.rounded(shown)), file=sys.stderr, flush=True)
    client.close()
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines with a field text")
    parser.add_argument("--words", type=int, default=500, help="length of each text; shorter ones are left out")
    parser.add_argument("--count", type=int, default=200, help="texts that are used, from the first on")
    parser.add_argument("--floor", type=read_floors, required=True, help="degradable_to, such as num_hashes=8")
    parser.add_argument("--target-ms", type=float, default=1000.0, help="latency to hold; half of it may be waiting")
    parser.add_argument("--load", type=float, default=2.0, help="arrivals as a multiple of the exact capacity")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of what is reported of each run")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds before that")
    parser.add_argument("--capacity-seconds", type=float, default=10.0, help="least time for measuring the capacity")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    parser.add_argument("--output", type=Path, help="result file; in benchmarks/results by default")
    command_line = sys.argv[1:] if arguments is None else arguments
    options, flags = parser.parse_known_args(command_line)
    manifest = read_manifest(options.bundle)
    head = {
        "benchmark": "brownout",
        **record.origin(command_line, in_model(options.bundle)),
        **record.cpu(),
        "bundle": manifest.name,
    }
    head |= {"target_ms": options.target_ms, "load": options.load, "floor": options.floor}
    head |= {"settle_s": options.settle, "server_flags": flags}
    with serving(options.bundle, ["--brownout-target-ms", str(options.target_ms / 2), *flags]) as (pid, port):
        result = asyncio.run(measure(pid, port, options, manifest))
    record.write(options.output or record.RAW / f"brownout-{manifest.name}.json", head | result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
