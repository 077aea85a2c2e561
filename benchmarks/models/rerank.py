"""What an answer in two steps costs and loses: all documents of a list cheaply, the best of them again exactly.

    python -m benchmarks.models.rerank rerankers

RERANKERS is what `train_reranker.py` wrote. Every list of `held_out.jsonl` is scored once with each first step: `keep`
at several values, untaught and taught, int8, and the smaller model. From these scores follow nDCG@10 and MRR@10 for any
number of documents that the exact fp32 model scores again. CPU time is taken in turns in one process, one run a list:
of each first step over all documents, and of the exact model over as many as are scored again; a row's time is their
sum, as a share of the exact model's time over all. Prints a table, and what the rows within half and a third of the
exact time lose at least.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attenuator import runtime
from attenuator.commands.calibrate.ordering import in_two_steps, ndcg, reciprocal_rank
from benchmarks.measure import record
from benchmarks.measure.cases import Row
from benchmarks.measure.kernels import in_model
from benchmarks.measure.program import parser_for
from benchmarks.measure.timing import Timing, interleave
from benchmarks.models.ranking import RankingList

RESCORED = (0, 3, 5, 10, 15, 20)
KEEP = "keep"
EXACT = "exact"
# Bundle and `keep` of each first step.
FIRST_STEPS: dict[str, tuple[str, float]] = {
    EXACT: ("base", 1.0),
    **{f"{KEEP} {value:g}": ("base", value) for value in (0.05, 0.2, 0.5)},
    **{f"taught {KEEP} {value:g}": ("base-taught", value) for value in (0.05, 0.2)},
    **{f"{KEEP} {value:g}, behind the first layer": ("base-first", value) for value in (0.05, 0.1, 0.2, 0.3)},
    "int8": ("base-int8", 1.0),
    **{f"int8 {KEEP} {value:g}": ("base-int8", value) for value in (0.05, 0.2)},
    "mini": ("mini", 1.0),
}
# Largest share of the exact time, and what may be lost of nDCG@10 at it.
TARGETS = {0.5: 0.01, 1 / 3: 0.03}
NORMAL_95 = 1.96


class Pairs(NamedTuple):
    """A list as a model reads it."""

    model: runtime.Model
    rows: list[runtime.Row]

    def scores(self, places: Sequence[int] | None = None) -> npt.NDArray[np.float32]:
        """Outputs of the documents, or of those at some places, in one run."""
        rows = self.rows if places is None else [self.rows[place] for place in places]
        return np.array([result.logits[0] for result in self.model.run(rows)])


def read(path: Path, most: int) -> list[RankingList]:
    """The first lists of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()[:most]
    return [RankingList(**json.loads(line)) for line in lines]


def pairs_of(model: runtime.Model, each: RankingList, keep: float) -> Pairs:
    """A list at a value of `keep`."""
    knobs = model.knobs.check({KEEP: keep})
    encoded = [model.encode(each.query, document, truncate=True) for document in each.documents]
    return Pairs(model, [runtime.Row(one.token_ids, one.type_ids, knobs) for one in encoded])


def quality(
    lists: Sequence[RankingList], first: Sequence[npt.NDArray[Any]], last: Sequence[npt.NDArray[Any]], rescored: int
) -> npt.NDArray[np.float64]:
    """nDCG@10 and MRR@10 of each list, `[lists, 2]`."""
    rows = []
    for each, cheap, exact in zip(lists, first, last, strict=True):
        order, relevant = in_two_steps(cheap.tolist(), exact.tolist(), rescored), frozenset(each.relevant)
        rows.append((ndcg(order, relevant), reciprocal_rank(order, relevant)))
    return np.array(rows)


def timings(
    models: Mapping[str, runtime.Model], lists: Sequence[RankingList], steps: Mapping[str, tuple[str, float]],
    threads: int, seconds: float,
) -> dict[str, Timing]:  # fmt: skip
    """CPU time of every first step, and of the exact model over the best documents of each list, by their number."""
    runs: dict[str, Callable[[], Any]] = {}
    for name, (bundle, keep) in steps.items():
        pairs = [pairs_of(models[bundle], each, keep) for each in lists]
        runs[name] = partial(lambda pairs: [each.scores() for each in pairs], pairs)
    exact = [pairs_of(models["base"], each, 1.0) for each in lists]
    orders = [np.argsort(-each.scores(), kind="stable") for each in exact]
    for count in RESCORED[1:]:
        best = [
            Pairs(each.model, [each.rows[place] for place in order[:count]])
            for each, order in zip(exact, orders, strict=True)
        ]
        runs[str(count)] = partial(lambda pairs: [each.scores() for each in pairs], best)
    return interleave(runs, threads=threads, seconds=seconds)


