// Which blocks of keys each block of queries of BigBirdAttention sees.
#pragma once

#include <cstdint>
#include <vector>

#include "bigbird_rule.gen.h"

namespace attenuator::bigbird {

// Blocks of a sequence of `length` rows: the last one has the rows that are left, at least one.
struct Blocks {
  std::int64_t length;
  std::int64_t size;

  std::int64_t count() const { return (length + size - 1) / size; }
  std::int64_t begin(std::int64_t block) const { return block * size; }
  std::int64_t end(std::int64_t block) const {
    return begin(block + 1) < length ? begin(block + 1) : length;
  }
};

// Whether every row sees every key (is_full in rule.py). Where not, there are more blocks than
// anything below needs.
constexpr bool IsFull(std::int64_t length, std::int64_t random_blocks, std::int64_t size) {
  return random_blocks == 0 || length <= (kFixedBlocks + 2 * random_blocks) * size;
}

// Where a head's random blocks come from.
struct Draws {
  std::int64_t seed;
  std::uint32_t layer;
  std::uint32_t head;
  bool first;  // none are drawn: the first block once more for each
};

// Blocks that a query block sees beside the first and the last one: its own and its neighbours,
// then `random_blocks` others, the first of which are those of a larger number. 0 < query_block <
// count - 1.
void OtherBlocks(std::int64_t query_block, std::int64_t count, std::int64_t random_blocks,
                 const Draws& draws, std::vector<std::int64_t>& others);

}  // namespace attenuator::bigbird
