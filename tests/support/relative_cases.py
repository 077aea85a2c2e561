"""Inputs for RelativeAttention, on the CPU and on CUDA."""

import itertools

import numpy as np
from harness import Array, offsets

LENGTHS = (3, 0, 1, 64, 65, 200, 0, 17)
TABLES = ("pos_key", "pos_query", "bias")
CHOICES = [tuple(names) for count in range(1, 4) for names in itertools.combinations(TABLES, count)]


def attention_inputs(
    lengths: tuple[int, ...],
    heads: int,
    head_dim: int,
    value_dim: int,
    tables: tuple[str, ...] = TABLES,
    *,
    first: bool = False,
    rows: int = 40,
    reach: int = 50,
) -> dict[str, Array]:
    rng = np.random.default_rng([heads, head_dim, value_dim])

    def normal(count: int, columns: int) -> Array:
        return rng.standard_normal((count, columns)).astype(np.float32)

    total = sum(lengths)
    inputs = {
        "query": normal(len(lengths) if first else total, heads * head_dim),
        "key": normal(total, heads * head_dim),
        "value": normal(total, heads * value_dim),
        "cu_seqlens": offsets(lengths),
        "buckets": np.clip(np.arange(-reach, reach + 1) * rows // (2 * reach) + rows // 2, 0, rows - 1),
        "pos_key": normal(rows, heads * head_dim),
        "pos_query": normal(rows, heads * head_dim),
        "bias": normal(rows, heads),
    }
    return {name: value for name, value in inputs.items() if name not in TABLES or name in tables}
