"""Random directions of PerformerAttention and RfaAttention in NumPy, float64: what ops/common/features draws.

Sources: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (Philox); Choromanski et al., "Rethinking
Attention with Performers", ICLR 2021, section 2.4 (orthogonal directions).
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.yoso.reference_hashes import stream as random_stream

__all__ = ["PERFORMER_STREAM", "RFA_STREAM", "directions", "orthogonal_directions"]

PERFORMER_STREAM, RFA_STREAM = 7, 8  # Stream in ops/common/philox.h


def directions(seed: int, layer: int, head: int, stream: int, num_features: int, head_dim: int) -> NDArray[np.float64]:
    """Standard normal directions.

    Args:
        seed: of the sequence.
        layer: of the node.
        head: index.
        stream: what they are for.
        num_features: how many.
        head_dim: coordinates of each.

    Returns:
        `[num_features, head_dim]`: coordinate c of direction i is the normal quantile at (w + 1/2) / 2^32 for word
        i * head_dim + c of the stream. So the first m of any larger number are those of m.
    """
    count = num_features * head_dim
    drawn = random_stream(seed, layer, head, stream, -(-count // 4)).reshape(-1)[:count]
    quantile = NormalDist().inv_cdf
    normal = np.array([quantile((int(word) + 0.5) / 2**32) for word in drawn])
    return normal.reshape(num_features, head_dim)


def orthogonal_directions(seed: int, layer: int, head: int, num_features: int, head_dim: int) -> NDArray[np.float64]:
    """The same, orthogonal in each block of head_dim of them, in their order (Gram-Schmidt, here by QR).

    Each keeps the length of the normal row that it was made of, which is chi(head_dim) distributed and independent of
    where it and the others point to, so that each direction is standard normal.

    Returns:
        `[num_features, head_dim]`.
    """
    normal = directions(seed, layer, head, PERFORMER_STREAM, num_features, head_dim)
    result = np.empty_like(normal)
    for first in range(0, num_features, head_dim):
        block = normal[first : first + head_dim]
        units, triangle = np.linalg.qr(block.T)
        units *= np.sign(np.diag(triangle))  # Gram-Schmidt takes what is left of a row as it is
        result[first : first + head_dim] = units.T * np.linalg.norm(block, axis=1)[:, None]
    return result
