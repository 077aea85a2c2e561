"""`attenuator serve` beside other servers that serve the same weights: latency, goodput and agreement over the load.

    python -m benchmarks.service.server checkpoints/topics4 --peers /tmp/peers

CHECKPOINT is a BERT classifier of transformers, such as `train_classifier.py` writes, with texts (JSON lines with
`text`) in CHECKPOINT/test.jsonl unless `--texts` names others. The peers, LitServe over ONNX Runtime and infinity, live
in an environment of their own, which the program makes at `--peers` from contenders/peers/requirements.txt; without
`--peers` the program measures `attenuator serve` alone. All serve the checkpoint's own weights in fp32, on one thread.

Each server runs alone on the first core that this process may use, and the load generator on the others, so that it
takes no time from any server. First every server is asked by a closed loop for its capacity, which also compares its
answers with PyTorch's. Then, in rounds, each in turn gets the same requests at the same times of a Poisson process, at
multiples (`--loads`) of the best peer's capacity. Latency counts from the time at which a request was to leave. Goodput
is the answers within `--target-ms` of that, a second. `attenuator serve` is asked in three ways: exactly; with a
setting of `--mixture` for each text in turn; exactly, but with leave to lower the knob to `--floor` under load. Writes
benchmarks/results/server-CHECKPOINT.json. Needs torch and transformers (extra `bench`).
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertForSequenceClassification
from transformers.utils import logging

from attenuator.bundle import read_manifest
from attenuator.export import export
from attenuator.load_generator import (
    ANSWERED,
    REFUSED,
    Client,
    Exchange,
    closed_loop,
    open_loop,
    poisson,
    quantiles,
)
from attenuator.runtime import KnobTable
from attenuator.serve.settings import read_floors
from benchmarks.contenders import documents, padded, servers
from benchmarks.contenders.servers import Contender, Scores, Variant
from benchmarks.measure import record
from benchmarks.measure.cases import Row
from benchmarks.measure.intervals import share
from benchmarks.measure.processes import on_cores, running, session_cpu_s
from benchmarks.measure.program import Step, measure, parser_for

QUANTILES = ("0.5", "0.95", "0.99")
CAPACITY_CLIENTS = 16
WARM_UP_REQUESTS, WARM_UP_CLIENTS = 32, 2
OPERATORS = ("kept_lengths", "pool", "select", "softmax")  # those of the bundle that is served
# Largest difference of a probability from PyTorch's: fp32, summed in other orders.
TOLERANCE = 2e-3


@dataclass
class Truth:
    """What the checkpoint itself says in PyTorch, and the texts.

    Attributes:
        texts: that are asked about, each no longer than the model's longest input.
        tokens: of each.
        scores: probability by label, of each.
    """

    texts: list[str]
    tokens: list[int]
    scores: list[Scores]


@dataclass
class Sweep:
    """Everything that is measured.

    Attributes:
        contenders: servers.
        truth: what they should say.
        options: of the command line.
        server_core, other_cores: where servers run, and the load generator.
        capacities: answers a second of each server's first variant in a closed loop.
        exchanges: by server, variant and load, of all rounds.
        cpu: of server and generator in seconds, likewise.
    """

    contenders: Sequence[Contender]
    truth: Truth
    options: argparse.Namespace
    server_core: int
    other_cores: Sequence[int]
    capacities: dict[str, float] = field(default_factory=dict)
    exchanges: dict[tuple[str, str, float], list[list[Exchange]]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[tuple[str, str, float], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def started(self, contender: Contender) -> Any:
        """Runs a contender's server on its core."""
        return running(contender.command, contender.ready_url, [self.server_core], contender.environment)

    def reference(self) -> str:
        """The server whose capacity is load 1: the best peer, or the only one there is."""
        peers = {name: rate for name, rate in self.capacities.items() if name != servers.OURS} or self.capacities
        return max(peers, key=lambda name: peers[name])

    def measure_capacity(self, contender: Contender) -> Row:
        """Answers a second to a closed loop, and how far the answers are from PyTorch's."""
        with self.started(contender) as pid, on_cores(self.other_cores):
            return asyncio.run(self._capacity(contender, pid))

    async def _capacity(self, contender: Contender, pid: int) -> Row:
        client, row = Client(contender.port), {"server": contender.name, "variants": []}
        for variant in contender.variants:
            await warm_up(client, variant)
            used, own, begun = session_cpu_s(pid), time.process_time(), time.perf_counter()
            answers, rate = await closed_loop(client, variant.requests, CAPACITY_CLIENTS, self.options.capacity_seconds)
            taken_s = time.perf_counter() - begun
            scores = [contender.scores(answer) for answer in answers]
            error = max(map(largest_difference, scores, self.truth.scores))
            if variant.exact and error > TOLERANCE:
                raise SystemExit(f"benchmarks: {contender.name} differs by {error:.2g} from the checkpoint in PyTorch")
            row["variants"].append(
                {
                    "variant": variant.name,
                    "capacity_per_s": rate,
                    "largest_difference": error,
                    "agreement": share([top(a) == top(b) for a, b in zip(scores, self.truth.scores, strict=True)]),
                    "cpu_ms_per_answer": 1000 * (session_cpu_s(pid) - used) / (rate * taken_s),
                    "generator_share": (time.process_time() - own) / taken_s,
                }
            )
        self.capacities[contender.name] = row["variants"][0]["capacity_per_s"]
        client.close()
        return row

    def measure_round(self, number: int, contender: Contender) -> Row:
        """One server at every load."""
        with self.started(contender) as pid, on_cores(self.other_cores):
            return asyncio.run(self._round(number, contender, pid))

    async def _round(self, number: int, contender: Contender, pid: int) -> Row:
        client = Client(contender.port)
        rows: list[Row] = []
        for variant in contender.variants:
            await warm_up(client, variant)
            for load in self.options.loads:
                rate, seed = load * self.capacities[self.reference()], 1000 * number + round(100 * load)
                arrivals = poisson(rate, self.options.seconds, seed)
                used, own = session_cpu_s(pid), time.process_time()
                exchanges = await open_loop(client, variant.requests, arrivals, seed)
                key = (contender.name, variant.name, load)
                self.exchanges[key].append(exchanges)
                self.cpu[key].append((session_cpu_s(pid) - used, time.process_time() - own))
                latencies = [each.latency_s for each in exchanges if each.status == ANSWERED]
                rows.append({"variant": variant.name, "load": load, "latency_s": quantiles(latencies, QUANTILES)})
        client.close()
        return {"round": number, "server": contender.name, "loads": rows}

    def summarise(self, contender: Contender, variant: Variant, load: float) -> Row:
        """What became of the requests of all rounds."""
        key = (contender.name, variant.name, load)
        exchanges = [each for one in self.exchanges[key] for each in one]
        offered_s = self.options.seconds * len(self.exchanges[key])
        answered = [each for each in exchanges if each.status == ANSWERED]
        within = [each.status == ANSWERED and each.latency_s * 1000 <= self.options.target_ms for each in exchanges]
        agreeing = [
            top(contender.scores(each.answer)) == top(self.truth.scores[each.text]) for each in answered
        ]  # fmt: skip
        server_s, generator_s = np.sum(self.cpu[key], axis=0)
        return {
            "server": contender.name,
            "variant": variant.name,
            "load": load,
            "rate_per_s": load * self.capacities[self.reference()],
            "requests": len(exchanges),
            "answered": len(answered),
            "refused": sum(each.status == REFUSED for each in exchanges),
            "goodput_per_s": sum(within) / offered_s,
            "within_target": share(within) if within else None,
            "latency_s": quantiles([each.latency_s for each in answered], QUANTILES),
            "agreement": share(agreeing) if agreeing else None,
            "lowered": sum(lowered(each.answer) for each in answered) / max(1, len(answered)),
            "cpu_ms_per_answer": 1000 * float(server_s) / max(1, len(answered)),
            "generator_share": float(generator_s) / offered_s,
        }


