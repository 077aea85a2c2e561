"""Rows for attention with products in int8."""

import numpy as np
from harness import Array, offsets

LENGTHS = (1, 47, 48, 0, 63, 64, 65, 100, 127, 128, 129, 130, 257, 300)


def draw(
    lengths: tuple[int, ...], heads: int = 2, head_dim: int = 64, value_dim: int = 64, seed: int = 0
) -> dict[str, Array]:
    """Rows whose scores spread more, and whose keys and values have a mean, as trained models' do."""
    rng = np.random.default_rng([sum(lengths), heads, head_dim, value_dim, seed])
    tokens = sum(lengths)

    def rows(columns: int, mean: float) -> Array:
        centre = mean * rng.standard_normal(columns)
        return (rng.standard_normal((tokens, columns)) + centre).astype(np.float32)

    return {
        "query": rows(heads * head_dim, 0.3) * 1.5,
        "key": rows(heads * head_dim, 3),
        "value": rows(heads * value_dim, 1),
        "cu_seqlens": offsets(lengths),
    }
