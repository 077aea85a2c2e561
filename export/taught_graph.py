"""The second graph of a bundle: the same nodes with taught weights; what both graphs share is stored once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import onnx
from onnx import TensorProto
from onnx.external_data_helper import set_external_data

from attenuator import bundle
from attenuator.errors import ExportError
from attenuator.export.lower import INLINE_BYTES
from attenuator.export.selection import NONE
from attenuator.export.source import Source
from attenuator.export.trace import PackedClassifier
from attenuator.ops import BASELINE
from attenuator.precision import PRECISIONS

__all__ = ["selection_of", "write_beside"]

# Smaller tensors are not worth a reference to another file.
SHARED_BYTES = 2**14
# A mapped tensor begins on a page.
PAGE_BYTES = 4096

Written = tuple[Any, dict[str, float]]


def selection_of(
    source: Source, attention: str, schedule: str | None, merge: str | None, precision: str
) -> tuple[str | None, str | None]:
    """Schedule and merge of a bundle: those that the checkpoint was taught with, else what the caller asks for.

    With schedule `none` a checkpoint is exported as it was before it was taught.

    Args:
        source: the loaded model; loses its taught weights where they are not asked for.
        attention: key of the operator.
        schedule: what the caller asks for, None for nothing.
        merge: likewise.
        precision: of the bundle.

    Raises:
        ExportError: they were taught with something else.
    """
    if schedule == NONE:
        source.taught = None
    weights = source.taught
    if weights is None:
        return schedule, merge
    where = f"the weights of '{source.name}' were taught with"
    if attention != BASELINE.key:
        raise ExportError(
            f"attention is '{attention}', but {where} {BASELINE.key} attention; schedule {NONE} leaves them out"
        )
    if schedule not in (None, weights.schedule):
        raise ExportError(f"schedule is '{schedule}', but {where} '{weights.schedule}'; must be that or {NONE}")
    if merge not in (None, weights.merge):
        raise ExportError(f"merge is '{merge}', but {where} '{weights.merge}'")
    others = [name for name, row in PRECISIONS.items() if not row.half]
    if precision not in others:
        raise ExportError(f"precision is '{precision}', but a bundle with taught weights must be {' or '.join(others)}")
    return weights.schedule, weights.merge


def write_beside(
    source: Source,
    classifier: PackedClassifier,
    manifest: bundle.Manifest,
    folder: Path,
    write_files: Callable[[Source, PackedClassifier, bundle.Manifest, Path], Written],
) -> dict[str, float]:
    """Writes `taught.onnx`, its data where it is large, and its probe beside the model's own.

    Args:
        source: the loaded model, which has its own weights again at the end.
        classifier: the same model on packed batches.
        manifest: what the bundle will say, as far as that is known.
        folder: of the bundle; holds the model's own files.
        write_files: writes and checks a graph.

    Returns:
        Differences of the taught graph to the taught PyTorch model by name.

    Raises:
        ExportError: the weights are another model's, or the graph does not compute what the taught model computes.
    """
    assert source.taught is not None
    with tempfile.TemporaryDirectory(dir=folder) as name, source.taught.within(source.model):
        scratch = Path(name)
        (scratch / bundle.TOKENIZER).write_bytes((folder / bundle.TOKENIZER).read_bytes())
        _, parity = write_files(source, classifier, manifest, scratch)
        (scratch / bundle.PROBE).replace(folder / bundle.TAUGHT_PROBE)
        share(folder, scratch / bundle.MODEL)
    return {f"taught_{name}": value for name, value in parity.items()}


def share(folder: Path, taught_path: Path) -> None:
    """Writes both graphs of a bundle anew: equal weights once, in `model.onnx.data`.

    Args:
        folder: holds `model.onnx`, and its data where that is large.
        taught_path: the other graph, with its data beside it.
    """
    original, taught = onnx.load(str(folder / bundle.MODEL)), onnx.load(str(taught_path))
    ours, theirs = ({item.name: item for item in each.graph.initializer} for each in (original, taught))
    equal = [name for name in ours if name in theirs and is_shared(ours[name], theirs[name])]
    own = [item for item in original.graph.initializer if item.name not in equal]
    others = [item for item in taught.graph.initializer if item.name not in equal]
    with (folder / bundle.MODEL_DATA).open("wb") as stream:
        for name in equal:
            put([ours[name], theirs[name]], stream, bundle.MODEL_DATA)
        for item in large(own):
            put([item], stream, bundle.MODEL_DATA)
    if large(others):
        with (folder / bundle.TAUGHT_DATA).open("wb") as stream:
            for item in large(others):
                put([item], stream, bundle.TAUGHT_DATA)
    onnx.save(original, str(folder / bundle.MODEL))
    onnx.save(taught, str(folder / bundle.TAUGHT))


def is_shared(one: TensorProto, other: TensorProto) -> bool:
    """Whether two tensors are the same, and large enough to be stored once."""
    return len(one.raw_data) >= SHARED_BYTES and (one.dims, one.data_type, one.raw_data) == (
        other.dims,
        other.data_type,
        other.raw_data,
    )


def large(tensors: Iterable[TensorProto]) -> list[TensorProto]:
    """Those that go to a file of their own: none where all together are small."""
    tensors = [item for item in tensors if len(item.raw_data) >= SHARED_BYTES]
    return tensors if sum(len(item.raw_data) for item in tensors) > INLINE_BYTES else []


def put(copies: list[TensorProto], stream: BinaryIO, location: str) -> None:
    """Writes equal tensors once, and makes them refer to the place."""
    content = copies[0].raw_data
    stream.write(b"\0" * (-stream.tell() % PAGE_BYTES))
    offset = stream.tell()
    stream.write(content)
    for tensor in copies:
        set_external_data(tensor, location=location, offset=offset, length=len(content))
        tensor.ClearField("raw_data")
