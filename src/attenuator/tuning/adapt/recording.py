"""What the attention of each layer takes and gives in a forward pass, in transformers and in the own encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from attenuator.errors import ExportError
from attenuator.export.encoder import SelfAttention
from attenuator.ops import DOMAIN
from attenuator.training.samples import AttentionSample

__all__ = ["make_recordable", "recording"]

RECORDED = f"{DOMAIN}_recorded_"
# Softmax attention of transformers that stands in the attention interface by name.
FUSED = "sdpa"
# Where the layers of the forward pass under way put their samples, in the order of their calls.
_places: list[list[AttentionSample]] = []


@contextmanager
def recording() -> Iterator[list[AttentionSample]]:
    """Within it recordable models add one sample a layer to the list."""
    samples: list[AttentionSample] = []
    _places.append(samples)
    try:
        yield samples
    finally:
        _places.pop()


def make_recordable(model: Any, inner: Any) -> None:
    """Lets a model's attention be recorded; what it computes does not change.

    Args:
        model: as it is called.
        inner: the model of transformers or the own `Encoder` in it.

    Raises:
        ExportError: the model computes its attention by itself.
    """
    own = [module for module in model.modules() if isinstance(module, SelfAttention)]
    for module in own:
        module.attend = _recorded_own(module, module.attend)  # type: ignore[method-assign]
    windowed = [module for module in model.modules() if isinstance(module, LongformerSelfAttention)]
    for module in windowed:
        module.register_forward_hook(_recorded_windows, with_kwargs=True)
    if own or windowed:
        return
    if not inner._can_set_attn_implementation():
        raise ExportError(
            f"{type(inner).__name__} computes its attention by itself, not through the attention interface of "
            "transformers, and cannot be adapted"
        )
    name = inner.config._attn_implementation
    name = name if name in ALL_ATTENTION_FUNCTIONS.valid_keys() else FUSED
    if not name.startswith(RECORDED):
        AttentionInterface.register(RECORDED + name, _recorded_interface(ALL_ATTENTION_FUNCTIONS[name]))
        AttentionMaskInterface.register(RECORDED + name, ALL_MASK_ATTENTION_FUNCTIONS[name])
        inner.set_attn_implementation(RECORDED + name)


def _recorded_interface(function: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    def forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **further: Any
    ) -> tuple[Tensor, Any]:
        mixed, weights = function(module, query, key, value, attention_mask, **further)
        if _places:
            query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
            _places[-1].append(AttentionSample(query, key, value, mixed))
        return mixed, weights

    return forward


def _recorded_windows(module: Any, arguments: tuple[Any, ...], named: dict[str, Any], output: tuple[Any, ...]) -> None:
    """Of a Longformer's attention: queries, keys and values that are not those of its global token."""
    if _places:
        hidden = named["hidden_states"] if "hidden_states" in named else arguments[0]
        rows = [*(project(hidden) for project in (module.query, module.key, module.value)), output[0]]
        _places[-1].append(AttentionSample(*(one.unflatten(2, (module.num_heads, -1)) for one in rows)))


def _recorded_own(module: SelfAttention, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor, *further: Tensor) -> Tensor:
        mixed = function(query, key, value, *further)
        if _places:
            rows = (tensor.view(len(tensor), module.num_heads, -1) for tensor in (query, key, value, mixed))
            _places[-1].append(AttentionSample(*rows))
        return mixed

    return attend


def packed(samples: list[AttentionSample], is_token: Tensor) -> list[AttentionSample]:
    """The samples without padding, `[T, heads, channels]`, whichever model they are of.

    Args:
        samples: of transformers' models `[batch, tokens, heads, channels]`, a Longformer's with more padding behind; of
            the own encoder packed already.
        is_token: bool `[batch, tokens]`.
    """
    longest = is_token.shape[1]
    return [
        sample
        if sample.query.dim() == 3
        else AttentionSample(
            *(rows[:, :longest][is_token] for rows in (sample.query, sample.key, sample.value, sample.mixed))
        )
        for sample in samples
    ]
