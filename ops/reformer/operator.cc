// ReformerAttention: checks, then exact attention of short sequences, then the long ones' rounds.
//
// A round has two steps over all heads of all long sequences. The first hashes and sorts: a task
// for each head and round, for a few rounds together. The second attends: a task for each head and
// a run of chunks; a row lies in one chunk of a round, so tasks write different rows, and the sums
// of a round join those of the rounds before. Which rows share a task depends on the sequence
// alone, and no bit depends on that either.
#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"
#include "ops/reformer/cpu/kernel.h"
#include "ops/reformer/rotations.h"

namespace attenuator {
namespace {

using Spec = spec::ReformerAttention;
using reformer::HeadRows;
using reformer::Kernels;
using reformer::Round;
using reformer::Sums;

constexpr std::int64_t kTaskRows = 512;    // of a run of chunks, or of exact attention
constexpr std::int64_t kSortedRounds = 4;  // sorted together; their orders are kept until used

struct Inputs {
  TensorView query;  // [T, H * D]
  TensorView value;  // [T, H * Dv]
  Sequences sequences;
  std::int64_t head_dim, value_dim;
  const std::int32_t* num_rounds;
  const std::int64_t* seeds;
};

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  Inputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.value = context.Input(Spec::kValueInput);
  const std::int64_t rows = inputs.query.rows(), heads = attributes.num_heads;
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  CheckAxis(Spec::kName, "value", inputs.value, 0, rows, "the number of rows of query");
  inputs.head_dim = CheckHeadDim(Spec::kName, "query", inputs.query, heads);
  inputs.value_dim = CheckHeadDim(Spec::kName, "value", inputs.value, heads);
  const std::int64_t batch = inputs.sequences.batch;
  inputs.num_rounds =
      CheckKnob(Spec::kName, Spec::kNumRounds, context.Input(Spec::kNumRoundsInput), batch);
  inputs.seeds = CheckSeeds(Spec::kName, context.Input(Spec::kSeedInput), batch);
  return inputs;
}

// One head of one sequence with rounds: its part of the memory for all of them.
struct Unit {
  HeadRows rows;
  float* factors;
  Sums sums;
  std::int32_t* orders;  // [kSortedRounds, length]
  float* chunks;         // [num_rounds, length]
  std::int64_t seed, head, num_rounds;
};

// One run: its inputs, its output, and the steps of which its tasks consist.
class Batch {
 public:
  Batch(const Kernels& kernels, const Inputs& inputs, const Spec::Attributes& attributes,
        float* output)
      : kernels_(kernels), in_(inputs), attributes_(attributes), output_(output) {}

  // Rounds in which a row would meet as many keys as there are: all of them cost no more.
  bool IsExact(std::int64_t b) const {
    const std::int64_t rounds = in_.num_rounds[b];
    return rounds == 0 || 2 * attributes_.chunk_size * rounds >= in_.sequences.length(b);
  }

  HeadRows Rows(std::int64_t b, std::int64_t h) const {
    const std::int64_t begin = in_.sequences.begin(b);
    return {.x = in_.query.floats() + begin * in_.query.columns() + h * in_.head_dim,
            .value = in_.value.floats() + begin * in_.value.columns() + h * in_.value_dim,
            .output = output_ + begin * in_.value.columns() + h * in_.value_dim,
            .x_stride = in_.query.columns(),
            .value_stride = in_.value.columns(),
            .output_stride = in_.value.columns(),
            .length = in_.sequences.length(b),
            .head_dim = in_.head_dim,
            .value_dim = in_.value_dim,
            .scale = attention::ScoreScale(attributes_.scale, in_.head_dim),
            .factors = nullptr};
  }

  AlignedArray<float> Scratch(const HeadRows& rows, std::int64_t rounds) const {
    return MakeAligned<float>(reformer::ScratchFloats(rows, attributes_.chunk_size, rounds));
  }