def lowered(answer: Any) -> bool:
    """Whether an answer's knobs were lowered because of the load."""
    return bool(answer.get("chosen_by") == "brownout")


def top(scores: Scores) -> str:
    """The label with the highest probability."""
    return max(scores, key=lambda label: scores[label])


def largest_difference(scores: Scores, exact: Scores) -> float:
    """Between probabilities of the same labels."""
    return max(abs(scores[label] - exact[label]) for label in exact)


async def warm_up(client: Client, variant: Variant) -> None:
    """A few requests that nobody measures."""
    await closed_loop(client, variant.requests[:WARM_UP_REQUESTS], WARM_UP_CLIENTS, 0)


def shortened(text: str, tokenizer: Tokenizer, longest: int) -> str:
    """The start of a text that has no more tokens than a model takes, so that no server need cut it."""
    while len(encoded := tokenizer.encode(text)) > longest:
        ends = [end for _, end in encoded.offsets if 0 < end < len(text)]
        text = text[: ends[min(longest - 2, len(ends)) - 1]].rstrip()
    return text


def truth_of(checkpoint: Path, rows: Sequence[dict[str, str]], count: int) -> Truth:
    """PyTorch's answers, one text at a time."""
    model = BertForSequenceClassification.from_pretrained(checkpoint).eval()
    longest = AutoTokenizer.from_pretrained(checkpoint).model_max_length
    longest = min(longest, model.config.max_position_embeddings)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_truncation()
    texts = [shortened(row["text"], tokenizer, longest) for row in rows if row["text"].strip()][:count]
    ids = [tokenizer.encode(text).ids for text in texts]
    scores: list[Scores] = []
    with torch.inference_mode():
        for each in ids:
            probabilities = model(input_ids=torch.tensor([each])).logits[0].softmax(0).tolist()
            scores.append({model.config.id2label[index]: value for index, value in enumerate(probabilities)})
    return Truth(texts, [len(each) for each in ids], scores)


