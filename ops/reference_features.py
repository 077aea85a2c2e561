"""Random directions of PerformerAttention and RfaAttention in NumPy, float64: what ops/common/features draws.

Sources: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (Philox); Choromanski et al., "Rethinking
Attention with Performers", ICLR 2021, section 2.4 (orthogonal directions).
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

__all__ = ["PERFORMER_STREAM", "RFA_STREAM", "directions", "orthogonal_directions"]

PERFORMER_STREAM, RFA_STREAM = 7, 8  # Stream in ops/common/philox.h
ROUNDS = 10


def words(seed: int, layer: int, head: int, stream: int, count: int) -> NDArray[np.uint64]:
    """The first words of a stream of Philox4x32-10, `[count]`, 32 bits each."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    c0, c1 = blocks & low, np.full_like(blocks, stream << 24)
    c2, c3 = np.full_like(blocks, head), np.full_like(blocks, layer)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(ROUNDS):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> half) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).reshape(-1)[:count]


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
    drawn = words(seed, layer, head, stream, num_features * head_dim)
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
