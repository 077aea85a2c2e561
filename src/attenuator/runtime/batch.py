"""Packed batches: rows of any length and knob, laid end to end as the arrays of a graph, and run in a bundle's graphs.

A bundle has the model's own graph, and perhaps one of weights that were taught to bear a small knob. Each row runs in
one of them, by its knob alone: at the exact value always in the model's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from attenuator.bundle import TAUGHT, Manifest
from attenuator.errors import BundleError, EngineError
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import session as sessions
from attenuator.runtime.device import CPU, Device

TOKEN_INPUTS = ("input_ids", "position_ids", "token_type_ids")
KNOB_DTYPES = {"int32": np.int32, "float": np.float32}

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence with its settings.

    Attributes:
        token_ids: int64 `[tokens]`, special tokens included.
        type_ids: int64 `[tokens]`; unused where the graph has no `token_type_ids`.
        knobs: a checked value for every knob of the bundle, as `KnobTable.check` returns.
        seed: 0 to 2^53 - 1.
    """

    token_ids: Ids
    type_ids: Ids
    knobs: Mapping[str, KnobValue]
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RowResult:
    """What the model says about one row.

    Attributes:
        logits: float32 `[num_labels]`, of a token classifier `[tokens, num_labels]`.
        outputs: the graph's further outputs for the row, by name in `attenuator.ops.SEQUENCE_OUTPUTS`.
    """

    logits: npt.NDArray[np.float32]
    outputs: dict[str, float] = field(default_factory=dict)

    @property
    def value_flops(self) -> float | None:
        """The output of this name, None where the model has none."""
        return self.outputs.get("value_flops")


def by_output(results: Sequence[RowResult]) -> dict[str, list[float]]:
    """The graph's further outputs by name, beside the logits: one value per row, as an answer has them."""
    values: dict[str, list[float]] = {}
    for result in results:
        for name, value in result.outputs.items():
            values.setdefault(name, []).append(value)
    return values


def pack(rows: Sequence[Row], manifest: Manifest) -> dict[str, npt.NDArray[Any]]:
    """Lays rows end to end.

    Args:
        rows: B rows.
        manifest: names the graph's inputs, the position offset and the knobs' dtypes.

    Returns:
        Array by graph input: `input_ids`, `position_ids` and, where the graph has it, `token_type_ids` int64 `[T]`,
        `cu_seqlens` int32 `[B + 1]`, each knob `[B]`, `seed` int64 `[B]`.

    Raises:
        BundleError: the manifest names a graph input that this version cannot fill.
    """
    lengths = [len(row.token_ids) for row in rows]
    dtypes: dict[str, type] = {}
    for knob in manifest.knobs:
        dtypes[knob.name] = KNOB_DTYPES[knob.dtype]
    feeds: dict[str, npt.NDArray[Any]] = {}
    for name in manifest.inputs:
        if name == "input_ids":
            feeds[name] = np.concatenate([row.token_ids for row in rows])
        elif name == "position_ids":
            first = manifest.position_offset
            feeds[name] = np.concatenate([np.arange(first, first + length, dtype=np.int64) for length in lengths])
        elif name == "token_type_ids":
            feeds[name] = np.concatenate([row.type_ids for row in rows])
        elif name == "cu_seqlens":
            feeds[name] = np.array([0, *accumulate(lengths)], dtype=np.int32)
        elif name == "seed":
            feeds[name] = np.array([row.seed for row in rows], dtype=np.int64)
        elif name in dtypes:
            feeds[name] = np.array([row.knobs[name] for row in rows], dtype=dtypes[name])
        else:
            raise BundleError(f"bundle {manifest.name}: bundle.json: inputs has {name!r}, which is not a known input")
    return feeds


