// LongShortAttention: checks, each head's mixtures of all keys and values, then exact attention of
// a slice of queries over them and over the normalised keys and values of its window.
//
// The mixtures are themselves exact attention: r queries, the projection's rows, over all keys. A
// slice of queries copies them to scratch, and behind them the layer norms of the keys that it
// sees, counted from a multiple of 64 of the sequence, so that sums run over the same blocks
// whatever the slice. A short sequence is one task for some of its heads; of a long one the heads'
// mixtures are tasks, and then the slices.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/inputs.h"
#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/common/tasks.h"
#include "ops/common/window.h"
#include "ops/longshort/cpu/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::LongShortAttention;
using longshort::Norm;

// Tokens from which a sequence is several tasks a head.
constexpr std::int64_t kLong = 1024;
// Queries of a slice: as many as the keys beside them, which they share.
constexpr std::int64_t kFewestRows = 4 * attention::kQueryBlock;
constexpr std::int64_t kMostRows = 16 * attention::kQueryBlock;

struct Inputs : attention::PackedInputs {
  TensorView projection;                                                            // [H * r, D]
  TensorView local_key_norm, local_value_norm, global_key_norm, global_value_norm;  // [2, H * D]
  const std::int32_t* windows;  // [B], of the knob
  std::int64_t mixtures;        // r

  // Where the value begins in a row of scratch, and the row's floats: both parts are padded.
  std::int64_t value_column() const { return PaddedToVectors(head_dim); }
  std::int64_t columns() const { return value_column() + PaddedToVectors(value_dim); }
};

TensorView CheckNorm(const TensorContext& context, std::size_t index, const char* name,
                     const TensorView& rows) {
  const TensorView norm = context.Input(index);
  CheckAxis(Spec::kName, name, norm, 0, 2, "factors and terms");
  CheckAxis(Spec::kName, name, norm, 1, rows.columns(), "a column for each channel of its rows");
  return norm;
}

void CheckWeights(const TensorContext& context, std::int64_t heads, Inputs& inputs) {
  inputs.projection = context.Input(Spec::kDynamicProjectionInput);
  const std::int64_t rows = inputs.projection.rows();
  if (rows == 0 || rows % heads != 0) {
    Fail(Spec::kName,
         "dynamic_projection has " + std::to_string(rows) +
             " rows, must have a positive multiple of num_heads = " + std::to_string(heads));
  }
  CheckAxis(Spec::kName, "dynamic_projection", inputs.projection, 1, inputs.head_dim,
            "head_dim of key");
  inputs.mixtures = rows / heads;
  inputs.local_key_norm =
      CheckNorm(context, Spec::kLocalKeyNormInput, "local_key_norm", inputs.key);
  inputs.local_value_norm =
      CheckNorm(context, Spec::kLocalValueNormInput, "local_value_norm", inputs.value);
  inputs.global_key_norm =
      CheckNorm(context, Spec::kGlobalKeyNormInput, "global_key_norm", inputs.key);
  inputs.global_value_norm =
      CheckNorm(context, Spec::kGlobalValueNormInput, "global_value_norm", inputs.value);
}

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  static_cast<attention::PackedInputs&>(inputs) =
      attention::CheckPackedInputs<Spec>(context, attributes);
  inputs.windows = CheckKnob(Spec::kName, Spec::kWindow, context.Input(Spec::kWindowInput),
                             inputs.sequences.batch);
  CheckWeights(context, attributes.num_heads, inputs);
  return inputs;
}

// One run: its inputs, its output, and how a head's part of it is computed.
class Batch {
 public:
  Batch(longshort::Normalise normalise, const Inputs& inputs, const Spec::Attributes& attributes,
        float* output)
      : normalise_(normalise), in_(inputs), attributes_(attributes), output_(output) {}

  std::int64_t window(std::int64_t b) const {
    return NarrowedWindow(attributes_.trained_window, in_.windows[b]);
  }

  double work(std::int64_t b) const {
    const std::int64_t length = in_.sequences.length(b);
    const std::int64_t seen = std::min(length, 2 * window(b) + 1) + 3 * in_.mixtures;
    return static_cast<double>(length) * static_cast<double>(seen * in_.columns());
  }

  // All rows of some heads.
  void Short(std::int64_t b, std::int64_t begin, std::int64_t end) const {
    const AlignedArray<float> mixtures = MakeAligned<float>(mixture_floats());
    for (std::int64_t h = begin; h < end; ++h) {
      Mix(b, h, mixtures.get());
      for (std::int64_t slice = 0; slice < Slices(b); ++slice) {
        Attend(b, h, slice, mixtures.get());
      }
    }
  }

  void Long(ThreadPool& threads, std::int64_t b, std::int64_t heads) const {
    const AlignedArray<float> mixtures = MakeAligned<float>(heads * mixture_floats());
    threads.For(heads, [&](std::int64_t h) { Mix(b, h, mixtures.get() + h * mixture_floats()); });
    const std::int64_t slices = Slices(b);
    threads.For(heads * slices, [&](std::int64_t task) {
      const std::int64_t h = task / slices;
      Attend(b, h, task % slices, mixtures.get() + h * mixture_floats());
    });
  }

