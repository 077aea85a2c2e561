"""From a trained model to the graph in the bundle's precision, written and compared with PyTorch form by form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from attenuator import bundle
from attenuator.bundle import Attention
from attenuator.export import fallback, half, int8, verify
from attenuator.export.samples import Sample, eager_logits
from attenuator.export.source import Source
from attenuator.export.trace import PackedClassifier, trace
from attenuator.runtime.batch import pack

__all__ = ["Progress", "Traced", "trace_forms", "write_and_compare", "write_model"]

# Called with one phrase at the start of each step.
Progress = Callable[[str], None]
# Weights up to this many bytes lie in model.onnx itself; above, in model.onnx.data, which is mapped into memory.
INLINE_BYTES = 64 * 2**20
# Rows of the probe: short ones, one of length 1 among them, so that loading a bundle stays quick.
PROBE_ROWS = 4
MODEL_FILES = (bundle.MODEL, bundle.MODEL_DATA)


@dataclass(frozen=True, slots=True)
class Traced:
    """A model's graph, and what it has to give.

    Attributes:
        graph: as traced: in half precision where the bundle is to be, else fp32.
        plain: its fp32 form, with the exact functions attached; `graph` itself where that is fp32.
        sample: rows, and what the trained model says about them: logits float32 `[B, labels]`.
        reference: what `plain` must give on the same rows: as `sample`, with weights rounded where `graph` has them so.
    """

    graph: ir.Model
    plain: ir.Model
    sample: Sample
    reference: Sample


def trace_forms(source: Source, classifier: PackedClassifier, sample: Sample) -> Traced:
    """Traces the model; for half precision its weights are cast before.

    Args:
        source: the loaded model; for half precision it is changed.
        classifier: the same model on packed batches, which is what is traced.
        sample: what the model says; the precision of its manifest decides.

    Returns:
        The graph in both forms, and logits float32 `[B, labels]` for it to give.

    Raises:
        ExportError: the model does not trace, or a weight is beyond fp16's range.
    """
    precision, reference = sample.manifest.precision, sample
    if precision in half.DTYPES:
        rounded = dataclasses.replace(source, model=half.rounded(source.model, precision))
        reference = dataclasses.replace(sample, logits=eager_logits(rounded, sample.rows))
        half.cast(source.model, precision)
    graph = trace(classifier)
    if precision in half.DTYPES:
        half.widen_unsupported(graph.graph, precision)
    plain = half.widened(graph) if precision in half.DTYPES else graph
    fallback.attach(plain)
    return Traced(graph, plain, sample, reference)


def write_and_compare(
    traced: Traced, classifier: PackedClassifier, folder: Path, progress: Progress
) -> tuple[Attention, dict[str, float]]:
    """Compares the graph's fp32 form with the model, then writes the graph in its precision, and the probe.

    Args:
        traced: the graph, and the logits float32 `[B, labels]` to which its own are compared.
        classifier: what was traced; says which operator nodes the graph must have.
        folder: where `model.onnx`, `model.onnx.data` where weights are large, and `probe.npz` are written.
        progress: called with one phrase at the start of each step.

    Returns:
        The operator nodes that the graph has, and the differences to PyTorch by name: those of `verify.parity`, and
        what `write_int8` or `write_half` add.

    Raises:
        ExportError: the graph is not valid ONNX, has other nodes than the model has layers, does not run, or differs
            from the model by more than `verify.TOLERANCE`.
        OperatorLibraryMissing: the operators are not built.
    """
    path, precision = folder / bundle.MODEL, traced.sample.manifest.precision
    write_model(traced.plain, folder)
    nodes = verify.count_nodes(
        path,
        classifier.operator.key,
        classifier.num_layers,
        classifier.selection.layers,
        classifier.global_nodes,
        merges=classifier.selection.merges and classifier.pooling == "first",
    )
    progress("compare the graph with it, with and without the operators")
    fp32 = traced.reference if precision == "fp32" else traced.reference.first()
    parity, _ = verify.parity(path, fp32)
    logits = traced.reference.logits
    other_nodes = nodes.other_nodes
    if precision == "int8":
        progress("round the linear layers to int8, and compare again")
        parity, logits, added = write_int8(traced, folder)
        other_nodes = other_nodes | added
    elif precision in half.DTYPES:
        progress(f"write the graph in {precision}")
        parity |= write_half(traced, folder)
    write_probe(folder, traced, logits)
    attention = Attention(
        operator=classifier.operator.key,
        layers=nodes.layers,
        attributes=nodes.attributes,
        other_nodes=other_nodes,
    )
    return attention, parity


def write_model(graph: ir.Model, folder: Path) -> None:
    """Writes `model.onnx`, and large weights beside it; files that are already there are replaced.

    Args:
        graph: the model, weights included.
        folder: where; weights of more than `INLINE_BYTES` in all go to `model.onnx.data`.
    """
    for name in MODEL_FILES:
        (folder / name).unlink(missing_ok=True)
    weights = sum(value.const_value.nbytes for value in graph.graph.initializers.values() if value.const_value)
    external = bundle.MODEL_DATA if weights > INLINE_BYTES else None
    ir.save(graph, folder / bundle.MODEL, external_data=external)


def write_int8(traced: Traced, folder: Path) -> tuple[dict[str, float], npt.NDArray[np.float32], dict[str, int]]:
    """Replaces the fp32 graph, which was found to compute what the model computes, by the int8 one.

    Args:
        traced: the graph, which is rounded in place, and the rows by whose logits it is judged.
        folder: holds the fp32 files.

    Returns:
        As `verify.parity`: differences by name, with the bytes of the fp32 files and how many times as fast as fp32 a
        few rows ran here; the int8 graph's own logits, float32 `[B, labels]`; and the nodes of operators that it has
        more, by the operators' keys.

    Raises:
        ExportError: the graph has nothing to round, is not valid ONNX, does not run, or differs by more than
            `verify.TOLERANCE`.
        OperatorLibraryMissing: the operators are not built.
    """
    path = folder / bundle.MODEL
    size, seconds = model_bytes(folder), verify.timed(path, traced.sample)
    added = int8.quantise(traced.graph)
    fallback.attach(traced.graph)
    write_model(traced.graph, folder)
    verify.check(path)
    parity, logits = verify.parity(path, traced.sample, "int8")
    speed = {"fp32_bytes": size, "times_as_fast_as_fp32": seconds / verify.timed(path, traced.sample)}
    return parity | speed, logits, added


def write_half(traced: Traced, folder: Path) -> dict[str, float]:
    """Replaces the fp32 form, which was compared with the model of rounded weights, by the graph of half precision.

    Args:
        traced: the graph, and the logits float32 `[B, labels]` of the model with and without rounded weights.
        folder: holds the files of the fp32 form.

    Returns:
        By name: the largest absolute difference of a logit that rounding the weights makes (`rounded_weights`) and the
        share of rows whose answers agree (`agreement`), the bytes of the fp32 form (`fp32_bytes`), and for fp16 the
        difference of the graph itself, run on the CPU without the operators (`fp16`).

    Raises:
        ExportError: the graph is not valid ONNX, or fp16 differs by more than `verify.TOLERANCE`.
    """
    path, sample, reference = folder / bundle.MODEL, traced.sample, traced.reference
    size = model_bytes(folder)
    fallback.attach(traced.graph)
    write_model(traced.graph, folder)
    verify.check(path)
    measured = {
        "agreement": verify.agreement(sample, reference.logits),
        "rounded_weights": float(np.abs(reference.logits - sample.logits).max()),
        "fp32_bytes": size,
    }
    return measured | ({"fp16": verify.native(path, sample)} if sample.manifest.precision == "fp16" else {})


def model_bytes(folder: Path) -> int:
    """Bytes of graph and weights."""
    return sum((folder / name).stat().st_size for name in MODEL_FILES if (folder / name).exists())


def write_probe(folder: Path, traced: Traced, logits: npt.NDArray[np.float32]) -> None:
    """Writes `probe.npz`: graph inputs by name, and the `logits` of the first `PROBE_ROWS` rows, as `Sample` has them.

    The logits of an fp32 bundle are the eager model's. With fp16 and bf16 they are those of the eager model with
    rounded weights, with int8 the graph's own. So the probe finds a graph that computes something else on another
    machine; what rounding costs was measured at export.

    Args:
        folder: where.
        traced: has the rows.
        logits: float32 `[B, labels]`, of all rows.
    """
    rows = traced.sample.rows[:PROBE_ROWS]
    arrays: dict[str, Any] = {**pack(rows, traced.sample.manifest), "logits": traced.sample.of_first(len(rows), logits)}
    np.savez(folder / bundle.PROBE, **arrays)
