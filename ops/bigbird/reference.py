"""BigBirdAttention in NumPy, float64, as plainly as it can be said.

Zaheer et al., "Big Bird", NeurIPS 2020, section 2 and appendix D. Where paper and published code differ: the paper
draws the random blocks from all others, as is done here; the code (google-research/bigbird, and transformers after it)
draws for lengths of 1,024, 3,072 and 4,096 from the first 1,024 positions alone, leaves out a few legal blocks beside
the ends, and draws by NumPy's global generator.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.bigbird.rule import BLOCKS_STREAM, is_full
from attenuator.ops.reference_rows import heads_of_sequences
from attenuator.ops.softmax.reference import probabilities
from attenuator.ops.yoso.reference_hashes import philox

Floats = NDArray[np.floating[Any]]


def random_words(seed: int, layer: int, head: int, query_block: int, count: int) -> list[int]:
    """The first words of a query block's random stream, Philox4x32-10 (Salmon et al., SC 2011)."""
    counter = np.zeros((-(-count // 4), 4), np.uint64)
    counter[:, 0] = query_block
    counter[:, 1] = np.arange(len(counter)) | BLOCKS_STREAM << 24
    counter[:, 2], counter[:, 3] = head, layer
    return [int(word) for word in philox(seed, counter).reshape(-1)[:count]]


def fixed_blocks(query_block: int, num_blocks: int) -> list[int]:
    """Blocks of keys that a query block sees in any case, in ascending order."""
    near = range(max(query_block - 1, 0), min(query_block + 2, num_blocks))
    return sorted({0, num_blocks - 1, *near})


def drawn_blocks(seed: int, layer: int, head: int, query_block: int, num_blocks: int, count: int) -> list[int]:
    """Random blocks of keys, all different and none of the fixed ones, each choice equally likely.

    Args:
        seed: of the sequence.
        layer: of the node.
        head: index.
        query_block: whose.
        num_blocks: of the sequence.
        count: how many; the first of a larger count are those of a smaller one.

    Returns:
        In the order in which they are drawn.
    """
    fixed = fixed_blocks(query_block, num_blocks)
    others = [block for block in range(num_blocks) if block not in fixed]
    words = random_words(seed, layer, head, query_block, count)
    return [others.pop(word * len(others) >> 32) for word in words]


def seen_keys(
    length: int, head: int, *, num_random_blocks: int, seed: int, layer: int, block_size: int, random_blocks: str
) -> NDArray[np.int64]:
    """How often each row of a sequence that is long enough counts each key.

    Args:
        length: n, more than 5 + 2 * num_random_blocks blocks. The last block has the rows that are left.
        head: index.
        num_random_blocks: at least 1.
        seed: of the sequence.
        layer: of the node.
        block_size: rows of a block.
        random_blocks: `drawn` or `first`.

    Returns:
        [n, n]: 0 or 1; with `first` the keys of block 0 count 1 + num_random_blocks for rows of other blocks than the
        first and the last.
    """
    num_blocks = -(-length // block_size)
    times = np.zeros((num_blocks, num_blocks), np.int64)
    for query_block in range(num_blocks):
        if query_block in (0, num_blocks - 1):
            times[query_block] = 1
            continue
        times[query_block, fixed_blocks(query_block, num_blocks)] = 1
        if random_blocks == "first":
            times[query_block, 0] += num_random_blocks
        else:
            times[query_block, drawn_blocks(seed, layer, head, query_block, num_blocks, num_random_blocks)] = 1
    block = np.arange(length) // block_size
    return np.asarray(times[block[:, None], block[None, :]])


def bigbird_attention(
    query: Floats,
    key: Floats,
    value: Floats,
    cu_seqlens: NDArray[np.int32],
    num_random_blocks: NDArray[np.int32],
    seed: NDArray[np.int64],
    *,
    num_heads: int,
    scale: float = 0.0,
    layer: int = 0,
    queries: str = "all",
    block_size: int = 64,
    random_blocks: str = "drawn",
) -> NDArray[np.float64]:
    """Softmax attention of each head of each sequence of a packed batch over the keys that its pattern leaves.

    Args:
        query: [T, num_heads * head_dim]; [B, num_heads * head_dim] where `queries` is `first`.
        key: [T, num_heads * head_dim].
        value: [T, num_heads * value_dim].
        cu_seqlens: [B + 1], offsets of the sequences.
        num_random_blocks: [B], random blocks for each query block; 0 is full attention.
        seed: [B].
        num_heads: heads.
        scale: factor on the scores; 0 means 1/sqrt(head_dim).
        layer: random stream of this node.
        queries: `all`, or `first`: row b is the first row of sequence b, which sees all keys; 0 for an empty sequence.
        block_size: rows of a block.
        random_blocks: `drawn` or `first`.

    Returns:
        [rows of query, num_heads * value_dim].
    """
    output = np.zeros((len(query), value.shape[1]))
    for at in heads_of_sequences(key, value, cu_seqlens, num_heads, queries):
        count = int(num_random_blocks[at.sequence])
        sides = query[at.rows, at.columns], key[at.keys, at.columns]
        weights = probabilities(*sides, scale)
        if queries == "all" and not is_full(at.length, count, block_size):
            seen = seen_keys(
                at.length,
                at.head,
                num_random_blocks=count,
                seed=int(seed[at.sequence]),
                layer=layer,
                block_size=block_size,
                random_blocks=random_blocks,
            )
            weights = probabilities_where(*sides, scale, seen)
        output[at.rows, at.values] = weights @ value[at.keys, at.values].astype(np.float64)
    return output


def probabilities_where(query: Floats, key: Floats, scale: float, times: NDArray[np.int64]) -> NDArray[np.float64]:
    """Softmax of one head over keys that each row counts so many `times`, `[n, n]`, at least one of them."""
    scores = query.astype(np.float64) @ key.astype(np.float64).T * (scale or key.shape[1] ** -0.5)
    scores[times == 0] = -np.inf
    weights = times * np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
