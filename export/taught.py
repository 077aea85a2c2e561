"""A checkpoint's second set of weights, taught to bear a small `keep`: `taught.safetensors` beside those as they were.

It holds the tensors that teaching changed, and in its header how the selection is arranged that they were taught with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from attenuator.errors import ExportError
from attenuator.export.selection import MERGES, SCHEDULES
from attenuator.export.sentences import one_line

__all__ = ["FILE", "TaughtWeights", "read", "write"]

FILE = "taught.safetensors"


@dataclass(frozen=True, slots=True)
class TaughtWeights:
    """What `attenuator adapt --keep` writes beside a checkpoint.

    Attributes:
        tensors: those that differ from the checkpoint's, by name.
        schedule: that they were taught with, a key of `selection.SCHEDULES`.
        merge: likewise, a key of `selection.MERGES`.
        below: texts with a smaller `keep` are answered with these weights; others with the checkpoint's.
    """

    tensors: Mapping[str, Tensor]
    schedule: str
    merge: str
    below: float

    @contextmanager
    def within(self, model: nn.Module) -> Iterator[None]:
        """Within it a model has these weights.

        Raises:
            ExportError: they are another model's.
        """
        own = model.state_dict()
        for name, tensor in self.tensors.items():
            if name not in own or own[name].shape != tensor.shape:
                raise ExportError(f"{FILE} does not fit the checkpoint: it has {name} {list(tensor.shape)}")
        before = {name: own[name].clone() for name in self.tensors}
        model.load_state_dict(dict(self.tensors), strict=False)
        try:
            yield
        finally:
            model.load_state_dict(before, strict=False)


def write(folder: Path, weights: TaughtWeights) -> None:
    """Writes the file into a checkpoint's folder."""
    about = {"schedule": weights.schedule, "merge": weights.merge, "below": repr(weights.below)}
    save_file(dict(weights.tensors), folder / FILE, metadata=about)


def read(folder: Path) -> TaughtWeights | None:
    """Reads the file of a checkpoint's folder; None where there is none.

    Raises:
        ExportError: it cannot be read, or does not say how the selection is arranged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
        weights = TaughtWeights(tensors, about["schedule"], about["merge"], float(about["below"]))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ExportError(f"'{path}' cannot be read: {one_line(error)}") from None
    if weights.schedule not in SCHEDULES or weights.merge not in MERGES or not 0 < weights.below <= 1:
        raise ExportError(f"'{path}' cannot be read: its header has schedule, merge or below of no selection")
    return weights
