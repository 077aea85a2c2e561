"""YOSO attention in PyTorch for training, against the operator's NumPy reference."""

import itertools

import numpy as np
import pytest
import torch

from attenuator.ops.yoso.eager import gaussian_planes, yoso_attention
from attenuator.ops.yoso.reference import collision_probability
from attenuator.ops.yoso.reference import yoso_attention as reference

KINDS = list(itertools.product((0, 1, 2), (0.0, 1e-20, 14.0, 300.0)))


def draw(tokens: int) -> list[torch.Tensor]:
    """Query, key and value `[1, 2, tokens, 12]`; a zero row among the queries."""
    generator = torch.Generator().manual_seed(tokens)
    query, key, value = (torch.randn(1, 2, tokens, 12, generator=generator, dtype=torch.float64) for _ in range(3))
    query[:, :, 0] = 0
    return [query.requires_grad_(), (key + 0.3).detach().requires_grad_(), value.requires_grad_()]


def packed(rows: torch.Tensor) -> np.ndarray:
    """`[1, heads, tokens, dim]` to `[tokens, heads * dim]`."""
    whole: np.ndarray = rows[0].transpose(0, 1).flatten(1).detach().numpy()
    return whole.astype(np.float32)


@pytest.mark.parametrize(("normalize", "norm_lift"), KINDS)
def test_the_expectation_is_the_references(normalize: int, norm_lift: float) -> None:
    rows = draw(9)
    actual = yoso_attention(*rows, torch.ones(1, 9, dtype=torch.bool), 6, normalize=normalize, norm_lift=norm_lift)
    expected = reference(
        *map(packed, rows), np.array([0, 9], np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64),
        num_heads=2, hash_bits=6, normalize=normalize, norm_lift=norm_lift,
    )  # fmt: skip
    np.testing.assert_allclose(packed(actual), expected, atol=2e-5)
    actual.square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in rows if x.grad is not None)
    assert all(x.grad is not None for x in rows)


def test_hashes_of_lifted_rows_collide_as_often_as_expected() -> None:
    """Within 5 standard errors of each of 81 pairs: 1e-4 for all of them."""
    query, key, _ = (x.detach() for x in draw(9))
    hashes, eye = 4000, torch.eye(9, dtype=torch.float64).expand(1, 2, 9, 9)
    planes = gaussian_planes(2, hashes, 5, 14, torch.Generator().manual_seed(1)).double()
    is_token = torch.ones(1, 9, dtype=torch.bool)
    observed = yoso_attention(query, key, eye, is_token, 5, planes, normalize=0, norm_lift=14.0)
    for head in range(2):
        expected = collision_probability(*(x[0, head].numpy().astype(np.float32) for x in (query, key)), 5, 14.0)
        error = np.sqrt(expected * (1 - expected) / hashes)
        assert (np.abs(observed[0, head].numpy() - expected) < 5 * error + 1e-9).all()


def test_a_ratio_of_few_hashes_is_a_mean_or_nothing() -> None:
    query, key, value = (x.detach() for x in draw(30))
    planes = gaussian_planes(2, 1, 8, 12, torch.Generator().manual_seed(2)).double()
    is_token = torch.ones(1, 30, dtype=torch.bool)
    sums = yoso_attention(query, key, torch.ones_like(value), is_token, 8, planes, normalize=2)
    assert set(np.round(sums.unique().numpy(), 9)) == {0.0, 1.0}
