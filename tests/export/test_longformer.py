"""Longformer against eager transformers, without tracing: windows, lengths around them, padding, refusals."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import SMALL, randomise
from selecting import logits
from torch import Tensor

import attenuator
from attenuator.bundle import MODEL
from attenuator.errors import ExportError
from attenuator.export.architectures import architecture_of, of_tokens
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.export.selection import DEFAULT, NONE, exponents
from attenuator.export.trace import PackedClassifier
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work

WINDOWS = [
    pytest.param(6, {"type_vocab_size": 1}, id="one-for-all-layers"),
    pytest.param([4, 12, 6], {"num_labels": 1, "hidden_act": "relu"}, id="each-its-own"),
    pytest.param([72] * 3, {}, id="wider-than-any-text"),
]
# Shorter than half a window, at it, at a window and its multiples, and beside them; longer than several.
LENGTHS = (1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 25, 59, 68)
# Of its sequence classifiers the first token is global; of its token classifiers none is.
SEQUENCES, TOKENS = transformers.LongformerForSequenceClassification, transformers.LongformerForTokenClassification
KINDS = pytest.mark.parametrize("kind", [SEQUENCES, TOKENS], ids=["sequences", "tokens"])


def longformer(window: int | list[int], kind: Any = SEQUENCES, **changes: Any) -> Any:
    config = transformers.LongformerConfig(**SMALL | {"num_hidden_layers": 3, "attention_window": window} | changes)
    model = kind(config).eval()
    randomise(model)
    return model.requires_grad_(False)


def texts(model: Any, lengths: tuple[int, ...] = LENGTHS) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and types `[n]` of each length; the id of padding is among them."""
    generator = torch.Generator().manual_seed(2)
    config = model.config
    for length in lengths:
        ids = torch.randint(0, config.vocab_size, (length,), generator=generator)
        yield ids, torch.randint(0, config.type_vocab_size, (length,), generator=generator)


def of_transformers(model: Any) -> Tensor:
    """What it says about each text alone: logits `[B, labels]`, or `[T, labels]` of a token classifier."""
    results = [model(input_ids=ids[None], token_type_ids=types[None]).logits for ids, types in texts(model)]
    return torch.cat([result.flatten(0, -2) for result in results])


def packed(
    model: Any, attention: str, schedule: str = NONE, lengths: tuple[int, ...] = LENGTHS, **knobs: float
) -> Tensor:
    """Logits of all texts in one packed batch, by the operators' own kernels."""
    family = architecture_of("longformer")
    family = of_tokens(family) if isinstance(model, TOKENS) else family
    attributes = {"estimator": "sampled"} if attention == "mca" else {}
    classifier = PackedClassifier(family, model, attention, attributes, has_token_types=True, schedule=schedule)
    ids, types = zip(*texts(model, lengths), strict=True)
    offset = family.position_offset(model.config)
    inputs = {
        "input_ids": torch.cat(ids),
        "token_type_ids": torch.cat(types),
        "position_ids": torch.cat([torch.arange(length) + offset for length in lengths]),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32),
        "seed": torch.zeros(len(lengths), dtype=torch.int64),
        "alpha": torch.full((len(lengths),), knobs.get("alpha", 0.0)),
        "keep": torch.full((len(lengths),), knobs.get("keep", 1.0)),
        "window": torch.full((len(lengths),), int(knobs.get("window", 0)), dtype=torch.int32),
    }
    result = classifier(*(inputs[name] for name in classifier.inputs))
    return result[0] if isinstance(result, tuple) else result


@KINDS
@pytest.mark.parametrize(("window", "changes"), WINDOWS)
def test_packed_texts_get_what_transformers_gives_each_alone(
    window: int | list[int], changes: dict[str, Any], kind: Any
) -> None:
    """transformers pads each text to a multiple of the widest window, which must change nothing."""
    model = longformer(window, kind, **changes)
    expected = of_transformers(model)
    assert expected.std(dim=0).min() > 0.005
    for attention in ("softmax", "mca", "window"):
        torch.testing.assert_close(packed(model, attention), expected, rtol=0, atol=1e-5)


@KINDS
def test_a_narrower_window_is_that_of_a_model_of_such_windows(kind: Any) -> None:
    """The knob counts tokens on either side, the config both sides; a layer keeps a window that is narrower already."""
    model, narrow = longformer([4, 16, 8], kind), longformer([4, 8, 8], kind)
    narrow.load_state_dict(model.state_dict())
    expected = of_transformers(narrow)
    torch.testing.assert_close(packed(model, "window", window=4), expected, rtol=0, atol=1e-5)
    trained = packed(model, "window")
    assert (trained - expected).abs().amax(dim=1)[-3:].min() > 1e-4
    assert torch.equal(packed(model, "window", window=8), trained)
    assert torch.equal(packed(model, "softmax"), trained)


