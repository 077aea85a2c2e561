"""YOSO attention as an attention implementation of transformers: importing this module registers `attenuator_yoso`.

Settings stand in the model's config under `attenuator`, so that `save_pretrained` writes them and `attenuator export`
reads them. Masks are the two-dimensional ones of padding; nothing of the square of the length exists.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any

from torch import Tensor, nn
from transformers import MODEL_MAPPING, AttentionInterface, AttentionMaskInterface

from attenuator.ops import DOMAIN
from attenuator.ops.yoso.spec import SPEC
from attenuator.training import ATTENTION
from attenuator.training.yoso.attention import EVALUATION_SEED, attend_padded, draw_seeds
from attenuator.training.yoso.settings import Settings

__all__ = ["NAME", "expected", "settings_of", "use"]

NAME = f"{DOMAIN}_{SPEC.key}"


class ForwardPass(threading.local):
    """How many layers have counted themselves since this thread's last forward pass began, with its mask."""

    layers = 0


_under_way = ForwardPass()


def use(model: Any, settings: Settings | None = None) -> None:
    """Makes a model of transformers compute YOSO attention from now on, and its config say so.

    Args:
        model: whose attention goes through transformers' attention interface.
        settings: by default those that the config has, or else the defaults.

    Raises:
        ValueError: the model computes its attention by itself, or its config has settings that are not allowed.
    """
    chosen = settings or settings_of(model.config)
    if not model._can_set_attn_implementation():
        raise ValueError(no_interface(type(model).__name__))
    model.set_attn_implementation(NAME)
    write(model.config, chosen)


def settings_of(config: Any) -> Settings:
    """What a model's config says under `attenuator`; the defaults where it says nothing.

    Raises:
        ValueError: fields or values that there are not.
    """
    stored = getattr(config, DOMAIN, None)
    if stored is None:
        return Settings()
    allowed = [ATTENTION, *(item.name for item in fields(Settings))]
    if not isinstance(stored, dict) or not set(stored) <= set(allowed) or stored.get(ATTENTION) != SPEC.key:
        raise ValueError(
            f"{DOMAIN} in the config is {stored!r}, must have {ATTENTION} {SPEC.key!r} and no fields but "
            f"{', '.join(allowed)}"
        )
    return Settings(**{name: value for name, value in stored.items() if name != ATTENTION})


def write(config: Any, settings: Settings) -> None:
    """Puts settings into a config."""
    setattr(config, DOMAIN, {ATTENTION: SPEC.key} | asdict(settings))


@contextmanager
def expected(model: Any) -> Iterator[None]:
    """Within it the model computes the expectation over all hashes, whatever its config says."""
    implementation, settings = model.config._attn_implementation, settings_of(model.config)
    use(model, replace(settings, num_hashes=0))
    try:
        yield
    finally:
        write(model.config, settings)
        model.set_attn_implementation(implementation)


def no_interface(name: str) -> str:
    """The sentence that refuses a model."""
    return (
        f"{name} computes its attention by itself, not through the attention interface of transformers, and cannot be "
        "trained with another one"
    )


def forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """What the attention interface calls.

    Args:
        module: the attention module, with the model's config.
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: as query.
        attention_mask: bool `[batch, tokens]`, False on padding, or None; see `mask`.
        dropout: not applied: there are no attention weights to drop.
        scaling: not applied: hashes see directions alone.
        further: what other kinds of attention have.

    Returns:
        `[batch, tokens, heads, head_dim]`, and no attention weights.

    Raises:
        ValueError: an attention that is not over all tokens of a sequence.
    """
    refuse_other_kinds(module, query, key, attention_mask, further)
    config: Any = module.config
    settings = settings_of(config)
    if getattr(config, DOMAIN, None) is None:  # chosen by attn_implementation alone
        write(config, settings)
    seed = draw_seeds(len(query)) if module.training else EVALUATION_SEED
    mixed = attend_padded(query, key, value, attention_mask, settings, seed, layer_of(module))
    return mixed.transpose(1, 2).contiguous(), None


def layer_of(module: nn.Module) -> int:
    """Which layer's hashes a call takes: layers count in the order of their calls, as in the exported bundle.

    Some modules do not know their layer, and shared ones have several. They are counted in evaluation alone: training
    draws hashes for every call anyhow, and gradient checkpointing repeats calls.
    """
    index = getattr(module, "layer_idx", None)
    if index is not None or module.training:
        return int(index or 0)
    _under_way.layers += 1
    return _under_way.layers - 1


def refuse_other_kinds(
    module: Any, query: Tensor, key: Tensor, attention_mask: Tensor | None, further: dict[str, Any]
) -> None:
    """Refuses what the operator does not compute, rather than to compute something else.

    Raises:
        ValueError: names the model and all that it asks for.
    """
    causal = further.get("is_causal")
    kinds = {
        "causal attention": getattr(module, "is_causal", False) if causal is None else causal,
        "attention within a window": further.get("sliding_window"),
        "a bias for positions": further.get("position_bias") is not None,
        "attention over another sequence, or a cache": query.shape[2] != key.shape[2],
        "fewer heads of keys than of queries": query.shape[1] != key.shape[1],
        "a mask for pairs of tokens": attention_mask is not None and attention_mask.dim() != 2,
    }
    asked = [kind for kind, is_asked in kinds.items() if is_asked]
    if asked:
        raise ValueError(
            f"{type(module).__name__} asks '{NAME}' for {' and '.join(asked)}; it computes attention of every token "
            "over all tokens of its sequence, with a mask [batch, tokens] for padding"
        )


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    config: Any = None,
    **_: Any,
) -> Tensor | None:
    """What the mask interface calls: the mask of padding as it is.

    Args:
        batch_size: sequences.
        q_length: tokens of each.
        kv_length: the same.
        attention_mask: bool `[batch, tokens]`.
        config: the model's.

    Returns:
        attention_mask, or None where there is no padding.

    Raises:
        ValueError: the model does not call the attention interface, so that its scores would meet this mask.
    """
    model = MODEL_MAPPING.get(type(config), None)
    if model is not None and not model._can_set_attn_implementation():
        raise ValueError(no_interface(model.__name__))
    _under_way.layers = 0  # models ask for their mask once, before the first layer
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


AttentionInterface.register(NAME, forward)
AttentionMaskInterface.register(NAME, mask)
