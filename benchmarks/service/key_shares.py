"""What one API key's single requests take while another key floods the same server, and whether they are refused.

    python -m benchmarks.service.key_shares examples/bundles/reviews-mca

Starts `attenuator serve` with two keys. Single requests of one leave one after the other: alone; beside the other key's
`--bulk-clients`, which each keep a batch of 256 texts under way, and its `--single-clients`, which send single requests
as fast as they are answered; and beside the same where both use one key, so that only requests take turns. At last the
flood's requests are `interactive` and the others `batch`, which shows the least share of that class. The load generator
is one process beside the server and takes time from it.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from attenuator.load_generator import Client, request_of
from benchmarks.measure.processes import serving

TEXT = "a film of rare warmth that never "
FLOOD, OTHER = "flood-key", "other-key"


def keyed(request: bytes, key: str) -> bytes:
    """A request with an API key."""
    return request.replace(b"\r\n", f"\r\nAuthorization: Bearer {key}\r\n".encode(), 1)


async def measure(port: int, name: str, options: argparse.Namespace, *, flood: str, priority: str) -> None:
    """Prints what single requests took beside a flood of a key; an empty key floods with nothing."""
    client = Client(port)
    text = TEXT * (options.words // 7)
    batch, single = keyed(request_of([text] * 256), flood), keyed(request_of(text), flood)
    own = keyed(request_of(text, priority=priority), OTHER)
    flooded: Counter[int] = Counter()

    async def keep_sending(request: bytes) -> None:
        while True:
            status, _ = await client.post(request)
            flooded[status] += 1
            if status != 200:
                await asyncio.sleep(0.05)

    senders = [batch] * options.bulk_clients + [single] * options.single_clients if flood else []
    tasks = [asyncio.create_task(keep_sending(request)) for request in senders]
    await asyncio.sleep(2 if flood else 0)
    answered: list[float] = []
    others: Counter[int] = Counter()
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end:
        status, seconds = await client.post(own)
        others[status] += 1
        if status == 200:
            answered.append(seconds * 1e3)
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    quantiles = statistics.quantiles(answered, n=100) if len(answered) > 1 else answered * 99
    row = {
        "case": name,
        "answered": len(answered),
        "refused": others[429],
        "median_ms": round(quantiles[49], 1),
        "p95_ms": round(quantiles[94], 1),
        "p99_ms": round(quantiles[98], 1),
        "flood_answered": flooded[200],
        "flood_refused": flooded[429],
    }
    print(json.dumps(row), flush=True)
    client.close()


async def measure_all(port: int, options: argparse.Namespace) -> None:
    """The four cases, in `--rounds` rounds."""
    cases = [
        ("alone", "", "interactive"),
        ("beside another key", FLOOD, "interactive"),
        ("beside requests of its own key", OTHER, "interactive"),
        ("as batch, beside another key", FLOOD, "batch"),
    ]
    for _, (name, flood, priority) in itertools.product(range(options.rounds), cases):
        await measure(port, name, options, flood=flood, priority=priority)
        await asyncio.sleep(1)


def main() -> None:
    """Runs the program; flags that it does not know go to the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--words", type=int, default=140, help="words of each text")
    parser.add_argument("--bulk-clients", type=int, default=4)
    parser.add_argument("--single-clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each case")
    parser.add_argument("--rounds", type=int, default=1)
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        keys.write_text(json.dumps([{"name": key, "key": key} for key in (FLOOD, OTHER)]), encoding="utf-8")
        with serving(options.bundle, ["--api-keys", str(keys), *flags]) as (_, port):
            asyncio.run(measure_all(port, options))


if __name__ == "__main__":
    main()
