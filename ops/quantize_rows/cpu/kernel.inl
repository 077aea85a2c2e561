// QuantizeRows for any Simd. The file that includes this one says how a register of integers
// becomes bytes (StoreBytes, StoreFirstBytes).
//
// A thread owns whole rows and reads each of them twice, the second time from the cache: for its
// largest magnitude, then to round it. Memory traffic is one read of the rows, a quarter of it
// written as bytes, and a float a row.
//
// The largest magnitude is that of the bits of |x|, which order as the numbers do with infinities
// and NaNs above the rest, so that one maximum of integers finds the scale and whether the row is
// finite, in any order. The scale of a row that is not finite is NaN: whatever is multiplied by it
// says so, and its bytes are 0.
//
// x / scale is the quotient rounded as IEEE division rounds it, since ONNX's QuantizeLinear divides
// and a quotient near a half would go the other way: x * (1 / scale), and the remainder of that,
// which fma gives exactly, times 1 / scale once more (Markstein, IBM Journal of Research and
// Development 34, 1990). Division takes 16 cycles for 16 floats, these three
// instructions take 1.5. No quotient exceeds 127 by more than its rounding, so bytes never
// saturate.
#include "ops/quantize_rows/cpu/kernel.h"
#include "quantize_rows_rule.gen.h"

namespace attenuator::quantize_rows {
namespace {

using Vector = Simd::Vector;
using Integers = Simd::Integers;

constexpr std::int64_t kWidth = Simd::kWidth;
constexpr std::int32_t kInfinityBits = 0x7F800000;

std::int32_t LargestBits(const float* row, std::int64_t columns) {
  Integers most[4];
  for (Integers& each : most) each = Simd::Set(0);
  std::int64_t c = 0;
  for (; c + 4 * kWidth <= columns; c += 4 * kWidth) {
    for (int i = 0; i < 4; ++i) {
      most[i] = Simd::Max(most[i], Simd::AbsBits(Simd::Load(row + c + i * kWidth)));
    }
  }
  for (; c < columns; c += kWidth) {
    const std::int64_t remaining = columns - c;
    const Vector x = remaining < kWidth ? Simd::LoadFirst(row + c, remaining) : Simd::Load(row + c);
    most[0] = Simd::Max(most[0], Simd::AbsBits(x));
  }
  return Simd::Largest(Simd::Max(Simd::Max(most[0], most[1]), Simd::Max(most[2], most[3])));
}

float ScaleOf(std::int32_t largest_bits) {
  if (largest_bits >= kInfinityBits) return __builtin_nanf("");
  float high;
  __builtin_memcpy(&high, &largest_bits, sizeof high);
  return high * static_cast<float>(1.0 / kHigh) + static_cast<float>(kTiny);
}

struct Divisor {
  Vector inverse;
  Vector negative;

  explicit Divisor(float scale) : inverse(Simd::Set(1.0f / scale)), negative(Simd::Set(-scale)) {}

  Integers Rounded(Vector x) const {
    const Vector near = Simd::Mul(x, inverse);
    const Vector quotient = Simd::Fma(Simd::Fma(near, negative, x), inverse, near);
    return Simd::Add(Simd::Round(quotient), Simd::Set(std::int32_t{kZeroPoint}));
  }
};

void QuantizeRows(const float* rows, std::int64_t count, std::int64_t columns,
                  std::uint8_t* quantized, float* scale) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float* const row = rows + i * columns;
    std::uint8_t* const bytes = quantized + i * columns;
    scale[i] = ScaleOf(LargestBits(row, columns));
    const Divisor divisor(scale[i]);
    std::int64_t c = 0;
    for (; c + kWidth <= columns; c += kWidth) {
      StoreBytes(bytes + c, divisor.Rounded(Simd::Load(row + c)));
    }
    if (c < columns) {
      const std::int64_t remaining = columns - c;
      StoreFirstBytes(bytes + c, divisor.Rounded(Simd::LoadFirst(row + c, remaining)), remaining);
    }
  }
}

}  // namespace
}  // namespace attenuator::quantize_rows
