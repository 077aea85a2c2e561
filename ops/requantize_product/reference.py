"""RequantizeProduct in NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.dequantize_product.reference import dequantize_product
from attenuator.ops.quantize_rows.reference import quantize_rows


def requantize_product(
    sums: NDArray[np.int32],
    row_scale: NDArray[np.floating[Any]],
    channel_scale: NDArray[np.floating[Any]],
    bias: NDArray[np.floating[Any]] | None = None,
    *,
    activation: str = "none",
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """What the sums of a product in integers stand for, rounded again.

    Args:
        sums: [T, N].
        row_scale: [T].
        channel_scale: [N].
        bias: [N], or None.
        activation: of the node.

    Returns:
        uint8 [T, N], and the scale of each row float32 [T].
    """
    values = dequantize_product(sums, row_scale, channel_scale, bias, activation=activation)
    return quantize_rows(values.astype(np.float32))
