"""Exact attention with products in int8: time of the operator, of a layer of BERT-base, and labels of trained models.

    python -m benchmarks.operators.softmax_int8
    python -m benchmarks.operators.softmax_int8 --reviews imdb-test.jsonl.gz --articles byarticle.jsonl.gz --count 3000

Contenders run in turns on one thread; medians of CPU time, and of ratios round by round. With `--reviews`, texts of
IMDb, the model of `examples/bundles/reviews-mca` labels them with SoftmaxAttention in the place of McaAttention at
alpha 0; with `--articles`, texts of Hyperpartisan News, that of `pii` marks their tokens, where fp32 is its rounded
weights as float. Prints the tables of softmax_int8.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from tokenizers import Tokenizer

from attenuator.runtime.device import CPU
from attenuator.runtime.session import make_options, open_session
from benchmarks.contenders.graphs import SHAPES, int8, traced
from benchmarks.contenders.inputs import gaussian
from benchmarks.contenders.model_batches import Batch
from benchmarks.contenders.model_sessions import bound_run
from benchmarks.contenders.nodes import Runner, own, set_attribute
from benchmarks.measure.cases import HEAD_DIM, HEADS
from benchmarks.measure.timing import interleave

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
LAYER_LENGTHS = (128, 512, 2048, 4096)
BUNDLES = Path("examples/bundles")
PRODUCTS = "int8_products"
BATCH_TOKENS = 16_384


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table of Markdown."""
    for row in (header, ["---"] * len(header), *rows):
        print("|", " | ".join(str(cell) for cell in row), "|", flush=True)
    print(flush=True)


def operator(length: int, importance: str, seconds: float) -> list[object]:
    """One sequence, 12 heads of 64: milliseconds in float and int8, the ratio, and the error of int8."""
    packed = gaussian([length], HEADS, HEAD_DIM)
    feeds = {"query": packed.query, "key": packed.key, "value": packed.value, "cu_seqlens": packed.cu_seqlens}
    outputs: dict[str, Any] = {"output": (packed.query.shape, np.float32)}
    if importance != "none":
        outputs["importance"] = ((length,), np.float32)
    runs = {
        name: Runner(
            [own("softmax", list(feeds), list(outputs), num_heads=HEADS, importance=importance, int8_products=value)],
            feeds,
            outputs,
        )
        for value, name in enumerate(("float", "int8"))
    }
    exact, ours = (runs[name].result()["output"] for name in ("float", "int8"))
    timings = interleave(runs, seconds=seconds)
    ratio = timings["int8"].times_faster_than(timings["float"])["median"]
    times = [f"{timings[name].median / 1000:.2f}" for name in runs]
    return [length, importance, *times, f"{ratio:.2f}", f"{np.linalg.norm(ours - exact) / np.linalg.norm(exact):.4f}"]


def with_products(graph: onnx.ModelProto, value: int) -> onnx.ModelProto:
    """A copy whose attention has its products in int8, or in float."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph)
    for node in changed.graph.node:
        if node.op_type == "SoftmaxAttention":
            set_attribute(node, PRODUCTS, value)
    return changed


def forms(graph: onnx.ModelProto, linear: onnx.ModelProto) -> dict[str, Any]:
    """Sessions of an fp32 graph: as it is, with int8 linear layers (`linear`), and with int8 attention as well."""
    graphs = {
        "fp32": graph,
        "int8 linear layers": with_products(linear, 0),
        "int8 attention": with_products(graph, 1),
        "int8": with_products(linear, 1),
    }
    return {name: session(each) for name, each in graphs.items()}


def session(graph: onnx.ModelProto) -> Any:
    """One of one thread."""
    return open_session(graph.SerializeToString(), make_options(threads=1), CPU)


def layer(sessions: dict[str, Any], length: int, seconds: float) -> list[object]:
    """A layer of BERT-base on about 512 tokens or one longer sequence."""
    batch = Batch((length,) * max(1, 512 // length)).packed()
    names = {item.name for item in sessions["fp32"].get_inputs()}
    feeds = {name: rows for name, rows in batch.items() if name in names}
    timings = interleave({name: bound_run(each, feeds) for name, each in sessions.items()}, seconds=seconds)
    others = [name for name in sessions if name != "fp32"]
    ratios = [timings[name].times_faster_than(timings["fp32"])["median"] for name in others]
    return [length, f"{timings['fp32'].median / 1000:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]


def texts(path: Path, count: int) -> list[str]:
    """So many of the texts of a file of JSON lines, drawn without order."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line)["text"] for line in lines]
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:count]]


