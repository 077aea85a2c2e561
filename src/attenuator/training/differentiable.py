"""The operators of a graph that selects tokens in PyTorch with gradients, on packed batches as the graph has them.

`FORMS` has them by key, each with the inputs, attributes and outputs of its spec. They compute on padded tensors, which
costs little in batches of like lengths. What is chosen has no gradient: importance decides which rows go on, and the
weights learn from those that did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attenuator.ops.kept_lengths.spec import SPEC as LENGTHS
from attenuator.ops.spec import Operator
from attenuator.ops.torch_op import overload

__all__ = ["FORMS", "form"]


class Layout(NamedTuple):
    """Where the rows of a packed batch are in a padded one.

    Attributes:
        places: int64 `[B, L]`, of each padded row among the packed ones; any on padding.
        is_row: bool `[B, L]`, False on padding.
        lengths: int64 `[B]`.
        inside: int64 `[T]`, of each packed row among the padded ones.
    """

    places: Tensor
    is_row: Tensor
    lengths: Tensor
    inside: Tensor

    def pad(self, rows: Tensor) -> Tensor:
        """`[T, C]` to `[B, L, C]`; gradients come back faster through an index along an axis than through any other."""
        return rows.index_select(0, self.places.flatten()).unflatten(0, self.places.shape)

    def pack(self, padded: Tensor) -> Tensor:
        """`[B, L, C]` to `[T, C]`."""
        return padded.flatten(0, 1).index_select(0, self.inside)


def layout_of(cu_seqlens: Tensor, device: torch.device) -> Layout:
    """From offsets int32 `[B + 1]`."""
    starts = cu_seqlens.to(device, torch.int64)
    lengths = starts.diff()
    along = torch.arange(int(lengths.max()), device=device)
    is_row = along < lengths[:, None]
    inside = is_row.flatten().nonzero()[:, 0]
    return Layout(torch.where(is_row, starts[:-1, None] + along, 0), is_row, lengths, inside)


def stands_for(layout: Layout, unmerged_cu_seqlens: Tensor | None) -> Tensor:
    """How many rows the last row of each sequence stands for, int64 `[B]`."""
    if unmerged_cu_seqlens is None:
        return torch.ones_like(layout.lengths)
    return unmerged_cu_seqlens.to(layout.lengths).diff() - layout.lengths + 1


def weighed(scores: Tensor, layout: Layout, unmerged_cu_seqlens: Tensor | None) -> Tensor:
    """Scores `[B, heads, rows, L]` by which a last key that stands for n rows weighs as n of them: log n is added."""
    if unmerged_cu_seqlens is None:
        return scores
    is_last = torch.arange(scores.shape[3], device=scores.device) == layout.lengths[:, None] - 1
    counts = stands_for(layout, unmerged_cu_seqlens)
    return scores + (counts.log()[:, None] * is_last)[:, None, None]


def heads(rows: Tensor, num_heads: int) -> Tensor:
    """`[B, L, num_heads * c]` to `[B, num_heads, L, c]`."""
    return rows.unflatten(2, (num_heads, -1)).transpose(1, 2)


def sees(positions: Tensor, window: int, global_tokens: int) -> Tensor:
    """Which keys each row sees under a window, bool `[B, L, L]`, from positions `[B, L]`."""
    near = (positions[:, :, None] - positions[:, None, :]).abs() <= window
    if global_tokens:
        near[:, 0, :] = True
        near[:, :, 0] = True
    return near


def mix(
    scores: Tensor, value: Tensor, layout: Layout, seen: Tensor | None, queries: str, importance: str
) -> tuple[Tensor, Tensor]:
    """Softmax over the keys, and what its weights make of the values.

    Args:
        scores: `[B, heads, rows, L]`, scaled.
        value: `[T, heads * value_dim]`.
        layout: of the keys.
        seen: which keys each row sees, bool `[B, rows, L]`; None for all.
        queries: `all` or `first`.
        importance: `none`, `first` or `maximum`.

    Returns:
        `[rows of query, heads * value_dim]`, and the importance of each key `[T]`, without elements where it is `none`.
    """
    hidden = ~layout.is_row[:, None, None, :]
    if seen is not None:
        hidden = hidden | ~seen[:, None]
        # Padding may see nothing within its window: a softmax over nothing has no gradient, not even one of zero.
        hidden = hidden & ~hidden.all(dim=3, keepdim=True)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=3)
    mixed = (weights.to(value.dtype) @ heads(layout.pad(value), scores.shape[1])).transpose(1, 2).flatten(2)
    mixed = mixed[:, 0] if queries == "first" else layout.pack(mixed)
    if importance == "none":
        return mixed, scores.new_empty(0)
    weights = weights.detach()
    if importance == "first" or queries == "first":
        most = weights[:, :, 0]
    else:
        most = weights.masked_fill(~layout.is_row[:, None, :, None], 0).amax(dim=2)
    return mixed, most.sum(dim=1)[layout.is_row].float()


def asked(query: Tensor, layout: Layout, queries: str) -> Tensor:
    """The queries `[B, rows, channels]`."""
    return query[:, None] if queries == "first" else layout.pad(query)


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    positions: Tensor | None = None,
    unmerged_cu_seqlens: Tensor | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    window: int = 0,
    global_tokens: int = 0,
    queries: str = "all",
    importance: str = "none",
) -> tuple[Tensor, Tensor]:
    """`SoftmaxAttention`; see its reference."""
    layout = layout_of(cu_seqlens, query.device)
    keys = heads(layout.pad(key), num_heads)
    scores = heads(asked(query, layout, queries), num_heads).float() @ keys.float().transpose(2, 3)
    scores = scores * (scale or keys.shape[3] ** -0.5)
    scores = weighed(scores, layout, unmerged_cu_seqlens)
    seen = None
    if window:
        where = layout.places if positions is None else positions[layout.places]
        seen = sees(where, window, global_tokens)[:, : scores.shape[2]]
    return mix(scores, value, layout, seen, queries, importance)


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    buckets: Tensor | None = None,
    pos_key: Tensor | None = None,
    pos_query: Tensor | None = None,
    bias: Tensor | None = None,
    positions: Tensor | None = None,
    unmerged_cu_seqlens: Tensor | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    queries: str = "all",
    importance: str = "none",
) -> tuple[Tensor, Tensor]:
    """`RelativeAttention`; see its reference."""
    layout = layout_of(cu_seqlens, query.device)
    keys = heads(layout.pad(key), num_heads).float()
    asking = heads(asked(query, layout, queries), num_heads).float()
    scores = asking @ keys.transpose(2, 3)
    rows = None
    if buckets is not None:
        where = layout.places if positions is None else positions[layout.places]
        reach = len(buckets) // 2
        distance = where[:, : scores.shape[2], None] - where[:, None, :]
        rows = buckets[distance.clamp(-reach, reach) + reach][:, None].expand(-1, num_heads, -1, -1)
    if rows is not None and pos_key is not None:
        scores = scores + (asking @ table(pos_key, num_heads)).gather(3, rows)
    if rows is not None and pos_query is not None:
        scores = scores + (keys @ table(pos_query, num_heads)).gather(3, rows.transpose(2, 3)).transpose(2, 3)
    scores = scores * (scale or keys.shape[3] ** -0.5)
    if rows is not None and bias is not None:
        scores = scores + bias.t()[torch.arange(num_heads, device=rows.device)[None, :, None, None], rows]
    return mix(weighed(scores, layout, unmerged_cu_seqlens), value, layout, None, queries, importance)


def table(rows: Tensor, num_heads: int) -> Tensor:
    """A table `[R, num_heads * c]` as a factor `[num_heads, c, R]`."""
    return rows.float().unflatten(1, (num_heads, -1)).permute(1, 2, 0)


def token_select(
    rows: Tensor,
    importance: Tensor,
    cu_seqlens: Tensor,
    kept_cu_seqlens: Tensor,
    unmerged_cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`TokenSelect`; see its reference."""
    layout = layout_of(cu_seqlens, rows.device)
    kept = kept_cu_seqlens.to(layout.lengths).diff()
    merged = (kept < layout.lengths) & (unmerged_cu_seqlens is not None)
    behind = stands_for(layout, unmerged_cu_seqlens)
    along = torch.arange(layout.places.shape[1], device=rows.device)
    is_last = along == layout.lengths[:, None] - 1
    # A mean of earlier rows is no row to choose; padding comes last.
    may_go_on = layout.is_row & ~(is_last & (behind > 1)[:, None] & merged[:, None])
    order = importance.nan_to_num(torch.inf)[layout.places].masked_fill(along == 0, torch.inf)
    rank = order.masked_fill(~may_go_on, -torch.inf).argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    chosen = layout.is_row & (rank < (kept - merged.long())[:, None])
    if unmerged_cu_seqlens is None:
        places = layout.places[chosen]
        return rows.index_select(0, places), places
    counts = ((layout.is_row & ~chosen) * torch.where(is_last, behind[:, None], 1)).to(rows.dtype)
    padded = layout.pad(rows)
    mean = (counts[:, None] @ padded) / counts.sum(dim=1).clamp(min=1)[:, None, None]
    last_of_others = (counts.gt(0) * layout.places).amax(dim=1)
    goes_on = torch.cat([chosen, merged[:, None]], dim=1)
    places = torch.cat([layout.places, last_of_others[:, None]], dim=1)[goes_on]
    kept_rows = torch.cat([padded, mean], dim=1).flatten(0, 1)
    return kept_rows.index_select(0, goes_on.flatten().nonzero()[:, 0]), places


