// Values on their way into a state, and quotients on their way out, for any Simd.
#include "ops/common/attention/cpu/product.inl"
#include "ops/common/features/cpu/state.h"

namespace attenuator::features {
namespace {

using attention::Smaller;
using attention::Vector;

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLeast = -87.0f;  // below this e^x is taken as 0: it nears 2^-126, the least normal

// The values with a 1 behind each row, zeros behind that.
void ValueRows(HeadRows rows, std::int64_t count, std::int64_t value_dim, float* values) {
  const std::int64_t columns = StateColumns(value_dim);
  for (std::int64_t i = 0; i < count; ++i) {
    float* to = values + i * columns;
    __builtin_memcpy(to, rows.data + i * rows.stride, sizeof(float) * value_dim);
    to[value_dim] = 1.0f;
    for (std::int64_t c = value_dim + 1; c < columns; ++c) to[c] = 0.0f;
  }
}

// output[c] = row[c] / denominator, 0 where that is 0.
void Divide(const float* row, float denominator, std::int64_t value_dim, float* output) {
  const Vector all = Simd::Set(denominator), zero = Simd::Zero();
  for (std::int64_t c = 0; c < value_dim; c += Simd::kWidth) {
    const Vector y = denominator == 0.0f ? zero : Simd::Div(Simd::Load(row + c), all);
    Simd::StoreFirst(output + c, y, Smaller(Simd::kWidth, value_dim - c));
  }
}

}  // namespace
}  // namespace attenuator::features
