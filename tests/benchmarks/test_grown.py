"""A larger BERT that begins as a smaller one gives the smaller one's answers."""

import pytest
import torch
from benchmarks.models import grown
from transformers import BertConfig, BertForSequenceClassification


def small_model() -> BertForSequenceClassification:
    """Two layers of 32 channels, with biases and scales that are not those of the start."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=24,
        num_labels=1,
        initializer_range=0.3,
    )
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return model


def outputs(model: BertForSequenceClassification) -> torch.Tensor:
    """For texts of two lengths, the shorter one padded."""
    ids = torch.arange(40).view(2, 20) + 5
    mask = torch.ones_like(ids)
    mask[1, 12:] = 0
    types = (torch.arange(20) > 7).long().repeat(2, 1)
    with torch.inference_mode():
        return model.eval()(input_ids=ids, attention_mask=mask, token_type_ids=types).logits


def test_twice_the_width_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grown, "NOISE", 0.0)
    small = small_model()
    large = grown.grown(small, 2)
    assert large.config.hidden_size == 64
    assert large.config.num_attention_heads == 4
    torch.testing.assert_close(outputs(large), outputs(small), rtol=1e-4, atol=1e-5)


def test_further_layers_only_normalise_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grown, "NOISE", 0.0)
    small = small_model()
    with torch.no_grad():
        for name, weight in small.named_parameters():
            if "LayerNorm" in name:
                weight.fill_(1.0 if name.endswith("weight") else 0.0)
    large = grown.grown(small, 4)
    assert large.config.num_hidden_layers == 4
    torch.testing.assert_close(outputs(large), outputs(small), rtol=1e-3, atol=1e-4)


def test_noise_lets_twins_part() -> None:
    small = small_model()
    large = grown.grown(small, 2)
    weight = large.bert.encoder.layer[0].attention.self.query.weight
    assert not torch.equal(weight[:32], weight[32:])
    torch.testing.assert_close(outputs(large), outputs(small), rtol=0.3, atol=0.3)