def sequence_pool(hidden: Tensor, cu_seqlens: Tensor, *, mode: str = "first") -> Tensor:
    """`SequencePool`; see its reference. No sequence is empty."""
    layout = layout_of(cu_seqlens, hidden.device)
    if mode == "first":
        return hidden.index_select(0, layout.places[:, 0])
    total = (layout.pad(hidden) * layout.is_row[:, :, None]).sum(dim=1)
    return total / layout.lengths[:, None]


def kept_lengths(cu_seqlens: Tensor, keep: Tensor, **attributes: Any) -> Tensor:
    """`KeptLengths`, from lengths and a knob alone: there is nothing to learn, and its kernel is the CPU's."""
    counted: Tensor = overload(LENGTHS)(cu_seqlens.cpu(), keep.cpu(), **attributes)
    return counted.to(cu_seqlens.device)


FORMS: dict[str, Callable[..., Any]] = {
    "softmax": softmax_attention,
    "relative": relative_attention,
    "select": token_select,
    "pool": sequence_pool,
    LENGTHS.key: kept_lengths,
}


def form(operator: Operator) -> Callable[..., Any]:
    """What computes an operator in training, in the place of `torch_op.overload`.

    Raises:
        KeyError: it has no form here.
    """
    return FORMS[operator.key]
