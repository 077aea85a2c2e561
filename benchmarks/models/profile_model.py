"""Where a whole model's time goes, node by node, and how near it is to itself with attention that costs nothing.

    python -m benchmarks.models.profile_model && make gen     # measures, then writes profile_model.md
    python -m benchmarks.models.profile_model --models contracts --precisions int8 --num-hashes 8

`contracts` is the bundle, over the first 4,096 tokens of the README's request; `paper` is an untrained encoder of the
YOSO paper's efficiency shape: 6 layers, 256 channels. Both in fp32 and with int8 linear layers, on one thread, with the
options of serving. "free attention" has two additions in attention's place; it, the model and the model with tables of
int16 run in turns. Writes benchmarks/results/profile-ISA.json. Needs torch (extra `export`).
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx

from attenuator.ops import OPERATORS
from attenuator.runtime import create
from attenuator.runtime.batch import Row as Sequence
from attenuator.runtime.batch import pack
from attenuator.runtime.model import load
from benchmarks.contenders.graphs import SHAPES, Shape, free, int8, swapped, traced, with_attribute
from benchmarks.contenders.model_batches import Batch
from benchmarks.contenders.model_sessions import bound_run
from benchmarks.measure.cases import Row, records
from benchmarks.measure.node_profile import node_times
from benchmarks.measure.program import Step, cpu_parser_for, run
from benchmarks.measure.timing import interleave
from benchmarks.models.demo_request import BUNDLES, REQUEST

NUM_HASHES = 16
LENGTHS = {"contracts": (4096,), "paper": (512, 1024, 4096)}
PRECISIONS = ("fp32", "int8")
ATTENTION = {operator.name for operator in OPERATORS if operator.attention}
PRODUCTS = ("Gemm", "MatMul", "MatMulInteger")
# What ONNX Runtime makes of an addition and the function behind it.
FUSED = {"BiasGelu": "Gelu"}


def kind_of(op_type: str, name: str) -> str:
    """The line of the profile in which a node counts."""
    if op_type in ATTENTION:
        return "attention"
    if op_type in PRODUCTS:
        return "linear layers"
    if "_int8" in name:
        return "rounding and scaling around them"
    return FUSED.get(op_type, op_type)


@dataclass(frozen=True)
class Subject:
    """What is profiled.

    Attributes:
        graph: in fp32, with YosoAttention.
        feeds: graph inputs by name, from a number of tokens and of hashes.
        tokenize: tokenizes a text of so many tokens; None where tokens are random.
    """

    graph: onnx.ModelProto
    feeds: Callable[[int, int], dict[str, Any]]
    tokenize: Callable[[int], Any] | None = None

    def in_precision(self, precision: str) -> onnx.ModelProto:
        """The graph with linear layers of this precision."""
        return int8(self.graph) if precision == "int8" else self.graph


def bundle(name: str) -> Subject:
    """A bundle over the beginning of the README's request."""
    model = load(BUNDLES / name, threads=1, check=False)
    request = json.loads(REQUEST.read_text(encoding="utf-8"))
    [text] = request["inputs"]
    encoded = model.encode(text)
    characters = len(text) / len(encoded.token_ids)

    def feeds(tokens: int, num_hashes: int) -> dict[str, Any]:
        knobs = {"num_hashes": num_hashes}
        row = Sequence(encoded.token_ids[:tokens], encoded.type_ids[:tokens], knobs, request["seed"])
        return dict(pack([row], model.manifest))

    graph = onnx.load(BUNDLES / name / "model.onnx")
    return Subject(graph, feeds, lambda tokens: model.encode(text[: round(tokens * characters)]))


def encoder(shape: Shape) -> Subject:
    """An untrained encoder over random tokens."""
    with tempfile.TemporaryDirectory() as folder:
        graph = traced(shape.model(), Path(folder) / "model.onnx")
    return Subject(graph, lambda tokens, num_hashes: Batch((tokens,)).packed(num_hashes=num_hashes))


@cache
def subject(name: str) -> Subject:
    """By its name in `LENGTHS`."""
    return encoder(SHAPES[name]) if name in SHAPES else bundle(name)


def session_of(graph: onnx.ModelProto) -> Any:
    """One thread, the options of serving."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(graph, path)
        return create(path, threads=1)


def profile(name: str, tokens: int, precision: str, num_hashes: int, seconds: float) -> Row:
    """The nodes of one model at one length, and the model beside itself with free attention."""
    whole = subject(name)
    graph = whole.in_precision(precision)
    feeds = whole.feeds(tokens, num_hashes)
    graphs = {
        "model": graph,
        "tables of int16": with_attribute(graph, "table_precision", "int16"),
        "free attention": swapped(graph, free),
    }
    timings = interleave({key: bound_run(session_of(one), feeds) for key, one in graphs.items()}, seconds=seconds)
    row: Row = {
        "model": name,
        "n": tokens,
        "precision": precision,
        "num_hashes": num_hashes,
        "nodes": node_times(graph, feeds, kind_of),
        "contenders": records(timings),
        "of_free": {
            key: timings[key].times_faster_than(timings["free attention"]) for key in ("model", "tables of int16")
        },
    }
    if whole.tokenize is not None:
        row["tokenizing"] = interleave({"text": partial(whole.tokenize, tokens)}, seconds=seconds)["text"].record()
    return row


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """Every model, length and precision that was asked for."""
    for name in options.models:
        for precision in options.precisions:
            for tokens in LENGTHS[name]:
                work = partial(profile, name, tokens, precision, options.num_hashes, options.seconds)
                yield Step("profiles", f"{name}, {tokens} tokens, {precision}", work, options.seconds + tokens / 1000)


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = cpu_parser_for(__doc__, seconds=3.0)
    parser.add_argument("--models", nargs="+", choices=list(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--num-hashes", type=int, default=NUM_HASHES)
    return run("profile", parser, arguments, lambda options: list(steps(options)), ("pool", "yoso"))


if __name__ == "__main__":
    sys.exit(main())
