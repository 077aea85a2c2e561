"""Samples of what attention took and gave in a forward pass of some model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["AttentionSample", "scale"]

# Where the outputs of a layer are nearly the same for all tokens, the part of their square that counts in its place.
CONSTANT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class AttentionSample:
    """One layer's attention on a packed batch.

    Attributes:
        query: `[T, heads, head_dim]`, as the layer projects it.
        key: as query.
        value: `[T, heads, value_dim]`.
        mixed: `[T, heads, value_dim]`, what attention made of them, before the output projection.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mixed: Tensor


def scale(mixed: Tensor) -> Tensor:
    """What a layer's squared errors are divided by, so that layers count alike: the variance of its outputs, about.

    Args:
        mixed: `[T, heads, value_dim]`.

    Returns:
        The sum over all elements.
    """
    variance = (mixed - mixed.mean(dim=0)).square().sum()
    return variance.maximum(CONSTANT_SHARE * mixed.square().sum()).clamp_min(1e-12)
