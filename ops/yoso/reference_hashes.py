"""YosoAttention's hash codes in NumPy: integer arithmetic, which equals the C++ ones bit for bit.

Sources: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (Philox); Zeng et al., "You Only Sample
(Almost) Once", ICML 2021, section 3.2 and appendix 1.1.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.yoso.gaussian_table import thresholds

Hash = Literal["gaussian", "hadamard"]
Codes = NDArray[np.int64]
PhiloxWords = NDArray[np.uint32]

Side = Literal["query", "key"]

PLANES_STREAM = 0
SIGNS_STREAM = 1
LIFT_STREAM = 4
LARGEST_LIFT = np.float32(2.0**22)  # of an added coordinate, in steps of its row's rounding
SMALLEST_MAXIMUM = np.float32(1e-30)  # rows smaller than this are quantised as if this were their largest value


def philox(key: int, counter: NDArray[np.uint64]) -> PhiloxWords:
    """Philox4x32-10.

    Args:
        key: 64 bits.
        counter: `[blocks, 4]`, 32 bits in each.

    Returns:
        `[blocks, 4]` words.
    """
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (counter[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            p1 & low,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            p0 & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def stream(seed: int, layer: int, head: int, purpose: int, blocks: int) -> PhiloxWords:
    """The first `4 * blocks` words of the stream (seed, layer, head, purpose)."""
    counter = np.zeros((blocks, 4), np.uint64)
    counter[:, 0] = np.arange(blocks)
    counter[:, 1], counter[:, 2], counter[:, 3] = purpose << 24, head, layer
    return philox(seed, counter).reshape(-1)


def gaussian_planes(
    seed: int, layer: int, head: int, num_planes: int, head_dim: int, purpose: int = PLANES_STREAM
) -> NDArray[np.int64]:
    """Twice the planes p + 1/2: odd integers, in units of 1/64 standard deviation.

    Args:
        seed: of the sequence.
        layer: of the node.
        head: index.
        num_planes: hashes times bits.
        head_dim: coordinates of a plane.
        purpose: stream that they come from.

    Returns:
        `[num_planes, head_dim]`; plane hash * hash_bits + bit, coordinate d comes from half-word
        plane * head_dim + d of the stream, low half first.
    """
    count = num_planes * head_dim
    words = stream(seed, layer, head, purpose, (count + 7) // 8)
    halves = np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1)[:count].astype(np.int64)
    upper = halves >= 2**15
    magnitude = np.where(upper, halves - 2**15, 2**15 - 1 - halves)
    steps = np.searchsorted(np.asarray(thresholds()), magnitude, side="right")
    return np.where(upper, 2 * steps + 1, -2 * steps - 1).reshape(num_planes, head_dim)


def steps_per_unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """`127 / max|x|` of each row in float32, `[n, 1]`: its values are rounded to steps of the inverse."""
    largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), SMALLEST_MAXIMUM)
    steps: NDArray[np.float32] = np.float32(127) / largest
    return steps


def quantise(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """`rint(x * (127 / max|x|))` of each row in float32, ties to even: integers in [-127, 127]."""
    rounded: NDArray[np.int64] = np.rint(rows * steps_per_unit(rows)).astype(np.int64)
    return rounded


def half_lift(rows: NDArray[np.float32], norm_lift: float) -> NDArray[np.int64]:
    """Half the coordinate that the norm lift adds to each row, in steps of the row's rounding.

    sqrt(norm_lift - |x|^2), or 0 where a row is longer than that, with |x|^2 as it is after rounding. Half, since
    planes are odd integers over 2.

    Args:
        rows: `[n, head_dim]`.
        norm_lift: bound on the squared norms.

    Returns:
        `[n, 1]` integers up to 2^21: what is more than 33,000 times the row's largest value stays there.
    """
    with np.errstate(over="ignore"):
        bound = np.minimum(np.sqrt(np.float32(norm_lift)) * steps_per_unit(rows), LARGEST_LIFT)
    squares = (quantise(rows) ** 2).sum(axis=1, keepdims=True)
    # float64 holds the difference exactly, so that this is one rounding, as fma's.
    rest = np.maximum(bound.astype(np.float64) ** 2 - squares, 0).astype(np.float32)
    half: NDArray[np.int64] = np.rint(np.sqrt(rest) * np.float32(0.5)).astype(np.int64)
    return half


def hadamard(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The unnormalised Walsh-Hadamard transform in natural order along the last axis, a power of two long."""
    size = columns.shape[-1]
    half = 1
    while half < size:
        pairs = columns.reshape(*columns.shape[:-1], size // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        columns = np.stack([first + second, first - second], axis=-2).reshape(columns.shape)
        half *= 2
    return columns


def uneven(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """`hadamard` with steps (2a + b, a - 2b) in place of (a + b, a - b): orthogonal but for its scale as well.

    Its entries are powers of two, not all 1. After it a row with few nonzeros no longer has few distinct values, of
    which the Walsh-Hadamard transform alone makes equal sums, zeros among them, too often.
    """
    size = columns.shape[-1]
    half = 1
    while half < size:
        pairs = columns.reshape(*columns.shape[:-1], size // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        columns = np.stack([2 * first + second, first - 2 * second], axis=-2).reshape(columns.shape)
        half *= 2
    return columns


def transformed(rows: NDArray[np.int64], signs: NDArray[np.int64]) -> NDArray[np.int64]:
    """H D3 H D2 U D1 x for each row x `[n, d]` with the three diagonals `signs` `[3, d]` of +-1, U `uneven`."""
    first, second, third = signs
    return hadamard(hadamard(uneven(rows * first) * second) * third)


def untied(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each coordinate where it is not 0, else the next one's sign, else that of the one after (cyclic).

    Rows of one nonzero meet a 0 (0.3 % of the coordinates at d = 32); calling it negative for query and key alike would
    make them agree too often.
    """
    signs = np.sign(values)
    broken: NDArray[np.int64] = 4 * values + 2 * np.roll(signs, -1, axis=-1) + np.roll(signs, -2, axis=-1)
    return broken


def sign_diagonals(seed: int, layer: int, head: int, blocks: int, size: int) -> NDArray[np.int64]:
    """+-1 `[blocks, 3, size]` from the bits of the stream, low bit first; a set bit is a minus."""
    count = blocks * 3 * size
    words = stream(seed, layer, head, SIGNS_STREAM, (count + 127) // 128)
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    return (1 - 2 * bits.reshape(-1)[:count].astype(np.int64)).reshape(blocks, 3, size)


def padded(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Zero columns up to the next power of two, 32 at least: smaller blocks have too few sign patterns."""
    size = max(32, 1 << (rows.shape[1] - 1).bit_length())
    return np.pad(rows, ((0, 0), (0, size - rows.shape[1])))


def lift_planes(seed: int, layer: int, head: int, num_planes: int, side: Side) -> NDArray[np.int64]:
    """Twice the planes' coordinate that the norm lift adds to queries, or that to keys: `[num_planes]` odd integers."""
    return gaussian_planes(seed, layer, head, num_planes, 2, LIFT_STREAM)[:, 0 if side == "query" else 1]


def hadamard_lift(planes: NDArray[np.int64], size: int) -> NDArray[np.float32]:
    """What half a step of lift weighs beside 4 times the coordinates of `transformed`, whose rows have this length.

    The entries of H D3 H D2 U D1 are 10^(log2(size) / 2) in the root mean square; planes are in 1/64 of a standard
    deviation, and a lift counts halves: 4 * 2 / 64 = 1/8.
    """
    scale = np.float32(10 ** (np.log2(size) / 2) / 8)
    weights: NDArray[np.float32] = scale * planes.astype(np.float32)
    return weights


def codes(
    rows: NDArray[np.float32],
    seed: int,
    layer: int,
    head: int,
    num_hashes: int,
    hash_bits: int,
    hash: Hash,
    norm_lift: float = 0.0,
    side: Side = "query",
) -> Codes:
    """Hash codes of one head's rows.

    Args:
        rows: `[n, head_dim]`, float32, finite.
        seed: of the sequence.
        layer: of the node.
        head: index.
        num_hashes: m in the paper.
        hash_bits: tau in the paper.
        hash: `gaussian`, or `hadamard` in the interleaved, unbiased layout: bit i of hash t is coordinate t mod d of
            block (t // d) * hash_bits + i, a 0 there replaced as `untied` says.
        norm_lift: bound on the squared norms of rows (appendix 1.1), which get a coordinate more; 0 for none.
        side: which of the two coordinates that is, whose planes are drawn independently.

    Returns:
        `[n, num_hashes]` in [0, 2^hash_bits): bit i is set where the projection on plane i is strictly positive.
    """
    data = quantise(rows)
    num_planes = num_hashes * hash_bits
    lift = half_lift(rows, norm_lift) if norm_lift else np.zeros((len(rows), 1), np.int64)
    lifting = lift_planes(seed, layer, head, num_planes, side) if norm_lift else np.zeros(num_planes, np.int64)
    if hash == "gaussian":
        planes = gaussian_planes(seed, layer, head, num_planes, rows.shape[1])
        bits = (data @ planes.T + 2 * lift * lifting > 0).reshape(len(rows), num_hashes, hash_bits)
    else:
        data = padded(data)
        size = data.shape[1]
        parts = -(-num_hashes // size)
        signs = sign_diagonals(seed, layer, head, parts * hash_bits, size)
        values = np.stack([transformed(data, block) for block in signs], axis=1)
        by_block = untied(values).reshape(len(rows), parts, hash_bits, size)
        by_hash = by_block.transpose(0, 1, 3, 2).reshape(len(rows), parts * size, hash_bits)[:, :num_hashes]
        against = -hadamard_lift(lifting, size) * lift.astype(np.float32)
        bits = by_hash.astype(np.float32) > against.reshape(len(rows), num_hashes, hash_bits)
    whole: Codes = (bits << np.arange(hash_bits)).sum(axis=2)
    return whole


def paper_hadamard_codes(rows: NDArray[np.float32], seed: int, num_hashes: int, hash_bits: int) -> Codes:
    """The layout of the paper's published code, for comparison only: it is biased.

    A code is cut from hash_bits neighbouring coordinates of one block, whose rows are mutually orthogonal, so
    collisions are rarer than (1 - angle / pi)^hash_bits. `[n, num_hashes]`; needs hash_bits <= the padded head_dim.
    """
    data = padded(quantise(rows))
    size = data.shape[1]
    per_block = size // hash_bits
    blocks = -(-num_hashes // per_block)
    signs = sign_diagonals(seed, 0, 0, blocks, size)
    blocks_of_values = []
    for block in signs:
        values = data
        for diagonal in block:
            values = hadamard(values * diagonal)
        blocks_of_values.append(values[:, : per_block * hash_bits])
    bits = (np.stack(blocks_of_values, axis=1) > 0).reshape(len(rows), blocks * per_block, hash_bits)[:, :num_hashes]
    whole: Codes = (bits << np.arange(hash_bits)).sum(axis=2)
    return whole
