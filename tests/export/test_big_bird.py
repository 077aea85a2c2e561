"""BigBird against eager transformers, without tracing: full and sparse attention, odd configs, long texts."""

from typing import Any

import pytest
import torch
import transformers
from checkpoints import SMALL, randomise
from torch import Tensor

from attenuator.errors import ExportError
from attenuator.export.architectures import architecture_of
from attenuator.export.trace import PackedClassifier

CONFIGS = [
    pytest.param({"block_size": 4, "num_random_blocks": 1}, id="sparse"),
    pytest.param(
        {
            "block_size": 3,
            "num_random_blocks": 2,
            "use_bias": False,
            "rescale_embeddings": True,
            "hidden_act": "gelu",
            "type_vocab_size": 3,
            "vocab_size": 61,
            "max_position_embeddings": 81,
            "num_attention_heads": 2,
            "hidden_size": 34,
        },
        id="odd",
    ),
    pytest.param(
        {"block_size": 1, "num_random_blocks": 3, "type_vocab_size": 1, "num_labels": 1, "num_hidden_layers": 1},
        id="blocks-of-one",
    ),
    pytest.param({"attention_type": "original_full", "hidden_act": "relu"}, id="full"),
]
LENGTHS = (1, 7, 27, 28, 29, 33, 48, 64, 69)


def big_bird(**changes: Any) -> Any:
    config = transformers.BigBirdConfig(**SMALL | {"num_hidden_layers": 3} | changes)
    model = transformers.BigBirdForSequenceClassification(config).eval()
    randomise(model)
    return model.requires_grad_(False)


def texts(config: Any) -> list[tuple[Tensor, Tensor]]:
    """Ids and types `[n]` of each length; the id of padding is among them."""
    generator = torch.Generator().manual_seed(2)
    return [
        (
            torch.randint(0, config.vocab_size, (length,), generator=generator),
            torch.randint(0, config.type_vocab_size, (length,), generator=generator),
        )
        for length in LENGTHS
    ]


def eager(model: Any, ids: Tensor, types: Tensor) -> Tensor:
    return model(input_ids=ids[None], token_type_ids=types[None]).logits


def packed(model: Any, knob: int, attention: str = "bigbird", **attributes: str) -> Tensor:
    """Logits `[B, labels]` of all texts in one packed batch, by the operators' own kernels."""
    classifier = PackedClassifier(architecture_of("big_bird"), model, attention, attributes, has_token_types=True)
    ids, types = zip(*texts(model.config), strict=True)
    batch = len(ids)
    inputs = {
        "input_ids": torch.cat(ids),
        "token_type_ids": torch.cat(types),
        "position_ids": torch.cat([torch.arange(length) for length in LENGTHS]),
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0, dtype=torch.int32),
        "num_random_blocks": torch.full((batch,), knob, dtype=torch.int32),
        "alpha": torch.zeros(batch),
        "keep": torch.ones(batch),
        "seed": torch.arange(batch),
    }
    result = classifier(*(inputs[name] for name in classifier.inputs))
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("changes", CONFIGS)
def test_exact_value_is_full_attention_at_every_length(changes: dict[str, Any]) -> None:
    full = big_bird(**changes | {"attention_type": "original_full"})
    expected = torch.cat([eager(full, *text) for text in texts(full.config)])
    assert expected.std(dim=0).min() > 0.005
    for attention in ("bigbird", "softmax", "mca"):
        attributes = {"estimator": "sampled"} if attention == "mca" else {}
        actual = packed(big_bird(**changes), 0, attention, **attributes)
        torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5 * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("changes", CONFIGS[:3])
def test_first_blocks_are_what_transformers_evaluates(changes: dict[str, Any]) -> None:
    """Its table of random blocks is all zeros in evaluation; it pads texts to whole blocks, which changes nothing."""
    config = big_bird(**changes).config
    count = config.num_random_blocks
    fits = [-(-n // config.block_size) * config.block_size <= config.max_position_embeddings for n in LENGTHS]
    # A new model for each text: at the first short one it turns to full attention for good.
    sparse = torch.cat(
        [eager(big_bird(**changes), *text) for text, fit in zip(texts(config), fits, strict=True) if fit]
    )
    actual = packed(big_bird(**changes), count, random_blocks="first")
    tolerance = 2e-5 * max(1.0, float(sparse.abs().max()))
    torch.testing.assert_close(actual[torch.tensor(fits)], sparse, rtol=0, atol=tolerance)
    long = torch.tensor(LENGTHS) > (5 + 2 * count) * config.block_size
    exact, drawn = packed(big_bird(**changes), 0), packed(big_bird(**changes), count)
    assert torch.equal(actual[~long], exact[~long])
    assert torch.equal(drawn[~long], exact[~long])
    # A last layer computes the first row alone, which sees every key: a model of one layer is exact.
    differs = config.num_hidden_layers > 1
    for other in (exact, drawn):
        assert ((actual - other)[long].abs().amax(dim=1) > tolerance).all() == differs


def test_bundles_default_to_the_random_blocks_of_the_checkpoint() -> None:
    family = architecture_of("big_bird")
    assert family.knob_defaults(big_bird(num_random_blocks=2).config) == {"num_random_blocks": 2}
    assert family.knob_defaults(big_bird(attention_type="original_full").config) == {}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"block_size": 65537}, r"block_size is 65537, must be a whole number in \[1, 65536\]"),
        ({"is_decoder": True}, "the checkpoint is a decoder"),
        (
            {"num_random_blocks": 65, "block_size": 4, "max_position_embeddings": 533},
            "num_random_blocks is 65, must be at most 64 with 4 tokens a block and max_position_embeddings of 533",
        ),
    ],
)
def test_configs_that_no_operator_computes_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExportError, match=sentence):
        architecture_of("big_bird").check(transformers.BigBirdConfig(**SMALL | changes))


@pytest.mark.parametrize(
    "changes", [{"max_position_embeddings": 532}, {"attention_type": "original_full", "max_position_embeddings": 533}]
)
def test_more_random_blocks_are_taken_where_every_text_is_exact(changes: dict[str, Any]) -> None:
    given = {"num_random_blocks": 65, "block_size": 4} | changes
    architecture_of("big_bird").check(transformers.BigBirdConfig(**SMALL | given))
