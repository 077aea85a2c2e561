"""BlendRows in NumPy, float64."""

import numpy as np


def blend_rows(value: np.ndarray, cu_seqlens: np.ndarray, reach: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """output_i = (1 - alpha) mean of value_j over |i - j| <= reach (0: all j) + alpha value_i; `[T, C]`."""
    output = np.zeros(value.shape)
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        for i in range(begin, end):
            low, high = (begin, end) if reach[b] == 0 else (max(begin, i - reach[b]), min(end, i + reach[b] + 1))
            mean = value[low:high].mean(axis=0, dtype=np.float64)
            output[i] = (1 - float(alpha[b])) * mean + float(alpha[b]) * value[i]
    return output