def export_bundle(checkpoint: Path, folder: Path, calibration: Sequence[dict[str, str]]) -> Path:
    """The checkpoint as a bundle; from the calibration texts export chooses schedule and default of `keep`."""
    documents.write(folder / "calibration.jsonl", calibration)
    texts: dict[str, Any] = {"texts": folder / "calibration.jsonl"} if calibration else {}
    export(str(checkpoint), attention="softmax", output=folder / "bundle", **texts)
    return folder / "bundle"


def export_for_litserve(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint as LitServe serves it: a folder with an optimised ONNX file."""
    onnx = folder / "onnx"
    onnx.mkdir()
    model = BertForSequenceClassification.from_pretrained(checkpoint).eval()
    files = padded.export_onnx(model, folder)
    shutil.copy(files["fp32"], onnx / "fp32.onnx")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint / name, onnx / name)
    return onnx


def contenders_of(options: argparse.Namespace, folder: Path, bundle: Path, truth: Truth) -> list[Contender]:
    """Every server."""
    manifest = read_manifest(bundle)
    exact = KnobTable(manifest.name, manifest.knobs).exact()
    mixture = [exact, *({**exact, **each} for each in options.mixture)]
    count = len(manifest.labels)
    chosen = [servers.attenuator(bundle, truth.texts, count, mixture, options.floor, options.target_ms)]
    if options.peers:
        python = servers.peers_python(options.peers.absolute())
        onnx = export_for_litserve(options.checkpoint, folder)
        chosen.append(servers.litserve(python, onnx, truth.texts))
        chosen.append(servers.infinity(python, options.checkpoint.absolute(), truth.texts))
    return [each for each in chosen if not options.only or each.name in options.only]


def steps(sweep: Sweep) -> Iterator[Step]:
    """Capacities, rounds in which each server is first in some, and what came of all rounds."""
    options, contenders = sweep.options, list(sweep.contenders)
    for contender in contenders:
        seconds = 10 + len(contender.variants) * options.capacity_seconds
        yield Step("capacity", f"capacity of {contender.name}", partial(sweep.measure_capacity, contender), seconds)
    for number in range(options.rounds):
        for contender in contenders:
            seconds = 10 + len(contender.variants) * len(options.loads) * options.seconds * 1.3
            work = partial(sweep.measure_round, number, contender)
            yield Step("rounds", f"round {number + 1}, {contender.name}", work, seconds)
        contenders.append(contenders.pop(0))
    for contender in sweep.contenders:
        for variant in contender.variants:
            for load in options.loads:
                yield Step("variants", "summary", partial(sweep.summarise, contender, variant, load), 0.01)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=4.0)
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--peers", type=Path, help="folder of the peers' environment, made where there is none")
    parser.add_argument("--texts", type=Path, help="JSON lines with a field text")
    parser.add_argument("--count", type=int, default=400, help="texts that are asked about")
    parser.add_argument("--calibration", type=int, default=400, help="texts by which export chooses `keep`")
    parser.add_argument("--loads", nargs="+", type=float, default=(0.5, 0.8, 1.0, 1.5, 2.5), help="of the best peer's")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--capacity-seconds", type=float, default=4.0, help="of each closed loop, at least")
    parser.add_argument("--target-ms", type=float, default=100.0, help="within which an answer counts as goodput")
    parser.add_argument("--mixture", nargs="*", type=read_floors, default=[{"keep": 0.5}, {"keep": 0.35}],
                        help="settings of the mixed requests beside the exact one, such as keep=0.5")  # fmt: skip
    parser.add_argument("--floor", type=read_floors, default={"keep": 0.35}, help="degradable_to under load")
    parser.add_argument("--only", nargs="+", help="servers, by the names in the result")
    command_line = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(command_line)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    cores = sorted(os.sched_getaffinity(0))
    head = {
        "benchmark": "server",
        **record.origin(command_line, OPERATORS),
        **record.cpu(),
        "checkpoint": options.checkpoint.name,
    }
    head |= {name: getattr(options, name) for name in ("target_ms", "mixture", "floor")}
    head |= {"round_s": options.seconds, "repeats": options.rounds}
    rows = documents.read(options.texts or options.checkpoint / "test.jsonl")
    with tempfile.TemporaryDirectory() as folder:
        truth = truth_of(options.checkpoint, rows[options.calibration :], options.count)
        bundle = export_bundle(options.checkpoint, Path(folder), rows[: options.calibration])
        contenders = contenders_of(options, Path(folder), bundle, truth)
        head["texts"] = {"count": len(truth.texts), "tokens": record_tokens(truth.tokens)}
        if options.peers:
            head["peers"] = servers.peers_versions(options.peers / "bin" / "python")
        sweep = Sweep(contenders, truth, options, cores[0], cores[1:] or cores)
        output = options.output or record.RAW / f"server-{options.checkpoint.name}.json"
        return measure(head, output, lambda: list(steps(sweep)))


def record_tokens(tokens: Sequence[int]) -> Row:
    """Lengths of the texts."""
    return {"least": min(tokens), "median": float(np.median(tokens)), "most": max(tokens)}


if __name__ == "__main__":
    sys.exit(main())
