"""The project's own encoder: packing, YOSO's expectation and surrogate gradient, YOSO-C's convolution, checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attenuator.export.encoder import Encoder, EncoderConfig, SequencePool, SinusoidalPositions
from attenuator.export.encoder_attention import PackedLayout
from attenuator.ops.yoso.eager import (
    collisions,
    expected_collisions,
    gaussian_planes,
    sequence_conv,
    yoso_attention,
)

SMALL = EncoderConfig(vocab_size=50, hidden_size=16, num_attention_heads=2, intermediate_size=24, num_labels=3)
VARIANTS = {
    "yoso_c": replace(SMALL, conv_size=3),
    "yoso": SMALL,
    "yoso_odd_bits": replace(SMALL, hash_bits=7),
    "yoso_ratio": replace(SMALL, normalize=2, norm_lift=5.0),
    "softmax": replace(SMALL, attention="softmax"),
    "post_first": replace(SMALL, norm="post", pooling="first", conv_size=5),
    "token_types": replace(SMALL, type_vocab_size=2),
}


def ragged(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    total = sum(lengths)
    positions = torch.cat([torch.arange(length) for length in lengths])
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return torch.randint(0, 50, (total,)), positions, offsets


def build(config: EncoderConfig) -> Encoder:
    torch.manual_seed(0)
    model = Encoder(config).eval()
    # Larger weights than at the start of training, so that attention differs from uniform.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
    return model


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_packed_batch_equals_each_sequence_alone(config: EncoderConfig) -> None:
    model = build(config)
    lengths = [5, 1, 17, 0, 8]
    ids, positions, offsets = ragged(lengths)
    types = torch.randint(0, 2, ids.shape) if config.type_vocab_size else None
    together = model(ids, positions, offsets, types)
    assert together.shape == (5, 3)
    for row, length in enumerate(lengths):
        part = slice(int(offsets[row]), int(offsets[row + 1]))
        alone = model(
            ids[part],
            positions[part],
            torch.tensor([0, length], dtype=torch.int32),
            None if types is None else types[part],
        )
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_empty_sequences_and_empty_batch_pool_to_zero(pooling: str) -> None:
    pool = SequencePool(pooling)  # type: ignore[arg-type]
    hidden = torch.randn(3, 4)
    pooled = pool(hidden, torch.tensor([0, 0, 3, 3], dtype=torch.int32))
    expected = hidden.mean(0) if pooling == "mean" else hidden[0]
    torch.testing.assert_close(pooled, torch.stack([torch.zeros(4), expected, torch.zeros(4)]))


def test_layout_pads_and_packs_back() -> None:
    layout = PackedLayout(torch.tensor([0, 2, 2, 5], dtype=torch.int32))
    packed = torch.randn(5, 6)
    padded = layout.pad(packed, heads=2)
    assert padded.shape == (3, 2, 3, 3)
    assert layout.is_token.sum(1).tolist() == [2, 0, 3]
    assert not padded[1].any()
    assert torch.equal(layout.pack(padded), packed)


@pytest.mark.parametrize("hash_bits", [1, 5, 8, 12])
def test_expected_collisions_follow_the_formula(hash_bits: int) -> None:
    query, key = unit(1, 2, 6, 8), unit(1, 2, 9, 8)
    collisions = expected_collisions(query, key, hash_bits)
    for head, i, j in ((0, 0, 0), (1, 5, 8), (0, 3, 2)):
        angle = math.acos(float(query[0, head, i] @ key[0, head, j]))
        assert float(collisions[0, head, i, j]) == pytest.approx((1 - angle / math.pi) ** hash_bits, rel=1e-9)


def test_expected_collisions_of_equal_rows_are_one_and_never_nan() -> None:
    rows = torch.nn.functional.normalize(torch.randn(1, 1, 500, 64), dim=-1)
    diagonal = expected_collisions(rows, rows, 8).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(diagonal, torch.ones_like(diagonal), rtol=0, atol=5e-3)


def test_sampled_collisions_have_the_expectation_as_mean() -> None:
    torch.manual_seed(1)
    query, key = unit(1, 1, 4, 8), unit(1, 1, 5, 8)
    hashes = 40_000
    sampled = collisions(query, key, gaussian_planes(1, hashes, 4, 8).double())
    expected = expected_collisions(query, key, 4)
    error = (expected * (1 - expected) / hashes).sqrt()
    assert ((sampled - expected).abs() <= 5 * error).all()


def test_gradient_is_that_of_the_lower_bound() -> None:
    """Eq. 4: autograd through sum_ij E_ij.detach() (1 + tau / 2 q_i.k_j) V_j has the same value derivative in q, k."""
    torch.manual_seed(2)
    bits, token = 8, torch.ones(1, 6, dtype=torch.bool)
    raw = [torch.randn(1, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(1, 2, 6, 4, dtype=torch.float64)
    gradients = torch.autograd.grad((yoso_attention(*raw, token, bits) * upstream).sum(), raw)

    query, key = (torch.nn.functional.normalize(rows, dim=-1) for rows in raw[:2])
    cosine = query @ key.transpose(-1, -2)
    fixed = expected_collisions(query.detach(), key.detach(), bits)
    # Value E, derivative (tau / 2) E by the cosine.
    weights = fixed * (1 + bits / 2 * (cosine - cosine.detach()))
    mixed = torch.nn.functional.normalize(weights @ raw[2], dim=-1)
    expected = torch.autograd.grad((mixed * upstream).sum(), raw)
    for gradient, reference in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_surrogate_weight_is_below_the_true_derivative() -> None:
    cosine = torch.linspace(-0.99, 0.99, 41, dtype=torch.float64, requires_grad=True)
    true = torch.autograd.grad(((1 - cosine.acos() / math.pi) ** 8).sum(), cosine)[0]
    assert ((8 / 2 * (1 - cosine.acos() / math.pi) ** 8) <= true).all()


def test_attention_in_query_blocks_equals_attention_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [torch.randn(2, 2, 9, 4) for _ in range(3)]
    token = torch.tensor([[True] * 9, [True] * 4 + [False] * 5])
    with torch.no_grad():
        whole = yoso_attention(*rows, token, 8)
        monkeypatch.setattr("attenuator.ops.yoso.eager.BLOCK_SCORES", 2 * 2 * 9 * 2)
        torch.testing.assert_close(yoso_attention(*rows, token, 8), whole)


def test_row_without_any_collision_is_zero() -> None:
    query, key = torch.ones(1, 1, 1, 4), -torch.ones(1, 1, 1, 4)
    planes = gaussian_planes(1, 3, 8, 4)
    out = yoso_attention(query, key, torch.ones(1, 1, 1, 4), torch.ones(1, 1, dtype=torch.bool), 8, planes)
    assert not out.any()


@pytest.mark.parametrize("size", [1, 3, 5])
def test_conv_is_the_depthwise_cross_correlation(size: int) -> None:
    value, weight = torch.randn(2, 3, 7, 4), torch.randn(3, size)
    expected = torch.nn.functional.conv2d(value, weight[:, None, :, None], padding=(size // 2, 0), groups=3)
    torch.testing.assert_close(sequence_conv(value, weight), expected)


def test_conv_is_added_after_normalisation_and_stays_inside_a_sequence() -> None:
    model = build(VARIANTS["yoso_c"])
    attention = model.layers[0].attention
    rows = torch.randn(3, 6, 16)
    offsets = torch.tensor([0, 4, 6], dtype=torch.int32)
    with_conv = attention.attend(*rows, rows[0], offsets)
    weight = attention.conv_weight.detach().clone()
    attention.conv_weight = None
    without = attention.attend(*rows, rows[0], offsets)
    norms = without.view(6, 2, 8).norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms))
    # Token 4 starts the second sequence: its left neighbour is zero.
    value = rows[2].view(6, 2, 8)
    expected = weight[:, 1:2] * value[4] + weight[:, 2:3] * value[5]
    torch.testing.assert_close((with_conv - without).view(6, 2, 8)[4], expected, rtol=1e-4, atol=1e-5)


def test_positions_are_computed_for_any_length() -> None:
    positions = SinusoidalPositions(8)
    out = (positions(torch.tensor([0, 32_767])) / positions.scale).detach()
    torch.testing.assert_close(out[0], torch.tensor([0.0] * 4 + [1.0] * 4))
    assert float(out[1, 0]) == pytest.approx(math.sin(32_767), abs=1e-4)


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_checkpoint_round_trip(config: EncoderConfig, tmp_path: Path) -> None:
    model = build(replace(config, id2label={0: "a", 1: "b", 2: "c"}))
    model.save_pretrained(tmp_path / "checkpoint")
    loaded = Encoder.from_pretrained(tmp_path / "checkpoint")
    assert loaded.config == model.config
    assert not loaded.training
    batch = ragged([4, 9])
    assert torch.equal(loaded(*batch), model(*batch))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attention": "nearest"}, "attention is 'nearest'"),
        ({"conv_size": 4}, "conv_size is 4"),
        ({"conv_size": 3, "attention": "softmax"}, "conv_size needs"),
        ({"num_attention_heads": 3}, "multiple of num_attention_heads"),
        ({"hash_bits": 17}, r"hash_bits is 17, must be a whole number in \[1, 16\]"),
        ({"normalize": 3}, r"normalize is 3, must be a whole number in \[0, 2\]"),
        ({"norm_lift": -1.0}, r"norm_lift is -1.0, must be a number in \[0, 1e\+30\]"),
        ({"pooling": "max"}, "pooling is 'max'"),
        ({"norm": "none"}, "norm is 'none'"),
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"id2label": {0: "a"}}, "id2label must name"),
    ],
)
def test_bad_config_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(SMALL, **changes)  # type: ignore[arg-type]


def test_unknown_config_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 10, "window": 3}')
    with pytest.raises(ValueError, match="unknown fields: window"):
        EncoderConfig.load(tmp_path)


def test_sampling_in_eager_mode_approaches_the_expectation() -> None:
    model = build(SMALL)
    batch = ragged([30, 12])
    with torch.no_grad():
        exact = model(*batch)
        errors = []
        for hashes in (4, 4096):
            model.set_knobs({"num_hashes": hashes}, seed=0)
            errors.append(float((model(*batch) - exact).abs().max()))
        model.set_knobs({})
        assert torch.equal(model(*batch), exact)
    assert errors[1] < 0.1 * float(exact.abs().max())
    assert errors[1] < errors[0]