@dataclass(frozen=True, slots=True)
class Graphs:
    """Sessions of one bundle; safe to run from several threads at once.

    Attributes:
        original: of the model's own graph.
        taught: of the taught one; None in a bundle without.
        device: where both run.
    """

    original: ort.InferenceSession
    taught: ort.InferenceSession | None = None
    device: Device = CPU

    def run(self, rows: Sequence[Row], manifest: Manifest, options: ort.RunOptions | None) -> list[RowResult]:
        """Runs rows, those of each graph as one packed batch.

        Args:
            rows: any number.
            manifest: of the bundle.
            options: stop the run from another thread.

        Returns:
            One result per row, in order.

        Raises:
            EngineError: ONNX Runtime failed, the run was cancelled, or gave results of another number.
        """
        limit = manifest.taught
        if self.taught is None or limit is None:
            return run_graph(self.original, rows, manifest, options, self.device)
        is_taught = [row.knobs[limit.knob] < limit.below for row in rows]
        results: list[RowResult] = [None] * len(rows)  # type: ignore[list-item]  # each is set below
        for session, flag in ((self.original, False), (self.taught, True)):
            places = [place for place, each in enumerate(is_taught) if each is flag]
            if places:
                own = run_graph(session, [rows[place] for place in places], manifest, options, self.device)
                for place, result in zip(places, own, strict=True):
                    results[place] = result
        return results


def run_graph(
    session: ort.InferenceSession,
    rows: Sequence[Row],
    manifest: Manifest,
    options: ort.RunOptions | None,
    device: Device,
) -> list[RowResult]:
    """Runs rows as one packed batch in one session; see `Graphs.run`."""
    outputs = manifest.outputs
    try:
        feeds = pack(rows, manifest)
        if device.kind == "cpu":  # where binding costs 10 to 70 us a run and saves no copy
            arrays = session.run(outputs, feeds, options)
        else:
            arrays = sessions.run_bound(session, feeds, outputs, options, device=device)
    except Exception as error:  # ORT raises its own kinds and, when memory is short, RuntimeError
        raise EngineError(f"model '{manifest.name}' failed on this batch", detail=sessions.first_line(error)) from error
    by_name = dict(zip(outputs, arrays, strict=True))
    for name, array in by_name.items():  # with another shape, a row would get no answer or that of another row
        check_shape(name, array, rows, manifest)
    logits = by_name.pop("logits")
    if manifest.reads_tokens:
        logits = np.split(logits, np.cumsum([len(row.token_ids) for row in rows[:-1]]))
    results = list(map(RowResult, logits))
    for name, values in by_name.items():
        for result, value in zip(results, values.tolist(), strict=True):
            result.outputs[name] = value
    return results


def logits_of(rows: Sequence[Row], manifest: Manifest) -> int:
    """How many rows of logits a graph gives for some rows: one for each, or for each of their tokens."""
    return sum(len(row.token_ids) for row in rows) if manifest.reads_tokens else len(rows)


def check_shape(name: str, array: np.ndarray, rows: Sequence[Row], manifest: Manifest) -> None:
    """Refuses an output that is not one row of logits, or one value, for each row.

    Raises:
        EngineError: that is so.
    """
    shape = (logits_of(rows, manifest), len(manifest.labels)) if name == "logits" else (len(rows),)
    if array.shape != shape:
        what = "row of logits" if name == "logits" else "value"
        whose = "token" if name == "logits" and manifest.reads_tokens else "sequence"
        raise EngineError(
            f"model '{manifest.name}' gave {name} of shape {list(array.shape)} for a batch, must be "
            f"{list(shape)}: one {what} per {whose}"
        )


def open_graphs(
    files: Path, folder: Path, manifest: Manifest, *, device: Device = CPU, threads: int | None = None
) -> Graphs:
    """Creates the sessions of a bundle; arguments and errors as `session.open_model` has them."""
    original = sessions.open_model(files, folder, device=device, threads=threads)
    if manifest.taught is None:
        return Graphs(original, device=device)
    return Graphs(original, sessions.open_model(files, folder, TAUGHT, device=device, threads=threads), device)
