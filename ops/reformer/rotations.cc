#include "ops/reformer/rotations.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "ops/common/philox.h"

namespace attenuator::reformer {
namespace {

// Of YosoAttention's planes: the first 15-bit magnitude of each step of 1/32 standard deviation.
constexpr std::uint16_t kThresholds[] = {
#include "ops/yoso/gaussian_table.inc"
};

// 2 p + 1 by 15-bit magnitude, p the steps below it.
const std::array<std::uint8_t, 1 << 15>& Table() {
  static const auto table = [] {
    std::array<std::uint8_t, 1 << 15> values{};
    std::size_t p = 0;
    for (std::size_t w = 0; w < values.size(); ++w) {
      while (p < std::size(kThresholds) && kThresholds[p] <= w) ++p;
      values[w] = static_cast<std::uint8_t>(2 * p + 1);
    }
    return values;
  }();
  return table;
}

}  // namespace

void Rotations(std::int64_t seed, std::int64_t layer, std::int64_t head, std::int64_t round,
               std::int64_t rows, std::int64_t head_dim, float* matrix) {
  const auto& table = Table();
  const std::int64_t count = rows * head_dim;
  for (std::int64_t first = 0; first < count; first += 8) {
    const PhiloxWords words = StreamBlock(
        seed, static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(head),
        Stream::kReformerRotations,
        static_cast<std::uint64_t>(round) << 32 | static_cast<std::uint64_t>(first / 8));
    const std::int64_t some = std::min<std::int64_t>(8, count - first);
    for (std::int64_t i = 0; i < some; ++i) {
      const std::uint32_t half = words.word[i / 2] >> (16 * (i % 2)) & 0xFFFFu;
      // The lower half mirrors the upper one.
      const std::uint32_t flip = (half >> 15) - 1;  // all ones in the lower half
      const float magnitude = table[(half ^ flip) & 0x7FFFu];
      matrix[first + i] = flip == 0 ? magnitude : -magnitude;
    }
  }
}

}  // namespace attenuator::reformer
