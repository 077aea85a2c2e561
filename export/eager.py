"""A family's own forward pass in PyTorch, at the exact value of its attention: what export is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attenuator.export.encoder import Encoder

__all__ = [
    "eager_big_bird",
    "eager_encoder",
    "eager_nystromformer",
    "eager_transformers",
    "eager_yoso",
    "encoder_blocks",
    "token_types",
]


def encoder_blocks(model: Any) -> list[Any]:
    """Layers under `base_model.encoder.layer`."""
    return list(model.base_model.encoder.layer)


def token_types(model: Any) -> int:
    """Rows of the token type table, 0 for a family without one."""
    if isinstance(model, Encoder):
        return model.config.type_vocab_size
    table = getattr(model.base_model.embeddings, "token_type_embeddings", None)
    return 0 if table is None else int(table.num_embeddings)


def eager_transformers(model: Any, token_ids: Tensor, type_ids: Tensor) -> Tensor:
    """The own forward pass of transformers; position ids are left to the model, which proves the offset."""
    types = {"token_type_ids": type_ids[None]} if token_types(model) else {}
    logits: Tensor = model(input_ids=token_ids[None], **types).logits[0]
    return logits


@contextmanager
def _attentions_with(model: Any, name: str, value_for: Callable[[Any], Any]) -> Iterator[None]:
    """Sets an attribute of every layer's attention, and sets it back afterwards."""
    attentions = [layer.attention.self for layer in encoder_blocks(model)]
    before = [getattr(attention, name) for attention in attentions]
    for attention in attentions:
        setattr(attention, name, value_for(attention))
    try:
        yield
    finally:
        for attention, value in zip(attentions, before, strict=True):
            setattr(attention, name, value)


def eager_yoso(model: Any, token_ids: Tensor, type_ids: Tensor) -> Tensor:
    """The YOSO of transformers with its expectation, whatever the config says: its hashes need a CUDA kernel."""
    with _attentions_with(model, "use_expectation", lambda attention: True):
        return eager_transformers(model, token_ids, type_ids)


def eager_nystromformer(model: Any, token_ids: Tensor, type_ids: Tensor) -> Tensor:
    """The Nystromformer of transformers with exact softmax, which it computes where every token is a landmark.

    With fewer landmarks it takes texts of one length alone.
    """
    with _attentions_with(model, "num_landmarks", lambda attention: attention.seq_len):
        return eager_transformers(model, token_ids, type_ids)


def eager_big_bird(model: Any, token_ids: Tensor, type_ids: Tensor) -> Tensor:
    """The BigBird of transformers with full attention, to which it turns, for good, at the first short text."""
    model.base_model.set_attention_type("original_full")
    return eager_transformers(model, token_ids, type_ids)


def eager_encoder(model: Any, token_ids: Tensor, type_ids: Tensor) -> Tensor:
    """The project's own encoder on a batch of one."""
    starts = torch.tensor([0, len(token_ids)], dtype=torch.int32)
    types = type_ids if token_types(model) else None
    logits: Tensor = model(token_ids, torch.arange(len(token_ids)), starts, types)[0]
    return logits
