"""NystromAttention's PyTorch form, by which models are trained, against the NumPy reference."""

import numpy as np
import pytest
import torch
from nystrom_cases import attention_inputs

from attenuator.ops.nystrom.eager import nystrom_attention as eager_attention
from attenuator.ops.nystrom.eager import segment_weights
from attenuator.ops.nystrom.reference import landmarks_of, nystrom_attention


@pytest.mark.parametrize("divisor", ["head", "sequence"])
@pytest.mark.parametrize("landmarks", [1, 7, 16])
def test_eager_equals_the_reference_and_has_gradients(landmarks: int, divisor: str) -> None:
    lengths, heads = (40, 17, 33), 3
    inputs = attention_inputs(lengths, heads, 16, 8, landmarks)
    is_token = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]

    def padded(rows: np.ndarray) -> torch.Tensor:
        full = torch.zeros(*is_token.shape, rows.shape[1], dtype=torch.float64)
        full[is_token] = torch.from_numpy(rows).double()
        return full.unflatten(2, (heads, -1)).transpose(1, 2).requires_grad_()

    sides = [padded(inputs[name]) for name in ("query", "key", "value")]
    query, key, value = sides
    mixed = eager_attention(query / 4, key, value, is_token, landmarks, 6, divisor)
    packed = mixed.transpose(1, 2).flatten(2)[is_token]
    expected = nystrom_attention(**inputs, num_heads=heads, divisor=divisor)
    np.testing.assert_allclose(packed.detach().numpy(), expected, atol=1e-5)  # shares of tokens are float32
    packed.sum().backward()
    assert all(side.grad is not None and torch.isfinite(side.grad).all() for side in sides)
    means = segment_weights(is_token, landmarks)[1].double() @ sides[1][1, 0].detach()
    np.testing.assert_allclose(means.numpy(), landmarks_of(inputs["key"][40:57, :16], landmarks), atol=1e-6)
