"""How a bundled model is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How to train; lengths in tokens."""

    epochs: int = 8
    # Epochs over which the learning rate falls to 0, where that is longer than `epochs`: a later phase goes on.
    schedule_epochs: int = 0
    tokens_per_batch: int = 8192
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.05
    word_dropout: float = 0.1
    # Each document is cut to one of these lengths, drawn anew in each epoch, at a random offset.
    crop_lengths: tuple[int, ...] = (256,)
    # A document may be several crops, of that many tokens together, whose pooled vectors are averaged: mean pooling
    # is linear in the tokens. At least one crop.
    tokens_per_document: int = 0
    # From this share of the schedule's steps on, every second step hashes, with one of `hashes`.
    sampled_from: float = 1.0
    hashes: tuple[int, ...] = (8, 16, 32)
    average_decay: float = 0.998
    # Products of matrices in bfloat16: half the time where the processor multiplies it.
    reduced_precision: bool = False
    seed: int = 0
