"""Fits the rates of `ops/cost.py` and `ops/yoso/cost.py` to times of bundles, and says how far the model is off.

    python -m benchmarks.operators.cost_rates --machine "one core of a .."

Bundles of several shapes with random weights (and any others given) run one sequence at a time on one thread, over
lengths and, for YOSO, numbers of hashes; YOSO bundles run with exact softmax attention too. Times are thread CPU time,
the shortest of several turns, which a shared machine disturbs least. Two fits by non-negative least squares: attention
from what settings of one length differ by, where all else cancels; then the rest from whole times.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from attenuator.bundle import MODEL, Manifest, read_manifest
from attenuator.commands.baseline import write_baseline
from attenuator.commands.report import lengths_up_to
from attenuator.export import export
from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.ops.yoso import cost as yoso_cost
from attenuator.runtime import KnobTable, Row, create
from attenuator.runtime.batch import pack
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import Work, count_work

SHAPES: tuple[dict[str, Any], ...] = (
    {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "hash_bits": 9},
    {"hidden_size": 128, "num_attention_heads": 1, "intermediate_size": 128, "hash_bits": 14},
    {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512, "hash_bits": 8},
    {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 128, "hash_bits": 5},
    {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "hash_bits": 8},
    {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "hash_bits": 8, "num_hidden_layers": 1},
)
NUM_HASHES = (8, 16, 32, 64)
ATTENTION, REST = ("attention", *yoso_cost.Units._fields), ("dense", "values")
SHORTEST, LONGEST = 64, 4096
# Up to SHORT tokens YOSO counts collisions, from LONG on it uses tables.
SHORT, LONG = 128, 512
TURNS = 5


def random_bundles(root: Path) -> list[Path]:
    """Bundles of the shapes above, weights as they are initialised."""
    vocabulary = {token: index for index, token in enumerate(["[UNK]", *"abcdefghijklmnopqrstuvwxyz"])}
    tokenizer = Tokenizer(WordLevel(vocabulary, "[UNK]"))
    folders = []
    for index, shape in enumerate(SHAPES):
        source = root / f"source-{index}"
        Encoder(EncoderConfig(len(vocabulary), attention="yoso", max_tokens=LONGEST, **shape)).save_pretrained(source)
        tokenizer.save(str(source / "tokenizer.json"))
        name = f"d{shape['hidden_size']}-h{shape['num_attention_heads']}-tau{shape['hash_bits']}"
        export(str(source), attention="yoso", output=root / name)
        folders.append(root / name)
    return folders


def shortest_ns(runs: dict[Any, Any]) -> dict[Any, float]:
    """Shortest thread CPU time of each run, taken in turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run in runs.items():
            started = time.thread_time_ns()
            run()
            best[name] = min(best[name], time.thread_time_ns() - started)
    return best


class Units(NamedTuple):
    """Counted work by kind, and, where named so, ns per unit of each kind.

    Attributes:
        dense: multiply-adds in linear layers and value projections.
        values: values that nodes other than linear layers and operators write.
        attention: multiply-adds in exact softmax attention.
        hashing: this and the following as in `ops/yoso/cost.py`.
    """

    dense: float = 0.0
    values: float = 0.0
    attention: float = 0.0
    hashing: float = 0.0
    codes: float = 0.0
    buckets: float = 0.0
    pairs: float = 0.0

    def times(self, ns_per_unit: "Units") -> float:
        """The time that this work takes, in ns."""
        return sum(count * ns for count, ns in zip(self, ns_per_unit, strict=True))


def units_of(work: Work, tokens: int, num_hashes: int) -> Units:
    """The work of a model at a length; with 0 hashes, of the same model with exact softmax attention."""
    dense = work.dense_macs(tokens) + work.projection_macs(tokens)
    values = tokens * work.token_values
    if not num_hashes:
        return Units(dense, values, work.attention_macs(tokens))
    # Which way the kernel takes is not asked here; far from where they meet it is clear.
    way = yoso_cost.by_counts if tokens <= SHORT else yoso_cost.by_tables
    nodes = [way(node, tokens, num_hashes) for node in work.attention]
    return Units(dense, values, 0.0, *(sum(kind) for kind in zip(*nodes, strict=True)))


