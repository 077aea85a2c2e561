// Windows by positions on CUDA: the keys inside each row's window, as RangesOf of
// ops/common/attention/importance.h has them.
//
// One thread a row. Positions ascend, so the keys in range are one run of rows: two binary searches
// find its ends, each among the `window` rows on that side of the row, or all where these are
// fewer. All heads, tiles and kernels of the node then read 8 bytes a row in place of positions.
#include "ops/common/attention/cuda/tile.h"

namespace attenuator::attention {
namespace {

constexpr int kThreads = 128;

__global__ __launch_bounds__(kThreads) void Ranges(cuda::Batch<Item> batch,
                                                   const std::int64_t* positions, int window,
                                                   KeyRange* ranges) {
  const Item item = batch.items[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= item.length) return;
  const std::int64_t* places = positions + item.begin;
  // Unsigned, since positions of any size are allowed and ascend.
  const auto reach = static_cast<std::uint64_t>(window);
  const auto own = static_cast<std::uint64_t>(places[i]);
  int low = window < i ? i - window : 0;  // the first row in range is in [low, last]
  for (int last = i; low < last;) {
    const int middle = low + (last - low) / 2;
    if (own - static_cast<std::uint64_t>(places[middle]) > reach) {
      low = middle + 1;
    } else {
      last = middle;
    }
  }
  int high = i + 1;  // the first row beyond the range is in [high, last]
  for (int last = window < item.length - high ? high + window : item.length; high < last;) {
    const int middle = high + (last - high) / 2;
    if (static_cast<std::uint64_t>(places[middle]) - own > reach) {
      last = middle;
    } else {
      high = middle + 1;
    }
  }
  ranges[item.begin + i] = {low, high};
}

}  // namespace

void LaunchRanges(const cuda::Batch<Item>& batch, const std::int64_t* positions, int window,
                  KeyRange* ranges, cuda::Stream stream) {
  int longest = 0;
  for (int i = 0; i < batch.count; ++i) longest = max(longest, batch.items[i].length);
  const dim3 grid(static_cast<unsigned>((longest + kThreads - 1) / kThreads),
                  static_cast<unsigned>(batch.count));
  cuda::Launch("attention, windows by positions", Ranges, grid, kThreads, 0, stream, batch,
               positions, window, ranges);
}

}  // namespace attenuator::attention
