"""The settings that come nearest to the attention of a model that was trained with another one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attenuator.training.samples import AttentionSample, scale
from attenuator.training.yoso.attention import attend
from attenuator.training.yoso.hashing import unit_rows
from attenuator.training.yoso.settings import L2, Settings

__all__ = ["Fit", "comparable", "fits", "nearest"]

CANDIDATE_BITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
# More bits than this above log2 of the length leave queries alone in their buckets.
BITS_ABOVE_LENGTH = 2
SEED = 1
# Of the candidates those, the nearest, whose expectation is computed as well, in time quadratic in the length.
NEAREST = 5


@dataclass(frozen=True, slots=True)
class Fit:
    """How near some settings come, without any training.

    Attributes:
        settings: what was tried.
        error: squared distance of the attention outputs over their variance, mean over layers, with sampled hashes.
        expected_error: the same of the expectation, which has no sampling error; None where others are nearer.
    """

    settings: Settings
    error: float
    expected_error: float | None = None


def comparable(mixed: Tensor, settings: Settings) -> Tensor:
    """Attention outputs of the other model as these settings could give them: rows of length 1 for `L2`.

    Args:
        mixed: `[T, heads, value_dim]`.
        settings: of the attention that is to come near.
    """
    return unit_rows(mixed) if settings.normalize == L2 else mixed


def fits(
    batches: Sequence[tuple[Sequence[AttentionSample], Tensor]], settings: Settings, fixed: Collection[str]
) -> list[Fit]:
    """Tries each candidate on what a model's attention took and gave.

    Args:
        batches: samples of all layers and `cu_seqlens`, of one text each.
        settings: what does not vary.
        fixed: names of fields that must stay as they are.

    Returns:
        One for each candidate.
    """
    longest = math.log2(max(1, sum(int(starts[-1]) for _, starts in batches) / len(batches))) + BITS_ABOVE_LENGTH
    usual = [bits for bits in CANDIDATE_BITS if bits <= max(longest, CANDIDATE_BITS[0])]
    head_dim = batches[0][0][0].query.shape[2]
    candidates = [
        replace(settings, hash_bits=bits, norm_lift=lift)
        for bits in ([settings.hash_bits] if "hash_bits" in fixed else usual)
        for lift in ([settings.norm_lift] if "norm_lift" in fixed else [0.0, softmax_lift(bits, head_dim)])
    ]
    tried = [Fit(candidate, relative_error(batches, candidate)) for candidate in candidates]
    last = sorted(fit.error for fit in tried)[:NEAREST][-1]
    return [
        replace(fit, expected_error=relative_error(batches, replace(fit.settings, num_hashes=0)))
        if fit.error <= last
        else fit
        for fit in tried
    ]


def softmax_lift(hash_bits: int, head_dim: int) -> float:
    """The norm lift at which weights fall with the product of query and key as those of softmax do (appendix 1.1).

    E is about exp(tau (q k / L - 1)), softmax's weight exp(q k / sqrt(head_dim)): L = tau sqrt(head_dim).
    """
    return round(hash_bits * math.sqrt(head_dim), 1)


def nearest(tried: Sequence[Fit]) -> Settings:
    """Of what was tried the settings whose error is least, sampling and all: that is what will be served."""
    return min(tried, key=lambda fit: fit.error).settings


@torch.no_grad()
def relative_error(batches: Sequence[tuple[Sequence[AttentionSample], Tensor]], settings: Settings) -> float:
    """Squared distance of attention outputs over their variance, mean over layers."""
    layers = len(batches[0][0])
    errors, variances = [0.0] * layers, [0.0] * layers
    for samples, starts in batches:
        for layer, sample in enumerate(samples):
            mixed = attend(sample.query, sample.key, sample.value, starts, settings, SEED, layer)
            target = comparable(sample.mixed, settings)
            errors[layer] += float((mixed - target).square().sum())
            variances[layer] += float(scale(target))
    return sum(error / variance for error, variance in zip(errors, variances, strict=True)) / layers
