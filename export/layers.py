"""What one layer of each model family computes on a packed batch, with attention as an operator.

Each function takes the layer's own trained modules and works on `[T, C]` (in the last layer of a model that classifies
by its first token: `[B, C]` after attention). Parity with the family's own forward pass is proven at every export.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from attenuator.errors import ExportError
from attenuator.export.packed import PackedBatch, Projections

__all__ = [
    "Layer",
    "albert",
    "bert",
    "cosine_and_sine",
    "deberta",
    "distilbert",
    "encoder",
    "longformer",
    "modernbert",
    "mpnet",
]

# Floats in the widest SIMD register.
SIMD_WIDTH = 16

Layer = Callable[[Any, Tensor, PackedBatch], Tensor]


def bert(layer: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """BERT and most families behind it, ELECTRA and YOSO included: layer norms behind the residuals."""
    attention = layer.attention.self
    conv = getattr(attention, "conv", None)
    rows = batch.rows(hidden)
    mixed = batch.attend(
        attention.query(batch.query_rows(hidden)),
        attention.key(hidden),
        hidden,
        attention.value,
        num_heads=attention.num_attention_heads,
        # Conv2d's [heads, 1, c, 1]: one kernel per head, along the sequence.
        weights={} if conv is None else {"conv_weight": conv.weight[:, 0, :, 0]},
    )
    mixed, rows = batch.drop(mixed, rows)
    return layer.feed_forward_chunk(layer.attention.output(mixed, rows))


def distilbert(layer: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """DistilBERT: BERT's layer under other names."""
    attention = layer.attention
    rows = batch.rows(hidden)
    mixed = batch.attend(
        attention.q_lin(batch.query_rows(hidden)),
        attention.k_lin(hidden),
        hidden,
        attention.v_lin,
        num_heads=attention.n_heads,
    )
    mixed, rows = batch.drop(mixed, rows)
    rows = layer.sa_layer_norm(attention.out_lin(mixed) + rows)
    return layer.output_layer_norm(layer.ffn.ff_chunk(rows) + rows)


