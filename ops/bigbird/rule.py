"""What BigBirdAttention's kernels, reference and cost know alike; `ops/codegen.py` writes the constants for C++."""

# Blocks that a query block sees beside its random ones, at most: the first, the last, its own and its two neighbours.
FIXED_BLOCKS = 5
# Of `Stream` in ops/common/philox.h.
BLOCKS_STREAM = 6


def is_full(tokens: int, num_random_blocks: int, block_size: int) -> bool:
    """Whether a sequence gets full attention: where the knob says so, and where it is too short to draw from."""
    return num_random_blocks == 0 or tokens <= (FIXED_BLOCKS + 2 * num_random_blocks) * block_size
