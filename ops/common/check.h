// Checks of inputs that every operator shares. Each failure names operator, input, sequence index,
// value and what is allowed: `YosoAttention: num_hashes[2] is 900, must be in [0, 512]`.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "ops/common/context.h"
#include "ops/common/spec.h"

namespace attenuator {

// Throws std::invalid_argument("<op>: <text>").
[[noreturn]] void Fail(const char* op, const std::string& text);

// Attributes, the same through every host. `value` is nothing (null) where the node does not have
// the attribute; `standard` is its default, nothing where it has none. Throw as Fail does.
std::int64_t CheckInt(const char* op, const char* name, std::optional<std::int64_t> value,
                      std::int64_t low, std::int64_t high, std::optional<std::int64_t> standard);
// Returns the index of `value` among `choices`.
int CheckChoice(const char* op, const char* name, const char* value,
                std::initializer_list<const char*> choices, int standard);
void CheckRange(const char* op, const char* name, float value, float low, float high);
void CheckFinite(const char* op, const char* name, float value);

// The sequences of a packed batch, checked: offsets[0] = 0, non-decreasing, offsets[batch] = total.
struct Sequences {
  const std::int32_t* offsets;
  std::int64_t batch;
  std::int64_t total;

  std::int64_t begin(std::int64_t b) const { return offsets[b]; }
  std::int64_t length(std::int64_t b) const {
    return static_cast<std::int64_t>(offsets[b + 1]) - offsets[b];
  }
};

// Offsets by any name, whatever the number of packed rows.
Sequences CheckOffsets(const char* op, const char* input, const TensorView& offsets);

// `total` is the number of packed rows.
Sequences CheckSequences(const char* op, const TensorView& cu_seqlens, std::int64_t total);

// `unmerged_cu_seqlens`, where it is there: offsets before rows were merged. The last row of a
// sequence that had more rows is the mean of those that are missing. Where it is not there, no row
// is a mean: `sequences`.
Sequences CheckUnmerged(const char* op, const TensorView& unmerged, const Sequences& sequences);

// How many rows the last row of a sequence stands for.
inline std::int64_t RowsOfLast(const Sequences& unmerged, const Sequences& sequences,
                               std::int64_t b) {
  return unmerged.length(b) - sequences.length(b) + 1;
}

// A knob's value for each sequence. A node that is older than the knob has no input for it, and
// computes the knob's exact value.
template <class T>
class KnobValues {
 public:
  KnobValues(const T* values, T exact) : values_(values), exact_(exact) {}
  T operator[](std::int64_t b) const { return values_ == nullptr ? exact_ : values_[b]; }

 private:
  const T* values_;
  T exact_;
};

// One value per sequence, each within the knob's bounds; NaN is out of bounds.
const std::int32_t* CheckKnob(const char* op, const Knob<std::int32_t>& knob,
                              const TensorView& values, std::int64_t batch);
const float* CheckKnob(const char* op, const Knob<float>& knob, const TensorView& values,
                       std::int64_t batch);

// The same for a knob whose input is optional.
template <class T>
KnobValues<T> CheckOptionalKnob(const char* op, const Knob<T>& knob, const TensorView& values,
                                std::int64_t batch) {
  return {values.present() ? CheckKnob(op, knob, values, batch) : nullptr, knob.exact};
}

const std::int64_t* CheckSeeds(const char* op, const TensorView& seeds, std::int64_t batch);

// Fails unless `view`'s axis has the expected size. `because` says in the message what that size
// is.
void CheckAxis(const char* op, const char* input, const TensorView& view, int axis,
               std::int64_t expected, const char* because);

// Fails unless `query` has the columns of `key`, and its rows or, where `first` (the attribute
// queries), one row per sequence.
void CheckQuery(const char* op, const TensorView& query, const TensorView& key, std::int64_t batch,
                bool first);

// Columns of `view` divided by heads; fails unless it divides and lies in [kHeadDimLow,
// kHeadDimHigh].
std::int64_t CheckHeadDim(const char* op, const char* input, const TensorView& view,
                          std::int64_t num_heads);

}  // namespace attenuator
