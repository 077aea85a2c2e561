"""Sums over the pairs that collide, through hash tables: the served operator itself, in time linear in the length."""

from __future__ import annotations

import torch
from torch import Tensor

from attenuator.ops.torch_op import overload
from attenuator.ops.yoso.spec import SPEC
from attenuator.training.yoso.hashing import Hashing, unit_rows
from attenuator.training.yoso.settings import RAW

__all__ = ["mix", "table_gradients"]

# What one call adds up: more columns share the hashing of a call, but take memory, and fill the caches.
GROUP_BYTES = 1 << 24
MAX_COLUMNS = 256
_OPERATOR = overload(SPEC)


def mix(query: Tensor, key: Tensor, value: Tensor, hashing: Hashing) -> Tensor:
    """The mean over tables of the sum of the values whose keys collide with a query; for 0 hashes its expectation.

    Args:
        query: `[T, heads, head_dim]`, of any row length.
        key: as query.
        value: `[T, heads, value_dim]`.
        hashing: which hashes.

    Returns:
        `[T, heads, value_dim]`, computed in float32, in the dtype of value.
    """
    mixed: Tensor = _OPERATOR(
        query.float().flatten(1),
        key.float().flatten(1),
        value.float().flatten(1),
        hashing.cu_seqlens,
        torch.full(hashing.seed.shape, hashing.num_hashes, dtype=torch.int32),
        hashing.seed,
        num_heads=query.shape[1],
        hash_bits=hashing.hash_bits,
        hash=hashing.hash,
        layer=hashing.layer,
        normalize=RAW,
        norm_lift=hashing.norm_lift,
    )[0]
    return mixed.view(value.shape).to(value.dtype)


def table_gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, hashing: Hashing
) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. 4 through tables, the one number in it that depends on a pair written as a sum over channels.

    Not with a norm lift: queries and keys change places here, and would be hashed otherwise.

    Args:
        grad: `[T, heads, value_dim]`, of the result of `mix`.
        query: `[T, heads, head_dim]`, of any row length.
        key: as query.
        value: as grad.
        hashing: which hashes, at least one.

    Returns:
        Gradients by the unit rows of query and of key, and by value.
    """
    # Products and sums over all channels in bfloat16 would lose another digit.
    rows = [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in (query, key, grad, value)]
    wide_query, wide_key, wide_grad, wide_value = rows
    by_query = _sum_of_tables(query, key, unit_rows(wide_key), wide_grad, wide_value, hashing)
    by_key = _sum_of_tables(key, query, unit_rows(wide_query), wide_value, wide_grad, hashing)
    return by_query.to(query.dtype), by_key.to(key.dtype), mix(key, query, grad, hashing)


def _sum_of_tables(
    looking: Tensor, filling: Tensor, unit: Tensor, left: Tensor, right: Tensor, hashing: Hashing
) -> Tensor:
    """(tau / 2) sum_j B_ij (left_i . right_j) unit_j, B being the share of hashes in which i and j collide.

    Each channel l of left and right is one table, of right_jl unit_j. Time O(T m channels head_dim), memory of a few
    tensors like `unit`.

    Args:
        looking: rows that are hashed to look the tables up, `[T, heads, head_dim]`.
        filling: rows that are hashed to fill them, as looking.
        unit: what is added up, as looking.
        left: `[T, heads, channels]`.
        right: as left.
        hashing: which hashes.

    Returns:
        `[T, heads, head_dim]`.
    """
    size, channels = unit.shape[2], left.shape[2]
    group = max(1, min(MAX_COLUMNS // size, GROUP_BYTES // max(1, 4 * unit.numel())))
    total = torch.zeros_like(unit)
    for first in range(0, channels, group):
        part = slice(first, min(channels, first + group))
        columns = (right[:, :, part, None] * unit[:, :, None, :]).flatten(2)
        sums = mix(looking, filling, columns, hashing).unflatten(2, (-1, size))
        for channel in range(sums.shape[2]):  # an einsum of such narrow products takes five times as long
            total.addcmul_(left[:, :, first + channel, None], sums[:, :, channel])
    return total * (hashing.hash_bits / 2.0)
