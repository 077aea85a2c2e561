// TokenSelect: the rows of each sequence of a packed batch that matter most, in their order.
//
// Two loops over tasks. The first has one task a sequence: a key of 64 bits for each row but the
// first, its importance above its inverted position, so that no two are equal and the larger one is
// kept; std::nth_element finds the last key to be kept in linear time, and one pass in order writes
// the places of those not below it. The second copies the rows, in blocks of about 64 KiB, which
// many threads share where one sequence is long. Memory traffic: one read of the importances, 8
// bytes a row for the keys, one read and one write of the kept rows.
//
// A sequence's choice depends on its own importances alone: the same bits at any thread count and
// in any batch.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "ops/common/aligned.h"
#include "ops/common/registry.h"
#include "ops/select/inputs.h"
#include "ops/select/order.h"

namespace attenuator::select {
namespace {

using Spec = spec::TokenSelect;

constexpr std::int64_t kBlockFloats = 1 << 14;

// Writes the places of the `count` rows kept of `length`, 1 <= count <= length; row 0 lies at
// `begin`.
void Choose(const float* importance, std::int64_t begin, std::int64_t length, std::int64_t count,
            std::int64_t* places) {
  if (count == length) {
    std::iota(places, places + count, begin);
    return;
  }
  *places++ = begin;
  if (count == 1) return;
  const AlignedArray<std::uint64_t> keys = MakeAligned<std::uint64_t>(2 * length);
  for (std::int64_t i = 1; i < length; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, importance + begin + i, sizeof bits);
    keys[i] = (static_cast<std::uint64_t>(Order(bits)) << 32) | static_cast<std::uint32_t>(~i);
  }
  std::uint64_t* sorted = keys.get() + length;
  std::uint64_t* last = sorted + count - 2;
  std::copy_n(keys.get() + 1, length - 1, sorted);
  std::nth_element(sorted, last, sorted + length - 1, std::greater<>());
  const std::uint64_t least = *last;
  for (std::int64_t i = 1; i < length; ++i) {
    if (keys[i] >= least) *places++ = begin + i;
  }
}

class TokenSelectKernel final : public Kernel {
 public:
  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context);
    const std::int64_t columns = inputs.rows.columns(), total = inputs.kept.total;
    auto* kept = static_cast<float*>(context.Output(Spec::kKeptOutput, {total, columns}));
    auto* places = static_cast<std::int64_t*>(context.Output(Spec::kPlacesOutput, {total}));
    context.threads().For(inputs.sequences.batch, [&](std::int64_t b) {
      if (inputs.sequences.length(b) == 0) return;
      Choose(inputs.importance.floats(), inputs.sequences.begin(b), inputs.sequences.length(b),
             inputs.kept.length(b), places + inputs.kept.begin(b));
    });
    const std::int64_t block =
        std::max<std::int64_t>(1, kBlockFloats / std::max<std::int64_t>(1, columns));
    context.threads().For((total + block - 1) / block, [&](std::int64_t task) {
      const std::int64_t end = std::min(total, (task + 1) * block);
      for (std::int64_t k = task * block; k < end; ++k) {
        std::copy_n(inputs.rows.floats() + places[k] * columns, columns, kept + k * columns);
      }
    });
  }
};

}  // namespace
}  // namespace attenuator::select

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::TokenSelect>(const NodeReader&) {
  return std::make_unique<select::TokenSelectKernel>();
}

}  // namespace attenuator
