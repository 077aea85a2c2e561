// RelativeAttention: checks, the sequences' distances, then one task for some heads of a sequence.
//
// All rows of a head are one task, since they share the products of the keys with the position
// queries.
#include <algorithm>
#include <string>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/attention.h"
#include "ops/common/attention/importance.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/common/tasks.h"
#include "ops/relative/cpu/kernel.h"
#include "ops/relative/inputs.h"

namespace attenuator {
namespace {

using Spec = spec::RelativeAttention;
using relative::Distances;
using relative::Inputs;
using relative::kLanes;
using relative::Tables;

// What the gaps between positions may add up to: distances stay within 32 bits.
constexpr std::int64_t kFarthest = std::int64_t{1} << 29;

// Positions are added up gap by gap in 32 bits.
void CheckFarthest(const Inputs& inputs) {
  if (!inputs.positions.present() || !inputs.buckets.present()) return;
  const std::int64_t rows = inputs.key.rows(), size = inputs.buckets.rows();
  const std::int64_t most = kFarthest / std::max<std::int64_t>(rows, 1);
  if (size <= most) return;
  Fail(Spec::kName, "buckets has size " + std::to_string(size) + ", must be at most " +
                        std::to_string(most) + " with positions of " + std::to_string(rows) +
                        " rows");
}

// The distances of one sequence, with the memory that they lie in.
class SequenceDistances {
 public:
  SequenceDistances(const Inputs& inputs, std::int64_t b) {
    if (!inputs.has_tables()) return;
    const std::int64_t length = inputs.sequences.length(b), table = inputs.reach();
    distances_.reach = length + kLanes;
    if (inputs.positions.present()) {
      CopyPositions(inputs.positions.int64s() + inputs.sequences.begin(b), length, table);
      distances_.positions = positions_.data();
      distances_.reach = std::min<std::int64_t>(positions_.back(), table);
    }
    const std::int64_t reach = distances_.reach;
    const std::int64_t* rows = inputs.buckets.int64s() + table;
    const auto row = [&](std::int64_t d) { return rows[std::clamp(d, -table, table)]; };
    std::int64_t low = row(0), high = row(0);
    for (std::int64_t d = -std::min(reach, table); d <= std::min(reach, table); ++d) {
      low = std::min(low, row(d));
      high = std::max(high, row(d));
    }
    distances_.first = low;
    distances_.rows = high - low + 1;
    places_.resize(static_cast<std::size_t>(2 * reach + 1));
    for (std::int64_t d = -reach; d <= reach; ++d) {
      places_[d + reach] = static_cast<std::int32_t>((row(d) - low) * kLanes);
    }
    distances_.places = places_.data() + reach;
  }
  const Distances& get() const { return distances_; }

 private:
  void CopyPositions(const std::int64_t* positions, std::int64_t length, std::int64_t table) {
    positions_.resize(static_cast<std::size_t>(length + kLanes));
    for (std::int64_t i = 0; i < length; ++i) {
      // Unsigned, since positions of any size are allowed and ascend. A gap beyond the table is as
      // good as any other.
      const std::uint64_t gap = i == 0 ? 0
                                       : static_cast<std::uint64_t>(positions[i]) -
                                             static_cast<std::uint64_t>(positions[i - 1]);
      const std::uint64_t counted = std::min(gap, static_cast<std::uint64_t>(table) + 1);
      positions_[i] = (i == 0 ? 0 : positions_[i - 1]) + static_cast<std::int32_t>(counted);
    }
    std::fill(positions_.begin() + length, positions_.end(), positions_[length - 1]);
  }

