"""YOSO attention to train with: the mean over tables, then one of its normalisations."""

from __future__ import annotations

import torch
from torch import Tensor

from attenuator.ops.spec import SEED_HIGH
from attenuator.ops.yoso.reference import SUM_FLOOR
from attenuator.training.yoso.hashing import unit_rows
from attenuator.training.yoso.operators import yoso_mix
from attenuator.training.yoso.settings import L2, RATIO, Settings

__all__ = ["EVALUATION_SEED", "attend", "attend_padded", "draw_seed", "draw_seeds"]

# In evaluation hashes are always the same, so that outputs are as well.
EVALUATION_SEED = 0


def draw_seed(generator: torch.Generator | None = None) -> int:
    """A seed from a generator.

    Args:
        generator: PyTorch's own on the CPU by default, which `torch.manual_seed` and checkpoints of its state govern.
    """
    return int(torch.randint(SEED_HIGH, (), generator=generator))


def draw_seeds(sequences: int, generator: torch.Generator | None = None) -> Tensor:
    """A seed for each sequence, int64 `[sequences]`: what one's hashes get wrong, those of others average out.

    Args:
        sequences: how many.
        generator: as in `draw_seed`.
    """
    return torch.randint(SEED_HIGH, (sequences,), generator=generator)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    settings: Settings,
    seed: int | Tensor,
    layer: int = 0,
) -> Tensor:
    """YOSO attention over a packed batch, differentiable; equal to what YosoAttention serves with this seed.

    Args:
        query: `[T, heads, head_dim]`, not scaled; head_dim is 8 to 256.
        key: as query.
        value: `[T, heads, value_dim]`; value_dim is 8 to 256, with `RATIO` to 255.
        cu_seqlens: int32 `[B+1]`, starts of the sequences and, last, T.
        settings: hashes, normalisation, gradient.
        seed: of the hashes: one for all sequences, or int64 `[B]` on the CPU.
        layer: random stream.

    Returns:
        `[T, heads, value_dim]` in the dtype of value. A row that met no key is 0.

    Raises:
        EngineError: shapes or offsets that the operator refuses.
    """
    ratio = settings.normalize == RATIO
    offsets = cu_seqlens.to("cpu", torch.int32)
    seeds = seed if isinstance(seed, Tensor) else torch.full((len(offsets) - 1,), seed, dtype=torch.int64)
    dtype = value.dtype
    # A ratio's sums would be rounded before they are divided; float16 has no floor of 1e-12 and no root of large lifts.
    if ratio or dtype == torch.float16:
        query, key, value = (rows.to(torch.promote_types(dtype, torch.float32)) for rows in (query, key, value))
    if ratio:
        value = torch.cat([value, value.new_ones(*value.shape[:2], 1)], dim=2)
    mixed: Tensor = yoso_mix(
        query,
        key,
        value,
        offsets,
        seeds,
        settings.num_hashes,
        settings.hash_bits,
        settings.hash,
        layer,
        settings.gradient,
        norm_lift=settings.norm_lift,
    )
    if ratio:
        share = mixed[:, :, -1:]
        # Below the served floor the inverse, which is the gradient, may overflow; 0 divides only rows of zeros.
        floored = share.masked_fill(share < SUM_FLOOR, SUM_FLOOR).masked_fill(share == 0, 1.0)
        return (mixed[:, :, :-1] / floored).to(dtype)
    return (unit_rows(mixed) if settings.normalize == L2 else mixed).to(dtype)


def attend_padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_token: Tensor | None,
    settings: Settings,
    seed: int | Tensor,
    layer: int = 0,
) -> Tensor:
    """YOSO attention over a padded batch: padding is taken out before and put back as zeros, and costs nothing.

    Args:
        query: `[batch, heads, tokens, head_dim]`, not scaled.
        key: as query.
        value: `[batch, heads, tokens, value_dim]`.
        is_token: bool `[batch, tokens]`, False on padding wherever it stands; None where there is none.
        settings: hashes, normalisation, gradient.
        seed: of the hashes: one for all sequences, or int64 `[batch]` on the CPU.
        layer: random stream.

    Returns:
        `[batch, heads, tokens, value_dim]` in the dtype of value, zeros on padding.

    Raises:
        EngineError: shapes that the operator refuses.
    """
    batch, heads, tokens, size = value.shape
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    if is_token is None:
        offsets = torch.arange(batch + 1, dtype=torch.int32) * tokens
        mixed = attend(query, key, value, offsets, settings, seed, layer)
        return mixed.view(batch, tokens, heads, size).transpose(1, 2)
    lengths = is_token.sum(dim=1).cpu()
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    places = is_token.flatten().nonzero()[:, 0]
    query, key, value = (rows.index_select(0, places) for rows in (query, key, value))
    mixed = attend(query, key, value, offsets, settings, seed, layer)
    padded = mixed.new_zeros(batch * tokens, heads, size).index_copy(0, places, mixed)
    return padded.view(batch, tokens, heads, size).transpose(1, 2)
