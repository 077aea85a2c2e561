"""The project's own encoder with each attention that there is: a training step, and inference through ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from attenuator.bundle import MODEL
from attenuator.export.architectures import architecture_of
from attenuator.export.encoder import Encoder
from attenuator.export.lower import write_model
from attenuator.export.selection import NONE
from attenuator.export.trace import PackedClassifier, trace
from attenuator.runtime import create
from benchmarks.contenders.settings import BY_KEY, Contender

VOCAB = 1000
DTYPES = {"int32": np.int32, "float": np.float32}


@dataclass(frozen=True, slots=True)
class Shape:
    """An encoder's size.

    Attributes:
        layers: how many.
        hidden: channels.
        heads: of attention.
        feed_forward: channels between.
        max_tokens: the longest sequence.
    """

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    max_tokens: int


def encoder(one: Contender, shape: Shape) -> Encoder:
    """An untrained encoder; what an attention costs does not depend on what was learnt, but where its rule does."""
    torch.manual_seed(0)
    config = one.config(
        vocab_size=VOCAB,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feed_forward,
        pooling="mean",
        max_tokens=shape.max_tokens,
    )
    return Encoder(config)


def training_step(one: Contender, shape: Shape) -> Callable[[int], None]:
    """A function that makes one forward and backward pass over one sequence of a length."""
    model = encoder(one, shape).train()
    model.set_knobs(model.config.knobs)
    model.compute_through_operator()
    label = torch.zeros(1, dtype=torch.int64)

    def step(tokens: int) -> None:
        model.zero_grad(set_to_none=False)  # gradients of the weights stay where they are: memory is of the sequence
        starts = torch.tensor([0, tokens], dtype=torch.int32)
        logits = model(torch.randint(VOCAB, (tokens,)), torch.arange(tokens), starts)
        functional.cross_entropy(logits, label).backward()

    return step


def inference(one: Contender, shape: Shape, threads: int) -> Callable[[int], None]:
    """A function that runs one sequence of a length through the exported graph.

    Args:
        one: the attention, with its knobs.
        shape: of the encoder.
        threads: of the session; they do not spin.
    """
    model = encoder(one, shape).eval().requires_grad_(False)
    classifier = PackedClassifier(architecture_of(model.config.model_type), model, one.key, {}, schedule=NONE)
    with tempfile.TemporaryDirectory() as folder:
        write_model(trace(classifier), Path(folder))
        session = create(Path(folder) / MODEL, threads=threads, arena=False)
    typed = {knob.name: np.array([one.knobs[knob.name]], DTYPES[knob.dtype]) for knob in BY_KEY[one.key].knobs}
    draw = np.random.default_rng(0)

    def step(tokens: int) -> None:
        feeds: dict[str, Any] = {
            "input_ids": draw.integers(0, VOCAB, tokens),
            "position_ids": np.arange(tokens),
            "cu_seqlens": np.array([0, tokens], np.int32),
            "seed": np.zeros(1, np.int64),
            **typed,
        }
        session.run(None, {name: feeds[name] for name in classifier.inputs})

    return step
