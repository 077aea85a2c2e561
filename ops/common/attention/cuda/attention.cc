// The list of tiles of a batch, and the launches over it.
#include "ops/common/attention/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace attenuator::attention {

std::vector<Item> ItemsOf(const Sequences& sequences, const Sequences& unmerged, bool first) {
  std::vector<Item> items;
  for (std::int64_t b = 0; b < sequences.batch; ++b) {
    const auto begin = static_cast<std::int32_t>(sequences.begin(b));
    const auto length = static_cast<std::int32_t>(sequences.length(b));
    const auto rows = static_cast<float>(RowsOfLast(unmerged, sequences, b));
    items.push_back({.begin = begin,
                     .length = length,
                     .query_row = first ? static_cast<std::int32_t>(b) : begin,
                     .first_tile = 0,
                     .last_key_log2 = std::log2(rows)});
  }
  return items;
}

const KeyRange* RangesOf(cuda::DeviceContext& context, const TensorView& positions,
                         const Sequences& sequences, std::int64_t window) {
  if (!positions.present() || window == 0 || sequences.total == 0) return nullptr;
  KeyRange* const ranges = context.ScratchArray<KeyRange>(sequences.total);
  cuda::ForBatches(ItemsOf(sequences, sequences, false), [&](const cuda::Batch<Item>& batch) {
    LaunchRanges(batch, positions.int64s(), static_cast<int>(window), ranges, context.stream());
  });
  return ranges;
}

void Attend(ElementType data, Call call, std::vector<Item> items, bool first, cuda::Stream stream) {
  const auto aligned = [](const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) % 16 == 0;
  };
  call.vector = call.head_dim % 8 == 0 && call.value_dim % 8 == 0 && aligned(call.query) &&
                aligned(call.key) && aligned(call.value) && aligned(call.output) &&
                aligned(call.terms.pos_key) && aligned(call.terms.pos_query);
  call.first = first;
  std::vector<Item> first_rows;
  if (first) {
    first_rows.swap(items);
  } else {
    for (const Item& item : items) {
      // By positions, any two rows may be further apart than the window: the device looks.
      const int span = call.ranges == nullptr ? call.window : 0;
      const bool narrow = call.window > 0 && span < item.length - 1;
      if (narrow && call.global_token) first_rows.push_back(item);
    }
  }
  // Blocks start in order. Long sequences come first, so that their blocks do not run last, alone.
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.length > b.length; });
  const int rows = TileRows(data, call);
  std::int32_t tiles = 0;
  for (Item& item : items) {
    item.first_tile = tiles;
    tiles += (item.length + rows - 1) / rows;
  }
  cuda::ForBatches(items, [&](const cuda::Batch<Item>& batch) {
    const Item& last = batch.items[batch.count - 1];
    const int end = last.first_tile + (last.length + rows - 1) / rows;
    LaunchTiles(data, batch, end - batch.items[0].first_tile, call, stream);
  });
  cuda::ForBatches(first_rows, [&](const cuda::Batch<Item>& batch) {
    LaunchFirstRows(data, batch, call, stream);
  });
}

}  // namespace attenuator::attention
