"""Checks at export that the graph computes what the PyTorch model computes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from attenuator.errors import ExportError, OperatorLibraryMissing
from attenuator.export.samples import Sample
from attenuator.export.selection import LENGTHS, SELECT
from attenuator.export.sentences import one_line
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.ops.spec import INT8_PRODUCTS, LAYER
from attenuator.precision import PRECISIONS, PrecisionName
from attenuator.runtime import create
from attenuator.runtime.batch import pack
from attenuator.runtime.scores import agrees

__all__ = ["TOLERANCE", "NodeCount", "agreement", "check", "count_nodes", "native", "parity", "timed"]

# Largest difference of a logit, as a share of the largest logit; a graph that differs more is refused.
TOLERANCE = {name: row.export_tolerance for name, row in PRECISIONS.items() if row.export_tolerance is not None}
TIMED_ROWS, TIMED_RUNS = 5, 3
# What a manifest does not say of attention: nodes differ in the first, and the precision of the bundle says the second.
NOT_CLAIMED = (LAYER.name, INT8_PRODUCTS.name)


@dataclass
class NodeCount:
    """The operator nodes of a graph.

    Attributes:
        layers: nodes of the attention operator, one a layer.
        attributes: attributes whose values all nodes of that operator share, without `NOT_CLAIMED`.
        other_nodes: further nodes of the domain by key, that operator's for rows of global tokens among them.
    """

    layers: int
    attributes: dict[str, int | float | str]
    other_nodes: dict[str, int]


def check(model_path: Path) -> None:
    """Checks the written file.

    Raises:
        ExportError: it is not valid ONNX.
    """
    try:
        onnx.checker.check_model(str(model_path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the exported graph is not valid ONNX: {error}") from error


def count_nodes(
    model_path: Path, operator: str, layers: int, selections: int = 0, global_nodes: int = 0, *, merges: bool = False
) -> NodeCount:
    """Checks the written file and counts its nodes.

    Args:
        model_path: `model.onnx`.
        operator: key of the attention operator.
        layers: layers of the model.
        selections: how many of them select tokens.
        global_nodes: how many of them have a further node for the row of a global token.
        merges: whether rows and residuals are selected by a node each, to be merged before they are added.

    Raises:
        ExportError: the file is not valid ONNX, a layer did not become one node (or two, with a global token), or one
            does not select as it should.
    """
    check(model_path)
    graph = onnx.load(str(model_path), load_external_data=False).graph
    keys = {row.name: row.key for row in OPERATORS}
    counts = Counter(keys[node.op_type] for node in graph.node if node.domain == DOMAIN)
    count = counts.pop(operator, 0)
    if count != layers + global_nodes:
        further = f" and {global_nodes} for global tokens" if global_nodes else ""
        raise ExportError(
            f"the exported graph has {count} {operator} nodes, must have one for each of {layers} layers{further}"
        )
    if global_nodes:
        counts[operator] = global_nodes
    selecting = {row.key: counts[row.key] for row in (LENGTHS, SELECT)}
    expected = {LENGTHS.key: selections, SELECT.key: selections * (2 if merges else 1)}
    if selecting != expected:
        shown, wanted = (
            " and ".join(f"{number} {key}" for key, number in row.items()) for row in (selecting, expected)
        )
        raise ExportError(f"the exported graph has {shown} nodes, must have {wanted} for {selections} layers")
    nodes = [node for node in graph.node if node.domain == DOMAIN and keys[node.op_type] == operator]
    attributes = [{item.name: onnx.helper.get_attribute_value(item) for item in node.attribute} for node in nodes]
    shared = {name: value for name, value in attributes[0].items() if all(row[name] == value for row in attributes)}
    texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in shared.items()}
    for name in NOT_CLAIMED:
        texts.pop(name, None)
    return NodeCount(layers, texts, dict(counts))


def parity(
    model_path: Path, sample: Sample, precision: PrecisionName = "fp32"
) -> tuple[dict[str, float], npt.NDArray[np.float32]]:
    """Compares ONNX Runtime, with the operator library and without it, with the eager model.

    Args:
        model_path: `model.onnx`.
        sample: rows, and what PyTorch says. All are run with the library, the core rows also alone and without it.
        precision: of this graph; says what difference is tolerated.

    Returns:
        Largest absolute difference of a logit with the library and without it (`fallback`), the largest difference
        between a sequence in the batch and alone (`packing`), the largest absolute logit, and the share of rows whose
        answers agree with PyTorch's (`agreement`); and the graph's own logits, float32 `[B, labels]`.

    Raises:
        ExportError: a difference is above the tolerance, or the graph does not run.
        OperatorLibraryMissing: the operators are not built.
    """
    core = sample.first()
    logits, alone = run(model_path, sample, core)
    return {
        "largest_logit": float(np.abs(sample.logits).max()),
        "library": difference("library", logits, sample, precision),
        "agreement": agreement(sample, logits),
        "packing": float(np.abs(alone - sample.of_first(core.core, logits)).max()),
        "fallback": difference("fallback", run(model_path, core)[0], core, precision),
    }, logits


def run(model_path: Path, sample: Sample, alone: Sample | None = None) -> tuple[npt.NDArray[np.float32], ...]:
    """Logits of a graph: of `sample` in batches and of `alone` row by row, or without the operators where that is None.

    Raises:
        ExportError: the graph does not run.
        OperatorLibraryMissing: the operators are not built.
    """
    try:
        session = create(model_path, library=alone is not None)
        return (sample.run(session), *([] if alone is None else [alone.run_alone(session)]))
    except OperatorLibraryMissing:
        raise
    except Exception as error:  # ONNX Runtime raises a dozen kinds; an operator's own sentence is at the end
        reason = one_line(error).rpartition("Status Message: ")[2]
        raise ExportError(f"the exported graph cannot be run: {reason}") from error


def difference(form: str, logits: npt.NDArray[np.float32], sample: Sample, precision: PrecisionName) -> float:
    """Largest absolute difference of a logit to the eager model's.

    Args:
        form: `library` or `fallback`, for the sentence.
        logits: the graph's, float32 `[B, labels]`.
        sample: has the eager model's.
        precision: of the graph; says what difference is tolerated.

    Raises:
        ExportError: it is above the tolerance, or not a number.
    """
    largest = float(np.abs(logits - sample.logits).max())
    limit = TOLERANCE[precision] * float(np.abs(sample.logits).max())
    if largest <= limit:
        return largest
    if precision == "fp32":
        raise ExportError(
            f"the exported graph ({form}) differs from the PyTorch model by {largest:.2g}, must be at most {limit:.2g}"
        )
    other = "bf16 or fp32" if precision == "fp16" else "fp32"
    raise ExportError(
        f"{precision} ({form}) moves a logit by {largest:.2g}, must be at most {limit:.2g}: export it as {other}"
    )


def agreement(sample: Sample, logits: npt.NDArray[np.float32]) -> float:
    """Share of rows whose answer agrees with PyTorch's, as `runtime.scores.agrees` says; logits `[B, labels]`."""
    manifest = sample.manifest
    return float(agrees(logits, sample.logits, task=manifest.task, thresholds=manifest.thresholds).mean())


def native(model_path: Path, sample: Sample) -> float:
    """Runs an fp16 graph on the CPU without the library; bf16 has no arithmetic there.

    ONNX Runtime adds casts around nodes that it has only in fp32; weights and values between nodes stay fp16.

    Returns:
        Largest absolute difference of a logit of a core row to the eager model's.

    Raises:
        ExportError: it is above the tolerance, or the graph does not run.
    """
    core = sample.first()
    return difference("fallback", run(model_path, core)[0], core, "fp16")


def timed(model_path: Path, sample: Sample) -> float:
    """CPU seconds of one run of the first rows, in one batch on one thread, the shortest of a few."""
    session = create(model_path, threads=1)
    feeds = pack(sample.rows[:TIMED_ROWS], sample.manifest)
    session.run(["logits"], feeds)
    seconds = []
    for _ in range(TIMED_RUNS):
        begun = time.thread_time()
        session.run(["logits"], feeds)
        seconds.append(time.thread_time() - begun)
    return min(seconds)
