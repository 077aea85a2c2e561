"""Which way of computing a gradient is predicted to be cheaper, where that is not in doubt."""

import torch

from attenuator.training.yoso import cost
from attenuator.training.yoso.hashing import Hashing


def one_sequence(tokens: int) -> Hashing:
    return Hashing(
        torch.tensor([0, tokens], dtype=torch.int32), torch.zeros(1, dtype=torch.int64), 32, 8, "gaussian", 0
    )


def test_tables_are_predicted_for_long_sequences_and_pairs_for_short_ones() -> None:
    assert cost.pairs_take_less(one_sequence(128), 64, 64)
    assert not cost.pairs_take_less(one_sequence(16_384), 64, 64)


def test_cheapest_is_the_true_derivative_while_few_rows_share_a_bucket() -> None:
    assert cost.cheapest(one_sequence(256), 64, 64, compiled=True) == "collided"
    assert cost.cheapest(one_sequence(16_384), 64, 64, compiled=True) == "bound"
