"""The own encoder's training through the operator: the gradients of its PyTorch form, and hashes that are served."""

import dataclasses

import numpy as np
import pytest
import torch
from checkpoints import ENCODER, VOCAB

from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.ops.yoso.reference import yoso_attention
from attenuator.training.yoso.attention import attend
from attenuator.training.yoso.settings import Settings

LENGTHS = [9, 1, 30]
CASES = {
    "l2-convolution": {"conv_size": 5},
    "ratio": {"normalize": 2, "norm": "post"},
    "raw": {"normalize": 0, "pooling": "first"},
    "norm-lift": {"norm_lift": 6.0, "normalize": 2},
}


def encoder(**changes: object) -> Encoder:
    torch.manual_seed(0)
    config = EncoderConfig(**ENCODER, attention="yoso", dropout=0.0)  # type: ignore[arg-type]
    model = Encoder(dataclasses.replace(config, **changes))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.train()


def gradients(model: Encoder) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits of a packed batch, and the gradient of the sum of their squares by weight."""
    ids = torch.randint(0, VOCAB, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    starts = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)
    logits = model(ids, positions, starts)
    model.zero_grad()
    logits.square().sum().backward()
    return logits.detach(), {
        name: item.grad.clone() for name, item in model.named_parameters() if item.grad is not None
    }


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_the_expectation_has_the_gradients_of_the_pytorch_form(changes: dict[str, object]) -> None:
    model = encoder(**changes)
    expected = gradients(model)
    model.compute_through_operator()
    logits, by_weight = gradients(model)
    torch.testing.assert_close(logits, expected[0], rtol=1e-4, atol=1e-4)
    assert set(by_weight) == set(expected[1])
    for name, gradient in by_weight.items():
        scale = float(expected[1][name].abs().max())
        torch.testing.assert_close(gradient, expected[1][name], rtol=1e-3, atol=1e-4 * max(1.0, scale), msg=name)


def test_hashes_are_new_in_training_follow_a_seed_and_are_the_same_in_evaluation() -> None:
    model = encoder()
    model.compute_through_operator()
    model.set_knobs({"num_hashes": 4}, seed=3)
    first = gradients(model)[0]
    assert not torch.equal(gradients(model)[0], first)
    model.set_knobs({"num_hashes": 4}, seed=3)
    assert torch.equal(gradients(model)[0], first)
    model.eval()
    assert torch.equal(gradients(model)[0], gradients(model)[0])


def test_many_hashes_come_near_the_expectation() -> None:
    model = encoder()
    model.compute_through_operator()
    logits, by_weight = gradients(model)
    model.set_knobs({"num_hashes": 512}, seed=0)
    near, gradient = gradients(model)
    torch.testing.assert_close(near, logits, rtol=0.1, atol=0.1)
    name = "layers.0.attention.value.weight"
    cosine = torch.nn.functional.cosine_similarity(gradient[name].flatten(), by_weight[name].flatten(), dim=0)
    assert cosine > 0.98


@pytest.mark.parametrize("hashes", [0, 8])
def test_a_norm_lift_is_evaluated_as_served(hashes: int) -> None:
    module = encoder(norm_lift=30.0, normalize=2, hash="hadamard").eval().layers[1].attention
    module.through_operator, module.knobs = True, {"num_hashes": hashes}
    draw = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(sum(LENGTHS), 32, generator=draw) for _ in range(3))
    starts = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)
    before = torch.get_rng_state()
    with torch.no_grad():
        mixed = module.attend(query, key, value, value, starts)
    assert torch.equal(before, torch.get_rng_state()), "training goes on as if there had been no evaluation"
    expected = yoso_attention(
        query.numpy(), key.numpy(), value.numpy(), starts.numpy(),
        np.full(len(LENGTHS), hashes, np.int32), np.zeros(len(LENGTHS), np.int64),
        num_heads=module.num_heads, hash_bits=8, hash="hadamard", layer=1, normalize=2, norm_lift=30.0,
    )  # fmt: skip
    np.testing.assert_allclose(mixed.numpy(), expected, rtol=0, atol=1e-5)


def test_configs_of_unknown_hashes_and_knobs_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="hash is 'sha', must be one of: gaussian, hadamard"):
        encoder(hash="sha")
    with pytest.raises(ValueError, match="knobs names 'alpha', must be of: num_hashes"):
        encoder(knobs={"alpha": 0.5})
    for value, said in ((-1, "-1"), ("8", "a text"), (2.5, "2.5"), (True, "true")):
        with pytest.raises(ValueError, match=f"num_hashes is {said}, must be a whole number from 0 to 512"):
            encoder(knobs={"num_hashes": value})


def test_equal_texts_of_a_training_batch_have_hashes_of_their_own() -> None:
    """In evaluation they have the same; PyTorch's products may round equal rows differently on some processors."""
    model = encoder(knobs={"num_hashes": 4})
    model.compute_through_operator()
    model.set_knobs({"num_hashes": 4})
    ids = torch.arange(20).remainder(VOCAB).repeat(3)
    starts, positions = torch.arange(0, 61, 20, dtype=torch.int32), torch.arange(20).repeat(3)
    for is_trained in (True, False):
        logits = model.train(is_trained)(ids, positions, starts).detach()
        assert torch.allclose(logits[0], logits[1], atol=1e-5) is not is_trained
        assert torch.allclose(logits[1], logits[2], atol=1e-5) is not is_trained


@pytest.mark.parametrize(("num_hashes", "norm_lift"), [(4, 0.0), (0, 1e30)])
def test_rows_of_float16_are_computed_in_float32(num_hashes: int, norm_lift: float) -> None:
    """It has neither the floor of a norm, by which a row that met nobody stays 0, nor the root of a large lift."""
    rows = torch.ones(1, 1, 8, dtype=torch.float16)
    query, starts = (-rows).requires_grad_(), torch.tensor([0, 1], dtype=torch.int32)
    settings = Settings(num_hashes=num_hashes, hash_bits=16, norm_lift=norm_lift)
    mixed = attend(query, rows, rows, starts, settings, seed=3)
    assert torch.equal(mixed, attend(-rows.float(), rows.float(), rows.float(), starts, settings, seed=3).half())
    mixed.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_the_ratio_of_half_wide_rows_is_rounded_once() -> None:
    draw = torch.Generator().manual_seed(4)
    rows = [torch.randn(50, 2, 16, generator=draw).bfloat16() for _ in range(3)]
    starts = torch.tensor([0, 50], dtype=torch.int32)
    settings = Settings(num_hashes=8, hash_bits=4, normalize=2)
    wide = attend(*(row.float() for row in rows), starts, settings, seed=3)
    assert torch.equal(attend(*rows, starts, settings, seed=3), wide.bfloat16())
