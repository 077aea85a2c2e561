"""BigBirdAttention in PyTorch, differentiable, on padded tensors: for training and as the reference at export.

Time and memory are linear in the length, but for the rows of the first and the last block. The random blocks are not
those of the operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attenuator.ops.bigbird.rule import FIXED_BLOCKS

__all__ = ["attend", "block_sparse_attention", "draw_blocks"]


def attend(query: Tensor, key: Tensor, value: Tensor, is_token: Tensor, layer: Any) -> Tensor:
    """What the project's own encoder computes with this attention.

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`, zeros on padding.
        is_token: bool `[batch, tokens]`, False on padding.
        layer: the encoder's attention module, with `attributes` (`scale`, `block_size`, `random_blocks`), `knobs` (0
            random blocks: full attention) and `generator`.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    count, block_size = int(layer.knobs.get("num_random_blocks", 0)), layer.attributes["block_size"]
    if layer.attributes["scale"]:
        query = query * (layer.attributes["scale"] * query.shape[3] ** 0.5)
    lengths = is_token.sum(dim=1)
    is_sparse = (lengths > (FIXED_BLOCKS + 2 * count) * block_size) & (count > 0)
    mixed = value.new_zeros(*query.shape[:3], value.shape[3])
    for rows, sparse in ((is_sparse.nonzero()[:, 0], True), ((~is_sparse).nonzero()[:, 0], False)):
        if not len(rows):
            continue
        tokens = int(lengths[rows].max())
        q, k, v = (tensor[rows, :, :tokens] for tensor in (query, key, value))
        if sparse:
            table = draw_blocks(lengths[rows], block_size, query.shape[1], count, layer.generator)
            if layer.attributes["random_blocks"] == "first":
                table = torch.zeros_like(table)
            result = block_sparse_attention(q, k, v, lengths[rows], block_size, table)
        else:
            result = functional.scaled_dot_product_attention(q, k, v, attn_mask=is_token[rows, None, None, :tokens])
        mixed = mixed.index_copy(0, rows, functional.pad(result, (0, 0, 0, query.shape[2] - tokens)))
    return mixed


def draw_blocks(
    lengths: Tensor, block_size: int, heads: int, count: int, generator: torch.Generator | None = None
) -> Tensor:
    """Random blocks of keys for each query block, all different and none of those that it sees anyway.

    Args:
        lengths: int64 `[batch]`, tokens of each sequence, more than `5 + 2 * count` blocks.
        block_size: tokens of a block.
        heads: heads, each with blocks of its own.
        count: how many, at least 1.
        generator: where they are drawn from; None for PyTorch's own.

    Returns:
        int64 `[batch, heads, blocks, count]`, blocks of the longest sequence; anything for the first and the last
        query block of a sequence and those beyond.
    """
    num_blocks = (lengths + block_size - 1).div(block_size, rounding_mode="floor")
    blocks = torch.arange(int(num_blocks.max()), device=lengths.device)
    is_near = (blocks - blocks[:, None]).abs() <= 1
    is_taken = is_near | (blocks == 0) | (blocks >= num_blocks[:, None, None] - 1)
    shape = (len(lengths), heads, len(blocks), len(blocks))
    chances = torch.rand(shape, generator=generator).to(lengths.device)
    return chances.masked_fill(is_taken[:, None], -1.0).topk(count, dim=-1).indices


def block_sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, block_size: int, table: Tensor
) -> Tensor:
    """Each block of queries over the blocks of keys that it sees (Zaheer et al., NeurIPS 2020, appendix D).

    Args:
        query: `[batch, heads, tokens, head_dim]`.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`.
        lengths: int64 `[batch]`, tokens of each sequence, at least 4 blocks.
        block_size: tokens of a block; the last block of a sequence has those that are left.
        table: int64 `[batch, heads, blocks, count]`, the random blocks of each query block.

    Returns:
        `[batch, heads, tokens, value_dim]`; anything on padding.
    """
    batch, heads, most, _ = table.shape
    tokens, device = query.shape[2], query.device
    padding = (0, 0, 0, most * block_size - tokens)
    by_block = [functional.pad(rows, padding).unflatten(2, (most, block_size)) for rows in (query, key, value)]
    last = (lengths - 1).div(block_size, rounding_mode="floor")[:, None, None, None]
    near = torch.arange(most, device=device)[:, None] + torch.arange(-1, 2, device=device)

    def everywhere(choice: Tensor) -> Tensor:
        return choice.expand(batch, heads, most, -1)

    seen = torch.cat([everywhere(torch.zeros_like(last)), everywhere(last), everywhere(near[None, None]), table], -1)
    # A neighbour that is a global block, or none at all, counts nothing; nor does padding.
    counts = torch.ones_like(seen, dtype=torch.bool)
    counts[..., 2:5] = everywhere((near > 0) & (near < last))
    seen = seen.clamp(0, most - 1)
    places = (seen[..., None] * block_size + torch.arange(block_size, device=device)).flatten(3)
    mask = counts.repeat_interleave(block_size, dim=-1) & (places < lengths[:, None, None, None])
    index = torch.arange(batch, device=device)[:, None, None, None], torch.arange(heads, device=device)[:, None, None]
    keys, values = (rows[*index, seen].flatten(3, 4) for rows in by_block[1:])
    inner = functional.scaled_dot_product_attention(by_block[0], keys, values, attn_mask=mask[..., None, :])
    return _with_global_rows(inner.flatten(2, 3)[:, :, :tokens], query, key, value, lengths, block_size)


def _with_global_rows(
    mixed: Tensor, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, block_size: int
) -> Tensor:
    """`mixed` with the rows of each sequence's first and last block in their places: they see every key."""
    first = torch.arange(block_size, device=query.device).expand(len(lengths), -1)
    last = first + (lengths[:, None] - 1).div(block_size, rounding_mode="floor") * block_size
    places = torch.cat([first, last], dim=1).clamp(max=query.shape[2] - 1)[:, None, :, None]
    rows = query.gather(2, places.expand(-1, query.shape[1], -1, query.shape[3]))
    is_token = torch.arange(key.shape[2], device=key.device) < lengths[:, None]
    outer = functional.scaled_dot_product_attention(rows, key, value, attn_mask=is_token[:, None, None, :])
    return mixed.scatter(2, places.expand(-1, query.shape[1], -1, value.shape[3]), outer)
