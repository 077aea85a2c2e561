"""PyTorch's scaled dot product attention on the CPU, where torch is installed."""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DTYPES = {"torch fp32": "float32", "torch bf16": "bfloat16"}


def available() -> bool:
    """Whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def attention(query: Array, key: Array, value: Array, num_heads: int, dtype: str) -> Callable[[], Any]:
    """`scaled_dot_product_attention` on one thread.

    Args:
        query: float32 `[n, num_heads * head_dim]`.
        key: as query.
        value: as query.
        num_heads: attention heads.
        dtype: torch's name of the type it computes in. Inputs are converted and laid out beforehand, as torch likes
            them best: `[1, num_heads, n, head_dim]`.

    Returns:
        What runs it and returns a tensor `[1, num_heads, n, head_dim]`.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(1)

    def laid_out(rows: Array) -> torch.Tensor:
        heads = rows.reshape(len(rows), num_heads, -1).transpose(1, 0, 2)
        return torch.from_numpy(np.ascontiguousarray(heads))[None].to(getattr(torch, dtype))

    queries, keys, values = (laid_out(rows) for rows in (query, key, value))

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return scaled_dot_product_attention(queries, keys, values)

    return run


def as_rows(result: Any) -> Array:
    """`[1, num_heads, n, head_dim]` to float32 `[n, num_heads * head_dim]`."""
    heads = result[0].float().numpy()
    return np.ascontiguousarray(heads.transpose(1, 0, 2)).reshape(heads.shape[1], -1)
