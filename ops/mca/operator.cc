// McaAttention: checks, then one task for each head of each sequence; long sequences take all
// threads, head after head. README.md has the mathematics.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/attention/importance.h"
#include "ops/common/registry.h"
#include "ops/mca/cpu/head.h"
#include "ops/mca/inputs.h"

namespace attenuator::mca {
namespace {

using Spec = spec::McaAttention;

// Floats of hidden rows that stay in the second-level cache from head to head.
constexpr std::int64_t kCachedFloats = 256 * 1024;

class McaAttentionKernel final : public Kernel {
 public:
  explicit McaAttentionKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {
    CheckAttributes(attributes_);
    const auto weight = reader.ConstantInput(Spec::kValueWeightInput);
    // A weight of a wrong shape is refused by the first run, with the other inputs beside it.
    if (!weight || weight->columns() % attributes_.num_heads != 0) return;
    const std::int64_t head_dim = weight->columns() / attributes_.num_heads;
    if (weight->rows() < 1 || head_dim < kHeadDimLow || head_dim > kHeadDimHigh) return;
    weights_ = std::make_unique<Weights>(Pack(*weight, head_dim, true));
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    const TensorView &query = inputs.query, &key = inputs.key, &weight = inputs.weight;
    const Sequences& sequences = inputs.sequences;
    const std::int64_t heads = attributes_.num_heads, head_dim = inputs.head_dim;

    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {query.rows(), key.columns()}));
    float* value_flops =
        static_cast<float*>(context.Output(Spec::kValueFlopsOutput, {sequences.batch}));
    float* const importance =
        attention::ImportanceOutput<Spec>(context, attributes_, sequences.total);
    attention::CheckPositions(Spec::kName, inputs.positions, sequences);
    const std::vector<attention::KeyRange> ranges =
        attention::RangesOf(inputs.positions, sequences, attributes_.window);
    std::vector<float> head_weights(importance == nullptr ? 0 : heads * sequences.total, 0.0f);
    if (inputs.first) std::fill_n(output, query.rows() * key.columns(), 0.0f);

    Weights packed_now{};
    if (!weights_) {
      bool approximate = false;
      for (std::int64_t b = 0; b < sequences.batch; ++b) approximate |= inputs.alpha[b] > 0;
      packed_now = Pack(weight, head_dim, approximate);
    }
    const Weights& weights = weights_ ? *weights_ : packed_now;
    const AlignedArray<float> padded_bias = MakeAligned<float>(heads * weights.padded);
    std::memset(padded_bias.get(), 0, sizeof(float) * heads * weights.padded);
    for (std::int64_t h = 0; h < heads; ++h) {
      std::memcpy(padded_bias.get() + h * weights.padded, inputs.bias.floats() + h * head_dim,
                  sizeof(float) * head_dim);
    }
    Call call{.attributes = attributes_,
              .weights = weights,
              .sequences = sequences,
              .unmerged = inputs.unmerged,
              .query = query.floats(),
              .key = key.floats(),
              .hidden = inputs.hidden.floats(),
              .bias = padded_bias.get(),
              .alpha = inputs.alpha,
              .seed = inputs.seed,
              .output = output,
              .ranges = ranges.empty() ? nullptr : ranges.data(),
              .row_0 = inputs.first || attributes_.importance == Spec::Importance::kFirst,
              .head_weights = importance == nullptr ? nullptr : head_weights.data(),
              .facts = std::vector<SequenceFacts>(sequences.batch),
              .heads = std::vector<HeadResult>(sequences.batch * heads)};
    Study(call, context.threads());
    RunHeads(call, context.threads());
    for (std::int64_t b = 0; b < sequences.batch; ++b) value_flops[b] = Finish(call, b, importance);
  }

 private:
  Weights Pack(const TensorView& weight, std::int64_t head_dim, bool approximate) const {
    return PackWeights(weight.floats(), weight.rows(), attributes_.num_heads, head_dim,
                       attributes_.estimator,
                       approximate && attributes_.queries == Spec::Queries::kAll);
  }

  // Facts of sequences that may be approximated.
  static void Study(Call& call, ThreadPool& threads) {
    threads.For(call.sequences.batch, [&](std::int64_t b) {
      if (call.sequences.length(b) == 0 || !call.approximate(b)) return;
      Measure(call.hidden_rows(b), call.weights.channels, call.window(b), call.attributes.estimator,
              &call.facts[b]);
    });
  }

  // Returns a sequence's value_flops and writes its importance, where there is such an output.
  // Where it is not finite, its rows and its importance become NaN.
  static float Finish(const Call& call, std::int64_t b, float* importance) {
    const std::int64_t n = call.sequences.length(b), heads = call.weights.num_heads;
    if (n == 0) return 1.0f;
    bool finite = call.facts[b].finite;
    double spent = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      finite = finite && call.heads[b * heads + h].finite;
      spent += call.heads[b * heads + h].columns;
    }
    float* const keys = importance == nullptr ? nullptr : importance + call.sequences.begin(b);
    if (finite) {
      if (keys != nullptr) {
        attention::SumHeads(call.importance(b, 0), call.sequences.total, heads, n, keys);
      }
      return static_cast<float>(spent / static_cast<double>(n * call.weights.channels * heads));
    }
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    const std::int64_t rows = call.first() ? 1 : n;
    std::fill_n(call.output + call.query_row(b) * call.width(), rows * call.width(), kNaN);
    if (keys != nullptr) std::fill_n(keys, n, kNaN);
    return 1.0f;
  }

  static void RunHeads(Call& call, ThreadPool& threads) {
    const std::int64_t heads = call.weights.num_heads;
    std::vector<std::int64_t> short_ones;
    for (std::int64_t b = 0; b < call.sequences.batch; ++b) {
      const std::int64_t n = call.sequences.length(b);
      if (n == 0 || !call.facts[b].finite) continue;
      if (call.first() || n <= kStoredLength) {
        short_ones.push_back(b);
        continue;
      }
      const AlignedArray<float> memory = MakeAligned<float>(HeadFloats(call, b));
      for (std::int64_t h = 0; h < heads; ++h) {
        call.heads[b * heads + h] = RunLongHead(call, b, h, memory.get(), threads);
      }
    }
    const std::vector<Task> tasks = InCacheOrder(call, short_ones);
    threads.For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
      const Task& task = tasks[index];
      call.heads[task.sequence * heads + task.head] = RunShortHead(call, task.sequence, task.head);
    });
  }

  struct Task {
    std::int64_t sequence, head;
  };

  // Orders tasks so that neighbours share data in the cache: sequences whose hidden rows fit into
  // it together, head by head, so that they share the head's weight too.
  static std::vector<Task> InCacheOrder(const Call& call, const std::vector<std::int64_t>& ones) {
    const std::int64_t most = kCachedFloats / call.weights.channels;
    std::vector<Task> tasks;
    for (std::size_t first = 0, last = 0; first < ones.size(); first = last) {
      std::int64_t tokens = 0;
      do {
        tokens += call.sequences.length(ones[last++]);
      } while (last < ones.size() && tokens + call.sequences.length(ones[last]) <= most);
      for (std::int64_t h = 0; h < call.weights.num_heads; ++h) {
        for (std::size_t i = first; i < last; ++i) tasks.push_back({ones[i], h});
      }
    }
    return tasks;
  }

  Spec::Attributes attributes_;
  std::unique_ptr<Weights> weights_;
};

}  // namespace
}  // namespace attenuator::mca

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::McaAttention>(const NodeReader& reader) {
  return std::make_unique<mca::McaAttentionKernel>(reader);
}

}  // namespace attenuator
