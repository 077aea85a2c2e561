"""Fits the rates of `attenuator.clients.cost` to times of bundles, and says how far the model is off.

    python benchmarks/cost_rates.py BUNDLE [BUNDLE ...] --machine "one core of a .."

Each bundle runs one sequence at a time on one thread, over lengths and, for YOSO, numbers of hashes; YOSO bundles run
with exact softmax attention too. Times are thread CPU time, the shortest of several turns, which a shared machine
disturbs least. The fit is non-negative least squares on relative errors.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from attenuator.bundle import MODEL, Manifest, read_manifest
from attenuator.clients.baseline import write_softmax_model
from attenuator.clients.cost import CostModel, Units
from attenuator.clients.report import lengths_up_to
from attenuator.clients.work import count_work
from attenuator.runtime import KnobTable, Row, create
from attenuator.runtime.batch import pack
from attenuator.runtime.graph import read_graph

NUM_HASHES = (8, 16, 32, 64)
LONGEST = 4096
TURNS = 5


def added(*parts: Units) -> Units:
    """Work done one after the other."""
    return Units(*(sum(counts) for counts in zip(*parts, strict=True)))


def shortest_ns(runs: dict[Any, Any]) -> dict[Any, float]:
    """Shortest thread CPU time of each run, taken in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run in runs.items():
            started = time.thread_time_ns()
            run()
            best[name] = min(best[name], time.thread_time_ns() - started)
    return best


def samples(folder: Path) -> list[tuple[str, Units, float]]:
    """Name, work and time of every setting of a bundle."""
    manifest: Manifest = read_manifest(folder)
    model = CostModel(count_work(read_graph(folder / MODEL)))
    knobs = KnobTable(manifest.name, manifest.knobs)
    random = np.random.default_rng(0)
    yoso = manifest.attention.operator == "yoso"
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        softmax_path = folder / MODEL
        if yoso:
            softmax_path = Path(scratch) / MODEL
            write_softmax_model(folder / MODEL, softmax_path)
            for extra in folder.glob(f"{MODEL}.*"):
                (Path(scratch) / extra.name).symlink_to(extra.resolve())
        softmax = create(softmax_path, threads=1)
        own = create(folder / MODEL, threads=1) if yoso else softmax
        for tokens in (n for n in lengths_up_to(manifest.max_tokens) if n <= LONGEST):
            ids = random.integers(0, manifest.vocab_size, tokens, dtype=np.int64)

            def runner(session: Any, values: dict[str, Any], ids: Any = ids) -> Any:
                feeds = pack([Row(ids, np.zeros_like(ids), values)], manifest)
                return lambda: session.run(["logits"], feeds)

            runs: dict[int, Any] = {0: runner(softmax, knobs.exact())}
            runs |= {m: runner(own, {"num_hashes": m}) for m in NUM_HASHES if yoso}
            rest = added(model.rest(tokens), model.projection(tokens))
            for num_hashes, ns in shortest_ns(runs).items():
                attention = model.yoso(tokens, num_hashes) if num_hashes else model.softmax(tokens)
                name = f"{manifest.name} n={tokens} {f'm={num_hashes}' if num_hashes else 'softmax'}"
                found.append((name, added(rest, attention), ns))
    return found


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="+", type=Path)
    parser.add_argument("--machine", required=True)
    options = parser.parse_args()
    rows = [row for folder in options.bundle for row in samples(folder)]
    work = np.array([units for _, units, _ in rows])
    times = np.array([ns for _, _, ns in rows])
    # Divided by its time, a setting's error is a relative one; columns are scaled for the solver's sake.
    scaled = work / times[:, None]
    scale = np.maximum(scaled.max(axis=0), 1e-300)
    rates = Units(*(nnls(scaled / scale, np.ones(len(times)))[0] / scale))
    for (name, _, ns), modelled in zip(rows, work @ np.array(rates), strict=True):
        print(f"{name:40} {ns / 1e6:9.3f} ms  modelled {modelled / ns:5.2f} of it", file=sys.stderr)
    arguments = ", ".join(f"{name}={value:.3g}" for name, value in rates._asdict().items())
    print(f'RATES = Units({arguments})\nRATES_MACHINE = "{options.machine}"')
    return 0


if __name__ == "__main__":
    sys.exit(main())
