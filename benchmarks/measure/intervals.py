"""Shares of documents with Wilson's 95 % intervals."""

from typing import Any

import numpy as np
from scipy.stats import binomtest


def share(hits: Any) -> dict[str, float]:
    """Share of hits and its interval.

    Args:
        hits: bool `[documents]`.

    Returns:
        `share`, `low`, `high`, and the number of documents as `documents`.
    """
    hits = np.asarray(hits)
    interval = binomtest(int(hits.sum()), len(hits)).proportion_ci(method="wilson")
    return {"share": float(hits.mean()), "low": interval.low, "high": interval.high, "documents": len(hits)}