  Distances distances_;
  std::vector<std::int32_t> places_, positions_;
};

// The thread's scratch memory, kept between calls: it is large, and fresh pages cost time.
float* Scratch(std::int64_t size) {
  thread_local AlignedArray<float> memory;
  thread_local std::int64_t held = 0;
  if (held < size) {
    held = 0;
    memory = MakeAligned<float>(size);
    held = size;
  }
  return memory.get();
}

class RelativeAttentionKernel final : public Kernel {
 public:
  explicit RelativeAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        kernels_(CpuIsa() >= Isa::kAvx512 ? relative::KernelsAvx512() : relative::KernelsAvx2()) {
    relative::CheckAttributes(attributes_);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = relative::CheckInputs(context, attributes_);
    relative::CheckValues(inputs);
    CheckFarthest(inputs);
    const std::int64_t columns = inputs.value.columns(), total = inputs.sequences.total;
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {inputs.query.rows(), columns}));
    for (std::int64_t b = 0; inputs.first && b < inputs.sequences.batch; ++b) {
      if (inputs.sequences.length(b) == 0) std::fill_n(output + b * columns, columns, 0.0f);
    }
    float* const importance = attention::ImportanceOutput<Spec>(context, attributes_, total);
    std::vector<float> weights(importance == nullptr ? 0 : attributes_.num_heads * total);
    const std::vector<HeadTask> tasks = Tasks(inputs);
    context.threads().For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      Attend(inputs, tasks[index], output, importance == nullptr ? nullptr : weights.data());
    });
    if (importance == nullptr) return;
    context.threads().For(inputs.sequences.batch, [&](std::int64_t b) {
      const std::int64_t begin = inputs.sequences.begin(b);
      attention::SumHeads(weights.data() + begin, total, attributes_.num_heads,
                          inputs.sequences.length(b), importance + begin);
    });
  }

 private:
  // Heads of short sequences share a task.
  std::vector<HeadTask> Tasks(const Inputs& inputs) const {
    const std::int64_t heads = attributes_.num_heads;
    std::vector<HeadTask> tasks;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      const std::int64_t length = inputs.sequences.length(b);
      if (length == 0) continue;
      const double rows = inputs.first ? 1.0 : static_cast<double>(length);
      const double work =
          3.0 * rows * static_cast<double>(length * (inputs.head_dim + inputs.value_dim));
      AddHeadTasks(b, heads, work, tasks);
    }
    return tasks;
  }

  // `weights` [H, T], or null.
  void Attend(const Inputs& inputs, const HeadTask& task, float* output, float* weights) const {
    const SequenceDistances distances(inputs, task.sequence);
    const std::int64_t begin = inputs.sequences.begin(task.sequence);
    const std::int64_t query_begin = inputs.first ? task.sequence : begin;
    const TensorView &query = inputs.query, &key = inputs.key, &value = inputs.value;
    for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
      const attention::Head head{
          .query = query.floats() + query_begin * query.columns() + h * inputs.head_dim,
          .query_stride = query.columns(),
          .key = key.floats() + begin * key.columns() + h * inputs.head_dim,
          .key_stride = key.columns(),
          .value = value.floats() + begin * value.columns() + h * inputs.value_dim,
          .value_stride = value.columns(),
          .length = inputs.sequences.length(task.sequence),
          .head_dim = inputs.head_dim,
          .value_dim = inputs.value_dim,
          .scale = inputs.scale,
          .last_key_rows =
              static_cast<float>(RowsOfLast(inputs.unmerged, inputs.sequences, task.sequence))};
      const Tables tables = TablesOf(inputs, h);
      float* rows = output + query_begin * value.columns() + h * inputs.value_dim;
      float* const row =
          weights == nullptr ? nullptr : weights + h * inputs.sequences.total + begin;
      float* scratch =
          Scratch(relative::ScratchFloats(head, tables, distances.get(), inputs.first));
      if (inputs.first) {
        kernels_.first_row(head, tables, distances.get(), rows, row, scratch);
      } else {
        const bool maximum = attributes_.importance == Spec::Importance::kMaximum;
        kernels_.rows(head, tables, distances.get(), rows, value.columns(), {row, maximum},
                      scratch);
      }
    }
  }

  static Tables TablesOf(const Inputs& inputs, std::int64_t h) {
    const auto of_head = [&](const TensorView& view, std::int64_t columns) {
      return view.present() ? view.floats() + h * columns : nullptr;
    };
    return {.pos_key = of_head(inputs.pos_key, inputs.head_dim),
            .pos_query = of_head(inputs.pos_query, inputs.head_dim),
            .pos_stride = inputs.key.columns(),
            .bias = of_head(inputs.bias, 1),
            .bias_stride = inputs.bias.columns()};
  }

  Spec::Attributes attributes_;
  const relative::Kernels& kernels_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<RelativeAttentionKernel>(reader);
}

}  // namespace attenuator
