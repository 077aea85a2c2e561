#include "ops/mca/head.h"

#include <cstring>

#include "ops/common/aligned.h"
#include "ops/softmax/inputs.h"

namespace attenuator::mca {
namespace {

// Rows of one task of a long sequence, and most tasks whose column maxima are kept apart.
constexpr std::int64_t kTaskRows = 4 * kQueryBlock;
constexpr std::int64_t kMaximaTasks = 16;

// Buffers of one thread, kept between runs: fresh memory of this size costs more than what is
// computed in it. At most 3.1 MiB.
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
                            call.attributes.estimator, call.rows(b), maxima, call.head_bias(h),
                            values);
  pool.For(projection.tasks(), [&](std::int64_t task) { projection.Run(task); });
  return {projection.approximates(), projection.columns()};
}

// A head whose attention weights stay in memory between the two halves, up to the rows after which
// their maxima tell that all will be exact: from there on it goes on as exact attention does.
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
  std::int64_t stored = 0;
  bool open = true;
  while (open && stored < blocks) {
    ProbabilityBlock(head, stored * kQueryBlock, end(stored),
                     probabilities + stored * kQueryBlock * n, inverse_sums + stored * kQueryBlock,
                     maxima);
    ++stored;
    // Asked as the rows double: maxima hardly change by one block among many.
    if (stored < blocks && (stored & (stored - 1)) == 0) {
      open = MayApproximate(call.weights, h, call.attributes.estimator, call.rows(b), maxima);
    }
  }
  Inline pool;
  double columns = static_cast<double>(n * call.weights.channels);
  if (open) {
    columns = Project(call, b, h, maxima, values, pool).columns;
  } else {
    ProjectExactly(call, b, h, values, pool);
  }
  AttentionHead with_values = head;
  with_values.value = values;
  for (std::int64_t block = 0; block < stored; ++block) {
    ValueBlock(with_values, block * kQueryBlock, end(block),
               probabilities + block * kQueryBlock * n, inverse_sums + block * kQueryBlock,
               call.head_output(b, h) + block * kQueryBlock * call.width(), call.width());
  }
  if (stored < blocks) {
    const std::int64_t rest = stored * kQueryBlock;
    ExactAttention(with_values, rest, n, call.head_output(b, h) + rest * call.width(),
                   call.width());
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

}  // namespace

AttentionHead Call::head(std::int64_t b, std::int64_t h) const {
  AttentionHead head;
  head.query = query + query_row(b) * width() + h * weights.head_dim;
  head.query_stride = width();
  head.key = key + sequences.begin(b) * width() + h * weights.head_dim;
  head.key_stride = width();
  head.value_stride = weights.padded;
  head.length = sequences.length(b);
  head.head_dim = weights.head_dim;
  head.value_dim = weights.head_dim;
  head.scale = softmax::ScoreScale(attributes.scale, weights.head_dim);
  head.window = window(b).narrow() ? attributes.window : 0;
  head.global_token = window(b).wide_first();
  return head;
}

SequenceRows Call::rows(std::int64_t b) const {
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
double RunShortHead(const Call& call, std::int64_t b, std::int64_t h) {
  const std::int64_t n = call.sequences.length(b);
  const std::int64_t padded = call.weights.padded;
  Inline pool;
  if (call.first()) {
    // One token needs no mixing: projecting it is all there is to do.
    if (call.alpha[b] > 0 && n > 1) return FirstRowExactly(call, b, h, call.head_output(b, h));
    const AlignedArray<float> values = MakeAligned<float>(n * padded);
    return RunExactHead(call, b, h, values.get(), pool);
  }
  if (!call.approximate(b)) return RunExactHead(call, b, h, scratch.Take(n * padded), pool);
  if (call.window(b).narrow()) {
    return RunTwiceHead(call, b, h, scratch.Take(n * padded), pool);
  }
  const std::int64_t rows = RoundUp(n, kQueryBlock);
  return RunStoredHead(call, b, h,
                       scratch.Take(rows * n + rows + RoundUp(n, kProjectionPad) + n * padded));
}

double RunLongHead(const Call& call, std::int64_t b, std::int64_t h, float* values,
                   ThreadPool& threads) {
  return call.approximate(b) ? RunTwiceHead(call, b, h, values, threads)
                             : RunExactHead(call, b, h, values, threads);
}

}  // namespace attenuator::mca
