"""Inputs of NystromAttention."""

from collections.abc import Sequence

import numpy as np
from harness import offsets


def attention_inputs(
    lengths: Sequence[int],
    heads: int,
    head_dim: int,
    value_dim: int,
    landmarks: int | Sequence[int],
    *,
    scale: float = 1.0,
    taps: int = 0,
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([heads, head_dim, value_dim])
    total = sum(lengths)
    shapes = {"query": (total, heads * head_dim), "key": (total, heads * head_dim), "value": (total, heads * value_dim)}
    inputs = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    inputs["query"] *= np.float32(scale)
    inputs["key"] *= np.float32(scale)
    knob = np.broadcast_to(np.asarray(landmarks, np.int32), (len(lengths),)).copy()
    inputs |= {"cu_seqlens": offsets(lengths), "num_landmarks": knob}
    if taps:
        inputs["conv_weight"] = rng.standard_normal((heads, taps)).astype(np.float32)
    return inputs