  void Exact(ThreadPool& threads) const {
    std::vector<attention::RowTask> tasks;
    const std::int64_t heads = attributes_.num_heads;
    for (std::int64_t b = 0; b < in_.sequences.batch; ++b) {
      const std::int64_t length = in_.sequences.length(b);
      if (length == 0 || !IsExact(b)) continue;
      const std::int64_t work =
          std::min(length, kTaskRows) * length * (in_.head_dim + in_.value_dim);
      const std::int64_t together = HeadsTogether(static_cast<double>(work), heads);
      for (std::int64_t h = 0; h < heads; h += together) {
        for (std::int64_t row = 0; row < length; row += kTaskRows) {
          tasks.push_back(
              {b, h, std::min(h + together, heads), row, std::min(row + kTaskRows, length)});
        }
      }
    }
    threads.For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const attention::RowTask& task = tasks[index];
      HeadRows rows = Rows(task.sequence, 0);
      const AlignedArray<float> scratch = Scratch(rows, 0);
      const AlignedArray<float> factors = MakeAligned<float>(rows.length);
      for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
        rows = Rows(task.sequence, h);
        if (rows.length == 1) {  // the one row sees itself, where there is nothing else
          std::memcpy(rows.output, rows.value, sizeof(float) * rows.value_dim);
          continue;
        }
        kernels_.key_factors(rows, factors.get(), scratch.get());
        rows.factors = factors.get();
        kernels_.attend_all(rows, task.row_begin, task.row_end, scratch.get());
      }
    });
  }

  void InRounds(ThreadPool& threads) const {
    std::int64_t length = 0, in_rounds = 0, most_rounds = 0;
    for (std::int64_t b = 0; b < in_.sequences.batch; ++b) {
      if (IsExact(b)) continue;
      length += in_.sequences.length(b);
      in_rounds += in_.sequences.length(b) * in_.num_rounds[b];
      most_rounds = std::max<std::int64_t>(most_rounds, in_.num_rounds[b]);
    }
    if (length == 0) return;
    const std::int64_t rows = length * attributes_.num_heads;
    const AlignedArray<float> floats = MakeAligned<float>(3 * rows);
    const AlignedArray<std::int32_t> orders = MakeAligned<std::int32_t>(kSortedRounds * rows);
    const AlignedArray<float> chunks = MakeAligned<float>(in_rounds * attributes_.num_heads);
    const std::vector<Unit> units = Units(floats.get(), rows, orders.get(), chunks.get());
    const std::int64_t count = static_cast<std::int64_t>(units.size());
    threads.For(count, [&](std::int64_t index) {
      const Unit& unit = units[index];
      kernels_.key_factors(unit.rows, unit.factors, Scratch(unit.rows, 0).get());
    });
    for (std::int64_t round = 0; round < most_rounds; ++round) {
      if (round % kSortedRounds == 0) {
        threads.For(count * kSortedRounds, [&](std::int64_t index) {
          const Unit& unit = units[index / kSortedRounds];
          const std::int64_t slot = index % kSortedRounds;
          if (round + slot < unit.num_rounds) Sort(unit, round + slot);
        });
      }
      Attend(threads, units, round);
    }
  }

 private:
  std::vector<Unit> Units(float* floats, std::int64_t rows, std::int32_t* orders,
                          float* chunks) const {
    std::vector<Unit> units;
    std::int64_t at = 0;
    for (std::int64_t b = 0; b < in_.sequences.batch; ++b) {
      if (IsExact(b)) continue;
      for (std::int64_t h = 0; h < attributes_.num_heads; ++h) {
        Unit unit{.rows = Rows(b, h),
                  .factors = floats + at,
                  .sums = {.largest = floats + rows + at, .sum = floats + 2 * rows + at},
                  .orders = orders + kSortedRounds * at,
                  .chunks = chunks,
                  .seed = in_.seeds[b],
                  .head = h,
                  .num_rounds = in_.num_rounds[b]};
        unit.rows.factors = unit.factors;
        at += unit.rows.length;
        chunks += unit.rows.length * unit.num_rounds;
        units.push_back(unit);
      }
    }
    return units;
  }

  // The rows of a round by (bucket, position), and the chunk in which each comes to lie.
  void Sort(const Unit& unit, std::int64_t round) const {
    const std::int64_t length = unit.rows.length, chunk_size = attributes_.chunk_size;
    const std::int64_t half =
        std::min((length + chunk_size - 1) / chunk_size, attributes_.num_buckets / 2);
    const AlignedArray<float> matrix = MakeAligned<float>(half * in_.head_dim);
    reformer::Rotations(unit.seed, attributes_.layer, unit.head, round, half, in_.head_dim,
                        matrix.get());
    std::vector<std::int32_t> buckets(length), places(2 * half + 1, 0);
    kernels_.buckets(unit.rows, matrix.get(), half, buckets.data(), Scratch(unit.rows, 0).get());
    for (const std::int32_t bucket : buckets) ++places[bucket + 1];
    for (std::int64_t k = 0; k < 2 * half; ++k) places[k + 1] += places[k];
    std::int32_t* const order = unit.orders + round % kSortedRounds * length;
    float* const chunks = unit.chunks + round * length;
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int32_t place = places[buckets[i]]++;
      order[place] = static_cast<std::int32_t>(i);
      chunks[i] = static_cast<float>(place / chunk_size);
    }
  }

  void Attend(ThreadPool& threads, const std::vector<Unit>& units, std::int64_t round) const {
    struct Task {
      const Unit* unit;
      std::int64_t chunk_begin, chunk_end;
    };
    const std::int64_t run = std::max<std::int64_t>(kTaskRows / attributes_.chunk_size, 1);
    std::vector<Task> tasks;
    for (const Unit& unit : units) {
      if (round >= unit.num_rounds) continue;
      const std::int64_t chunks =
          (unit.rows.length + attributes_.chunk_size - 1) / attributes_.chunk_size;
      for (std::int64_t chunk = 0; chunk < chunks; chunk += run) {
        tasks.push_back({&unit, chunk, std::min(chunk + run, chunks)});
      }
    }
    threads.For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const auto& [unit, begin, end] = tasks[index];
      const Round sorted{.order = unit->orders + round % kSortedRounds * unit->rows.length,
                         .chunk_size = attributes_.chunk_size,
                         .chunks = unit->chunks,
                         .number = round,
                         .last = round + 1 == unit->num_rounds};
      kernels_.attend_chunks(unit->rows, sorted, unit->sums, begin, end,
                             Scratch(unit->rows, round).get());
    });
  }

  const Kernels& kernels_;
  const Inputs& in_;
  const Spec::Attributes& attributes_;
  float* output_;
};

class ReformerAttentionKernel final : public Kernel {
 public:
  explicit ReformerAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)),
        kernels_(CpuIsa() >= Isa::kAvx512 ? reformer::KernelsAvx512() : reformer::KernelsAvx2()) {
    CheckFinite(Spec::kName, "scale", attributes_.scale);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    float* output = static_cast<float*>(
        context.Output(Spec::kOutputOutput, {inputs.query.rows(), inputs.value.columns()}));
    const Batch batch(kernels_, inputs, attributes_, output);
    batch.Exact(context.threads());
    batch.InRounds(context.threads());
  }

 private:
  Spec::Attributes attributes_;
  const Kernels& kernels_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<ReformerAttentionKernel>(reader);
}

}  // namespace attenuator
