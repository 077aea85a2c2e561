// McaAttention: checks, then one task for each head of each sequence; long sequences take all
// threads, head after head. README.md has the mathematics.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/common/aligned.h"
#include "ops/common/check.h"
#include "ops/common/registry.h"
#include "ops/mca/projection.h"
#include "ops/mca/sequence.h"
#include "ops/softmax/kernel.h"

namespace attenuator {
namespace {

using Spec = spec::McaAttention;
using mca::HeadProjection;
using mca::SequenceFacts;
using mca::SequenceRows;
using mca::Weights;
using mca::Window;

constexpr std::int64_t kHeadDimLow = 8;
constexpr std::int64_t kHeadDimHigh = 256;
// Up to this length a head is one task and, without a window, keeps its attention weights, 4 MiB at
// most a thread. Above it the scores are computed twice, and a head is spread over the threads.
constexpr std::int64_t kStoredLength = 1024;
// Rows of one task of a long sequence, and most tasks whose column maxima are kept apart.
constexpr std::int64_t kTaskRows = 4 * kQueryBlock;
constexpr std::int64_t kMaximaTasks = 16;

// Buffers of one thread, kept between runs: fresh memory of this size costs more than what is
// computed in it. At most 4.5 MiB.
struct Scratch {
  AlignedArray<float> floats;
  std::int64_t size = 0;

  float* Take(std::int64_t count) {
    if (count > size) {
      floats = MakeAligned<float>(count);
      size = count;
    }
    return floats.get();
  }
};

thread_local Scratch scratch;

std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// One run: the inputs, checked.
struct Call {
  const Spec::Attributes& attributes;
  const Weights& weights;
  Sequences sequences;
  const float* query;
  const float* key;
  const float* hidden;
  const float* bias;  // [H, padded]
  const float* alpha;
  const std::int64_t* seed;
  float* output;
  std::vector<SequenceFacts> facts;
  std::vector<double> columns;  // [B, H]: multiply-adds spent, divided by head_dim

  bool first() const { return attributes.queries == Spec::Queries::kFirst; }
  std::int64_t width() const { return weights.num_heads * weights.head_dim; }
  Window window(std::int64_t b) const {
    return {sequences.length(b), attributes.window, attributes.global_tokens == 1};
  }
  std::int64_t query_row(std::int64_t b) const { return first() ? b : sequences.begin(b); }
  float* head_output(std::int64_t b, std::int64_t h) const {
    return output + query_row(b) * width() + h * weights.head_dim;
  }
  const float* hidden_rows(std::int64_t b) const {
    return hidden + sequences.begin(b) * weights.channels;
  }
  const float* head_bias(std::int64_t h) const { return bias + h * weights.padded; }

  // Multiply-adds of (A X) W_a for a row that sees `keys` keys, divided by head_dim.
  double FirstRowColumns(std::int64_t keys) const {
    return static_cast<double>(weights.channels) *
           (1 + static_cast<double>(keys) / static_cast<double>(weights.head_dim));
  }

  AttentionHead head(std::int64_t b, std::int64_t h) const {
    AttentionHead head;
    head.query = query + query_row(b) * width() + h * weights.head_dim;
    head.query_stride = width();
    head.key = key + sequences.begin(b) * width() + h * weights.head_dim;
    head.key_stride = width();
    head.value_stride = weights.padded;
    head.length = sequences.length(b);
    head.head_dim = weights.head_dim;
    head.value_dim = weights.head_dim;
    head.scale = attributes.scale != 0.0f
                     ? attributes.scale
                     : static_cast<float>(1.0 / std::sqrt(static_cast<double>(weights.head_dim)));
    head.window = window(b).narrow() ? attributes.window : 0;
    head.global_token = window(b).wide_first();
    return head;
  }

  SequenceRows rows(std::int64_t b) const {
    const SequenceFacts& fact = facts[b];
    const std::int64_t length = sequences.length(b);
    return {hidden_rows(b),
            length,
            static_cast<double>(window(b).keys()),
            static_cast<double>(alpha[b]),
            seed[b],
            fact.centred,
            fact.centre.data(),
            fact.distances.data(),
            fact.beta,
            window(b).wide_first() ? FirstRowColumns(length) : 0.0};
  }
};

// Runs its tasks here and now; what a head of a short sequence takes for the thread pool.
struct Inline {
  template <class Body>
  void For(std::int64_t tasks, const Body& body) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task);
  }
};

