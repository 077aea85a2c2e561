// TokenSelect: the rows of each sequence of a packed batch that matter most, in their order.
//
// Loops over tasks. The first has one task a sequence: a key of 64 bits for each row but the
// first, its importance above its inverted position, so that no two are equal and the larger one is
// kept; std::nth_element finds the last key to be kept in linear time, and one pass in order writes
// the places of those not below it. The second copies the rows, in blocks of about 64 KiB, which
// many threads share where one sequence is long. Memory traffic: one read of the importances, 8
// bytes a row for the keys, one read and one write of the kept rows. Where the others are merged,
// the place of their mean is that of the last of them, and a third loop over sequences and blocks
// of columns adds them up in float64, row after row: one more read of what is not kept.
//
// A sequence's choice depends on its own importances alone: the same bits at any thread count and
// in any batch.
#include <algorithm>
#include <array>
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
constexpr std::int64_t kMergedColumns = 256;

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

// The same where the last kept row is the mean of those left out. Of a sequence whose last row is a
// mean already that row is left out too.
void ChooseMerging(const Inputs& inputs, std::int64_t b, std::int64_t* places) {
  const std::int64_t begin = inputs.sequences.begin(b), length = inputs.sequences.length(b);
  const std::int64_t kept = inputs.kept.length(b) - 1;
  Choose(inputs.importance.floats(), begin, length - inputs.has_mean(b), kept, places);
  std::int64_t last = begin + length - 1;
  for (std::int64_t k = kept; k > 0 && places[k - 1] == last; --k) --last;
  places[kept] = last;
}

// Columns [first, last) of the mean of the rows of sequence b that are left out.
void Merge(const Inputs& inputs, std::int64_t b, const std::int64_t* places, std::int64_t first,
           std::int64_t last, float* mean) {
  const std::int64_t begin = inputs.sequences.begin(b), columns = inputs.rows.columns();
  const std::int64_t end = begin + inputs.sequences.length(b);
  const std::int64_t kept = inputs.kept.length(b) - 1;
  std::array<double, kMergedColumns> sums{};
  const auto add = [&](std::int64_t row, double times) {
    const float* const values = inputs.rows.floats() + row * columns;
    for (std::int64_t c = first; c < last; ++c) sums[c - first] += times * values[c];
  };
  const std::int64_t own = end - inputs.has_mean(b);
  for (std::int64_t row = begin, k = 0; row < own; ++row) {
    if (k < kept && places[k] == row) {
      ++k;
    } else {
      add(row, 1.0);
    }
  }
  if (own < end) {
    add(own, static_cast<double>(RowsOfLast(inputs.unmerged, inputs.sequences, b)));
  }
  const double rows = static_cast<double>(RowsOfLast(inputs.unmerged, inputs.kept, b));
  for (std::int64_t c = first; c < last; ++c) {
    mean[c] = static_cast<float>(sums[c - first] / rows);
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
      std::int64_t* const own = places + inputs.kept.begin(b);
      if (inputs.Merges(b)) {
        ChooseMerging(inputs, b, own);
      } else {
        Choose(inputs.importance.floats(), inputs.sequences.begin(b), inputs.sequences.length(b),
               inputs.kept.length(b), own);
      }
    });
    const std::int64_t block =
        std::max<std::int64_t>(1, kBlockFloats / std::max<std::int64_t>(1, columns));
    context.threads().For((total + block - 1) / block, [&](std::int64_t task) {
      const std::int64_t end = std::min(total, (task + 1) * block);
      for (std::int64_t k = task * block; k < end; ++k) {
        std::copy_n(inputs.rows.floats() + places[k] * columns, columns, kept + k * columns);
      }
    });
    if (!inputs.merges) return;
    const std::int64_t blocks = (columns + kMergedColumns - 1) / kMergedColumns;
    context.threads().For(inputs.sequences.batch * blocks, [&](std::int64_t task) {
      const std::int64_t b = task / blocks, first = task % blocks * kMergedColumns;
      if (!inputs.Merges(b)) return;
      Merge(inputs, b, places + inputs.kept.begin(b), first,
            std::min(columns, first + kMergedColumns),
            kept + (inputs.kept.begin(b) + inputs.kept.length(b) - 1) * columns);
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
