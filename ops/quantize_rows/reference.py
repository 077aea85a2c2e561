"""QuantizeRows in NumPy, float32: every operation is rounded as the kernel's is, so that its bits are the reference."""

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.quantize_rows.rule import HIGH, TINY, ZERO_POINT


def quantize_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Rounds each row to 8 bits by its largest magnitude.

    Args:
        rows: [T, C].

    Returns:
        uint8 [T, C], and the scale of each row float32 [T]; zeros and NaN for a row that is not finite.
    """
    high = np.abs(rows).max(axis=1, initial=0)
    finite = np.isfinite(high)  # a maximum keeps NaN
    scale = np.where(finite, high * np.float32(1 / HIGH) + np.float32(TINY), np.float32(np.nan))
    quotients = np.where(finite[:, None], rows, 0) / np.where(finite, scale, 1)[:, None]
    quantized = np.where(finite[:, None], np.rint(quotients) + ZERO_POINT, 0)
    return quantized.astype(np.uint8), scale.astype(np.float32)
