"""Nystromformer against eager transformers, without tracing: landmarks, lengths, convolutions, refusals."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from checkpoints import SMALL, randomise
from torch import Tensor

from attenuator.errors import ExportError
from attenuator.export.architectures import architecture_of
from attenuator.export.trace import PackedClassifier

FAMILY = architecture_of("nystromformer")
# Landmarks, segment_means_seq_len, what else is unusual; transformers takes one length, a multiple of the landmarks.
CONFIGS = [
    pytest.param(8, 64, {"conv_kernel_size": 65}, id="wide-convolution"),
    pytest.param(1, 16, {"conv_kernel_size": 1, "num_labels": 1}, id="one-landmark"),
    pytest.param(16, 32, {"conv_kernel_size": None, "hidden_size": 36, "num_attention_heads": 3}, id="no-convolution"),
    pytest.param(7, 50, {"conv_kernel_size": 3, "num_attention_heads": 1, "hidden_act": "relu"}, id="no-multiple"),
    pytest.param(33, 66, {"conv_kernel_size": 9, "type_vocab_size": 1, "num_hidden_layers": 3}, id="odd"),
    pytest.param(64, 64, {"conv_kernel_size": 5}, id="every-token-a-landmark"),
]
LENGTHS = (1, 2, 5, 8, 17, 33, 64, 70)


def nystromformer(landmarks: int, seq_len: int, **changes: Any) -> Any:
    given = {name: value for name, value in changes.items() if value is not None}
    config = transformers.NystromformerConfig(
        **SMALL | {"num_landmarks": landmarks, "segment_means_seq_len": seq_len} | given
    )
    if "conv_kernel_size" in changes:
        object.__setattr__(config, "conv_kernel_size", changes["conv_kernel_size"])  # which its class refuses as None
    model = transformers.NystromformerForSequenceClassification(config).eval()
    randomise(model)
    FAMILY.check(config)
    return model.requires_grad_(False)


def texts(model: Any, lengths: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and types `[n]` of each length; the id of padding is among them."""
    generator = torch.Generator().manual_seed(2)
    config = model.config
    for length in lengths:
        ids = torch.randint(0, config.vocab_size, (length,), generator=generator)
        yield ids, torch.randint(0, config.type_vocab_size, (length,), generator=generator)


def packed(model: Any, lengths: tuple[int, ...], landmarks: int) -> Tensor:
    """Logits `[B, labels]` of all texts in one packed batch, by the operator's own kernels."""
    classifier = PackedClassifier(FAMILY, model, "nystrom", {}, has_token_types=True)
    ids, types = zip(*texts(model, lengths), strict=True)
    inputs = {
        "input_ids": torch.cat(ids),
        "token_type_ids": torch.cat(types),
        "position_ids": torch.cat([torch.arange(length) + 2 for length in lengths]),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32),
        "num_landmarks": torch.full((len(lengths),), landmarks, dtype=torch.int32),
    }
    result: Tensor = classifier(*(inputs[name] for name in classifier.inputs))
    return result


@pytest.mark.parametrize(("landmarks", "seq_len", "changes"), CONFIGS)
def test_texts_of_the_length_that_transformers_takes(landmarks: int, seq_len: int, changes: dict[str, Any]) -> None:
    """Each alone: in a batch, transformers lets its neighbours change a text's answer."""
    model = nystromformer(landmarks, seq_len, **changes)
    length = seq_len // landmarks * landmarks
    lengths = (length, length, length)
    expected = torch.cat(
        [model(input_ids=ids[None], token_type_ids=types[None]).logits for ids, types in texts(model, lengths)]
    )
    assert expected.std(dim=0).min() > 0.005
    logits = packed(model, lengths, landmarks)
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5 * float(expected.abs().max().clamp(min=1)))
    [default] = FAMILY.knob_defaults(model.config).values()
    assert default == (0 if landmarks == seq_len else landmarks)
    if landmarks < seq_len:
        assert (packed(model, lengths, 0) - expected).abs().max() > 1e-3


@pytest.mark.parametrize(("landmarks", "seq_len", "changes"), CONFIGS)
def test_texts_of_any_length_where_every_token_is_a_landmark(
    landmarks: int, seq_len: int, changes: dict[str, Any]
) -> None:
    """What transformers computes with as many landmarks as tokens, whatever the tokens' number."""
    model = nystromformer(seq_len, seq_len, **changes)
    expected = torch.cat(
        [model(input_ids=ids[None], token_type_ids=types[None]).logits for ids, types in texts(model, LENGTHS)]
    )
    fewer = nystromformer(landmarks, seq_len, **changes)
    for ids, types in texts(fewer, LENGTHS[:2]):
        exact = FAMILY.eager(fewer, ids, types)
        torch.testing.assert_close(exact, model(input_ids=ids[None], token_type_ids=types[None]).logits[0])
    for knob in (0, 128):
        logits = packed(fewer, LENGTHS, knob)
        torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5 * float(expected.abs().max().clamp(min=1)))


def test_no_training_where_transformers_takes_no_padding() -> None:
    config = transformers.NystromformerConfig(**SMALL | {"num_landmarks": 16})
    with pytest.raises(ExportError, match="num_landmarks is 16, must be segment_means_seq_len, 64, to train"):
        FAMILY.check_training(config)
    FAMILY.check_training(transformers.NystromformerConfig(**SMALL))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_landmarks": 0}, r"num_landmarks is 0, must be in \[1, 64\], segment_means_seq_len"),
        ({"num_landmarks": 65}, r"num_landmarks is 65, must be in \[1, 64\], segment_means_seq_len"),
        (
            {"num_landmarks": 600, "segment_means_seq_len": 1200},
            "num_landmarks is 600, must be at most 512, or .*, 1200",
        ),
        ({"conv_kernel_size": 4}, "conv_kernel_size is 4, must be odd"),
        ({"conv_kernel_size": 0}, "conv_kernel_size is 0, must be odd"),
        ({"conv_kernel_size": -1}, "conv_kernel_size is -1, must be odd and at least 1"),
        ({"inv_coeff_init_option": True}, "inv_coeff_init_option is True, must be false"),
        ({"add_cross_attention": True}, "the checkpoint is a decoder"),
    ],
)
def test_configs_that_cannot_be_computed_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExportError, match=sentence):
        FAMILY.check(transformers.NystromformerConfig(**SMALL | changes))
