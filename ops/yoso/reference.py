"""YosoAttention in NumPy, slow and readable: the ground truth of its tests.

Codes are integer arithmetic and equal the C++ ones bit for bit; what follows is float64. Sources: Zeng et al., "You
Only Sample (Almost) Once", ICML 2021; Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (Philox).
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.yoso.gaussian_table import thresholds

Hash = Literal["gaussian", "hadamard"]
Array = NDArray[np.float64]
Codes = NDArray[np.int64]
PhiloxWords = NDArray[np.uint32]

PLANES_STREAM = 0
SIGNS_STREAM = 1
NORM_FLOOR = 1e-12
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


def gaussian_planes(seed: int, layer: int, head: int, num_planes: int, head_dim: int) -> NDArray[np.int64]:
    """Twice the planes p + 1/2: odd integers, in units of 1/64 standard deviation.

    Returns:
        `[num_planes, head_dim]`; plane hash * hash_bits + bit, coordinate d comes from half-word
        plane * head_dim + d of the stream, low half first.
    """
    count = num_planes * head_dim
    words = stream(seed, layer, head, PLANES_STREAM, (count + 7) // 8)
    halves = np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1)[:count].astype(np.int64)
    upper = halves >= 2**15
    magnitude = np.where(upper, halves - 2**15, 2**15 - 1 - halves)
    steps = np.searchsorted(np.asarray(thresholds()), magnitude, side="right")
    return np.where(upper, 2 * steps + 1, -2 * steps - 1).reshape(num_planes, head_dim)


def quantise(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """`rint(x * (127 / max|x|))` of each row in float32, ties to even: integers in [-127, 127]."""
    largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), SMALLEST_MAXIMUM)
    rounded: NDArray[np.int64] = np.rint(rows * (np.float32(127) / largest)).astype(np.int64)
    return rounded


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


def codes(
    rows: NDArray[np.float32], seed: int, layer: int, head: int, num_hashes: int, hash_bits: int, hash: Hash
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

    Returns:
        `[n, num_hashes]` in [0, 2^hash_bits): bit i is set where the projection on plane i is strictly positive.
    """
    data = quantise(rows)
    if hash == "gaussian":
        planes = gaussian_planes(seed, layer, head, num_hashes * hash_bits, rows.shape[1])
        bits = (data @ planes.T > 0).reshape(len(rows), num_hashes, hash_bits)
    else:
        data = padded(data)
        size = data.shape[1]
        parts = -(-num_hashes // size)
        signs = sign_diagonals(seed, layer, head, parts * hash_bits, size)
        values = np.stack([transformed(data, block) for block in signs], axis=1)
        by_block = untied(values).reshape(len(rows), parts, hash_bits, size) > 0
        bits = by_block.transpose(0, 1, 3, 2).reshape(len(rows), parts * size, hash_bits)[:, :num_hashes]
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


def unit(rows: NDArray[Any]) -> Array:
    """Each row over max(its l2 norm, 1e-12), in float64."""
    wide = rows.astype(np.float64)
    rows_of_length_one: Array = wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), NORM_FLOOR)
    return rows_of_length_one


def collision_probability(query: NDArray[np.float32], key: NDArray[np.float32], hash_bits: int) -> Array:
    """YOSO-E's weights `(1 - arccos(q . k) / pi)^tau` (section 3.1), `[queries, keys]`."""
    cosine = np.clip(unit(query) @ unit(key).T, -1, 1)
    probability: Array = (1 - np.arccos(cosine) / np.pi) ** hash_bits
    return probability


def convolution(value: NDArray[np.float32], weight: NDArray[np.float32]) -> Array:
    """YOSO-C's depthwise convolution along the sequence, zeros beyond its ends (appendix): `[n, value_dim]`."""
    reach = len(weight) // 2
    wide = np.pad(value.astype(np.float64), ((reach, reach), (0, 0)))
    result: Array = np.zeros(value.shape)
    for tap, factor in enumerate(weight.astype(np.float64)):
        result += factor * wide[tap : tap + len(value)]
    return result


def head_attention(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    *,
    num_hashes: int,
    seed: int,
    layer: int,
    head: int,
    hash_bits: int,
    hash: Hash,
) -> Array:
    """One head of one sequence before normalisation: B V / m, or E V where num_hashes is 0.

    Shapes: query `[queries, head_dim]`, key `[n, head_dim]`, value `[n, value_dim]` to `[queries, value_dim]`.
    """
    if num_hashes == 0:
        return collision_probability(query, key, hash_bits) @ value.astype(np.float64)
    query_codes, key_codes = (codes(rows, seed, layer, head, num_hashes, hash_bits, hash) for rows in (query, key))
    weights = np.zeros((len(query), len(key)))
    for t in range(num_hashes):
        weights += query_codes[:, t, None] == key_codes[None, :, t]
    result: Array = weights @ value.astype(np.float64) / num_hashes
    return result


