"""Gradients by the operators' library: over the pairs that collide, bucket by bucket of the same hashes as served."""

from __future__ import annotations

import torch
from torch import Tensor

from attenuator.errors import OperatorLibraryMissing
from attenuator.ops import library_path
from attenuator.ops.c_api import HeadRows, Memory
from attenuator.ops.yoso.c_api import gradient, has_gradient
from attenuator.training.yoso.hashing import Hashing

__all__ = ["bucket_gradients", "takes"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def takes(rows: Tensor) -> bool:
    """Whether the library computes gradients of such rows: on the CPU, not float64, and where it is built."""
    if rows.device.type != "cpu" or rows.dtype not in DTYPES:
        return False
    try:
        return has_gradient(str(library_path()))
    except OperatorLibraryMissing:
        return False


def bucket_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hashing: Hashing,
    collided: bool = False,
    softening: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients over the pairs that collide, in memory linear in the length, with eq. 4 in time linear in it as well.

    Sums are float32 whatever the dtype, and the same bits on any number of threads.

    Args:
        grad: `[T, heads, value_dim]`, of the result of `tables.mix`.
        query: `[T, heads, head_dim]`, of any row length.
        key: as query.
        value: as grad.
        hashing: which hashes, at least one.
        collided: *YOSO, the true derivative of each pair that collides in at least one hash; otherwise eq. 4.
        softening: epsilon in the root of the true derivative.

    Returns:
        Gradients by query, key (not by their unit rows) and value, in dtype and layout of each.

    Raises:
        EngineError: shapes that the operator refuses.
    """
    tensors = [_channels_side_by_side(tensor.float()) for tensor in (query, key, value, grad)]
    results = [torch.empty_like(tensor) for tensor in tensors[:3]]
    offsets, seed = hashing.cu_seqlens.contiguous(), hashing.seed.contiguous()
    num_hashes = torch.full_like(offsets[1:], hashing.num_hashes)
    gradient(
        str(library_path()),
        [HeadRows(rows.data_ptr(), rows.stride(0), rows.stride(1), rows.shape[2]) for rows in (*tensors, *results)],
        query.shape[0],
        [
            Memory(offsets.data_ptr(), "int32", tuple(offsets.shape)),
            Memory(num_hashes.data_ptr(), "int32", tuple(num_hashes.shape)),
            Memory(seed.data_ptr(), "int64", tuple(seed.shape)),
        ],
        {
            "num_heads": query.shape[1],
            "hash_bits": hashing.hash_bits,
            "layer": hashing.layer,
            "hash": hashing.hash,
            "norm_lift": hashing.norm_lift,
        },
        collided,
        softening,
        torch.get_num_threads(),
    )
    by_query, by_key, by_value = (
        result
        if result.stride() == rows.stride() and result.dtype == rows.dtype
        else torch.empty_like(rows).copy_(result)
        for result, rows in zip(results, (query, key, value), strict=True)
    )
    return by_query, by_key, by_value


def _channels_side_by_side(rows: Tensor) -> Tensor:
    return rows if rows.stride(2) == 1 else rows.contiguous()
