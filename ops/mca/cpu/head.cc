#include "ops/mca/cpu/head.h"

#include <algorithm>
#include <cstring>

#include "ops/common/aligned.h"

namespace attenuator::mca {
namespace {

// Rows of one task of a long sequence.
constexpr std::int64_t kTaskRows = 4 * attention::kQueryBlock;

// Buffers of one thread, kept between runs, because allocating that much memory takes longer than
// the computation in it. At most 3.1 MiB.
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

// Runs tasks one after the other on the calling thread: for a head of a short sequence.
struct Inline {
  static constexpr std::int64_t kMaximaTasks = 1;  // tasks with column maxima of their own
  template <class Body>
  void For(std::int64_t tasks, const Body& body) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task);
  }
};

// Runs tasks on the thread pool: for a head of a long sequence.
struct Threads {
  static constexpr std::int64_t kMaximaTasks = 16;
  ThreadPool& threads;

  template <class Body>
  void For(std::int64_t tasks, const Body& body) {
    threads.For(tasks, body);
  }
};

// Whether the inputs that this head has to check are finite (see RunShortHead).
template <class Pool>
bool IsFinite(const Call& call, std::int64_t b, std::int64_t h, Pool& pool) {
  const std::int64_t n = call.sequences.length(b), channels = call.weights.channels;
  const attention::Head head = call.head(b, h);
  const auto share = [&](std::int64_t index) { return channels * index / call.weights.num_heads; };
  const std::int64_t from = share(h), columns = share(h + 1) - from;
  const bool hidden = !call.approximate(b);
  const auto finite = Projection().finite;
  std::vector<char> tasks((n + kTaskRows - 1) / kTaskRows, 1);
  pool.For(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t task) {
    const std::int64_t row = task * kTaskRows, rows = n - row < kTaskRows ? n - row : kTaskRows;
    const std::int64_t queries = !call.first() ? rows : row == 0 ? 1 : 0;
    tasks[task] =
        finite(head.query + row * head.query_stride, queries, head.head_dim, head.query_stride) &&
        finite(head.key + row * head.key_stride, rows, head.head_dim, head.key_stride) &&
        (!hidden || finite(call.hidden_rows(b) + row * channels + from, rows, columns, channels));
  });
  return std::find(tasks.begin(), tasks.end(), 0) == tasks.end();
}

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
  attention::Head head = call.head(b, h);
  head.value = call.hidden_rows(b);
  head.value_stride = weights.channels;
  head.value_dim = weights.channels;
  std::vector<float> mixed(weights.channels), row(weights.padded);
  attention::AttendFirstRow(head, mixed.data());
  const float* rows = mixed.data();
  float* out = row.data();
  Projection().exact(&rows, 1, weights.channels, weights.head(h), call.head_bias(h), &out);
  std::memcpy(output, row.data(), sizeof(float) * weights.head_dim);
  return call.FirstRowColumns(head.window > 0 && !head.global_token ? call.window(b).seen(0).end
                                                                    : head.length);
}

// Column maxima over `turns` blocks of rows. Each task computes its own maxima over every
// tasks-th block by rows(task, tasks, maxima [length]); then they are joined.
template <class Pool, class Rows>
void GatherMaxima(std::int64_t turns, std::int64_t length, Pool& pool, float* maxima,
                  const Rows& rows) {
  const std::int64_t tasks = turns < Pool::kMaximaTasks ? turns : Pool::kMaximaTasks;
  std::vector<float> others((tasks > 1 ? tasks - 1 : 0) * length, 0.0f);
  pool.For(tasks, [&](std::int64_t task) {
    rows(task, tasks, task == 0 ? maxima : others.data() + (task - 1) * length);
  });
  for (std::int64_t task = 1; task < tasks; ++task) {
    for (std::int64_t j = 0; j < length; ++j) {
      const float other = others[(task - 1) * length + j];
      if (!(other <= maxima[j])) maxima[j] = other;
    }
  }
}

