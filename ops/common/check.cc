#include "ops/common/check.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "operators.gen.h"

namespace attenuator {
namespace {

std::string Text(std::int64_t value) { return std::to_string(value); }

std::string Text(std::int32_t value) { return std::to_string(value); }

// The shortest text that is this number: a bound of 0.05 reads 0.05, not 0.0500000007.
std::string Text(float value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

// `1 value`, `2 values`.
std::string Counted(std::int64_t count, const char* noun) {
  return Text(count) + " " + noun + (count == 1 ? "" : "s");
}

template <class T>
const T* CheckBounded(const char* op, const char* name, T low, T high, const T* values,
                      std::int64_t count, std::int64_t batch) {
  if (count != batch) {
    Fail(op, std::string(name) + " has " + Counted(count, "value") + " for " +
                 Counted(batch, "sequence") + ", must have one value per sequence");
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    if (!(values[b] >= low && values[b] <= high)) {
      Fail(op, std::string(name) + "[" + std::to_string(b) + "] is " + Text(values[b]) +
                   ", must be in [" + Text(low) + ", " + Text(high) + "]");
    }
  }
  return values;
}

}  // namespace

void Fail(const char* op, const std::string& text) {
  throw std::invalid_argument(std::string(op) + ": " + text);
}

std::int64_t CheckInt(const char* op, const char* name, std::optional<std::int64_t> value,
                      std::int64_t low, std::int64_t high, std::optional<std::int64_t> standard) {
  if (!value && standard) return *standard;
  if (!value || *value < low || *value > high) {
    Fail(op, std::string("attribute ") + name + " is " + (value ? Text(*value) : "missing") +
                 ", must be in [" + Text(low) + ", " + Text(high) + "]");
  }
  return *value;
}

int CheckChoice(const char* op, const char* name, const char* value,
                std::initializer_list<const char*> choices, int standard) {
  if (value == nullptr) return standard;
  int index = 0;
  std::string allowed;
  for (const char* choice : choices) {
    if (std::strcmp(choice, value) == 0) return index;
    allowed += std::string(index++ == 0 ? "" : ", ") + choice;
  }
  Fail(op, std::string("attribute ") + name + " is '" + value + "', must be one of: " + allowed);
}

void CheckRange(const char* op, const char* name, float value, float low, float high) {
  if (!(value >= low && value <= high)) {
    Fail(op, std::string("attribute ") + name + " is " + Text(value) + ", must be in [" +
                 Text(low) + ", " + Text(high) + "]");
  }
}

void CheckFinite(const char* op, const char* name, float value) {
  if (!std::isfinite(value)) {
    Fail(op, std::string("attribute ") + name + " is " + Text(value) + ", must be finite");
  }
}

Sequences CheckOffsets(const char* op, const char* input, const TensorView& offsets) {
  const std::int64_t count = offsets.rows();
  if (count < 1)
    Fail(op, std::string(input) + " is empty, must have one value more than there are sequences");
  const std::int32_t* values = offsets.int32s();
  const auto item = [&](std::int64_t i) {
    return std::string(input) + "[" + std::to_string(i) + "]";
  };
  if (values[0] != 0) Fail(op, item(0) + " is " + std::to_string(values[0]) + ", must be 0");
  for (std::int64_t i = 1; i < count; ++i) {
    if (values[i] < values[i - 1]) {
      Fail(op, item(i) + " is " + std::to_string(values[i]) + ", must not be below " + item(i - 1) +
                   " = " + std::to_string(values[i - 1]));
    }
  }
  return {values, count - 1, values[count - 1]};
}

Sequences CheckSequences(const char* op, const TensorView& cu_seqlens, std::int64_t total) {
  const Sequences sequences = CheckOffsets(op, "cu_seqlens", cu_seqlens);
  if (sequences.total != total) {
    Fail(op, "cu_seqlens[" + std::to_string(sequences.batch) + "] is " +
                 std::to_string(sequences.total) + ", must be " + std::to_string(total) +
                 ", the number of packed rows");
  }
  return sequences;
}

Sequences CheckUnmerged(const char* op, const TensorView& unmerged, const Sequences& sequences) {
  constexpr const char* kInput = "unmerged_cu_seqlens";
  if (!unmerged.present()) return sequences;
  CheckAxis(op, kInput, unmerged, 0, sequences.batch + 1, "as cu_seqlens has");
  const Sequences before = CheckOffsets(op, kInput, unmerged);
  for (std::int64_t b = 0; b < sequences.batch; ++b) {
    const std::int64_t length = sequences.length(b);
    if (length == 0 ? before.length(b) == 0 : before.length(b) >= length) continue;
    const std::string own = std::to_string(b);
    Fail(op, std::string(kInput) + "[" + std::to_string(b + 1) + "] - " + kInput + "[" + own +
                 "] is " + std::to_string(before.length(b)) + ", must be " +
                 (length == 0
                      ? "0, since sequence " + own + " has no row"
                      : "at least " + std::to_string(length) + ", the rows of sequence " + own));
  }
  return before;
}

const std::int32_t* CheckKnob(const char* op, const Knob<std::int32_t>& knob,
                              const TensorView& values, std::int64_t batch) {
  return CheckBounded(op, knob.name, knob.low, knob.high, values.int32s(), values.rows(), batch);
}

const float* CheckKnob(const char* op, const Knob<float>& knob, const TensorView& values,
                       std::int64_t batch) {
  return CheckBounded(op, knob.name, knob.low, knob.high, values.floats(), values.rows(), batch);
}

const std::int64_t* CheckSeeds(const char* op, const TensorView& seeds, std::int64_t batch) {
  return CheckBounded<std::int64_t>(op, "seed", 0, spec::kSeedHigh, seeds.int64s(), seeds.rows(),
                                    batch);
}

void CheckAxis(const char* op, const char* input, const TensorView& view, int axis,
               std::int64_t expected, const char* because) {
  if (view.shape[axis] != expected) {
    Fail(op, std::string(input) + " has size " + std::to_string(view.shape[axis]) + " on axis " +
                 std::to_string(axis) + ", must be " + std::to_string(expected) + " (" + because +
                 ")");
  }
}

void CheckQuery(const char* op, const TensorView& query, const TensorView& key, std::int64_t batch,
                bool first) {
  CheckAxis(op, "query", query, 0, first ? batch : key.rows(),
            first ? "one row per sequence, since queries is 'first'" : "the number of rows of key");
  CheckAxis(op, "query", query, 1, key.columns(), "the number of columns of key");
}

std::int64_t CheckHeadDim(const char* op, const char* input, const TensorView& view,
                          std::int64_t num_heads) {
  const std::int64_t columns = view.columns();
  if (columns % num_heads != 0) {
    Fail(op, std::string(input) + " has " + Counted(columns, "column") +
                 ", must have a multiple of num_heads = " + std::to_string(num_heads));
  }
  const std::int64_t head_dim = columns / num_heads;
  if (head_dim < kHeadDimLow || head_dim > kHeadDimHigh) {
    Fail(op, std::string(input) + " has head_dim " + std::to_string(head_dim) + ", must be in [" +
                 std::to_string(kHeadDimLow) + ", " + std::to_string(kHeadDimHigh) + "]");
  }
  return head_dim;
}

}  // namespace attenuator
