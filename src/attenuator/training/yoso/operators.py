"""YOSO's mean over tables as a PyTorch operator with a gradient: `torch.ops.attenuator_training.yoso_mix`.

The forward pass is the served operator without normalisation, and the gradient by the values is that operator with
queries and keys exchanged. The gradient by queries and keys is an estimate by choice, see `Settings.gradient`: codes
have no derivative. All of it uses the same hashes, and memory linear in the length. What the library does not compute
(`compiled.py`) goes through its forward pass once for each channel (`tables.py`) or over pairs (`pairs.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attenuator.training.yoso import compiled
from attenuator.training.yoso.cost import cheapest, pairs_take_less
from attenuator.training.yoso.hashing import NORM_FLOOR, Hashing, unit_rows
from attenuator.training.yoso.pairs import mix_expectation, pair_gradients
from attenuator.training.yoso.tables import mix, table_gradients

__all__ = ["SOFTENING", "through_unit", "yoso_mix"]

# Epsilon in the root of the true derivative, which is unbounded at cosine 1: with 0.01 its root's inverse stays below
# 10. Without any, training diverges.
SOFTENING = 0.01


@torch.library.custom_op("attenuator_training::yoso_mix", mutates_args=())
def yoso_mix(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    seed: Tensor,
    num_hashes: int,
    hash_bits: int,
    hash: str = "gaussian",
    layer: int = 0,
    gradient: str = "bound",
    softening: float = SOFTENING,
    norm_lift: float = 0.0,
) -> Tensor:
    """B V / m, or the expectation E V where num_hashes is 0, without normalisation.

    Args:
        query: `[T, heads, head_dim]`, of any row length.
        key: as query.
        value: `[T, heads, value_dim]`.
        cu_seqlens: int32 `[B+1]`, starts of the sequences and, last, T; on the CPU.
        seed: int64 `[B]`, of the hashes of each sequence; on the CPU.
        num_hashes: m in the paper.
        hash_bits: tau in the paper.
        hash: `gaussian` or `hadamard`.
        layer: random stream, the operator's attribute of this name.
        gradient: one of `settings.GRADIENTS`.
        softening: epsilon in the root of the true derivative, which `collided` uses.
        norm_lift: bound on the squared norms of rows, the operator's attribute of this name.

    Returns:
        `[T, heads, value_dim]` in the dtype of value. Sums over tables are float32 whatever the dtype; expectation and
        pairs are computed in that of the inputs.
    """
    hashing = Hashing(cu_seqlens, seed, num_hashes, hash_bits, hash, layer, norm_lift)
    if num_hashes == 0 and value.dtype == torch.float64:
        return mix_expectation(query, key, value, hashing)
    return mix(query, key, value, hashing)


@torch.library.custom_op("attenuator_training::yoso_mix_backward", mutates_args=())
def yoso_mix_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    seed: Tensor,
    num_hashes: int,
    hash_bits: int,
    hash: str,
    layer: int,
    gradient: str,
    softening: float,
    norm_lift: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by query, key and value, in their shapes; arguments as in `yoso_mix`, grad as its result."""
    hashing = Hashing(cu_seqlens, seed, num_hashes, hash_bits, hash, layer, norm_lift)
    if gradient == "cheapest":
        gradient = cheapest(hashing, query.shape[2], value.shape[2], compiled.takes(query))
    collided = gradient == "collided"
    if num_hashes and compiled.takes(query):
        return compiled.bucket_gradients(grad, query, key, value, hashing, collided, softening)
    by_pairs = collided or num_hashes == 0 or norm_lift > 0
    if by_pairs or pairs_take_less(hashing, query.shape[2], value.shape[2]):
        by_query, by_key, by_value = pair_gradients(grad, query, key, value, hashing, collided, softening)
    else:
        by_query, by_key, by_value = table_gradients(grad, query, key, value, hashing)
    least = hashing.least_length
    return through_unit(by_query, query, least), through_unit(by_key, key, least), by_value


def through_unit(grad: Tensor, rows: Tensor, least_length: float = NORM_FLOOR) -> Tensor:
    """From the gradient by unit rows to that by the rows: (I - u u^T) g / |x|.

    A shorter row than `least_length` is divided by that, a norm lift's root, and nothing else: g over the root. One
    that is shorter than 1e-12 and has no lift has no direction, and gets 0.
    """
    length = rows.norm(dim=-1, keepdim=True)
    unit = unit_rows(rows)
    across = grad - unit * (unit * grad).sum(dim=-1, keepdim=True)
    within = grad / least_length if least_length > NORM_FLOOR else 0.0
    return torch.where(length < least_length, within, across / length.clamp_min(NORM_FLOOR))


@yoso_mix.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device=value.device)


@yoso_mix_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.options = inputs[:5], inputs[5:]
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grads = torch.ops.attenuator_training.yoso_mix_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
    return *grads, None, None, *(None for _ in ctx.options)


yoso_mix.register_autograd(_differentiate, setup_context=_keep)
