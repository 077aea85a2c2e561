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
from torch.nn.functional import normalize
from transformers.activations import ACT2FN
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

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
        first: projections for the row of the first token, which sees all and is seen by all; None: a row like others.
        rotate: turns `[heads, n, D]` by the positions `[n]`.
        score: scores `[heads, n, n]` of queries and keys `[heads, n, D]` at the positions `[n]`.
        hash_bits: of YOSO, whose weights are expected collisions and whose output has norm 1 in each head; 0: softmax.
        normalize: of YOSO; 2: its weights are divided by their sum in place of that norm.
        norm_lift: of YOSO, the bound on squared norms below which they count as it.
    """

    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]
    value: Callable[[Tensor], Tensor]
    heads: int
    after: Callable[[Tensor, Tensor], Tensor]
    feed_forward: Callable[[Tensor], Tensor]
    before: Callable[[Tensor], Tensor] = lambda rows: rows
    window: int = 0
    first: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None
    rotate: Callable[[Tensor, Tensor], Tensor] = lambda heads, positions: heads
    score: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda query, key, positions: scaled(query, key)
    hash_bits: int = 0
    normalize: int = 1
    norm_lift: float = 0.0


def scaled(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])


def bert(layer: Any) -> Parts:
    own, attention = layer.attention.self, layer.attention
    return Parts(
        own.query,
        own.key,
        own.value,
        own.num_attention_heads,
        attention.output,
        lambda rows: layer.feed_forward_chunk(rows),
        hash_bits=getattr(own, "hash_code_len", 0),
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


def longformer(layer: Any) -> Parts:
    own = layer.attention.self
    return Parts(
        own.query,
        own.key,
        own.value,
        own.num_heads,
        layer.attention.output,
        layer.ff_chunk,
        window=own.one_sided_attn_window_size,
        first=(own.query_global, own.key_global, own.value_global),
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
        hash_bits=own.attributes.get("hash_bits", 0),
        normalize=own.attributes.get("normalize", 0),
        norm_lift=own.attributes.get("norm_lift", 0.0),
    )


def mpnet(layer: Any) -> Parts:
    own, tables = layer.attention.attn, layer.tables

    def score(query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        bucket = MPNetEncoder.relative_position_bucket(positions - positions[:, None])
        return scaled(query, key) + tables.bias[bucket].permute(2, 0, 1)

    return Parts(
        own.q,
        own.k,
        own.v,
        own.num_attention_heads,
        lambda mixed, rows: layer.attention.LayerNorm(own.o(mixed) + rows),
        lambda rows: layer.output(layer.intermediate(rows), rows),
        score=score,
    )


def deberta(layer: Any) -> Parts:
    """Of every version, the terms for distances by the tables that `attenuator.export.relative` made."""
    own, tables = layer.attention.self, layer.tables

    def score(query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        reach = len(tables.buckets) // 2
        rows = tables.buckets[positions[:, None] - positions + reach].expand(len(query), -1, -1)
        total = query @ key.transpose(1, 2)
        for name, source, places in (("pos_key", query, rows), ("pos_query", key, rows.transpose(1, 2))):
            if hasattr(tables, name):
                table = getattr(tables, name).unflatten(1, (len(query), -1)).transpose(0, 1)
                term = (source @ table.transpose(1, 2)).gather(2, places)
                total = total + (term if name == "pos_key" else term.transpose(1, 2))
        return total * layer.score_scale

    return Parts(
        own.query_proj,
        own.key_proj,
        own.value_proj,
        own.num_attention_heads,
        layer.attention.output,
        lambda rows: layer.output(layer.intermediate(rows), rows),
        score=score,
    )


PARTS = {
    "mpnet": mpnet,
    "deberta": deberta,
    "deberta-v2": deberta,
    "distilbert": distilbert,
    "albert": albert,
    "modernbert": modernbert,
    "longformer": longformer,
    "attenuator-encoder": encoder,
}


def convolved(layer: Any, rows: Tensor) -> Tensor:
    """What a DeBERTa-v2's convolution makes of the rows before its layer; the rows where it has none."""
    beside = getattr(layer, "convolution", None)
    return rows if beside is None else ACT2FN[beside.conv_act](beside.conv(rows.T[None])[0].T)


def weights_of(parts: Parts, rows: Tensor, positions: Tensor, stands_for: Tensor) -> Tensor:
    """Attention weights `[heads, n, n]`; of YOSO the expected share of hashes in which a key collides."""
    query, key = (
        parts.rotate(project(rows).unflatten(1, (parts.heads, -1)).transpose(0, 1), positions)
        for project in (parts.query, parts.key)
    )
    if parts.hash_bits:
        least = math.sqrt(parts.norm_lift)
        unit = [side.double() / side.double().norm(dim=-1, keepdim=True).clamp(min=least) for side in (query, key)]
        cosine = (unit[0] @ unit[1].transpose(1, 2)).clamp(-1, 1)
        shares = ((1 - cosine.arccos() / math.pi) ** parts.hash_bits).float()
        return shares / shares.sum(dim=2, keepdim=True) if parts.normalize == 2 else shares
    scores = parts.score(query, key, positions)
    if parts.window:
        far = (positions[:, None] - positions).abs() > parts.window
        if parts.first:
            far[0] = far[:, 0] = False
        scores = scores.masked_fill(far, -math.inf)
    return (scores + stands_for.log()).softmax(dim=-1)


