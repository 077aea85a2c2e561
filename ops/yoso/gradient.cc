// Checks one call for gradients and splits it into heads of sequences.
#include "ops/yoso/gradient.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/common/check.h"
#include "ops/yoso/cpu/gradient.h"

namespace attenuator::yoso {
namespace {

using Spec = spec::YosoAttention;

// Rows times hashes from which on idle workers help with a head: about half a millisecond.
constexpr std::int64_t kSharedWork = 8192;

struct Task {
  std::int64_t sequence, head, work;
};

void CheckColumns(const char* name, const HeadRows& rows, std::int64_t expected) {
  if (rows.columns == expected) return;
  Fail(Spec::kName, std::string("the gradient's ") + name + " has " + std::to_string(rows.columns) +
                        " channels a head, must have " + std::to_string(expected));
}

void CheckRows(const GradientTensors& in) {
  CheckHeadDim(Spec::kName, "query",
               {.data = nullptr, .shape = {in.rows, in.query.columns}, .rank = 2}, 1);
  CheckHeadDim(Spec::kName, "value",
               {.data = nullptr, .shape = {in.rows, in.value.columns}, .rank = 2}, 1);
  CheckColumns("key", in.key, in.query.columns);
  CheckColumns("by_query", in.by_query, in.query.columns);
  CheckColumns("by_key", in.by_key, in.query.columns);
  CheckColumns("grad", in.grad, in.value.columns);
  CheckColumns("by_value", in.by_value, in.value.columns);
}

class Gradient {
 public:
  Gradient(const Spec::Attributes& attributes, const GradientKind& kind, const GradientTensors& in)
      : attributes_(attributes), kind_(kind), in_(in) {
    CheckRange(Spec::kName, "softening", kind.softening, 0.0f, 1.0f);
    CheckRange(Spec::kName, "norm_lift", attributes.norm_lift, 0.0f, 1e30f);
    CheckRows(in);
    sequences_ = CheckSequences(Spec::kName, in.cu_seqlens, in.rows);
    num_hashes_ = CheckKnob(Spec::kName, Spec::kNumHashes, in.num_hashes, sequences_.batch);
    seed_ = CheckSeeds(Spec::kName, in.seed, sequences_.batch);
    for (std::int64_t b = 0; b < sequences_.batch; ++b) {
      if (num_hashes_[b] == 0) {
        Fail(Spec::kName, "num_hashes[" + std::to_string(b) + "] is 0, must be in [1, " +
                              std::to_string(Spec::kNumHashes.high) +
                              "] for a gradient: the expectation has no hashes");
      }
    }
  }

  void Run(ThreadPool& threads) const {
    const std::vector<Task> tasks = Split();
    const bool shares = !tasks.empty() && tasks.front().work >= kSharedWork;
    const auto count = static_cast<std::int64_t>(tasks.size());
    const std::int64_t processors = std::thread::hardware_concurrency();
    const auto broken =
        std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(sequences_.batch));
    Crew crew(count, shares);
    threads.For(shares ? std::max(count, processors) : count, [&](std::int64_t) {
      crew.Work([&](std::int64_t i, Scratch& scratch) {
        const Task& task = tasks[static_cast<std::size_t>(i)];
        if (!RunTask(task, crew, scratch)) broken[static_cast<std::size_t>(task.sequence)] = true;
      });
    });
    for (const Task& task : tasks) {
      if (broken[static_cast<std::size_t>(task.sequence)]) Break(task);
    }
  }

 private:
  // Longest first, so that no thread ends up alone with a long one.
  std::vector<Task> Split() const {
    std::vector<Task> tasks;
    for (std::int64_t b = 0; b < sequences_.batch; ++b) {
      const std::int64_t work = sequences_.length(b) * num_hashes_[b];
      for (std::int64_t head = 0; work > 0 && head < attributes_.num_heads; ++head) {
        tasks.push_back({b, head, work});
      }
    }
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const Task& a, const Task& b) { return a.work > b.work; });
    return tasks;
  }

  bool RunTask(const Task& task, Crew& crew, Scratch& scratch) const {
    HeadJob job{};
    job.family = {.seed = seed_[task.sequence],
                  .layer = static_cast<std::int32_t>(attributes_.layer),
                  .head_dim = static_cast<std::int32_t>(in_.query.columns),
                  .hash_bits = static_cast<std::int32_t>(attributes_.hash_bits),
                  .hadamard = attributes_.hash == Spec::Hash::kHadamard,
                  .lifted = attributes_.norm_lift > 0};
    job.lift_root = std::sqrt(attributes_.norm_lift);
    job.head = static_cast<std::int32_t>(task.head);
    job.num_hashes = num_hashes_[task.sequence];
    const GradientHead head{.query = Read(in_.query, task),
                            .key = Read(in_.key, task),
                            .value = Read(in_.value, task),
                            .grad = Read(in_.grad, task),
                            .query_inverses = nullptr,
                            .key_inverses = nullptr,
                            .by_query = Write(in_.by_query, task),
                            .by_key = Write(in_.by_key, task),
                            .by_value = Write(in_.by_value, task),
                            .head_dim = static_cast<int>(in_.query.columns),
                            .value_dim = static_cast<int>(in_.value.columns),
                            .hash_bits = static_cast<int>(attributes_.hash_bits),
                            .collided = kind_.collided,
                            .softening = kind_.softening};
    return RunHeadGradient(job, head, crew, scratch);
  }

  MutableRows Write(const HeadRows& rows, const Task& task) const {
    return {rows.data + sequences_.begin(task.sequence) * rows.row_stride +
                task.head * rows.head_stride,
            rows.row_stride};
  }
  Rows Read(const HeadRows& rows, const Task& task) const {
    const MutableRows own = Write(rows, task);
    return {own.data, own.stride, sequences_.length(task.sequence)};
  }

  void Break(const Task& task) const {
    for (const HeadRows* rows : {&in_.by_query, &in_.by_key, &in_.by_value}) {
      const MutableRows own = Write(*rows, task);
      for (std::int64_t i = 0; i < sequences_.length(task.sequence); ++i) {
        std::fill_n(own.row(i), rows->columns, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }

  const Spec::Attributes& attributes_;
  const GradientKind& kind_;
  const GradientTensors& in_;
  Sequences sequences_{};
  const std::int32_t* num_hashes_ = nullptr;
  const std::int64_t* seed_ = nullptr;
};

}  // namespace

void RunGradient(const Spec::Attributes& attributes, const GradientKind& kind,
                 const GradientTensors& tensors, ThreadPool& threads) {
  Gradient(attributes, kind, tensors).Run(threads);
}

}  // namespace attenuator::yoso