def yoso_attention(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    cu_seqlens: NDArray[np.int32],
    num_hashes: NDArray[np.int32],
    seed: NDArray[np.int64],
    conv_weight: NDArray[np.float32] | None = None,
    *,
    num_heads: int,
    hash_bits: int,
    layer: int = 0,
    hash: Hash = "gaussian",
    normalize: int = 1,
    queries: Literal["all", "first"] = "all",
) -> Array:
    """The whole operator.

    Args:
        query: `[T, num_heads * head_dim]`, or `[B, num_heads * head_dim]` where queries is `first`.
        key: `[T, num_heads * head_dim]`.
        value: `[T, num_heads * value_dim]`.
        cu_seqlens: `[B + 1]`.
        num_hashes: `[B]`.
        seed: `[B]`.
        conv_weight: `[num_heads, c]`, c odd, or None.
        num_heads: attention heads.
        hash_bits: tau in the paper.
        layer: random stream of the node.
        hash: family of hyperplanes.
        normalize: 1 for N-YOSO's l2 norm per head, 0 for the raw average.
        queries: `all`, or `first` token of each sequence.

    Returns:
        `[T or B, num_heads * value_dim]`.
    """
    head_dim, value_dim = key.shape[1] // num_heads, value.shape[1] // num_heads
    output = np.zeros((len(query), value.shape[1]))
    for b, (start, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        if start == end:
            continue
        target = slice(b, b + 1) if queries == "first" else slice(start, end)
        for head in range(num_heads):
            hashed = slice(head * head_dim, (head + 1) * head_dim)
            valued = slice(head * value_dim, (head + 1) * value_dim)
            q, k, v = query[target, hashed], key[start:end, hashed], value[start:end, valued]
            if not all(np.isfinite(whole).all() for whole in (query[target], key[start:end], value[start:end])):
                output[target] = np.nan
                break
            settings = dict(num_hashes=int(num_hashes[b]), seed=int(seed[b]))
            rows = head_attention(q, k, v, **settings, layer=layer, head=head, hash_bits=hash_bits, hash=hash)
            if normalize:
                rows = unit(rows)
            if conv_weight is not None:
                rows = rows + convolution(v, conv_weight[head])[: len(rows)]
            output[target, valued] = rows
    return output


def yoso_importance(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    cu_seqlens: NDArray[np.int32],
    num_hashes: NDArray[np.int32],
    seed: NDArray[np.int64],
    *,
    num_heads: int,
    hash_bits: int,
    layer: int = 0,
    hash: Hash = "gaussian",
    queries: Literal["all", "first"] = "all",
) -> Array:
    """The output `importance`: the weights of the first row before normalisation, summed over heads.

    Args:
        query: as in `yoso_attention`.
        key: as in `yoso_attention`.
        cu_seqlens: as in `yoso_attention`.
        num_hashes: as in `yoso_attention`.
        seed: as in `yoso_attention`.
        num_heads: attention heads.
        hash_bits: tau in the paper.
        layer: random stream of the node.
        hash: family of hyperplanes.
        queries: `all`, or `first` token of each sequence.

    Returns:
        `[T]`: the share of hashes in which the key's code is that of its sequence's first query, or its expectation
        where num_hashes is 0, summed over heads. NaN where query or key of the sequence are not finite.
    """
    head_dim = key.shape[1] // num_heads
    output = np.zeros(len(key))
    for b, (start, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        row = slice(b, b + 1) if queries == "first" else slice(start, start + 1)
        if not (np.isfinite(query[row]).all() and np.isfinite(key[start:end]).all()):
            output[start:end] = np.nan
            continue
        for head in range(num_heads if end > start else 0):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            first, keys, hashes = query[row, columns], key[start:end, columns], int(num_hashes[b])
            if hashes == 0:
                output[start:end] += collision_probability(first, keys, hash_bits)[0]
            else:
                settings = (int(seed[b]), layer, head, hashes, hash_bits, hash)
                output[start:end] += (codes(keys, *settings) == codes(first, *settings)).mean(axis=1)
    return output