// values = hidden W_a + b_a, all of it.
template <class Pool>
void ProjectExactly(const Call& call, std::int64_t b, std::int64_t h, float* values, Pool& pool) {
  const std::int64_t n = call.sequences.length(b);
  const PackedHead packed = call.weights.head(h);
  pool.For((n + kTaskRows - 1) / kTaskRows, [&](std::int64_t task) {
    const std::int64_t begin = task * kTaskRows;
    const std::int64_t count = n - begin < kTaskRows ? n - begin : kTaskRows;
    const float* rows[kTaskRows];
    float* out[kTaskRows];
    for (std::int64_t i = 0; i < count; ++i) {
      rows[i] = call.hidden_rows(b) + (begin + i) * call.weights.channels;
      out[i] = values + (begin + i) * packed.padded;
    }
    Projection().exact(rows, count, call.weights.channels, packed, call.head_bias(h), out);
  });
}

// The first row of a head by (A X) W_a + b_a: exact, without a value projection of all tokens.
// Returns the multiply-adds spent, divided by head_dim.
double FirstRowExactly(const Call& call, std::int64_t b, std::int64_t h, float* output) {
  const Weights& weights = call.weights;
  AttentionHead head = call.head(b, h);
  head.value = call.hidden_rows(b);
  head.value_stride = weights.channels;
  head.value_dim = weights.channels;
  std::vector<float> mixed(weights.channels), row(weights.padded);
  FirstRowAttention(head, mixed.data());
  const float* rows = mixed.data();
  float* out = row.data();
  Projection().exact(&rows, 1, weights.channels, weights.head(h), call.head_bias(h), &out);
  std::memcpy(output, row.data(), sizeof(float) * weights.head_dim);
  return call.FirstRowColumns(head.window > 0 && !head.global_token ? head.window + 1
                                                                    : head.length);
}

// One head of a sequence, all rows, exactly as SoftmaxAttention after a linear layer.
template <class Pool>
double RunExactHead(const Call& call, std::int64_t b, std::int64_t h, float* values, Pool& pool) {
  AttentionHead head = call.head(b, h);
  ProjectExactly(call, b, h, values, pool);
  head.value = values;
  if (call.first()) {
    FirstRowAttention(head, call.head_output(b, h));
  } else {
    pool.For((head.length + kTaskRows - 1) / kTaskRows, [&](std::int64_t task) {
      const std::int64_t begin = task * kTaskRows;
      const std::int64_t end = begin + kTaskRows < head.length ? begin + kTaskRows : head.length;
      ExactAttention(head, begin, end, call.head_output(b, h) + begin * call.width(), call.width());
    });
  }
  return static_cast<double>(head.length * call.weights.channels);
}

struct Projected {
  bool approximately;
  double columns;  // multiply-adds spent, divided by head_dim
};

template <class Pool>
Projected Project(const Call& call, std::int64_t b, std::int64_t h, const float* maxima,
                  float* values, Pool& pool) {
  HeadProjection projection(call.weights, h, static_cast<std::uint32_t>(call.attributes.layer),
                            call.attributes.estimator, call.rows(b), maxima, call.head_bias(h));
  pool.For(projection.tasks(), [&](std::int64_t task) { projection.Run(task, values); });
  return {projection.approximates(), projection.columns()};
}

// A head whose attention weights stay in memory between the two halves.
double RunStoredHead(const Call& call, std::int64_t b, std::int64_t h, float* memory) {
  const AttentionHead head = call.head(b, h);
  const std::int64_t n = head.length, blocks = (n + kQueryBlock - 1) / kQueryBlock;
  float* probabilities = memory;
  float* inverse_sums = probabilities + blocks * kQueryBlock * n;
  float* maxima = inverse_sums + blocks * kQueryBlock;
  float* values = maxima + RoundUp(n, kProjectionPad);
  std::memset(maxima, 0, sizeof(float) * n);
  const auto end = [&](std::int64_t block) {
    return (block + 1) * kQueryBlock < n ? (block + 1) * kQueryBlock : n;
  };
  for (std::int64_t block = 0; block < blocks; ++block) {
    ProbabilityBlock(head, block * kQueryBlock, end(block), probabilities + block * kQueryBlock * n,
                     inverse_sums + block * kQueryBlock, maxima);
  }
  Inline pool;
  const double columns = Project(call, b, h, maxima, values, pool).columns;
  AttentionHead with_values = head;
  with_values.value = values;
  for (std::int64_t block = 0; block < blocks; ++block) {
    ValueBlock(with_values, block * kQueryBlock, end(block),
               probabilities + block * kQueryBlock * n, inverse_sums + block * kQueryBlock,
               call.head_output(b, h) + block * kQueryBlock * call.width(), call.width());
  }
  return columns;
}