def rows_of(
    lists: Sequence[RankingList], scores: Mapping[str, list[npt.NDArray[Any]]], times: Mapping[str, Timing]
) -> list[Row]:
    """One row for each first step and number of documents that are scored again."""
    whole = times[EXACT]
    best = quality(lists, scores[EXACT], scores[EXACT], 0)
    rows = []
    for name, first in scores.items():
        for count in RESCORED if name != EXACT else (0,):
            got = quality(lists, first, scores[EXACT], count)
            lost = best[:, 0] - got[:, 0]
            again = np.array(times[str(count)].own_us) if count else np.zeros(len(whole.own_us))
            share = np.median((np.array(times[name].own_us) + again) / np.array(whole.own_us))
            rows.append({
                "first": name,
                "rescored": count,
                "time": float(share),
                "ndcg": float(got[:, 0].mean()),
                "mrr": float(got[:, 1].mean()),
                "lost": float(lost.mean()),
                "lost_95": NORMAL_95 * float(lost.std(ddof=1)) / len(lost) ** 0.5,
            })  # fmt: skip
    return rows


def table(rows: Sequence[Row]) -> str:
    """All rows, in Markdown."""
    lines = ["| first step | scored again | time | nDCG@10 | lost | MRR@10 |", "|---|---|---|---|---|---|"]
    for row in rows:
        figures = f"{row['ndcg']:.3f} | {row['lost']:.3f} ± {row['lost_95']:.3f} | {row['mrr']:.3f}"
        lines.append(f"| {row['first']} | {row['rescored']} | {row['time']:.2f} | {figures} |")
    return "\n".join(lines)


def reached(rows: Sequence[Row]) -> list[str]:
    """A sentence for each target: the row that loses least within its time."""
    sentences = []
    for share, allowed in TARGETS.items():
        within = [row for row in rows if row["time"] <= share]
        if within:
            row = min(within, key=lambda row: row["lost"])
            sentences.append(
                f"within {share:.2f} of the exact time (at most {allowed:g} lost): {row['first']}, {row['rescored']} "
                f"scored again, at {row['time']:.2f} loses {row['lost']:.4f} ± {row['lost_95']:.4f}"
            )
    return sentences


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=90)
    parser.add_argument("rerankers", type=Path)
    parser.add_argument("--most", type=int, default=1000, help="lists, at most")
    parser.add_argument("--timed", type=int, default=6, help="lists that are timed")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    folders = {path.name: path for path in sorted((options.rerankers / "bundles").iterdir())}
    models = {name: runtime.load(path, threads=options.threads, check=False) for name, path in folders.items()}
    steps = {name: step for name, step in FIRST_STEPS.items() if step[0] in models}
    lists = read(options.rerankers / "held_out.jsonl", options.most)
    scores = {
        name: [pairs_of(models[bundle], each, keep).scores() for each in lists]
        for name, (bundle, keep) in steps.items()
    }
    times = timings(models, lists[: options.timed], steps, options.threads, options.seconds)
    rows = rows_of(lists, scores, times)
    tokens = [len(row.token_ids) for each in lists for row in pairs_of(models["base"], each, 1.0).rows]
    bm25 = quality(lists, [-np.arange(len(each.documents)) for each in lists], scores[EXACT], 0).mean(axis=0)
    print(table(rows), *reached(rows), sep="\n")
    print(
        f"{len(lists)} lists, {np.mean(tokens):.0f} tokens a pair; BM25 alone: nDCG@10 {bm25[0]:.3f}, MRR {bm25[1]:.3f}"
    )
    if options.output:
        head = record.origin(sys.argv[1:] if arguments is None else arguments, in_model(folders["base"]))
        facts = {"lists": len(lists), "tokens": float(np.mean(tokens)), "bm25_ndcg": float(bm25[0])}
        times_of = {name: timing.record() for name, timing in times.items()}
        record.write(options.output, head | record.cpu() | facts | {"rows": rows, "contenders": times_of})
    return 0


if __name__ == "__main__":
    sys.exit(main())
