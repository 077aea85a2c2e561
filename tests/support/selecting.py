"""Token selection in plain PyTorch, one sequence at a time: what graphs with selection nodes must compute.

A layer attends over all of its rows. Then rows are chosen: the first one, and those of largest importance. Of a model
that classifies by the first token the others are dropped. Of a model that averages they stay as they are behind the
attention's residual, and are put back before the final norm.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attenuator.export.architectures import architecture_of


@dataclass
class Parts:
    """One layer of any family; tensors are `[n, C]` of one sequence.

    Attributes:
        before: what attention reads.
        query, key, value: projections of that.
        heads: attention heads.
        after: attention's output and the rows before it, to the rows behind its residual.
        feed_forward: the rest of the layer.
        window: keys with |i - j| <= window, 0 for all.
        rotate: turns `[heads, n, D]` by the positions `[n]`.
    """

    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]
    value: Callable[[Tensor], Tensor]
    heads: int
    after: Callable[[Tensor, Tensor], Tensor]
    feed_forward: Callable[[Tensor], Tensor]
    before: Callable[[Tensor], Tensor] = lambda rows: rows
    window: int = 0
    rotate: Callable[[Tensor, Tensor], Tensor] = lambda heads, positions: heads


def bert(layer: Any) -> Parts:
    own, attention = layer.attention.self, layer.attention
    return Parts(
        own.query, own.key, own.value, own.num_attention_heads, attention.output, lambda x: layer.feed_forward_chunk(x)
    )


def distilbert(layer: Any) -> Parts:
    own = layer.attention
    return Parts(
        own.q_lin,
        own.k_lin,
        own.v_lin,
        own.n_heads,
        lambda mixed, rows: layer.sa_layer_norm(own.out_lin(mixed) + rows),
        lambda rows: layer.output_layer_norm(layer.ffn(rows) + rows),
    )


def albert(layer: Any) -> Parts:
    own = layer.attention
    return Parts(
        own.query,
        own.key,
        own.value,
        own.num_attention_heads,
        lambda mixed, rows: own.LayerNorm(rows + own.dense(mixed)),
        lambda rows: layer.full_layer_layer_norm(layer.ffn_output(layer.activation(layer.ffn(rows))) + rows),
    )


def modernbert(layer: Any) -> Parts:
    own = layer.attn
    frequencies, scaling = layer.rotary

    def rotate(heads: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].float() * frequencies
        cosine, sine = (torch.cat([wave, wave], dim=-1) * scaling for wave in (angles.cos(), angles.sin()))
        low, high = heads.chunk(2, dim=-1)
        return heads * cosine + torch.cat([-high, low], dim=-1) * sine

    def third(index: int) -> Callable[[Tensor], Tensor]:
        return lambda rows: own.Wqkv(rows).chunk(3, dim=-1)[index]

    return Parts(
        third(0),
        third(1),
        third(2),
        own.Wqkv.out_features // (3 * own.head_dim),
        lambda mixed, rows: rows + own.Wo(mixed),
        lambda rows: rows + layer.mlp(layer.mlp_norm(rows)),
        before=layer.attn_norm,
        window=own.sliding_window - 1 if own.sliding_window else 0,
        rotate=rotate,
    )


def encoder(layer: Any) -> Parts:
    own = layer.attention
    pre = layer.norm == "pre"
    return Parts(
        own.query,
        own.key,
        own.value,
        own.num_heads,
        lambda mixed, rows: rows + own.output(mixed) if pre else layer.attention_norm(rows + own.output(mixed)),
        lambda rows: (
            rows + layer.feed_forward(layer.output_norm(rows))
            if pre
            else layer.output_norm(rows + layer.feed_forward(rows))
        ),
        before=layer.attention_norm if pre else lambda rows: rows,
    )


PARTS = {"distilbert": distilbert, "albert": albert, "modernbert": modernbert, "attenuator-encoder": encoder}


def weights_of(parts: Parts, rows: Tensor, positions: Tensor) -> Tensor:
    """Attention weights `[heads, n, n]`."""
    query, key = (
        parts.rotate(project(rows).unflatten(1, (parts.heads, -1)).transpose(0, 1), positions)
        for project in (parts.query, parts.key)
    )
    scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
    if parts.window:
        far = (positions[:, None] - positions).abs() > parts.window
        scores = scores.masked_fill(far, -math.inf)
    return scores.softmax(dim=-1)


def chosen(weights: Tensor, count: int, importance: str) -> Tensor:
    """Places of the rows that go on, ascending."""
    by_row = weights[:, 0] if importance == "first" else weights.amax(dim=1)
    important = by_row.sum(dim=0).tolist()
    others = sorted(range(1, len(important)), key=lambda place: (-important[place], place))
    return torch.tensor(sorted([0, *others[: count - 1]]))


def kept(length: int, keep: float, exponent: float) -> int:
    """Rows that go on."""
    return length if keep == 1 else max(1, math.ceil(length * np.float32(keep).item() ** exponent * (1 - 2.0**-22)))


@torch.inference_mode()
def logits(
    model: Any,
    ids: np.ndarray,
    types: np.ndarray | None,
    keep: float,
    exponents: tuple[float, ...],
    importance: str,
) -> np.ndarray:
    """What the model says of one sequence of which a share goes on.

    Args:
        model: a family's classifier, as `checkpoints.load` gives it.
        ids: int64 `[n]`.
        types: int64 `[n]`, or None.
        keep: the knob.
        exponents: one a layer, 0 where nothing is selected.
        importance: `first` or `maximum`.

    Returns:
        float32 `[labels]`.
    """
    config = model.config
    family = architecture_of(config.model_type)
    family.prepare(model)
    positions = torch.arange(len(ids))
    inputs = {"input_ids": torch.from_numpy(ids), "position_ids": positions + family.position_offset(config)}
    if types is not None:
        inputs["token_type_ids"] = torch.from_numpy(types)
    hidden = family.embed(model, inputs)
    drops = family.pooling(config) == "first"
    frozen: list[tuple[Tensor, Tensor]] = []
    for layer, exponent in zip(family.blocks(model), exponents, strict=True):
        parts = PARTS.get(config.model_type, bert)(layer)
        source = parts.before(hidden)
        weights = weights_of(parts, source, positions)
        value = parts.value(source).unflatten(1, (parts.heads, -1)).transpose(0, 1)
        mixed = (weights @ value).transpose(0, 1).flatten(1)
        places = chosen(weights, kept(len(hidden), keep, exponent), importance) if exponent else None
        if places is not None and drops:
            mixed, hidden, positions = mixed[places], hidden[places], positions[places]
        hidden = parts.after(mixed, hidden)
        if places is not None and not drops:
            frozen.append((hidden, places))
            hidden, positions = hidden[places], positions[places]
        hidden = parts.feed_forward(hidden)
    for rows, places in reversed(frozen):
        rows = rows.clone()
        rows[places] = hidden
        hidden = rows
    normed = family.norm(model, hidden)
    pooled = normed[:1] if drops else normed.mean(dim=0, keepdim=True)
    return family.head(model, pooled)[0].numpy()
