"""NystromAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attenuator.ops.yoso.eager import sequence_conv

__all__ = ["attend", "nystrom_attention", "parameters", "pseudo_inverse", "segment_weights"]


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `knobs` (0 landmarks: exact softmax attention), `attributes` and
            `weights`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    landmarks = int(layer.knobs.get("num_landmarks", 0))
    query = query * (layer.attributes["scale"] or query.shape[3] ** -0.5)
    lengths = is_token.sum(dim=1)
    through = lengths > landmarks if landmarks else torch.zeros_like(lengths, dtype=torch.bool)
    mixed = torch.zeros_like(value)
    [exact] = (~through).nonzero(as_tuple=True)
    if len(exact):
        mask = is_token[exact][:, None, None, :]
        rows = functional.scaled_dot_product_attention(
            query[exact], key[exact], value[exact], attn_mask=mask, scale=1.0
        )
        mixed = mixed.index_copy(0, exact, rows)
    [some] = through.nonzero(as_tuple=True)
    if len(some):
        sides = (query[some], key[some], value[some], is_token[some])
        rows = nystrom_attention(*sides, landmarks, layer.attributes["iterations"], layer.attributes["divisor"])
        mixed = mixed.index_copy(0, some, rows)
    conv_weight = layer.weights.get("conv_weight")
    return mixed if conv_weight is None else mixed + sequence_conv(value, conv_weight)


def parameters(config: Any) -> dict[str, nn.Parameter]:
    """The convolution's kernel `[heads, conv_size]`, where the encoder's config asks for one."""
    size = config.conv_size
    return {"conv_weight": nn.Parameter(torch.randn(config.num_attention_heads, size) / size)} if size else {}


def segment_weights(is_token: Tensor, landmarks: int) -> Tensor:
    """The share of each token in the mean of each segment of its sequence; see `reference.segment_starts`.

    Args:
        is_token: bool `[batch, tokens]`; every sequence has more tokens than there are landmarks.
        landmarks: segments of each sequence.

    Returns:
        float32 `[batch, landmarks, tokens]`, rows that sum to 1.
    """
    lengths = is_token.sum(dim=1, keepdim=True)
    size, longer = lengths // landmarks, lengths % landmarks
    index = torch.arange(landmarks + 1, device=is_token.device)
    starts = index * size + (index - (landmarks - longer)).clamp(min=0)
    place = torch.arange(is_token.shape[1], device=is_token.device)
    inside = (place >= starts[:, :-1, None]) & (place < starts[:, 1:, None])
    return inside / inside.sum(dim=2, keepdim=True)


def pseudo_inverse(weights: Tensor, iterations: int, divisor: str = "head") -> Tensor:
    """Towards the Moore-Penrose inverse of A `[batch, heads, l, l]` (the paper's equation 11).

    Args:
        weights: A, whose rows sum to 1.
        iterations: steps.
        divisor: `head` or `sequence`, see the operator's attribute.

    Returns:
        `[batch, heads, l, l]`.
    """
    largest = weights.sum(dim=2).amax(dim=2)
    if divisor == "sequence":
        largest = largest.amax(dim=1, keepdim=True)
    identity = torch.eye(weights.shape[2], dtype=weights.dtype, device=weights.device)
    inverse = weights.transpose(-1, -2) / largest[:, :, None, None]
    for _ in range(iterations):
        product = weights @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse


def nystrom_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_token: Tensor,
    landmarks: int,
    iterations: int = 6,
    divisor: str = "head",
) -> Tensor:
    """The paper's equation 13 for sequences of more tokens than landmarks, without the convolution.

    Args:
        query: `[batch, heads, tokens, head_dim]`, times the factor on the scores.
        key: `[batch, heads, tokens, head_dim]`.
        value: `[batch, heads, tokens, value_dim]`.
        is_token: bool `[batch, tokens]`.
        landmarks: of each sequence.
        iterations: steps towards the inverse.
        divisor: `head` or `sequence`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    shares = segment_weights(is_token, landmarks)[:, None].to(query.dtype)
    of_queries, of_keys = shares @ query, shares @ key
    scores = (of_queries @ key.transpose(-1, -2)).masked_fill(~is_token[:, None, None, :], float("-inf"))
    gathered = scores.softmax(dim=-1) @ value
    core = (of_queries @ of_keys.transpose(-1, -2)).softmax(dim=-1)
    spread: Tensor = (query @ of_keys.transpose(-1, -2)).softmax(dim=-1)
    return spread @ (pseudo_inverse(core, iterations, divisor) @ gathered)