// A head whose scores are computed twice: for the column maxima, then for the output.
template <class Pool>
double RunTwiceHead(const Call& call, std::int64_t b, std::int64_t h, float* values, Pool& pool) {
  AttentionHead head = call.head(b, h);
  const std::int64_t n = head.length, skip = head.global_token ? 1 : 0;
  const std::int64_t chunks = (n + kTaskRows - 1) / kTaskRows;
  const std::int64_t tasks = chunks < kMaximaTasks ? chunks : kMaximaTasks;
  std::vector<float> maxima(tasks * n, 0.0f);
  pool.For(tasks, [&](std::int64_t task) {
    for (std::int64_t chunk = task; chunk < chunks; chunk += tasks) {
      const std::int64_t begin = chunk * kTaskRows;
      const std::int64_t end = begin + kTaskRows < n ? begin + kTaskRows : n;
      ColumnMaxima(head, begin > 0 ? begin : skip, end, maxima.data() + task * n);
    }
  });
  for (std::int64_t task = 1; task < tasks; ++task) {
    for (std::int64_t j = 0; j < n; ++j) {
      const float other = maxima[task * n + j];
      if (!(other <= maxima[j])) maxima[j] = other;
    }
  }
  const Projected projected = Project(call, b, h, maxima.data(), values, pool);
  // Row 0 of a global window sees more keys than the n of the bound: it is exact either way.
  const bool apart = skip == 1 && projected.approximately;
  head.value = values;
  pool.For(chunks, [&](std::int64_t chunk) {
    const std::int64_t begin = chunk == 0 && apart ? 1 : chunk * kTaskRows;
    const std::int64_t end = (chunk + 1) * kTaskRows < n ? (chunk + 1) * kTaskRows : n;
    ExactAttention(head, begin, end, call.head_output(b, h) + begin * call.width(), call.width());
  });
  if (!apart) return projected.columns;
  return projected.columns + FirstRowExactly(call, b, h, call.head_output(b, h));
}

class McaAttentionKernel final : public Kernel {
 public:
  explicit McaAttentionKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {
    if (!std::isfinite(attributes_.scale)) Fail(Spec::kName, "attribute scale is not finite");
    const auto weight = reader.ConstantInput(Spec::kValueWeightInput);
    // A weight of a wrong shape is refused by the first run, with the other inputs beside it.
    if (!weight || weight->columns() % attributes_.num_heads != 0) return;
    const std::int64_t head_dim = weight->columns() / attributes_.num_heads;
    if (weight->rows() < 1 || head_dim < kHeadDimLow || head_dim > kHeadDimHigh) return;
    weights_ = std::make_unique<Weights>(Pack(*weight, head_dim, true));
  }

