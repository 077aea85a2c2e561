// YosoAttention on the CPU: splits a packed batch into tasks and runs each head of each sequence on
// the path its own length and knobs choose.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "ops/common/attention/importance.h"
#include "ops/common/registry.h"
#include "ops/yoso/cpu/kernel.h"
#include "ops/yoso/cpu/paths.h"
#include "ops/yoso/inputs.h"

namespace attenuator::yoso {
namespace {

using Spec = spec::YosoAttention;

constexpr std::int64_t kExpectationRows = 240;  // queries of one task of the quadratic path

// The unit of costs is a pair of a query and a key on the quadratic path, about a nanosecond at
// D = Dv = 64. A token in one table, hashed, added up and looked up, takes as long as so many
// pairs.
constexpr std::int64_t kTableCost = 16;

// From this cost on a task is shared with workers who have none of their own: 32,768 tokens times
// tables, about half a millisecond, since waking a thread takes a tenth of that.
constexpr std::int64_t kSharedCost = kTableCost * 32768;

// Floats of a sequence's keys from which on its heads are hashed together, measured: queries and
// keys then fill the second-level cache twice over. With more hashes than kFewHashes fetching them
// counts for less, and it takes twice as many.
constexpr std::int64_t kTogetherFloats = 3 << 18;
constexpr std::int64_t kFewHashes = 16;

// One head of one sequence, all of them, or a run of one head's queries on the expectation path.
struct Task {
  std::int64_t sequence, head, heads, first, count;
  std::int64_t cost;  // in pairs, see kTableCost
  Path path;
};

class YosoAttentionKernel final : public Kernel {
 public:
  explicit YosoAttentionKernel(const NodeReader& reader)
      : attributes_(Spec::Read(reader)), kernels_(CpuKernels()) {
    CheckAttributes(attributes_);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    const std::int64_t columns = attributes_.num_heads * inputs.value_dim;
    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {inputs.query.rows(), columns}));
    float* importance = attention::ImportanceOutput<Spec>(context, attributes_, inputs.key.rows());
    // Of each head: collisions are counted, from none on.
    std::vector<float> collisions(importance != nullptr ? attributes_.num_heads * inputs.key.rows()
                                                        : 0);
    const std::vector<Task> tasks = Split(inputs, output, columns);
    const std::int64_t batch = inputs.sequences.batch;
    const auto broken = std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(batch));
    // Workers take the next task when they are free, whatever share the host's pool would give
    // them.
    const bool shares = Shares(tasks);
    Crew crew(static_cast<std::int64_t>(tasks.size()), shares);
    context.threads().For(Workers(tasks.size(), shares), [&](std::int64_t) {
      crew.Work([&](std::int64_t i, Scratch& scratch) {
        const Task& task = tasks[static_cast<std::size_t>(i)];
        float* heads = collisions.empty() ? nullptr : collisions.data();
        if (!RunTask(inputs, task, output, columns, heads, crew, scratch)) {
          broken[task.sequence] = true;
        }
      });
    });
    for (std::int64_t b = 0; b < batch; ++b) {
      if (!collisions.empty()) WriteImportance(inputs, b, broken[b], collisions.data(), importance);
      if (!broken[b]) continue;
      const auto [begin, count] = inputs.QueryRows(b);
      std::fill_n(output + begin * columns, count * columns,
                  std::numeric_limits<float>::quiet_NaN());
    }
  }

 private:
  // Whether a sequence of so many keys has tables of rounded values, where it has tables.
  bool Rounded(std::int64_t keys) const {
    return attributes_.table_precision == Spec::TablePrecision::kInt16 && keys <= kRoundedKeys;
  }

  std::vector<Task> Split(const Inputs& in, float* output, std::int64_t columns) const {
    std::vector<Task> tasks;
    for (std::int64_t b = 0; b < in.sequences.batch; ++b) {
      const std::int64_t keys = in.sequences.length(b);
      const auto [begin, queries] = in.QueryRows(b);
      if (keys == 0) {
        std::fill_n(output + begin * columns, queries * columns, 0.0f);
        continue;
      }
      const Path path = ChoosePath(kernels_, queries, keys, in.num_hashes[b],
                                   static_cast<int>(attributes_.hash_bits),
                                   static_cast<int>(in.value_dim), Rounded(keys));
      const bool quadratic = path == Path::kExpectation;
      const std::int64_t step = quadratic ? kExpectationRows : queries;
      const std::int64_t heads =
          path == Path::kTables && HashesHeadsTogether(in, keys, in.num_hashes[b])
              ? attributes_.num_heads
              : 1;
      for (std::int64_t head = 0; head < attributes_.num_heads; head += heads) {
        for (std::int64_t first = 0; first < queries; first += step) {
          const std::int64_t count = std::min(step, queries - first);
          const std::int64_t cost =
              quadratic ? count * keys : kTableCost * keys * in.num_hashes[b] * heads;
          tasks.push_back({.sequence = b,
                           .head = head,
                           .heads = heads,
                           .first = first,
                           .count = count,
                           .cost = cost,
                           .path = path});
        }
      }
    }
    // Longest first, so that no thread ends up alone with a long one.
    std::stable_sort(tasks.begin(), tasks.end(),
                     [](const Task& a, const Task& b) { return a.cost > b.cost; });
    return tasks;
  }

  // Whether the heads of a sequence are one task: where their rows would be fetched from beyond the
  // second-level cache once for each head, and workers can share them.
  bool HashesHeadsTogether(const Inputs& in, std::int64_t keys, std::int64_t num_hashes) const {
    const std::int64_t heads = attributes_.num_heads;
    return heads > 1 && kTableCost * keys * num_hashes * heads >= kSharedCost &&
           keys * in.key.columns() >= kTogetherFloats * (num_hashes > kFewHashes ? 2 : 1);
  }

  static bool Shares(const std::vector<Task>& tasks) {
    return std::any_of(tasks.begin(), tasks.end(), [](const Task& task) {
      return task.path == Path::kTables && task.cost >= kSharedCost;
    });
  }

  // How many workers to ask the host for, who may have fewer.
  static std::int64_t Workers(std::size_t tasks, bool shares) {
    static const std::int64_t processors = std::thread::hardware_concurrency();
    const auto count = static_cast<std::int64_t>(tasks);
    return shares ? std::max(count, processors) : count;
  }

  // Sums are of whole numbers, or of shares in the order of heads; then one division. Where rows
  // are divided by their totals, a head's collisions are first.
  void WriteImportance(const Inputs& in, std::int64_t b, bool broken, float* collisions,
                       float* importance) const {
    const std::int64_t begin = in.sequences.begin(b), length = in.sequences.length(b);
    float* own = importance + begin;
    if (broken) {
      std::fill_n(own, length, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const bool divides = attributes_.normalize == static_cast<int>(Normalize::kSum);
    for (std::int64_t head = 0; divides && head < attributes_.num_heads; ++head) {
      float* row = collisions + head * in.key.rows() + begin;
      const double total = std::accumulate(row, row + length, 0.0);
      const float divisor = std::max(static_cast<float>(total), kSumFloor);
      for (std::int64_t j = 0; j < length; ++j) row[j] /= divisor;
    }
    attention::SumHeads(collisions + begin, in.key.rows(), attributes_.num_heads, length, own);
    if (divides) return;
    const auto hashes = static_cast<float>(std::max(in.num_hashes[b], 1));
    for (std::int64_t j = 0; j < length; ++j) own[j] /= hashes;
  }

  HeadJob Job(const Inputs& in, std::int64_t b, std::int64_t head, float* output,
              std::int64_t columns, float* collisions) const {
    const std::int64_t begin = in.sequences.begin(b);
    const std::int64_t keys = in.sequences.length(b);
    const auto [first_row, queries] = in.QueryRows(b);
    const std::int64_t hash_stride = in.query.columns();
    const std::int64_t hash_column = head * in.head_dim;
    const std::int64_t value_column = head * in.value_dim;
    const std::int64_t taps = in.conv_weight.columns();
    const float* const conv_weight = in.conv_weight.present() ? in.conv_weight.floats() : nullptr;
    return {.family = {.seed = in.seed[b],
                       .layer = static_cast<std::int32_t>(attributes_.layer),
                       .head_dim = static_cast<std::int32_t>(in.head_dim),
                       .hash_bits = static_cast<std::int32_t>(attributes_.hash_bits),
                       .hadamard = attributes_.hash == Spec::Hash::kHadamard,
                       .lifted = attributes_.norm_lift > 0},
            .head = static_cast<std::int32_t>(head),
            .num_hashes = in.num_hashes[b],
            .query = {.data = in.query.floats() + first_row * hash_stride + hash_column,
                      .stride = hash_stride,
                      .count = queries},
            .key = {.data = in.key.floats() + begin * hash_stride + hash_column,
                    .stride = hash_stride,
                    .count = keys},
            .value = {.data = in.value.floats() + begin * columns + value_column,
                      .stride = columns,
                      .count = keys},
            .value_dim = static_cast<int>(in.value_dim),
            .output = output + first_row * columns + value_column,
            .output_stride = columns,
            .normalize = static_cast<Normalize>(attributes_.normalize),
            .rounded = Rounded(keys),
            .lift_root = std::sqrt(attributes_.norm_lift),
            .conv_weight = conv_weight != nullptr ? conv_weight + head * taps : nullptr,
            .conv_taps = taps,
            .first_collisions =
                collisions != nullptr ? collisions + head * in.key.rows() + begin : nullptr};
  }

  bool RunTask(const Inputs& in, const Task& task, float* output, std::int64_t columns,
               float* collisions, Crew& crew, Scratch& scratch) const {
    std::vector<HeadJob> jobs;
    for (std::int64_t head = task.head; head < task.head + task.heads; ++head) {
      jobs.push_back(Job(in, task.sequence, head, output, columns, collisions));
    }
    const HeadJob& job = jobs.front();
    switch (task.path) {
      case Path::kTables:
        return RunTablePaths(kernels_, jobs, crew, scratch);
      case Path::kCounts:
        return RunCountPath(kernels_, job, scratch);
      default:
        return RunExpectationPath(kernels_, job, task.first, task.count, scratch);
    }
  }

  Spec::Attributes attributes_;
  const Kernels& kernels_;
};

}  // namespace
}  // namespace attenuator::yoso

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::YosoAttention>(const NodeReader& reader) {
  return std::make_unique<yoso::YosoAttentionKernel>(reader);
}

}  // namespace attenuator