def first_row(parts: Parts, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Weights `[heads, n]` and output `[heads * D]` of a first token that has projections of its own."""
    assert parts.first
    query, key, value = (project(rows).unflatten(1, (parts.heads, -1)).transpose(0, 1) for project in parts.first)
    weights = scaled(query[:, :1], key).softmax(dim=-1)
    return weights[:, 0], (weights @ value).flatten()


def importance_of(weights: Tensor, kind: str) -> Tensor:
    """Of each key `[n]`, from weights `[heads, n, n]`: what the first row gives it, or the row that gives it most."""
    return (weights[:, 0] if kind == "first" else weights.amax(dim=1)).sum(dim=0)


def chosen(importance: Tensor, count: int) -> Tensor:
    """Places of the rows that go on, ascending."""
    important = importance.tolist()
    others = sorted(range(1, len(important)), key=lambda place: (-important[place], place))
    return torch.tensor(sorted([0, *others[: count - 1]]))


def kept(length: int, keep: float, exponent: float) -> int:
    """Rows that go on."""
    return length if keep == 1 else max(1, math.ceil(length * np.float32(keep).item() ** exponent * (1 - 2.0**-22)))


def merged(importance: Tensor, count: int, stands_for: Tensor) -> Tensor:
    """What turns n rows into the `count - 1` that go on and the mean of the others: weights `[count, n]`."""
    single = len(importance) - int(stands_for[-1] > 1)
    places = chosen(importance[:single], count - 1)
    others = torch.ones(len(importance))
    others[places] = 0
    mean = others * stands_for
    return torch.cat([torch.eye(len(importance))[places], (mean / mean.sum())[None]])


@torch.inference_mode()
def logits(
    model: Any,
    ids: np.ndarray,
    types: np.ndarray | None,
    keep: float,
    exponents: tuple[float, ...],
    importance: str,
    merge: str = "none",
) -> np.ndarray:
    """What the model says of one sequence of which a share goes on.

    Args:
        model: a family's classifier, as `checkpoints.load` gives it.
        ids: int64 `[n]`.
        types: int64 `[n]`, or None.
        keep: the knob.
        exponents: one a layer, 0 where nothing is selected.
        importance: `first` or `maximum`.
        merge: `none`, or `mean`: where others are dropped, they become one row, their mean.

    Returns:
        float32 `[labels]`.
    """
    config = model.config
    family = architecture_of(config.model_type)
    family.prepare(model)
    positions, stands_for = torch.arange(len(ids)), torch.ones(len(ids))
    inputs = {"input_ids": torch.from_numpy(ids), "position_ids": positions + family.position_offset(config)}
    if types is not None:
        inputs["token_type_ids"] = torch.from_numpy(types)
    hidden = family.embed(model, inputs)
    drops = family.pooling(config) == "first"
    frozen: list[tuple[Tensor, Tensor]] = []
    for layer, exponent in zip(family.blocks(model), exponents, strict=True):
        parts = PARTS.get(config.model_type, bert)(layer)
        source = parts.before(hidden)
        weights = weights_of(parts, source, positions, stands_for)
        value = parts.value(source).unflatten(1, (parts.heads, -1)).transpose(0, 1)
        mixed = weights @ value
        mixed = (
            (normalize(mixed, dim=-1) if parts.hash_bits and parts.normalize == 1 else mixed).transpose(0, 1).flatten(1)
        )
        important = importance_of(weights, importance)
        if parts.first:
            own, mixed[0] = first_row(parts, source)
            important = important.maximum(own.sum(dim=0))
        count = kept(len(hidden), keep, exponent) if exponent else len(hidden)
        if merge == "mean" and count + 1 < len(hidden):
            mixing = merged(important, count + 1, stands_for)
            if drops:
                mixed, hidden = mixing @ mixed, mixing @ hidden
            positions = torch.cat([positions[mixing[:-1].argmax(dim=1)], torch.tensor([len(ids)])])
            stands_for = torch.cat([torch.ones(count), torch.tensor([len(ids) - count])])
        places = chosen(important, count) if exponent and merge == "none" else None
        beside = convolved(layer, source)
        if places is not None and drops:
            mixed, hidden, positions, beside = mixed[places], hidden[places], positions[places], beside[places]
            stands_for = stands_for[places]
        hidden = parts.after(mixed, hidden)
        if not drops and len(positions) < len(hidden):
            hidden = mixing @ hidden
        if places is not None and not drops:
            frozen.append((hidden, places))
            hidden, positions, stands_for = hidden[places], positions[places], stands_for[places]
        hidden = parts.feed_forward(hidden)
        if getattr(layer, "convolution", None) is not None:
            hidden = layer.convolution.LayerNorm(hidden + beside)
    for rows, places in reversed(frozen):
        rows = rows.clone()
        rows[places] = hidden
        hidden = rows
        stands_for = torch.ones(len(hidden))
    normed = family.norm(model, hidden)
    pooled = normed[:1] if drops else (stands_for / stands_for.sum())[None] @ normed
    return family.head(model, pooled)[0].numpy()