  void Run(RunContext& context) const override {
    const TensorView query = context.Input(Spec::kQueryInput);
    const TensorView key = context.Input(Spec::kKeyInput);
    const TensorView hidden = context.Input(Spec::kHiddenInput);
    const TensorView weight = context.Input(Spec::kValueWeightInput);
    const TensorView bias = context.Input(Spec::kValueBiasInput);
    const std::int64_t heads = attributes_.num_heads;
    const bool first = attributes_.queries == Spec::Queries::kFirst;
    const Sequences sequences =
        CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), key.rows());
    CheckAxis(Spec::kName, "hidden", hidden, 0, key.rows(), "rows of key");
    CheckAxis(Spec::kName, "query", query, 0, first ? sequences.batch : key.rows(),
              first ? "one row a sequence" : "rows of key");
    CheckAxis(Spec::kName, "query", query, 1, key.columns(), "columns of key");
    const std::int64_t head_dim =
        CheckHeadDim(Spec::kName, "key", key, heads, kHeadDimLow, kHeadDimHigh);
    if (hidden.columns() < 1) Fail(Spec::kName, "hidden has 0 columns, must have at least 1");
    CheckAxis(Spec::kName, "value_weight", weight, 0, hidden.columns(), "columns of hidden");
    CheckAxis(Spec::kName, "value_weight", weight, 1, key.columns(), "columns of key");
    CheckAxis(Spec::kName, "value_bias", bias, 0, key.columns(), "columns of value_weight");
    const float* alpha =
        CheckKnob(Spec::kName, Spec::kAlpha, context.Input(Spec::kAlphaInput), sequences.batch);
    const std::int64_t* seed =
        CheckSeeds(Spec::kName, context.Input(Spec::kSeedInput), sequences.batch);

    float* output =
        static_cast<float*>(context.Output(Spec::kOutputOutput, {query.rows(), key.columns()}));
    float* value_flops =
        static_cast<float*>(context.Output(Spec::kValueFlopsOutput, {sequences.batch}));
    if (first) std::memset(output, 0, sizeof(float) * query.rows() * key.columns());

    Weights packed_now{};
    if (!weights_) {
      bool approximate = false;
      for (std::int64_t b = 0; b < sequences.batch; ++b) approximate |= alpha[b] > 0;
      packed_now = Pack(weight, head_dim, approximate);
    }
    const Weights& weights = weights_ ? *weights_ : packed_now;
    const AlignedArray<float> padded_bias = MakeAligned<float>(heads * weights.padded);
    std::memset(padded_bias.get(), 0, sizeof(float) * heads * weights.padded);
    for (std::int64_t h = 0; h < heads; ++h) {
      std::memcpy(padded_bias.get() + h * weights.padded, bias.floats() + h * head_dim,
                  sizeof(float) * head_dim);
    }
    Call call{attributes_,
              weights,
              sequences,
              query.floats(),
              key.floats(),
              hidden.floats(),
              padded_bias.get(),
              alpha,
              seed,
              output,
              std::vector<SequenceFacts>(sequences.batch),
              std::vector<double>(sequences.batch * heads, 0.0)};
    Study(call, context.threads());
    RunHeads(call, context.threads());
    for (std::int64_t b = 0; b < sequences.batch; ++b) {
      const double dense = static_cast<double>(sequences.length(b)) *
                           static_cast<double>(weights.channels) * static_cast<double>(heads);
      double spent = 0;
      for (std::int64_t h = 0; h < heads; ++h) spent += call.columns[b * heads + h];
      const bool known = dense > 0 && call.facts[b].finite;
      value_flops[b] = known ? static_cast<float>(spent / dense) : 1.0f;
    }
  }

 private:
  Weights Pack(const TensorView& weight, std::int64_t head_dim, bool approximate) const {
    return mca::PackWeights(weight.floats(), weight.rows(), attributes_.num_heads, head_dim,
                            attributes_.estimator,
                            approximate && attributes_.queries == Spec::Queries::kAll);
  }

  // Facts of every sequence; rows of one that is not finite become NaN here.
  static void Study(Call& call, ThreadPool& threads) {
    threads.For(call.sequences.batch, [&](std::int64_t b) {
      const std::int64_t n = call.sequences.length(b), width = call.width();
      if (n == 0) return;
      SequenceFacts& facts = call.facts[b];
      const std::int64_t rows = call.first() ? 1 : n;
      facts.finite = Projection().finite(call.query + call.query_row(b) * width, rows * width) &&
                     Projection().finite(call.key + call.sequences.begin(b) * width, n * width) &&
                     Projection().finite(call.hidden_rows(b), n * call.weights.channels);
      if (!facts.finite) {
        float* out = call.output + call.query_row(b) * width;
        for (std::int64_t i = 0; i < rows * width; ++i) {
          out[i] = std::numeric_limits<float>::quiet_NaN();
        }
      } else if (call.alpha[b] > 0 && !call.first()) {
        mca::Measure(call.hidden_rows(b), call.weights.channels, call.window(b),
                     call.attributes.estimator, &facts);
      }
    });
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
      const AlignedArray<float> values = MakeAligned<float>(n * call.weights.padded);
      for (std::int64_t h = 0; h < heads; ++h) {
        call.columns[b * heads + h] = call.alpha[b] > 0
                                          ? RunTwiceHead(call, b, h, values.get(), threads)
                                          : RunExactHead(call, b, h, values.get(), threads);
      }
    }
    // Head by head, so that neighbouring tasks find the head's weight in the cache.
    const std::int64_t count = static_cast<std::int64_t>(short_ones.size());
    threads.For(heads * count, [&](std::int64_t task) {
      const std::int64_t b = short_ones[task % count], h = task / count;
      call.columns[b * heads + h] = RunShort(call, b, h);
    });
  }

  static double RunShort(const Call& call, std::int64_t b, std::int64_t h) {
    const std::int64_t n = call.sequences.length(b);
    const std::int64_t padded = call.weights.padded;
    Inline pool;
    if (call.first()) {
      // One token needs no mixing: projecting it is all there is to do.
      if (call.alpha[b] > 0 && n > 1) return FirstRowExactly(call, b, h, call.head_output(b, h));
      const AlignedArray<float> values = MakeAligned<float>(n * padded);
      return RunExactHead(call, b, h, values.get(), pool);
    }
    if (call.alpha[b] == 0) return RunExactHead(call, b, h, scratch.Take(n * padded), pool);
    if (call.window(b).narrow()) {
      return RunTwiceHead(call, b, h, scratch.Take(n * padded), pool);
    }
    const std::int64_t rows = RoundUp(n, kQueryBlock);
    return RunStoredHead(call, b, h,
                         scratch.Take(rows * n + rows + RoundUp(n, kProjectionPad) + n * padded));
  }

  Spec::Attributes attributes_;
  std::unique_ptr<Weights> weights_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> MakeKernel<Spec>(const NodeReader& reader) {
  return std::make_unique<McaAttentionKernel>(reader);
}

}  // namespace attenuator
