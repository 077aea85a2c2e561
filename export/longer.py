"""Positions beyond those that a checkpoint was trained with, for models that look positions up in a learned table.

A table of 512 rows reads 512 tokens. A longer one is made of the trained rows, without training:

`repeated`: the rows again and again (Longformer, Beltagy et al. 2020, section 5). Texts that the model could read
before keep their answers to the last bit. Two tokens 512 apart look as if they stood in one place.

`interpolated`: the rows stretched, with straight lines between them (position interpolation, Chen et al. 2023, there
for rotary positions). The order of all tokens is kept; neighbours look closer than in training, in short texts as well.

Training afterwards makes either better.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from attenuator.bundle import TRAINED_POSITIONS
from attenuator.errors import ExportError
from attenuator.export.sentences import one_line

if TYPE_CHECKING:  # PyTorch takes seconds to import, and --help lists POSITIONS
    from torch import Tensor

    from attenuator.export.architectures import Architecture
    from attenuator.export.source import Source

__all__ = ["POSITIONS", "lengthen", "lengthened"]

POSITIONS = {
    TRAINED_POSITIONS: "as many as the checkpoint has",
    "repeated": "its rows again and again; texts that it could read before keep their answers",
    "interpolated": "its rows stretched, with straight lines between them; the answers to short texts change too",
}
TABLE = "position_embeddings.weight"
MAX_POSITIONS = 2**20  # a table of more takes gigabytes


def lengthen(source: Source, positions: str, max_tokens: int | None) -> None:
    """Gives a source's model a longer table of positions.

    Args:
        source: the model and what it says of itself; both are changed.
        positions: a key of `POSITIONS`; `TRAINED_POSITIONS` changes nothing.
        max_tokens: longest input that the model shall read, special tokens included.

    Raises:
        ExportError: `positions` or `max_tokens` is not possible for this model.
    """
    if positions not in POSITIONS:
        raise ExportError(f"positions is '{positions}', must be one of: {', '.join(POSITIONS)}")
    if positions != TRAINED_POSITIONS:
        longer_model = lengthened(source.model, source.architecture, positions, max_tokens)
        source.model = longer_model.requires_grad_(False).eval()
        source.max_tokens = int(max_tokens or 0)


def lengthened(model: Any, architecture: Architecture, positions: str, max_tokens: int | None) -> Any:
    """A model with a longer table of positions, built anew.

    Args:
        model: of transformers.
        architecture: how it is laid out.
        positions: a key of `POSITIONS`, not `TRAINED_POSITIONS`.
        max_tokens: longest input that the model shall read, special tokens included.

    Raises:
        ExportError: `max_tokens` is not possible for this model, or it has no such table.
    """
    trained = architecture.max_tokens(model.config)
    if max_tokens is None or max_tokens <= trained:
        raise ExportError(
            f"max_tokens is {max_tokens}, must be more than the {trained} positions that the model was trained with, "
            f"where positions is '{positions}'"
        )
    if max_tokens > MAX_POSITIONS:
        raise ExportError(
            f"max_tokens is {max_tokens}, must be at most {MAX_POSITIONS} where positions is '{positions}'"
        )
    offset = architecture.position_offset(model.config)
    weights = model.state_dict()
    name = next((name for name in weights if name.endswith(TABLE)), None)
    if name is None or len(weights[name]) != offset + trained:
        raise ExportError(
            f"positions is '{positions}', but the family '{model.config.model_type}' has no table of learned positions "
            f"that could be lengthened; must be '{TRAINED_POSITIONS}'"
        )
    table = weights[name]
    weights[name] = table.new_empty(offset + max_tokens, table.shape[1])
    weights[name][:offset] = table[:offset]
    weights[name][offset:] = longer(table[offset:], positions, max_tokens)
    return rebuilt(model, weights, max_tokens - trained)


def longer(table: Tensor, positions: str, rows: int) -> Tensor:
    """The trained rows `[positions, hidden]`, made into `rows` of them as a key of `POSITIONS` says."""
    import torch

    if positions == "repeated":
        return table.repeat(-(-rows // len(table)), 1)[:rows]
    places = torch.linspace(0, len(table) - 1, rows, dtype=torch.float64)
    low = places.long().clamp(max=len(table) - 2)
    return torch.lerp(table[low], table[low + 1], (places - low)[:, None].to(table.dtype))


def rebuilt(model: Any, weights: dict[str, Tensor], added: int) -> Any:
    """The model built anew for `added` more positions, because its layers keep buffers of that length.

    Raises:
        ExportError: its class takes no more positions.
    """
    config = copy.deepcopy(model.config)
    if getattr(config, "max_relative_positions", 1) < 1:  # DeBERTa's distances stay as far as they were trained
        config.max_relative_positions = config.max_position_embeddings
    config.max_position_embeddings += added
    try:
        other = type(model)(config)
        other.load_state_dict(weights)
    except Exception as error:  # of a class that the user wrote, or whose attention reads the number of positions
        raise ExportError(
            f"the model cannot be built with {config.max_position_embeddings} positions: {one_line(error)}"
        ) from None
    return other
