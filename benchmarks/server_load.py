"""What a server still answers when more is asked of it than it can do: an open loop at 1, 2 and 4 times its capacity.

    python -m benchmarks.server_load examples/bundles/contracts --words 2000

Starts `attenuator serve` on a free port. Capacity is what it answers per second to a closed loop of `--clients`. Then
requests leave at fixed times whatever the server does, and goodput is the answers with status 200 per second. The load
generator is one process of plain asyncio streams; on a machine with few cores it takes time from the server, as its
own CPU time in the table shows. `bulk` rows are something else: one short request at a time, alone and beside
`--bulk-clients` that each keep a batch of 256 such texts under way.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections import Counter
from pathlib import Path

from attenuator.load import Client, request_of
from benchmarks.measure.processes import cpu_s, serving

FACTORS = (1.0, 2.0, 4.0)


async def closed_loop(client: Client, request: bytes, clients: int, seconds: float) -> float:
    """Answers per second where each client sends its next request when the last one is answered."""
    end = time.perf_counter() + seconds
    answered = 0

    async def one() -> None:
        nonlocal answered
        while time.perf_counter() < end:
            status, _ = await client.post(request)
            answered += status == 200 and time.perf_counter() < end

    await asyncio.gather(*(one() for _ in range(clients)))
    return answered / seconds


async def open_loop(client: Client, request: bytes, rate: float, seconds: float) -> tuple[Counter[int], list[float]]:
    """Sends at a fixed rate whatever comes back.

    Returns:
        Answers by status that came while requests were being sent, and the seconds of those with status 200.
    """
    statuses: Counter[int] = Counter()
    latencies: list[float] = []
    started = time.perf_counter()

    async def one() -> None:
        status, latency = await client.post(request)
        if time.perf_counter() - started <= seconds:
            statuses[status] += 1
            if status == 200:
                latencies.append(latency)

    tasks = set()
    for number in range(round(rate * seconds)):
        delay = started + number / rate - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        task = asyncio.create_task(one())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return statuses, latencies


async def measure_goodput(pid: int, port: int, options: argparse.Namespace) -> None:
    """Prints goodput at each factor of capacity; capacity is measured again before each."""
    client = Client(port)
    request = request_of("the agreement of the parties " * (options.words // 5))
    await closed_loop(client, request, options.clients, options.seconds / 4)
    for factor in FACTORS:
        cpu = cpu_s(pid)
        capacity = await closed_loop(client, request, options.clients, options.seconds)
        per_answer_s = (cpu_s(pid) - cpu) / max(1.0, capacity * options.seconds)
        cpu, own = cpu_s(pid), time.process_time()
        statuses, latencies = await open_loop(client, request, factor * capacity, options.seconds)
        own = time.process_time() - own
        used = cpu_s(pid) - cpu
        row = {
            "offered": factor,
            "capacity_per_s": round(capacity, 1),
            "goodput_per_s": round(statuses[200] / options.seconds, 1),
            "goodput_share": round(statuses[200] / options.seconds / capacity, 3),
            "refused": statuses[429],
            "other": sum(count for status, count in statuses.items() if status not in (200, 429)),
            "median_s": round(statistics.median(latencies), 3) if latencies else None,
            "server_cpu_s": round(used, 2),
            "cpu_ms_per_answer_at_capacity": round(per_answer_s * 1e3, 2),
            "generator_cpu_s": round(own, 2),
        }
        print(json.dumps(row), flush=True)
    client.close()


async def measure_bulk(port: int, options: argparse.Namespace) -> None:
    """Prints what a short request takes alone, and beside batches of 256 long texts."""
    client = Client(port)
    short = request_of("the agreement of the parties")
    batch = request_of(["the agreement of the parties " * (options.words // 5)] * 256)

    async def bulk() -> None:
        while True:
            status, _ = await client.post(batch)
            if status != 200:
                await asyncio.sleep(0.5)

    async def shorts(seconds: float) -> list[float]:
        end = time.perf_counter() + seconds
        latencies = []
        while time.perf_counter() < end:
            latencies.append((await client.post(short))[1])
            await asyncio.sleep(0.01)
        return sorted(latencies)

    alone = await shorts(options.seconds)
    others = [asyncio.create_task(bulk()) for _ in range(options.bulk_clients)]
    await asyncio.sleep(1)
    beside = await shorts(3 * options.seconds)
    for task in others:
        task.cancel()
    for name, latencies in (("alone", alone), ("beside bulk", beside)):
        row = {
            "bulk": name,
            "requests": len(latencies),
            "median_ms": round(statistics.median(latencies) * 1e3, 2),
            "p95_ms": round(latencies[int(0.95 * len(latencies))] * 1e3, 2),
            "max_ms": round(latencies[-1] * 1e3, 2),
        }
        print(json.dumps(row), flush=True)
    client.close()


def main() -> None:
    """Runs both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--words", type=int, default=2000, help="words of a long text")
    parser.add_argument("--clients", type=int, default=16, help="clients of the closed loop that measures capacity")
    parser.add_argument("--bulk-clients", type=int, default=4, help="clients that send batches; 0 leaves them out")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each measurement")
    options, flags = parser.parse_known_args()
    with serving(options.bundle, flags) as (pid, port):
        asyncio.run(measure_goodput(pid, port, options))
        if options.bulk_clients:
            asyncio.run(measure_bulk(port, options))


if __name__ == "__main__":
    main()