class Sample(NamedTuple):
    """One setting: a bundle at a length, with softmax (0) or a number of hashes."""

    bundle: str
    tokens: int
    num_hashes: int
    work: Units
    ns: float


def samples(folder: Path) -> list[Sample]:
    """Work and time of every setting of a bundle."""
    manifest: Manifest = read_manifest(folder)
    work = count_work(read_graph(folder / MODEL))
    knobs = KnobTable(manifest.name, manifest.knobs)
    random = np.random.default_rng(0)
    yoso = manifest.attention.operator == "yoso"
    samples = []
    with tempfile.TemporaryDirectory() as scratch:
        softmax_path = folder / MODEL
        if yoso:
            softmax_path = Path(scratch) / MODEL
            write_baseline(folder / MODEL, softmax_path)
            for extra in folder.glob(f"{MODEL}.*"):
                (Path(scratch) / extra.name).symlink_to(extra.resolve())
        softmax = create(softmax_path, threads=1)
        own = create(folder / MODEL, threads=1) if yoso else softmax
        lengths = [n for n in lengths_up_to(manifest.max_tokens) if SHORTEST <= n <= SHORT or LONG <= n <= LONGEST]
        for tokens in lengths:
            ids = random.integers(0, manifest.vocab_size, tokens, dtype=np.int64)

            def runner(session: Any, values: dict[str, Any], ids: Any = ids) -> Any:
                feeds = pack([Row(ids, np.zeros_like(ids), values)], manifest)
                return lambda: session.run(["logits"], feeds)

            runs: dict[int, Any] = {0: runner(softmax, knobs.exact())}
            runs |= {m: runner(own, knobs.exact() | {"num_hashes": m}) for m in NUM_HASHES if yoso}
            for num_hashes, ns in shortest_ns(runs).items():
                samples.append(Sample(manifest.name, tokens, num_hashes, units_of(work, tokens, num_hashes), ns))
    return samples


def fitted(work: Any, times: Any, kinds: Sequence[str]) -> dict[str, float]:
    """Ns per unit of some kinds of work, each row an equation; rows are to be scaled beforehand."""
    columns = work[:, [Units._fields.index(kind) for kind in kinds]]
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    return dict(zip(kinds, nnls(columns / scale, times)[0] / scale, strict=True))


def fit(rows: Sequence[Sample]) -> Units:
    """The rates."""
    pairs = [(a, b) for a, b in itertools.combinations(rows, 2) if a[:2] == b[:2]]
    weight = np.array([1 / max(a.ns, b.ns) for a, b in pairs])
    work = np.array([np.subtract(a.work, b.work) for a, b in pairs]) * weight[:, None]
    rates = fitted(work, np.array([a.ns - b.ns for a, b in pairs]) * weight, ATTENTION)
    attention = Units(**rates)
    unexplained = np.array([1 - row.work.times(attention) / row.ns for row in rows])
    return Units(**rates, **fitted(np.array([np.divide(row.work, row.ns) for row in rows]), unexplained, REST))


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="*", type=Path, help="further bundles")
    parser.add_argument("--machine", required=True, help="what it is, for the report")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = [row for folder in [*random_bundles(Path(scratch)), *options.bundle] for row in samples(folder)]
    rates = fit(rows)
    errors = []
    for row in rows:
        ratio = row.work.times(rates) / row.ns
        errors.append(max(ratio, 1 / ratio) - 1)
        name = f"{row.bundle} n={row.tokens} {f'm={row.num_hashes}' if row.num_hashes else 'softmax'}"
        print(f"{name:40} {row.ns / 1e6:9.3f} ms  modelled {ratio:5.2f} of it", file=sys.stderr)
    print(f"off by {np.median(errors):.0%} (median), {max(errors):.0%} (most)", file=sys.stderr)
    arguments = ", ".join(f"{name}={getattr(rates, name):.3g}" for name in yoso_cost.Units._fields)
    print(f'ops/cost.py:\nRATES_MACHINE = "{options.machine}"\nNS_PER_DENSE_MAC = {rates.dense:.3g}')
    print(f"NS_PER_VALUE = {rates.values:.3g}\nNS_PER_ATTENTION_MAC = {rates.attention:.3g}")
    print(f"ops/yoso/cost.py:\nRATES = Units({arguments})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