def softmax_of_mca(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with exact attention in the place of McaAttention, as far as its logits need it."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph)
    del changed.graph.node[:]
    for index, node in enumerate(graph.graph.node):
        if node.op_type != "McaAttention":
            changed.graph.node.append(node)
            continue
        query, key, rows, weight, bias, cu_seqlens = node.input[:6]
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        chosen = {name: attributes[name] for name in ("num_heads", "queries", "importance")}
        outputs = [node.output[0], *(node.output[2:] if attributes["importance"] != b"none" else [])]
        product, value = f"value_product_{index}", f"value_{index}"
        changed.graph.node.extend(
            [
                helper.make_node("MatMul", [rows, weight], [product]),
                helper.make_node("Add", [product, bias], [value]),
                own("softmax", [query, key, value, cu_seqlens], outputs, **chosen),
            ]
        )
    return pruned(changed)


def pruned(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without what its logits do not need."""
    needed, nodes = {"logits"}, []
    for node in reversed(graph.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    inputs = [item for item in graph.graph.input if item.name in needed]
    outputs = [item for item in graph.graph.output if item.name in needed]
    for field, kept in (("node", nodes[::-1]), ("input", inputs), ("output", outputs)):
        graph.graph.ClearField(field)
        getattr(graph.graph, field).extend(kept)
    return graph


def linear_in_float(graph: onnx.ModelProto) -> onnx.ModelProto:
    """An int8 graph whose linear layers multiply their rounded weights in float."""
    model = ir.serde.deserialize_model(graph)
    for node in [each for each in model.graph if each.op_type == "MatMulInteger"]:
        rows = node.inputs[0].producer().inputs[0]  # type: ignore[union-attr]
        name = f"{node.inputs[1].name}_float"  # type: ignore[union-attr]
        if name not in model.graph.initializers:
            tensor = ir.tensor(node.inputs[1].const_value.numpy().astype(np.float32), name=name)  # type: ignore[union-attr]
            made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
            model.graph.register_initializer(made)
        product = ir.node("MatMul", [rows, model.graph.initializers[name]])
        product.outputs[0].name = f"{node.outputs[0].name}_float"
        model.graph.insert_before(node, product)
        [real] = [use.node.outputs[0] for use in node.outputs[0].uses()]
        ir.convenience.replace_all_uses_with(real, product.outputs[0])
    return pruned(ir.serde.serialize_model(model))


def logits(one: Any, rows: Sequence[Any], **knobs: float) -> Any:
    """Of token ids, sorted by length, in batches."""
    names = {item.name for item in one.get_inputs()}
    results, at = [], 0
    while at < len(rows):
        count = max(1, BATCH_TOKENS // len(rows[min(len(rows), at + 64) - 1]))
        some = rows[at : at + count]
        feeds = {
            "input_ids": np.concatenate(some),
            "position_ids": np.concatenate([np.arange(len(ids)) for ids in some]),
            "cu_seqlens": np.cumsum([0, *map(len, some)]).astype(np.int32),
        } | {name: np.full(len(some), value, np.float32) for name, value in knobs.items() if name in names}
        results.append(one.run(["logits"], feeds)[0])
        at += count
    return np.concatenate(results)


def agreement(bundle: str, sessions: dict[str, Any], file: Path, count: int, **knobs: float) -> None:
    """Prints how often each form gives the label that fp32 gives, of texts or of tokens."""
    folder = BUNDLES / bundle
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(json.loads((folder / "bundle.json").read_text())["max_tokens"])
    rows = sorted((np.array(one.ids) for one in tokenizer.encode_batch(texts(file, count))), key=len)
    every = {name: logits(each, rows, **knobs) for name, each in sessions.items()}
    truth = every["fp32"]
    same = {name: np.mean(found.argmax(-1) == truth.argmax(-1)) for name, found in every.items()}
    moved = {name: np.abs(found - truth).max() for name, found in every.items()}
    setting = ", ".join(f"{name} {value:g}" for name, value in knobs.items())
    facts = (
        f"{len(rows)} texts, {sum(map(len, rows))} tokens, {len(truth)} labels, logits up to {np.abs(truth).max():.1f}"
    )
    print(f"{bundle}{f', {setting}' if setting else ''}: {facts}\n")
    table(
        ["form", "agreement of labels", "largest difference of a logit"],
        [[name, f"{same[name]:.5f}", f"{moved[name]:.3f}"] for name in every],
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long a row's timed rounds may last")
    parser.add_argument("--lengths", nargs="*", type=int, default=LENGTHS)
    parser.add_argument("--layer-lengths", nargs="*", type=int, default=LAYER_LENGTHS)
    parser.add_argument("--reviews", type=Path, help="JSON lines with `text`, gzipped")
    parser.add_argument("--articles", type=Path, help="the same")
    parser.add_argument("--count", type=int, default=3000, help="texts of each file")
    options = parser.parse_args(arguments)
    cases = [(n, kind) for kind in ("none", "maximum") for n in options.lengths]
    if cases:
        header = ["N", "importance", "float, ms", "int8, ms", "times as fast", "error"]
        table(header, [operator(*case, options.seconds) for case in cases])
    if options.layer_lengths:
        with tempfile.TemporaryDirectory() as folder:
            graph = traced(SHAPES["bert"].model("softmax"), Path(folder) / "model.onnx", "softmax")
        sessions = forms(graph, int8(graph))
        rows = [layer(sessions, n, options.seconds) for n in options.layer_lengths]
        table(["N", "fp32, ms", *(name for name in sessions if name != "fp32")], rows)
    if options.reviews is not None:
        graph = softmax_of_mca(onnx.load(str(BUNDLES / "reviews-mca" / "model.onnx")))
        sessions = forms(graph, int8(graph))
        for keep in (1.0, 0.5):
            agreement("reviews-mca", sessions, options.reviews, options.count, keep=keep)
    if options.articles is not None:
        rounded = onnx.load(str(BUNDLES / "pii" / "model.onnx"))
        agreement("pii", forms(linear_in_float(rounded), rounded), options.articles, options.count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
