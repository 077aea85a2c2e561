"""NystromAttention for models trained with softmax attention, without tracing: every family that can have it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import CHECKPOINTS, ENCODER, Checkpoint, save
from torch import Tensor

from attenuator.errors import ExportError
from attenuator.export.encoder import EncoderConfig
from attenuator.export.pipeline import fitting
from attenuator.export.source import Source, load
from attenuator.export.trace import PackedClassifier

LENGTHS = (1, 2, 7, 30, 61)
Get = Callable[[str], Path]


def packed(source: Source, attention: str, landmarks: int) -> Tensor:
    """Logits `[B, labels]` of one packed batch, by the operators' own kernels."""
    classifier = PackedClassifier(source.architecture, source.model, attention, {}, source.has_token_types)
    generator = torch.Generator().manual_seed(2)
    offset, batch = source.architecture.position_offset(source.model.config), len(LENGTHS)
    inputs = {
        "input_ids": torch.randint(5, source.vocab_size, (sum(LENGTHS),), generator=generator),
        "token_type_ids": torch.randint(0, max(1, source.type_vocab_size), (sum(LENGTHS),), generator=generator),
        "position_ids": torch.cat([torch.arange(length) + offset for length in LENGTHS]),
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0, dtype=torch.int32),
        "keep": torch.ones(batch),
        "num_landmarks": torch.full((batch,), landmarks, dtype=torch.int32),
    }
    with torch.no_grad():
        logits: Tensor = classifier(*(inputs[name] for name in classifier.inputs))
    return logits


@pytest.mark.parametrize(
    "name", [name for name, one in CHECKPOINTS.items() if one.config.model_type != "nystromformer"]
)
def test_families_with_plain_softmax_attention_can_have_it(name: str, checkpoint: Get) -> None:
    source = load(str(checkpoint(name)))
    keys = source.architecture.operators(source.model.config)
    # Attention under windows or with terms for distances has no landmarks.
    assert ("nystrom" in keys) == ("performer" in keys)
    if "nystrom" not in keys:
        return
    exact = packed(source, "softmax", 0)
    tolerance = 2e-5 * max(1.0, float(exact.abs().max()))
    torch.testing.assert_close(packed(source, "nystrom", 0), exact, rtol=0, atol=tolerance)
    torch.testing.assert_close(packed(source, "nystrom", max(LENGTHS)), exact, rtol=0, atol=tolerance)
    few = packed(source, "nystrom", 7)
    torch.testing.assert_close(few[:3], exact[:3], rtol=0, atol=tolerance)
    assert few.isfinite().all()
    assert ((few - exact)[3:].abs().amax(dim=1) > tolerance).all()


def test_an_encoder_with_a_convolution_keeps_it(tmp_path: Path) -> None:
    """Of what computes softmax attention, landmarks or none, only this operator has a convolution beside it."""
    for conv_size, others in ((0, True), (3, False)):
        config = EncoderConfig(**ENCODER, attention="nystrom", conv_size=conv_size)
        source = load(str(save(Checkpoint(config), tmp_path / str(conv_size))))
        keys = source.architecture.operators(config)
        assert "nystrom" in keys
        assert ("softmax" in keys) == others


@pytest.mark.parametrize(
    ("name", "attention", "sentence"),
    [
        ("bert", "reformer", r"\(reformer: its queries are its keys, one projection where the model has two\)"),
        ("bert", "linformer", r"\(linformer: it has trained weights of its own, key_projection\)"),
        ("nystromformer", "softmax", "the model was trained with nystrom attention, .* does not compute; use nystrom$"),
    ],
)
def test_others_are_refused_with_the_reason(name: str, attention: str, sentence: str, checkpoint: Get) -> None:
    with pytest.raises(ExportError, match=sentence):
        fitting(load(str(checkpoint(name))), attention)
