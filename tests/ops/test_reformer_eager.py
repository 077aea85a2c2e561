"""ReformerAttention in PyTorch against the reference: exact, and the weights that rounds come to."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness import offsets

from attenuator.ops.reformer.eager import attend, meet, random_buckets
from attenuator.ops.reformer.reference import buckets, reformer_attention, rotations

LENGTHS = (50, 1, 33, 64)
HEADS, SIZE, CHUNK = 2, 16, 8


def padded() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    is_token = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    rows = torch.randn(2, len(LENGTHS), HEADS, max(LENGTHS), SIZE, dtype=torch.float64)
    return rows[0].float().double(), (rows[1] * is_token[:, None, :, None]).float().double(), is_token


def packed(tensor: torch.Tensor, is_token: torch.Tensor) -> np.ndarray:
    return tensor.transpose(1, 2)[is_token].reshape(-1, HEADS * SIZE).detach().numpy()


def layer(rounds: int) -> SimpleNamespace:
    return SimpleNamespace(
        knobs={"num_rounds": rounds} if rounds else {}, generator=torch.Generator().manual_seed(3),
        attributes={"scale": 0.0, "chunk_size": CHUNK, "num_buckets": 128},
    )  # fmt: skip


def reference(query: torch.Tensor, value: torch.Tensor, is_token: torch.Tensor, rounds: int) -> np.ndarray:
    count = len(LENGTHS)
    return reformer_attention(
        packed(query, is_token).astype(np.float32), packed(value, is_token), offsets(LENGTHS),
        np.full(count, rounds, np.int32), np.full(count, 5), num_heads=HEADS, chunk_size=CHUNK,
    )  # fmt: skip


def test_without_rounds_it_is_exact() -> None:
    query, value, is_token = padded()
    mixed = packed(attend(query, query, value, is_token, layer(0)), is_token)
    np.testing.assert_allclose(mixed, reference(query, value, is_token, 0), atol=1e-9)


def test_rounds_of_the_same_buckets_come_to_the_references_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax over the keys met in any round; the reference joins rounds one by one, as the paper's appendix has it."""
    query, value, is_token = padded()
    rounds = 3

    def drawn(rows: torch.Tensor, is_token: torch.Tensor, rounds: int, layer: object) -> torch.Tensor:
        found = torch.zeros(len(LENGTHS), HEADS, rounds, max(LENGTHS), dtype=torch.int64)
        for b, length in enumerate(LENGTHS):
            for head in range(HEADS):
                for number in range(rounds):
                    matrix = rotations(5, 0, head, number, min(-(-length // CHUNK), 64), SIZE)
                    of_rows = rows[b, head, :length].numpy().astype(np.float32)
                    found[b, head, number, :length] = torch.from_numpy(buckets(of_rows, matrix))
        return found

    monkeypatch.setattr("attenuator.ops.reformer.eager.random_buckets", drawn)
    mixed = packed(attend(query, query, value, is_token, layer(rounds)), is_token)
    np.testing.assert_allclose(mixed, reference(query, value, is_token, rounds), atol=1e-9)


def test_buckets_of_each_sequence_follow_its_length() -> None:
    query, _, is_token = padded()
    found = random_buckets(query, is_token, 40, layer(40))
    for b, length in enumerate(LENGTHS):
        half = -(-length // CHUNK)
        sizes = found[b, :, :, :length] % int(-(-max(LENGTHS) // CHUNK))
        assert int(sizes.max()) < half
    met = meet(found[:, :, :1], is_token, CHUNK)
    assert bool(met[1, :, 0, 0].all())
    assert int(met[3, 0].sum()) == 64 * 2 * CHUNK


def test_gradients_reach_rows_and_values() -> None:
    query, value, is_token = padded()
    query.requires_grad_()
    value.requires_grad_()
    attend(query, query, value, is_token, layer(2))[is_token[:, None].expand(-1, HEADS, -1)].square().sum().backward()
    for tensor in (query, value):
        assert tensor.grad is not None
        assert bool(tensor.grad.isfinite().all())
        assert bool((tensor.grad[0, :, : LENGTHS[0]].abs().sum(-1) > 0).all())
