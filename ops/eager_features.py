"""Random directions in PyTorch, for training with PerformerAttention and RfaAttention.

They are drawn anew in each forward pass, from the generator of the layer: not those of the operators.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["normal_directions", "orthogonal_directions"]


def normal_directions(heads: int, num_features: int, head_dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Directions `[heads, num_features, head_dim]`, each coordinate N(0, 1)."""
    return torch.randn(heads, num_features, head_dim, generator=generator)


def orthogonal_directions(
    heads: int, num_features: int, head_dim: int, generator: torch.Generator | None = None
) -> Tensor:
    """The same, orthogonal in each block of head_dim of them, with lengths of normal rows (chi(head_dim))."""
    blocks = -(-num_features // head_dim)
    normal = normal_directions(heads * blocks, head_dim, head_dim, generator)
    units, triangle = torch.linalg.qr(normal.transpose(-1, -2))
    units = units * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    rows: Tensor = units.transpose(-1, -2) * normal.norm(dim=-1, keepdim=True)
    return rows.reshape(heads, blocks * head_dim, head_dim)[:, :num_features]
