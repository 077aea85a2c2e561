"""The project's own encoder with each attention that there is: a training step, and inference through ONNX Runtime.

Which attentions there are, with which knobs, is read from the operators' registry.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from attenuator.bundle import MODEL
from attenuator.export.architectures import architecture_of
from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.export.encoder_attention import ATTENTIONS as TRAINABLE
from attenuator.export.lower import write_model
from attenuator.export.selection import NONE
from attenuator.export.trace import PackedClassifier, trace
from attenuator.ops import OPERATORS
from attenuator.ops.spec import Operator
from attenuator.runtime import create

VOCAB = 1000
BY_KEY: dict[str, Operator] = {
    operator.key: operator for operator in OPERATORS if operator.attention and not operator.asked_as
}
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


def defaults(key: str) -> dict[str, int | float]:
    """An attention's knobs at the defaults of its operator."""
    return {
        knob.name: int(knob.default) if knob.dtype == "int32" else float(knob.default) for knob in BY_KEY[key].knobs
    }


def trained_with(key: str) -> str:
    """The attention that a model is trained with which is served with this one."""
    return key if key in TRAINABLE else BY_KEY[key].attention


def encoder(key: str, shape: Shape) -> Encoder:
    """An untrained encoder; what an attention costs does not depend on what was learnt, but where its rule does."""
    torch.manual_seed(0)
    trained = trained_with(key)
    knobs = defaults(trained)
    return Encoder(
        EncoderConfig(
            vocab_size=VOCAB,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.feed_forward,
            attention=trained,
            knobs=knobs,
            pooling="mean",
            max_tokens=shape.max_tokens,
        )
    )


def training_step(key: str, shape: Shape) -> Callable[[int], None]:
    """A function that makes one forward and backward pass over one sequence of a length."""
    model = encoder(key, shape).train()
    model.set_knobs(model.config.knobs)
    model.compute_through_operator()
    label = torch.zeros(1, dtype=torch.int64)

    def step(tokens: int) -> None:
        model.zero_grad(set_to_none=False)  # gradients of the weights stay where they are: memory is of the sequence
        starts = torch.tensor([0, tokens], dtype=torch.int32)
        logits = model(torch.randint(VOCAB, (tokens,)), torch.arange(tokens), starts)
        functional.cross_entropy(logits, label).backward()

    return step


def inference(key: str, shape: Shape, threads: int, knobs: Mapping[str, int | float]) -> Callable[[int], None]:
    """A function that runs one sequence of a length through the exported graph.

    Args:
        key: of the attention.
        shape: of the encoder.
        threads: of the session; they do not spin.
        knobs: value by name.
    """
    model = encoder(key, shape).eval().requires_grad_(False)
    classifier = PackedClassifier(architecture_of(model.config.model_type), model, key, {}, schedule=NONE)
    with tempfile.TemporaryDirectory() as folder:
        write_model(trace(classifier), Path(folder))
        session = create(Path(folder) / MODEL, threads=threads, arena=False)
    typed = {knob.name: np.array([knobs[knob.name]], DTYPES[knob.dtype]) for knob in BY_KEY[key].knobs}
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
