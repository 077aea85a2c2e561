"""Inputs of softmax attention whose keys are weighed, and what their importance must be."""

from collections.abc import Sequence

import numpy as np
from harness import Array, AttributeValue, offsets

from attenuator.ops.softmax.reference import attention_importance

KINDS = ("first", "maximum")
BANDS = {"all": (0, 0), "window": (6, 0), "wide": (70, 0), "global": (6, 1), "wide-global": (70, 1)}


def attention_inputs(
    lengths: Sequence[int], heads: int = 2, head_dim: int = 20, value_dim: int = 12, first: bool = False
) -> dict[str, Array]:
    rng = np.random.default_rng([sum(lengths), heads, head_dim])
    tokens = sum(lengths)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "query": normal(len(lengths) if first else tokens, heads * head_dim),
        "key": normal(tokens, heads * head_dim),
        "value": normal(tokens, heads * value_dim),
        "cu_seqlens": offsets(lengths),
    }


def unmerged(lengths: Sequence[int], more: Sequence[int]) -> dict[str, Array]:
    """Where the last row of each sequence stands for so many more."""
    return {"unmerged_cu_seqlens": offsets([length + rows for length, rows in zip(lengths, more, strict=True)])}


def gaps(lengths: Sequence[int], seed: int = 0) -> Array:
    """Positions that ascend by 1 to 6, from any number on, negative ones too."""
    rng = np.random.default_rng(seed)
    starts = [rng.integers(-50, 50) + np.cumsum(rng.choice([1, 1, 2, 6], length)) for length in lengths]
    return np.concatenate([np.arange(0), *starts]).astype(np.int64)


def consecutive(lengths: Sequence[int]) -> Array:
    return np.concatenate([np.arange(0), *(np.arange(length) + 3 for length in lengths)]).astype(np.int64)


def expected(inputs: dict[str, Array], attributes: dict[str, AttributeValue]) -> Array:
    names = ("num_heads", "importance", "scale", "window", "global_tokens", "queries")
    chosen = {name: attributes[name] for name in names if name in attributes}
    arrays = {name: inputs[name] for name in ("query", "key", "cu_seqlens", "positions") if name in inputs}
    return attention_importance(**arrays, **chosen)  # type: ignore[arg-type]


def band_attributes(band: tuple[int, int], **more: AttributeValue) -> dict[str, AttributeValue]:
    return {"num_heads": 2, "window": band[0], "global_tokens": band[1], **more}
