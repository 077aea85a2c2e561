#include "ops/bigbird/blocks.h"

#include <algorithm>

#include "ops/common/philox.h"

namespace attenuator::bigbird {
namespace {

static_assert(static_cast<std::int64_t>(Stream::kBigBirdBlocks) == kBlocksStream);

// Word `index` of a query block's stream: blocks of four words lie 2^32 apart, query blocks beside
// one another.
std::uint32_t Word(const Draws& draws, std::int64_t query_block, std::int64_t index) {
  const std::uint64_t block = static_cast<std::uint64_t>(index / 4) << 32 | query_block;
  return StreamBlock(draws.seed, draws.layer, draws.head, Stream::kBigBirdBlocks, block)
      .word[index % 4];
}

}  // namespace

void OtherBlocks(std::int64_t query_block, std::int64_t count, std::int64_t random_blocks,
                 const Draws& draws, std::vector<std::int64_t>& others) {
  others.clear();
  const std::int64_t low = std::max<std::int64_t>(query_block - 1, 1);
  const std::int64_t high = std::min(query_block + 1, count - 2);
  for (std::int64_t block = low; block <= high; ++block) others.push_back(block);
  if (draws.first) {
    others.insert(others.end(), random_blocks, 0);
    return;
  }
  std::vector<std::int64_t> taken{0};  // in ascending order
  taken.insert(taken.end(), others.begin(), others.end());
  taken.push_back(count - 1);
  for (std::int64_t index = 0; index < random_blocks; ++index) {
    // Of the blocks that are left, in ascending order, one by its number.
    const std::uint64_t left = static_cast<std::uint64_t>(count) - taken.size();
    std::int64_t block = static_cast<std::int64_t>(Word(draws, query_block, index) * left >> 32);
    auto place = taken.begin();
    for (; place != taken.end() && *place <= block; ++place) ++block;
    taken.insert(place, block);
    others.push_back(block);
  }
}

}  // namespace attenuator::bigbird