// Rows [begin, end) of exact attention over a head's values, and their maxima where asked for.
template <class Pool>
void AttendExactly(const Call& call, std::int64_t b, std::int64_t h, const attention::Head& head,
                   std::int64_t begin, std::int64_t end, Pool& pool) {
  const std::int64_t chunks = (end - begin + kTaskRows - 1) / kTaskRows;
  const auto attend = [&](std::int64_t chunk, float* maxima) {
    const std::int64_t first = begin + chunk * kTaskRows;
    const std::int64_t last = first + kTaskRows < end ? first + kTaskRows : end;
    float* const output = call.head_output(b, h) + first * call.width();
    if (maxima == nullptr) {
      attention::AttendRows(head, first, last, output, call.width());
    } else {
      attention::AttendRows(head, first, last, output, call.width(), maxima);
    }
  };
  float* const maxima = call.maxima(b, h);
  if (maxima == nullptr) {
    pool.For(chunks, [&](std::int64_t chunk) { attend(chunk, nullptr); });
    return;
  }
  GatherMaxima(chunks, head.length, pool, maxima,
               [&](std::int64_t task, std::int64_t tasks, float* mine) {
                 for (std::int64_t chunk = task; chunk < chunks; chunk += tasks) {
                   attend(chunk, mine);
                 }
               });
}

