"""Which tables of YosoAttention hold rounded values where `table_precision` is int16, and how they are rounded.

Kernels and reference read the same constants: `ops/codegen.py` writes them into `yoso_rule.gen.h` (`ROUNDED_HIGH`
becomes `kRoundedHigh`); paths.cc has `rounds` in C++. The rule depends on a sequence's own length and knobs and on
attributes alone, not on the instruction set, so that a sequence gets the same bits everywhere.
"""

# A value is a whole number of steps of at most this: a step is its column's largest magnitude over it.
ROUNDED_HIGH = 127
# A column whose largest magnitude is smaller has the steps of this one, so that their inverse is finite.
SMALLEST_COLUMN = 1e-30
# Sums of so many values fit 16 bits: 258 * 127 < 2^15.
SHORT_KEYS = 258
# Longer sequences keep float32: the sums over 64 tables, a chunk of hashes, of 2^18 keys fit 32 bits.
ROUNDED_KEYS = 1 << 18

# Up to which length comparing all pairs of codes takes no more time than tables, measured at value_dim 64, hash_bits 4
# to 12 and 4 to 128 hashes on Intel and AMD, which differ by a fifth: COUNT_START keys, COUNT_BITS more for each bit of
# a code above 4, to 8, and a slope for each hash, to COUNT_HASHES. Comparing pays the longer, the more hashes share its
# fixed cost and the fewer pairs collide; narrow values make tables cheap. That is for tables of float32 and AVX-512;
# ROUNDED_PERCENT of it for rounded ones: with less, AVX-512 lost a tenth at 256 keys and 32 hashes.
COUNT_START = 64
COUNT_BITS = 28
COUNT_HASHES = 40
COUNT_SLOPE_TO_6 = 2
COUNT_SLOPE_TO_8 = 6
COUNT_SLOPE_ABOVE = 14
ROUNDED_PERCENT = 80


def rounds(num_queries: int, num_keys: int, num_hashes: int, hash_bits: int, value_dim: int) -> bool:
    """Whether a sequence's values are rounded where the attribute asks for it: where tables are used at all."""
    if num_hashes == 0 or num_queries == 1 or num_keys > ROUNDED_KEYS:
        return False
    slope = COUNT_SLOPE_TO_6 if hash_bits <= 6 else COUNT_SLOPE_TO_8 if hash_bits <= 8 else COUNT_SLOPE_ABOVE
    limit = COUNT_START + COUNT_BITS * min(max(hash_bits - 4, 0), 4) + slope * min(num_hashes, COUNT_HASHES)
    return num_keys > limit * ROUNDED_PERCENT * min(value_dim + 16, 80) // 8000