 private:
  std::int64_t mixture_floats() const { return in_.mixtures * in_.columns(); }

  std::int64_t SliceRows(std::int64_t b) const {
    const std::int64_t seen = 2 * std::min(window(b), kMostRows);
    return std::clamp(seen / attention::kQueryBlock * attention::kQueryBlock, kFewestRows,
                      kMostRows);
  }
  std::int64_t Slices(std::int64_t b) const {
    return in_.first ? 1 : (in_.sequences.length(b) + SliceRows(b) - 1) / SliceRows(b);
  }

  Norm NormOf(const TensorView& norm, std::int64_t dim, std::int64_t h) const {
    const float* factor = norm.floats() + h * dim;
    return {factor, factor + norm.columns(), dim, attributes_.epsilon};
  }

  // `mixtures` [r, columns]: LN_G of the head's mixtures of all keys, and of all values.
  void Mix(std::int64_t b, std::int64_t h, float* mixtures) const {
    const std::int64_t pitch = in_.columns();
    const auto mix = [&](HeadRows rows, std::int64_t dim, const TensorView& norm, float* to) {
      attention::Head head = in_.Head(b, h);
      head.query = in_.projection.floats() + h * in_.mixtures * in_.head_dim;
      head.query_stride = in_.head_dim;
      head.value = rows.data;
      head.value_stride = rows.stride;
      head.value_dim = dim;
      head.scale = 1.0f;
      attention::AttendRows(head, 0, in_.mixtures, to, pitch);
      normalise_(NormOf(norm, dim, h), {to, pitch}, in_.mixtures, to, pitch);
    };
    mix(in_.Keys(b, h), in_.head_dim, in_.global_key_norm, mixtures);
    mix(in_.Values(b, h), in_.value_dim, in_.global_value_norm, mixtures + in_.value_column());
  }

  // Output rows of one slice of head h; row 0 alone where only first rows are computed.
  void Attend(std::int64_t b, std::int64_t h, std::int64_t slice, const float* mixtures) const {
    const std::int64_t length = in_.sequences.length(b), reach = std::min(window(b), length);
    const std::int64_t begin = slice * SliceRows(b);
    const std::int64_t end = in_.first ? 1 : std::min(begin + SliceRows(b), length);
    const std::int64_t low =
        std::max<std::int64_t>(begin - reach, 0) / attention::kQueryBlock * attention::kQueryBlock;
    const std::int64_t seen = std::min(end + reach, length) - low, pitch = in_.columns();
    const AlignedArray<float> rows = MakeAligned<float>(mixture_floats() + seen * pitch);
    std::memcpy(rows.get(), mixtures, sizeof(float) * mixture_floats());
    float* const local = rows.get() + mixture_floats();
    normalise_(NormOf(in_.local_key_norm, in_.head_dim, h), in_.Keys(b, h, low), seen, local,
               pitch);
    normalise_(NormOf(in_.local_value_norm, in_.value_dim, h), in_.Values(b, h, low), seen,
               local + in_.value_column(), pitch);
    // Row i of the sequence is that of key r + i - low.
    const std::int64_t shift = in_.mixtures - low;
    attention::Head head = in_.Head(b, h);
    head.query = in_.Queries(b, h, -shift).data;
    head.key = rows.get();
    head.value = rows.get() + in_.value_column();
    head.key_stride = head.value_stride = pitch;
    head.length = in_.mixtures + seen;
    head.window = reach;
    head.prefix = in_.mixtures;
    attention::AttendRows(head, begin + shift, end + shift, in_.Output(output_, b, h, begin),
                          in_.value.columns());
  }

  longshort::Normalise normalise_;
  const Inputs& in_;
  const Spec::Attributes& attributes_;
  float* output_;
};

class LongShortAttentionKernel final : public Kernel {
 public:
  explicit LongShortAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        normalise_(CpuIsa() >= Isa::kAvx512 ? longshort::NormaliseAvx512()
                                            : longshort::NormaliseAvx2()) {
    CheckFinite(Spec::kName, "scale", attributes_.scale);
    // With less, a row of equal elements could be divided by 0.
    CheckRange(Spec::kName, "epsilon", attributes_.epsilon, Spec::kEpsilonLow, Spec::kEpsilonHigh);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    const std::int64_t heads = attributes_.num_heads;
    float* const output = attention::PackedOutput<Spec>(context, inputs);
    const Batch batch(normalise_, inputs, attributes_, output);
    std::vector<HeadTask> tasks;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      const std::int64_t length = inputs.sequences.length(b);
      if (length == 0) continue;
      if (length > kLong) {
        batch.Long(context.threads(), b, heads);
      } else {
        AddHeadTasks(b, heads, batch.work(b), tasks);
      }
    }
    context.threads().For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const HeadTask& task = tasks[index];
      batch.Short(task.sequence, task.head_begin, task.head_end);
    });
  }

 private:
  Spec::Attributes attributes_;
  longshort::Normalise normalise_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<LongShortAttentionKernel>(reader);
}

}  // namespace attenuator
