"""Bundles of one BlendRows layer, with two knobs, and one YosoAttention layer, with a third; random weights."""

from pathlib import Path

import numpy as np
import onnx
import tiny
from onnx import TensorProto, helper

from attenuator import bundle, ops
from attenuator.bundle import Attention, BundleKnob, Manifest, Provenance
from attenuator.runtime.batch import Row, pack

LABELS = ["down", "level", "up"]
# Graph inputs of the knobs and what goes with them, in the graph's order.
RUNTIME = {
    "reach": TensorProto.INT32,
    "alpha": TensorProto.FLOAT,
    "num_hashes": TensorProto.INT32,
    "seed": TensorProto.INT64,
}


def graph(later: bool) -> onnx.ModelProto:
    """Embedding, both layers with residuals, pool, classifier.

    Args:
        later: whether the node is younger than the operator's knob `alpha`, and so has an input for it.
    """
    build = tiny.Builder(seed=1)
    hidden = build.norm(build.node("Gather", [build.weight(len(tiny.VOCAB), tiny.HIDDEN, scale=1.0), "input_ids"]))
    blend = [build.dense(hidden, tiny.HIDDEN, tiny.HIDDEN), "cu_seqlens", "reach", *(["alpha"] if later else [])]
    hidden = build.norm(build.node("Add", [hidden, build.node("BlendRows", blend, domain=ops.DOMAIN)]))
    rows = [build.dense(hidden, tiny.HIDDEN, tiny.HIDDEN) for _ in range(3)]
    mixed = build.node(
        "YosoAttention",
        [*rows, "cu_seqlens", "num_hashes", "seed"],
        domain=ops.DOMAIN,
        num_heads=tiny.HEADS,
        hash_bits=8,
    )
    hidden = build.norm(build.node("Add", [hidden, mixed]))
    pooled = build.node("SequencePool", [hidden, "cu_seqlens"], domain=ops.DOMAIN, mode="mean")
    weights = [build.weight(tiny.HIDDEN, len(LABELS)), build.weight(len(LABELS))]
    build.nodes.append(helper.make_node("Gemm", [pooled, *weights], ["logits"]))
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["T"])]
    inputs.append(helper.make_tensor_value_info("cu_seqlens", TensorProto.INT32, ["B + 1"]))
    inputs += [
        helper.make_tensor_value_info(name, kind, ["B"]) for name, kind in RUNTIME.items() if later or name != "alpha"
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", len(LABELS)])]
    graph = helper.make_graph(build.nodes, "two_knobs", inputs, outputs, build.weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ops.DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def write(folder: Path, later: bool = True) -> Path:
    """Writes a bundle; without `later` as a version would have that did not know the knob `alpha`."""
    folder.mkdir(parents=True)
    model = graph(later)
    onnx.save(model, folder / bundle.MODEL)
    tiny.tokenizer().save(str(folder / bundle.TOKENIZER))
    inputs = [entry.name for entry in model.graph.input]
    operators = [operator for operator in ops.OPERATORS if operator.key in ("two_knobs", "yoso")]
    rows = [
        BundleKnob.model_validate(knob, from_attributes=True)
        for operator in reversed(operators)
        for knob in operator.knobs
        if knob.name in inputs
    ]
    fields = {
        "format_version": bundle.FORMAT_VERSION,
        "name": folder.name,
        "task": "single_label",
        "labels": LABELS,
        "max_tokens": 512,
        "position_offset": 0,
        "vocab_size": len(tiny.VOCAB),
        "attention": Attention(operator="two_knobs", layers=1, attributes={}, other_nodes={"yoso": 1, "pool": 1}),
        "knobs": rows,
        "inputs": inputs,
        "outputs": ["logits"],
        "pooling": "mean",
        "provenance": Provenance(source="random weights"),
    }
    exact = {row.name: int(row.exact) if row.dtype == "int32" else row.exact for row in rows}
    ids = [np.random.default_rng(0).integers(0, len(tiny.VOCAB), length) for length in (1, 7, 40)]
    tiny.probe(folder, pack([Row(row, np.zeros_like(row), exact) for row in ids], Manifest.model_construct(**fields)))
    files = {path.name: bundle.file_sha256(path) for path in sorted(folder.iterdir())}
    bundle.write_manifest(folder, Manifest(**fields, files=files, revision=bundle.revision(files)))
    return folder
