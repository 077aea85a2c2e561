"""Inputs of attention by random features."""

import numpy as np
from harness import Array, offsets

LENGTHS = (3, 0, 1, 64, 65, 300, 0, 17)
# One direction, less than a block of head_dim, several blocks and a part of one, exact.
NUM_FEATURES = (256, 256, 1, 70, 16, 100, 0, 0)


def feature_inputs(
    lengths: tuple[int, ...], heads: int, head_dim: int, value_dim: int, first: bool = False, size: float = 1.0
) -> dict[str, Array]:
    """Gaussian rows; queries and keys times `size`."""
    rng = np.random.default_rng([heads, head_dim, value_dim])

    def rows(count: int, columns: int) -> Array:
        return rng.standard_normal((count, columns)).astype(np.float32)

    total = sum(lengths)
    return {
        "query": np.float32(size) * rows(len(lengths) if first else total, heads * head_dim),
        "key": np.float32(size) * rows(total, heads * head_dim),
        "value": rows(total, heads * value_dim),
        "cu_seqlens": offsets(lengths),
        "num_features": np.resize(np.array(NUM_FEATURES, np.int32), len(lengths)),
        "seed": np.arange(len(lengths)) * 2**40 + 5,
    }


def at(inputs: dict[str, Array], **values: int) -> dict[str, Array]:
    """The inputs with the same value of a knob or seed for every sequence."""
    return inputs | {name: np.full_like(inputs[name], value) for name, value in values.items()}


def one_query(
    query: Array, key: Array, value: Array, num_features: int, seeds: int, first_seed: int = 2**40
) -> dict[str, Array]:
    """One query and its keys as a sequence for each seed; of `queries = first`."""
    return {
        "query": np.repeat(query, seeds, axis=0),
        "key": np.tile(key, (seeds, 1)),
        "value": np.tile(value, (seeds, 1)),
        "cu_seqlens": offsets([len(key)] * seeds),
        "num_features": np.full(seeds, num_features, np.int32),
        "seed": np.arange(seeds) * 7919 + first_seed,
    }
