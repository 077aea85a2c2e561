"""Documents a second of `/v1/rerank` beside a cross-encoder as people run it, and whether a list keeps its time.

    python -m benchmarks.service.rerank rerankers --threads 1 2

RERANKERS is what `benchmarks.models.train_reranker` wrote. Lists of `held_out.jsonl` are ranked in turns, texts to
scores, tokenizing included: by `attenuator serve`, over HTTP and one list at a time, exactly in fp32 and in int8 and in
two steps; by `CrossEncoder` of sentence-transformers, and by ONNX Runtime after its transformer optimizer in fp32 and
dynamic int8, both on batches of 32 sorted by length. All run on the same cores. CPU time is that of this process and
the servers together, which other work on the machine changes less than the wall clock.

With `--budgets` the service then answers every list within shares of the exact time (`max_latency_ms`): how many were
in time, by the server's own clock and by the client's, and what nDCG@10 they lost. Needs torch, transformers and
sentence-transformers (`pip install sentence-transformers`).
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertForSequenceClassification, BertTokenizerFast

from attenuator.commands.calibrate.ordering import ndcg
from attenuator.load_generator import post
from benchmarks.contenders import padded
from benchmarks.contenders.documents import Documents
from benchmarks.measure import record
from benchmarks.measure.kernels import in_model
from benchmarks.measure.processes import cpu_s, on_cores, serving
from benchmarks.measure.program import parser_for
from benchmarks.measure.timing import Timing, interleave
from benchmarks.models.ranking import RankingList
from benchmarks.models.rerank import read
from benchmarks.service.added_time import Connection

ROUTE = "/v1/rerank"
CROSS_ENCODER = "CrossEncoder"
EXACT = {"keep": 1.0}
# Fields of the requests by what is served: the exact ones, and two steps.
REQUESTS: dict[str, dict[str, Any]] = {
    "serve, fp32": {"model": "base", **EXACT},
    "serve, int8": {"model": "base-int8", **EXACT},
    "serve, keep 0.05, 5 again": {"model": "base", "keep": 0.05, "rescore": 5},
    "serve, int8 keep 0.05 to fp32, 5 again": {"cascade": ["base-int8", "base"], "keep": 0.05, "rescore": 5},
    "serve, mini to base, 5 again": {"cascade": ["mini", "base"], **EXACT, "rescore": 5},
    "serve, mini to int8, 5 again": {"cascade": ["mini", "base-int8"], **EXACT, "rescore": 5},
}
SERVED = ("base", "base-int8", "mini")
BUDGETS = (1 / 2, 1 / 3)
# First steps of the requests with budgets.
BUDGETED: dict[str, dict[str, Any]] = {
    "keep 0.05": {"model": "base", "keep": 0.05},
    "mini": {"cascade": ["mini", "base"], **EXACT},
    "int8 keep 0.05": {"cascade": ["base-int8", "base"], "keep": 0.05},
}


def request(each: RankingList, fields: Mapping[str, Any]) -> bytes:
    """One list as the service takes it."""
    return post(ROUTE, {"query": each.query, "documents": each.documents, "truncate": True, **fields})


def answered(port: int, requests: Sequence[bytes]) -> list[Any]:
    """The answers to requests, one after the other, over a new connection: an idle one would be closed meanwhile."""
    connection = Connection(port)
    answers = [json.loads(connection.ask(each)[1]) for each in requests]
    connection.close()
    return answers


def through_ort(session: Any, tokenizer: Any, lists: Sequence[RankingList]) -> list[Any]:
    """ONNX Runtime over batches of 32, sorted by length; outputs of each list."""
    outputs = []
    for each in lists:
        queries = [each.query] * len(each.documents)
        read = tokenizer(queries, each.documents, truncation=True)
        documents = Documents(tuple(read["input_ids"]), tokenizer.model_max_length)
        outputs.append(padded.through_ort(session, documents, by_length=True))
    return outputs


def contenders(
    folder: Path, place: Path, lists: Sequence[RankingList], port: int, threads: int, names: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    """What ranks the lists, by name.

    Args:
        folder: of the rerankers.
        place: for ONNX files.
        lists: that are ranked.
        port: of the service.
        threads: of those that run here.
        names: of `REQUESTS`.
    """
    checkpoint = folder / "checkpoints" / "base"
    torch.set_num_threads(threads)
    # Imported here: it is no dependency of the project, and what judges answers needs none of it.
    encoder = import_module("sentence_transformers").CrossEncoder(str(checkpoint), device="cpu")
    pairs = [[(each.query, document) for document in each.documents] for each in lists]
    runs: dict[str, Callable[[], Any]] = {
        CROSS_ENCODER: lambda: [encoder.predict(each, show_progress_bar=False) for each in pairs]
    }
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    paths = padded.export_onnx(BertForSequenceClassification.from_pretrained(checkpoint).eval(), place)
    for precision in ("fp32", "int8"):
        session = padded.session(paths[precision], threads)
        runs[f"ONNX Runtime, {precision}"] = partial(through_ort, session, tokenizer, lists)
    for name in names:
        requests = [request(each, REQUESTS[name]) for each in lists]
        runs[name] = partial(answered, port, requests)
    return runs


def sampler_of(server: int) -> Callable[[Callable[[], Any], int], tuple[float, float]]:
    """CPU time of this process and a server."""

    def sample(run: Callable[[], Any], count: int) -> tuple[float, float]:
        started, own = time.perf_counter_ns(), time.process_time_ns() + 1e9 * cpu_s(server)
        for _ in range(count):
            run()
        return time.process_time_ns() + 1e9 * cpu_s(server) - own, time.perf_counter_ns() - started

    return sample


def table(timings: Mapping[str, Timing], documents: int) -> str:
    """Documents a second of each contender, and how many times faster it is than `CrossEncoder`, in Markdown."""
    lines = ["| | documents a second | times faster | by CPU time |", "|---|---|---|---|"]
    for name, timing in timings.items():
        wall, own = (timing.times_faster_than(timings[CROSS_ENCODER], wall=each) for each in (True, False))
        each = documents / (float(np.median(timing.wall_us)) / 1e6)
        spread = f"{wall['median']:.2f} ({wall['low']:.2f} to {wall['high']:.2f})"
        lines.append(f"| {name} | {each:.0f} | {spread} | {own['median']:.2f} |")
    return "\n".join(lines)


def quality_of(lists: Sequence[RankingList], answers: Sequence[Any]) -> Any:
    """nDCG@10 of each answer, `[lists]`."""
    orders = [[result["index"] for result in answer["results"]] for answer in answers]
    return np.array([ndcg(order, frozenset(each.relevant)) for each, order in zip(lists, orders, strict=True)])


def budgets(port: int, lists: Sequence[RankingList]) -> list[dict[str, Any]]:
    """What becomes of lists that must be answered within shares of the exact time.

    Each list is ranked exactly, and then at once within every budget of `BUDGETS` with every first step of `BUDGETED`.

    Returns:
        For each of these the shares in time, nDCG@10 that was lost and the mean number of documents scored again.
    """
    connection = Connection(port)
    rows: dict[tuple[str, float], list[tuple[float, ...]]] = {}
    for each in lists:
        exact_ms, body = connection.ask(request(each, REQUESTS["serve, fp32"]))
        [best] = quality_of([each], [json.loads(body)])
        for name, first in BUDGETED.items():
            for share in BUDGETS:
                limit = share * exact_ms
                taken, body = connection.ask(request(each, {**first, "max_latency_ms": limit}))
                answer = json.loads(body)
                again = sum(step["documents"] for step in answer["steps"][1:])
                own = answer["timing_ms"]["total"]
                [got] = quality_of([each], [answer])
                rows.setdefault((name, share), []).append((taken <= limit, own <= limit, best - got, again))
    connection.close()
    names = ("in_time", "in_time_by_the_server", "lost", "again")
    return [
        {"first": name, "share": share} | dict(zip(names, np.mean(row, axis=0).tolist(), strict=True))
        for (name, share), row in rows.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=60)
    parser.add_argument("rerankers", type=Path)
    parser.add_argument("--lists", type=int, default=4, help="that are timed")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--requests", nargs="*", choices=list(REQUESTS), default=list(REQUESTS))
    parser.add_argument("--budgets", type=int, default=0, metavar="LISTS", help="that are ranked within budgets")
    options = parser.parse_args(arguments)
    bundles = options.rerankers / "bundles"
    lists = read(options.rerankers / "held_out.jsonl", max(options.lists, options.budgets))
    timed = lists[: options.lists]
    result: dict[str, Any] = {"documents": sum(len(each.documents) for each in timed)}
    cores = sorted(os.sched_getaffinity(0))
    for threads in options.threads:
        flags = [*(str(bundles / name) for name in SERVED[1:]), "--threads", str(threads)]
        with contextlib.ExitStack() as stack:
            stack.enter_context(on_cores(cores[:threads]))
            server, port = stack.enter_context(serving(bundles / SERVED[0], flags))
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            runs = contenders(options.rerankers, place, timed, port, threads, options.requests)
            timings = interleave(runs, threads=threads, seconds=options.seconds, sampler=sampler_of(server))
            print(f"{threads} thread(s)", table(timings, result["documents"]), sep="\n", flush=True)
            result[f"threads_{threads}"] = {name: timing.record() for name, timing in timings.items()}
            if options.budgets:
                rows = budgets(port, lists[: options.budgets])
                print(*rows, sep="\n", flush=True)
                result[f"budgets_{threads}"] = rows
    if options.output:
        head = record.origin(sys.argv[1:] if arguments is None else arguments, in_model(bundles / "base"))
        record.write(options.output, head | record.cpu() | result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