def albert(layer: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """ALBERT: the output projection and its norm belong to the attention module."""
    attention = layer.attention
    rows = batch.rows(hidden)
    mixed = batch.attend(
        attention.query(batch.query_rows(hidden)),
        attention.key(hidden),
        hidden,
        attention.value,
        num_heads=attention.num_attention_heads,
    )
    mixed, rows = batch.drop(mixed, rows)
    rows = attention.LayerNorm(rows + attention.dense(mixed))
    return layer.full_layer_layer_norm(layer.ff_chunk(rows) + rows)


def modernbert(layer: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """ModernBERT: layer norms before, rotary positions, local layers with a window, gated feed-forward."""
    attention = layer.attn
    normed = layer.attn_norm(hidden)
    rows = batch.rows(hidden)
    query, key, value = layer.projections
    cosine, sine = rotary_waves(layer, hidden.dtype, batch)
    mixed = batch.attend(
        rotate(query(layer.attn_norm(rows)), batch.rows(cosine), batch.rows(sine), attention.head_dim),
        rotate(key(normed), cosine, sine, attention.head_dim),
        normed,
        value,
        num_heads=attention.Wqkv.out_features // (3 * attention.head_dim),
        # The module holds the exclusive bound: |i - j| < sliding_window.
        window=attention.sliding_window - 1 if attention.sliding_window else 0,
    )
    mixed, rows = batch.drop(mixed, rows)
    rows = batch.freeze(rows + attention.Wo(mixed))
    return rows + layer.mlp(layer.mlp_norm(rows))


def longformer(layer: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """Longformer: BERT's layer with a window, and maybe a first token that sees and is seen by all."""
    attention = layer.attention.self
    rows = batch.rows(hidden)
    heads, window = attention.num_heads, attention.one_sided_attn_window_size
    local = Projections(attention.query, attention.key, attention.value)
    if batch.global_token:
        own = Projections(attention.query_global, attention.key_global, attention.value_global)
        mixed = batch.attend_beside_global(hidden, local, own, num_heads=heads, window=window)
    else:
        query, key = local.query(hidden), local.key(hidden)
        mixed = batch.attend(query, key, hidden, local.value, num_heads=heads, window=window)
    mixed, rows = batch.drop(mixed, rows)
    return layer.ff_chunk(layer.attention.output(mixed, rows))


def mpnet(layer: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """MPNet: BERT's layer under other names, with a bias for the distance of two tokens."""
    attention = layer.attention.attn
    rows = batch.rows(hidden)
    mixed = batch.attend(
        attention.q(rows),
        attention.k(hidden),
        hidden,
        attention.v,
        num_heads=attention.num_attention_heads,
        tables=dict(layer.tables.named_buffers()),
    )
    mixed, rows = batch.drop(mixed, rows)
    rows = layer.attention.LayerNorm(attention.o(mixed) + rows)
    return layer.output(layer.intermediate(rows), rows)


def deberta(layer: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """DeBERTa of all versions: BERT's layer, scores with terms for the distance, maybe a convolution beside it."""
    attention = layer.attention.self
    rows = batch.rows(hidden)
    neighbours = None if layer.convolution is None else batch.rows(convolved(layer.convolution, hidden, batch))
    mixed = batch.attend(
        attention.query_proj(batch.query_rows(hidden)),
        attention.key_proj(hidden),
        hidden,
        attention.value_proj,
        num_heads=attention.num_attention_heads,
        scale=layer.score_scale,
        tables=dict(layer.tables.named_buffers()),
    )
    if neighbours is None:
        mixed, rows = batch.drop(mixed, rows)
    else:
        mixed, rows, neighbours = batch.drop(mixed, rows, neighbours)
    rows = layer.attention.output(mixed, rows)
    rows = layer.output(layer.intermediate(rows), rows)
    return rows if neighbours is None else layer.convolution.LayerNorm(rows + neighbours)


def convolved(convolution: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """DeBERTa-v2's convolution along the tokens of each sequence, zeros beyond its ends, and its activation.

    Args:
        convolution: with its weights as one linear layer `side_by_side`.
        hidden: `[T, C]`.
        batch: has the positions: those of neighbours in a sequence follow one another.

    Returns:
        `[T, C]`.

    Raises:
        ExportError: rows are to be merged.
    """
    if batch.selection.merges:
        raise ExportError(
            f"merge is '{batch.selection.merge}', but this model has a convolution beside its attention, and a row for "
            "several has no neighbours; must be none"
        )
    reach = convolution.conv.kernel_size[0] // 2
    positions, tokens = batch.position_ids, hidden.shape[0]
    rows = functional.pad(hidden, (0, 0, reach, reach))
    places = functional.pad(positions, (reach, reach), value=-1 - reach)
    shifts = range(2 * reach + 1)
    inside = [places[shift : shift + tokens] == positions + (shift - reach) for shift in shifts]
    neighbours = [rows[shift : shift + tokens] * inside[shift][:, None] for shift in shifts]
    return ACT2FN[convolution.conv_act](convolution.side_by_side(torch.cat(neighbours, dim=1)))


def encoder(layer: Any, hidden: Tensor, batch: PackedBatch) -> Tensor:
    """The project's own encoder, layer norms before or behind."""
    attention = layer.attention
    pre = layer.norm == "pre"
    source = layer.attention_norm(hidden) if pre else hidden
    rows, asking = batch.rows(hidden), batch.query_rows(hidden)
    query = attention.query(layer.attention_norm(asking) if pre else asking)
    mixed = batch.attend(
        query,
        query if attention.key is None else attention.key(source),
        source,
        attention.value,
        num_heads=attention.num_heads,
        weights=attention.weights,
    )
    mixed, rows = batch.drop(mixed, rows)
    rows = rows + attention.output(mixed)
    if pre:
        rows = batch.freeze(rows)
        return rows + layer.feed_forward(layer.output_norm(rows))
    rows = batch.freeze(layer.attention_norm(rows))
    return layer.output_norm(rows + layer.feed_forward(rows))


def split_linear(linear: nn.Linear, parts: int) -> list[nn.Linear]:
    """Linear layers over equal slices of a fused one's outputs, sharing its weights: who trains them trains it."""
    weights = linear.weight.chunk(parts)
    biases = linear.bias.chunk(parts) if linear.bias is not None else [None] * parts
    pieces = []
    for weight, bias in zip(weights, biases, strict=True):
        piece = nn.Linear(linear.in_features, weight.shape[0], bias=bias is not None, device="meta")
        piece.weight = nn.Parameter(weight, linear.weight.requires_grad)
        if bias is not None:
            piece.bias = nn.Parameter(bias, linear.bias.requires_grad)
        pieces.append(piece)
    return pieces


def rotary_waves(layer: Any, dtype: torch.dtype, batch: PackedBatch) -> tuple[Tensor, Tensor]:
    """Cosine and sine of a ModernBERT layer's rotary positions, computed once for all layers of its kind.

    Args:
        layer: says its kind, frequencies and factor.
        dtype: what rotation computes in; the waves are computed in fp32 and rounded once.
        batch: has the positions.

    Returns:
        Two of `[T, F]`.
    """
    frequencies, scaling = layer.rotary

    def wave(part: int) -> Tensor:
        def compute(position_ids: Tensor) -> Tensor:
            return (cosine_and_sine(position_ids, frequencies)[part] * scaling).to(dtype)

        return batch.follow(f"{layer.attention_type} rotary {part}", compute)

    return wave(0), wave(1)


def cosine_and_sine(position_ids: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position times frequency, the same bits for a position wherever it stands in the batch.

    ONNX Runtime computes the last few elements of a tensor by another formula than those that fill a SIMD register.
    Rows padded to whole registers have no such elements.

    Args:
        position_ids: int64 `[T]`.
        frequencies: `[F]`, radians a token.

    Returns:
        Two of `[T, F]`.
    """
    count = frequencies.shape[0]
    whole = functional.pad(frequencies, (0, -count % SIMD_WIDTH))
    angles = position_ids[:, None].float() * whole
    return angles.cos()[:, :count], angles.sin()[:, :count]


def rotate(flat: Tensor, cosine: Tensor, sine: Tensor, head_dim: int) -> Tensor:
    """Rotary positions (Su et al., RoFormer, equation 34), the halves of each head turned against each other.

    Args:
        flat: `[rows, heads * head_dim]`.
        cosine: `[rows, head_dim / 2]`.
        sine: `[rows, head_dim / 2]`.
        head_dim: channels of a head, even.

    Returns:
        `[rows, heads * head_dim]`.
    """
    low, high = flat.unflatten(1, (-1, head_dim)).chunk(2, dim=-1)
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1).flatten(1)