@pytest.mark.parametrize(
    "config", [transformers.LongformerConfig(), transformers.ModernBertConfig()], ids=["longformer", "modernbert"]
)
def test_models_with_windows_have_no_attention_without_one(config: Any) -> None:
    """Big Bird attention computes softmax attention, but over blocks of its own in place of a window."""
    keys = architecture_of(config.model_type).operators(config)
    assert "softmax" in keys
    for key in keys:
        assert {"window", "trained_window"} & {item.name for item in OPERATOR_BY_KEY[key].attributes}, key


def test_selection_leaves_windows_their_true_positions() -> None:
    model = longformer([4, 16, 8, 8], num_hidden_layers=4)
    powers = exponents(DEFAULT, 4, "first")
    for keep in (0.3, 0.7):
        expected = [
            logits(model, ids.numpy(), types.numpy(), keep, powers, importance="maximum") for ids, types in texts(model)
        ]
        for attention in ("softmax", "window"):
            actual = packed(model, attention, DEFAULT, keep=keep)
            torch.testing.assert_close(actual, torch.from_numpy(np.stack(expected)), rtol=0, atol=1e-5)


def test_keep_1_gives_the_bits_of_a_model_without_selection() -> None:
    model = longformer([4, 12, 6])
    for attention in ("softmax", "window"):
        assert torch.equal(packed(model, attention, DEFAULT), packed(model, attention))
        assert not torch.equal(packed(model, attention, DEFAULT, keep=0.5), packed(model, attention))


def test_a_window_samples_values_and_the_row_of_the_first_token_stays_exact() -> None:
    model = longformer([32] * 3, hidden_size=64, max_position_embeddings=302)
    lengths = (300, 150)
    exact, flat = (packed(model, "mca", lengths=lengths, alpha=alpha) for alpha in (0.0, 1.0))
    assert not torch.equal(exact, flat)
    assert (exact - flat).abs().max() < 0.2 * exact.abs().max()
    # In a model of one layer that row is all there is.
    one = longformer(32, num_hidden_layers=1, hidden_size=64, max_position_embeddings=302)
    exact, flat = (packed(one, "mca", lengths=lengths, alpha=alpha) for alpha in (0.0, 1.0))
    torch.testing.assert_close(flat, exact, rtol=0, atol=1e-5)


def test_work_counts_windows_and_the_rows_of_the_first_token(exported: Callable[[str, str], Path]) -> None:
    work = count_work(read_graph(exported("longformer", "mca") / MODEL))
    channels, inner, heads = SMALL["hidden_size"], SMALL["intermediate_size"], SMALL["num_attention_heads"]
    # In the last layer the first token's row is all that is left of attention.
    nodes = sorted((node.layer, node.window, node.first_only) for node in work.attention)
    assert nodes == [(0, 0, True), (0, 4, False), (1, 0, True)]
    # Four on either side, itself and the first token; what that one sees from its own place; its own attention, twice.
    assert work.attention_macs(60) == 2 * channels * (60 * 10 + (60 - 10) + 2 * 60)
    assert work.projection_macs(60) == 60 * channels * channels + 2 * (60 * channels * heads + channels * channels)
    # Output projection, feed-forward, keys of the next layer and its one query.
    assert work.layer_macs == 2 * channels * inner + 3 * channels * channels


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attention_window": [4, 7, 8]}, "attention_window is 7 in layer 1, must be even and at least 4"),
        ({"attention_window": 0}, "attention_window is 0 in layer 0, must be even and at least 4"),
        ({"attention_window": 2}, "attention_window is 2 in layer 0, must be even and at least 4"),
        ({"attention_window": [4, 8]}, "attention_window has 2 windows, must be .* num_hidden_layers, 3"),
        ({"attention_window": [4, 6, 8]}, "attention_window is 6 in layer 1, must divide the largest one, 8"),
        ({"pad_token_id": None}, "pad_token_id is missing"),
    ],
    ids=["odd", "zero", "two", "too-few", "of-no-common-multiple", "no-padding"],
)
def test_windows_that_transformers_cannot_compute_are_refused(changes: dict[str, Any], sentence: str) -> None:
    config = transformers.LongformerConfig(**SMALL | {"num_hidden_layers": 3} | changes)
    with pytest.raises(ExportError, match=sentence):
        architecture_of("longformer").check(config)


def test_its_knob_window_is_asked_for_by_name_and_by_join_for_windows_of_a_text(
    exported: Callable[[str, str], Path],
) -> None:
    with attenuator.load(exported("longformer", "window"), threads=1, check=False) as here:
        text = "the quick brown fox jumps over the lazy dog " * 5
        assert here.classify(text, window=4).requested == {"window": 4}
        joined = here.classify(text * 4, join="mean", window=20)
        assert joined.requested == {}
        assert joined.tokens[0] > here.model.manifest.max_tokens
