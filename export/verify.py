"""Proves at export that the graph computes what the PyTorch model computes."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch

from attenuator.bundle import Manifest
from attenuator.errors import ExportError, OperatorLibraryMissing
from attenuator.export.source import Source, one_line
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.precision import PRECISIONS, PrecisionName
from attenuator.runtime import Row, create
from attenuator.runtime.batch import pack

__all__ = ["TOLERANCE", "NodeCount", "Sample", "count_nodes", "parity", "sample"]

# Largest difference of a logit, as a share of the largest logit; what is above has lost its meaning.
TOLERANCE = {name: row.export_tolerance for name, row in PRECISIONS.items() if row.export_tolerance is not None}
LENGTHS = (5, 1, 33, 2, 140, 300, 17)
TIMED_RUNS = 5
SEED = 0


@dataclass
class NodeCount:
    """The operator nodes of a graph.

    Attributes:
        layers: nodes of the attention operator.
        attributes: attributes that all of those share.
        other_nodes: nodes of the domain's other operators, by key.
    """

    layers: int
    attributes: dict[str, int | float | str]
    other_nodes: dict[str, int]


@dataclass
class Sample:
    """A ragged batch and what PyTorch says about it.

    Attributes:
        rows: the batch, knobs at their exact value.
        feeds: its graph inputs.
        logits: float32 `[B, labels]`, from the eager model, one sequence at a time.
    """

    rows: list[Row]
    feeds: dict[str, npt.NDArray[Any]]
    logits: npt.NDArray[np.float32]


def check(model_path: Path) -> None:
    """Checks the written file.

    Raises:
        ExportError: it is not valid ONNX.
    """
    try:
        onnx.checker.check_model(str(model_path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the exported graph is not valid ONNX: {error}") from error


def count_nodes(model_path: Path, operator: str, layers: int) -> NodeCount:
    """Checks the written file and counts its nodes.

    Args:
        model_path: `model.onnx`.
        operator: key of the attention operator.
        layers: layers of the model.

    Raises:
        ExportError: the file is not valid ONNX, or a layer did not become one node.
    """
    check(model_path)
    graph = onnx.load(str(model_path), load_external_data=False).graph
    keys = {row.name: row.key for row in OPERATORS}
    counts = Counter(keys[node.op_type] for node in graph.node if node.domain == DOMAIN)
    found = counts.pop(operator, 0)
    if found != layers:
        raise ExportError(f"the exported graph has {found} {operator} nodes, must have one for each of {layers} layers")
    nodes = [node for node in graph.node if node.domain == DOMAIN and keys[node.op_type] == operator]
    attributes = [{item.name: onnx.helper.get_attribute_value(item) for item in node.attribute} for node in nodes]
    shared = {name: value for name, value in attributes[0].items() if all(row[name] == value for row in attributes)}
    texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in shared.items()}
    texts.pop("layer", None)
    return NodeCount(found, texts, dict(counts))


def sample(source: Source, manifest: Manifest) -> Sample:
    """Draws random token ids of many lengths, length 1 included, and asks the eager model about each alone."""
    generator = np.random.default_rng(SEED)
    # The model's own padding token means "no token" to some families.
    padding = getattr(source.model.config, "pad_token_id", None)
    allowed = np.array([index for index in range(manifest.vocab_size) if index != padding])
    exact = {knob.name: knob.exact for knob in manifest.knobs}
    rows = []
    lengths = list(dict.fromkeys(min(length, manifest.max_tokens) for length in LENGTHS))
    for length in lengths * PRECISIONS[manifest.precision].export_repeats:
        ids = generator.choice(allowed, length)
        types = generator.integers(0, 2, length) if source.has_token_types else np.zeros(length, np.int64)
        rows.append(Row(ids.astype(np.int64), types.astype(np.int64), exact, seed=0))
    eager = source.architecture.eager
    try:
        with torch.inference_mode():
            logits = [
                eager(source.model, torch.from_numpy(row.token_ids), torch.from_numpy(row.type_ids)).numpy()
                for row in rows
            ]
    except Exception as error:  # whatever the model raises
        raise ExportError(f"the PyTorch model fails on random token ids: {one_line(error)}") from error
    return Sample(rows, pack(rows, manifest), np.stack(logits))


def parity(
    model_path: Path, manifest: Manifest, batch: Sample, precision: PrecisionName = "fp32"
) -> tuple[dict[str, float], npt.NDArray[np.float32]]:
    """Compares ONNX Runtime, with the operator library and without it, with the eager model.

    Args:
        model_path: `model.onnx`.
        manifest: what the bundle will say.
        batch: what PyTorch says.
        precision: of this graph; says what difference is tolerated.

    Returns:
        Largest absolute difference of a logit with the library and without it (`fallback`), the largest difference
        between a sequence in the batch and alone (`packing`), the largest absolute logit, and the share of rows with
        PyTorch's labels (`agreement`); and the graph's own logits, float32 `[B, labels]`.

    Raises:
        ExportError: a difference is above the tolerance, or the graph does not run.
        OperatorLibraryMissing: the operators are not built.
    """
    largest = float(np.abs(batch.logits).max())
    found = {"largest_logit": largest}
    for name, library in (("library", True), ("fallback", False)):
        try:
            session = create(model_path, library=library)
            logits = session.run(["logits"], batch.feeds)[0]
        except OperatorLibraryMissing:
            raise
        except Exception as error:  # ONNX Runtime has a dozen kinds; an operator's own sentence stands at the end
            reason = one_line(error).rpartition("Status Message: ")[2]
            raise ExportError(f"the exported graph cannot be run: {reason}") from error
        found[name] = float(np.abs(logits - batch.logits).max())
        # A NaN is above every tolerance.
        limit = TOLERANCE[precision] * largest
        if logits.shape != batch.logits.shape or not found[name] <= limit:
            if precision != "fp32":
                raise ExportError(
                    f"{precision} ({name}) moves a logit by {found[name]:.2g}, must be at most {limit:.2g}: "
                    "export it as fp32"
                )
            raise ExportError(
                f"the exported graph ({name}) differs from the PyTorch model by {found[name]:.2g}, "
                f"must be at most {limit:.2g}"
            )
        if library:
            own = logits
            found["agreement"] = agreement(manifest, logits, batch.logits)
            alone = [session.run(["logits"], pack([row], manifest))[0][0] for row in batch.rows]
            found["packing"] = float(np.abs(np.stack(alone) - logits).max())
    return found, own


def agreement(manifest: Manifest, logits: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> float:
    """Share of rows that get the same label, or all the same labels; both `[B, labels]`."""
    if manifest.task == "single_label":
        return float((logits.argmax(axis=1) == wanted.argmax(axis=1)).mean())
    return float(((logits >= 0) == (wanted >= 0)).all(axis=1).mean())


def native(model_path: Path, batch: Sample) -> float:
    """Runs an fp16 graph on the CPU without the library; bf16 has no arithmetic there.

    ONNX Runtime puts casts around what it has in fp32 alone, so weights and values between nodes are fp16, as on CUDA.

    Returns:
        Largest absolute difference of a logit to the eager model.

    Raises:
        ExportError: it is above the tolerance.
    """
    logits = create(model_path, library=False).run(["logits"], batch.feeds)[0]
    difference = float(np.abs(logits - batch.logits).max())
    limit = TOLERANCE["fp16"] * float(np.abs(batch.logits).max())
    if not difference <= limit:
        raise ExportError(
            f"fp16 moves a logit by {difference:.2g}, must be at most {limit:.2g}: export it as bf16 or fp32"
        )
    return difference


def timed(model_path: Path, batch: Sample) -> float:
    """CPU seconds of one run of the batch on one thread, the shortest of a few."""
    session = create(model_path, threads=1)
    session.run(["logits"], batch.feeds)
    seconds = []
    for _ in range(TIMED_RUNS):
        begun = time.thread_time()
        session.run(["logits"], batch.feeds)
        seconds.append(time.thread_time() - begun)
    return min(seconds)
