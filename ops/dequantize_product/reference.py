"""DequantizeProduct in NumPy, float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """A number times the normal distribution's share below it, by erfc, which keeps small tails."""
    share: NDArray[np.float64] = np.vectorize(lambda value: math.erfc(-value / math.sqrt(2)) / 2, otypes=[float])(x)
    return x * share


def gelu_tanh(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Its approximation by tanh (Hendrycks and Gimpel, 2016), by the logistic function, which keeps small tails."""
    twice = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    share: NDArray[np.float64] = np.exp(-np.logaddexp(0, -twice))
    return x * share


ACTIVATIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "none": lambda x: x,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def dequantize_product(
    sums: NDArray[np.int32],
    row_scale: NDArray[np.floating[Any]],
    channel_scale: NDArray[np.floating[Any]],
    bias: NDArray[np.floating[Any]] | None = None,
    residual: NDArray[np.floating[Any]] | None = None,
    norm_weight: NDArray[np.floating[Any]] | None = None,
    norm_bias: NDArray[np.floating[Any]] | None = None,
    *,
    activation: str = "none",
    epsilon: float = 1e-5,
) -> NDArray[np.float64]:
    """What the sums of a product in integers stand for.

    Args:
        sums: [T, N].
        row_scale: [T].
        channel_scale: [N].
        bias: [N], or None.
        residual: [T, N], or None.
        norm_weight: [N], or None where no LayerNormalization follows.
        norm_bias: [N], or None with it.
        activation: of the node.
        epsilon: added to a row's variance.

    Returns:
        [T, N].
    """
    values = sums * row_scale.astype(np.float64)[:, None] * channel_scale.astype(np.float64)
    values = values if bias is None else values + bias
    values = ACTIVATIONS[activation](values)
    values = values if residual is None else values + residual
    return values if norm_weight is None or norm_bias is None else normalized(values, epsilon) * norm_weight + norm_bias


def normalized(rows: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """Rows `[T, N]` of mean 0 and variance 1 (Ba et al., Layer Normalization, 2016)."""
    deviation: NDArray[np.float64] = rows - rows.mean(axis=1, keepdims=True)
    size: NDArray[np.float64] = np.sqrt((deviation**2).mean(axis=1, keepdims=True) + epsilon)
    return deviation / size