// One head of a sequence, all rows, exactly as SoftmaxAttention after a linear layer.
template <class Pool>
double RunExactHead(const Call& call, std::int64_t b, std::int64_t h, float* values, Pool& pool) {
  attention::Head head = call.head(b, h);
  ProjectExactly(call, b, h, values, pool);
  head.value = values;
  if (call.first()) {
    attention::AttendFirstRow(head, call.head_output(b, h));
  } else {
    AttendExactly(call, b, h, head, 0, head.length, pool);
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

// The attention weights of a head that stay in memory, in blocks of rows.
class StoredWeights {
 public:
  static std::int64_t Floats(const attention::Head& head) {
    return Blocks(head) * (BlockFloats(head) + FactorFloats(head));
  }

  StoredWeights(const attention::Head& head, float* memory)
      : head_(head), weights_(memory), factors_(memory + Blocks(head) * BlockFloats(head)) {}

  std::int64_t blocks() const { return Blocks(head_); }
  // Row 0 of a global window sees more keys than the n of the bound: it belongs to no block.
  std::int64_t begin(std::int64_t block) const {
    return block > 0 || !head_.global_token ? block * attention::kQueryBlock : 1;
  }
  std::int64_t end(std::int64_t block) const {
    return std::min((block + 1) * attention::kQueryBlock, head_.length);
  }

  // Stores blocks [from, to) and raises `maxima` [length].
  template <class Pool>
  void Store(std::int64_t from, std::int64_t to, Pool& pool, float* maxima) const {
    GatherMaxima(to - from, head_.length, pool, maxima,
                 [&](std::int64_t task, std::int64_t tasks, float* mine) {
                   for (std::int64_t block = from + task; block < to; block += tasks) {
                     attention::ProbabilityBlock(head_, begin(block), end(block),
                                                 weights_ + block * BlockFloats(head_),
                                                 factors_ + block * FactorFloats(head_), mine);
                   }
                 });
  }

  // Output rows of blocks [from, to); `output` is where row 0 goes.
  template <class Pool>
  void AddValues(std::int64_t from, std::int64_t to, const attention::Head& with_values, Pool& pool,
                 float* output, std::int64_t stride) const {
    pool.For(to - from, [&](std::int64_t index) {
      const std::int64_t block = from + index;
      attention::ValueBlock(
          with_values, begin(block), end(block), weights_ + block * BlockFloats(head_),
          factors_ + block * FactorFloats(head_), output + begin(block) * stride, stride);
    });
  }

 private:
  static std::int64_t Blocks(const attention::Head& head) {
    return (head.length + attention::kQueryBlock - 1) / attention::kQueryBlock;
  }
  static std::int64_t BlockFloats(const attention::Head& head) {
    return attention::kQueryBlock * attention::BlockKeys(head);
  }
  static std::int64_t FactorFloats(const attention::Head& head) {
    return attention::kQueryBlock * (1 + attention::BlockPieces(head));
  }

  const attention::Head& head_;
  float* const weights_;
  float* const factors_;
};

// Output of a head that stays exact after its probe, blocks [from, to), has been stored: the stored
// weights are multiplied by the exact values, and exact attention computes the other rows.
template <class Pool>
void AttendBesideStored(const Call& call, std::int64_t b, std::int64_t h,
                        const attention::Head& head, const StoredWeights& stored, std::int64_t from,
                        std::int64_t to, Pool& pool) {
  float* const output = call.head_output(b, h);
  stored.AddValues(from, to, head, pool, output, call.width());
  AttendExactly(call, b, h, head, 0, from * attention::kQueryBlock, pool);
  AttendExactly(call, b, h, head, to * attention::kQueryBlock, head.length, pool);
  if (head.global_token && from == 0) AttendExactly(call, b, h, head, 0, 1, pool);
}

// The weights of a head's row 0 as its importance, or its maxima raised by them.
void TakeFirstRow(const Call& call, std::int64_t b, std::int64_t h) {
  const attention::Head head = call.head(b, h);
  const AlignedArray<float> weights = MakeAligned<float>(head.length + attention::kQueryBlock);
  attention::FirstRowWeights(head, weights.get());
  float* const importance = call.importance(b, h);
  for (std::int64_t j = 0; j < head.length; ++j) {
    if (call.row_0 || weights[j] > importance[j]) importance[j] = weights[j];
  }
}

// A head whose attention weights are kept until the values are known: first for the probe's rows
// and, where their maxima predict a gain, for all other rows.
template <class Pool>
double RunStoredHead(const Call& call, std::int64_t b, std::int64_t h, float* memory, Pool& pool) {
  attention::Head head = call.head(b, h);
  const SequenceRows rows = call.rows(b);
  const StoredWeights stored(head, memory);
  float* const values = memory + StoredWeights::Floats(head);
  head.value = values;
  std::vector<float> maxima(head.length, 0.0f);
  const std::int64_t from = rows.probe.first_row / attention::kQueryBlock;
  const std::int64_t to = from + rows.probe.rows / attention::kQueryBlock;
  stored.Store(from, to, pool, maxima.data());
  if (!ProbePays(call.weights, h, call.attributes.estimator, rows, maxima.data())) {
    ProjectExactly(call, b, h, values, pool);
    if (float* importance = call.maxima(b, h)) std::copy_n(maxima.data(), head.length, importance);
    AttendBesideStored(call, b, h, head, stored, from, to, pool);
    return static_cast<double>(head.length * call.weights.channels);
  }
  stored.Store(0, from, pool, maxima.data());
  stored.Store(to, stored.blocks(), pool, maxima.data());
  const Projected projected = Project(call, b, h, maxima.data(), values, pool);
  float* const output = call.head_output(b, h);
  stored.AddValues(0, stored.blocks(), head, pool, output, call.width());
  if (float* importance = call.maxima(b, h)) {
    std::copy_n(maxima.data(), head.length, importance);
    if (head.global_token) TakeFirstRow(call, b, h);
  }
  if (!head.global_token) return projected.columns;
  if (projected.approximately) return projected.columns + FirstRowExactly(call, b, h, output);
  attention::AttendRows(head, 0, 1, output, call.width());
  return projected.columns;
}

// A head without a window whose scores are computed twice: for the column maxima, then for the
// output.
template <class Pool>
double RunTwiceHead(const Call& call, std::int64_t b, std::int64_t h, float* values, Pool& pool) {
  attention::Head head = call.head(b, h);
  const SequenceRows rows = call.rows(b);
  const std::int64_t n = head.length, probed = rows.probe.rows;
  std::vector<float> maxima(n, 0.0f);
  attention::ColumnMaxima(head, 0, probed, maxima.data());
  Projected projected{false, static_cast<double>(n * call.weights.channels)};
  if (ProbePays(call.weights, h, call.attributes.estimator, rows, maxima.data())) {
    const std::int64_t chunks = (n - probed + kTaskRows - 1) / kTaskRows;
    GatherMaxima(chunks, n, pool, maxima.data(),
                 [&](std::int64_t task, std::int64_t tasks, float* mine) {
                   for (std::int64_t chunk = task; chunk < chunks; chunk += tasks) {
                     const std::int64_t begin = probed + chunk * kTaskRows;
                     attention::ColumnMaxima(head, begin, std::min(begin + kTaskRows, n), mine);
                   }
                 });
    projected = Project(call, b, h, maxima.data(), values, pool);
    if (float* importance = call.maxima(b, h)) std::copy_n(maxima.data(), n, importance);
  } else {
    ProjectExactly(call, b, h, values, pool);
  }
  head.value = values;
  AttendExactly(call, b, h, head, 0, n, pool);
  return projected.columns;
}

template <class Pool>
double RunHead(const Call& call, std::int64_t b, std::int64_t h, float* memory, Pool& pool) {
  if (call.head_weights != nullptr && call.row_0) TakeFirstRow(call, b, h);
  if (!call.approximate(b)) return RunExactHead(call, b, h, memory, pool);
  return call.window(b).stored() ? RunStoredHead(call, b, h, memory, pool)
                                 : RunTwiceHead(call, b, h, memory, pool);
}

}  // namespace

attention::Head Call::head(std::int64_t b, std::int64_t h) const {
  return {.query = query + query_row(b) * width() + h * weights.head_dim,
          .query_stride = width(),
          .key = key + sequences.begin(b) * width() + h * weights.head_dim,
          .key_stride = width(),
          .value_stride = weights.padded,
          .length = sequences.length(b),
          .head_dim = weights.head_dim,
          .value_dim = weights.head_dim,
          .scale = attention::ScoreScale(attributes.scale, weights.head_dim),
          .window = window(b).narrow() ? attributes.window : 0,
          .global_token = window(b).wide_first(),
          .last_key_rows = static_cast<float>(RowsOfLast(unmerged, sequences, b)),
          .ranges = window(b).narrow() ? window(b).ranges : nullptr};
}

SequenceRows Call::rows(std::int64_t b) const {
  const SequenceFacts& fact = facts[b];
  return {.hidden = hidden_rows(b),
          .length = sequences.length(b),
          .keys = static_cast<double>(window(b).keys()),
          .alpha = static_cast<double>(alpha[b]),
          .seed = seed[b],
          .centred = fact.centred,
          .centre = fact.centre.data(),
          .distances = fact.distances.data(),
          .beta = fact.beta,
          .overhead = window(b).wide_first() ? FirstRowColumns(sequences.length(b)) : 0.0,
          .probe = attributes.estimator == Estimator::kPaper ? Probe{} : ProbeOf(window(b)),
          .maxima_cost = MaximaCost(window(b), weights.padded)};
}

std::int64_t HeadFloats(const Call& call, std::int64_t b) {
  const std::int64_t values = call.sequences.length(b) * call.weights.padded;
  if (!call.approximate(b) || !call.window(b).stored()) return values;
  return StoredWeights::Floats(call.head(b, 0)) + values;
}

HeadResult RunShortHead(const Call& call, std::int64_t b, std::int64_t h) {
  Inline pool;
  const bool finite = IsFinite(call, b, h, pool);
  // With one token the output is its projected value.
  if (call.first() && call.head_weights != nullptr) TakeFirstRow(call, b, h);
  if (call.first() && call.alpha[b] > 0 && call.sequences.length(b) > 1) {
    return {FirstRowExactly(call, b, h, call.head_output(b, h)), finite};
  }
  if (call.first()) {
    const AlignedArray<float> values = MakeAligned<float>(HeadFloats(call, b));
    return {RunExactHead(call, b, h, values.get(), pool), finite};
  }
  return {RunHead(call, b, h, scratch.Take(HeadFloats(call, b)), pool), finite};
}

HeadResult RunLongHead(const Call& call, std::int64_t b, std::int64_t h, float* memory,
                       ThreadPool& threads) {
  Threads pool{threads};
  const bool finite = IsFinite(call, b, h, pool);
  return {RunHead(call, b, h, memory, pool), finite};
}

}  // namespace attenuator::mca
