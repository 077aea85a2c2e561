// RelativeAttention's kernels for any Simd: exact softmax attention with terms for distances.
//
// Queries lie across the lanes, as in common/attention, whose steps on blocks of 64 queries and 64
// keys are used: a block of queries is transposed once, and the scores of all keys form a tile
// [key, query], of which a block has n, so that softmax and importance see whole rows.
//
// A table's products are tiles of the same kind: [row of the table, query] for position keys, to
// which the bias is added, and [row of the table, key] for position queries. The first is computed
// for each block of queries, the second for all keys before, and both only for the rows that the
// block's distances lead to. Adding them to a score is then one gather each: element
// (row of i - j, i) of the first and (row of i - j, j) of the second. For consecutive queries the
// places lie one behind another in `Distances::places`, unless positions say otherwise.
//
// Scratch: n * 64 scores, R * 64 products of queries, n * R of keys, R at most the rows of the
// tables. Every product is one chain of fused multiply-adds over head_dim, every sum over keys is
// taken in blocks of 64 from the start of the sequence: a row's bits depend on no other row's
// place.
#include "ops/common/attention/cpu/block.inl"
#include "ops/relative/cpu/kernel.h"

namespace attenuator::relative {
namespace {

using namespace attention;  // NOLINT: the steps below are theirs

alignas(64) constexpr std::int32_t kLaneNumbers[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                       8, 9, 10, 11, 12, 13, 14, 15};

// What one call has: its inputs and its parts of the scratch memory.
struct Work {
  const Head& head;
  const Tables& tables;
  const Distances& distances;
  Exponent exponent;
  Scratch scratch;
  float* scores;    // [n, 64]
  float* by_query;  // [rows of the table, 64 queries]
  float* by_key;    // [blocks of keys, rows of the table, 64 keys]

  Work(const Head& h, const Tables& t, const Distances& d, float* memory)
      : head(h), tables(t), distances(d), exponent(h), scratch(h, memory) {
    scores = memory + attention::ScratchFloats(h, 1);
    by_query = scores + Blocks(h.length) * kLanes * kLanes;
    by_key = by_query + (t.by_query() ? d.rows * kLanes : 0);
  }
  std::int64_t Position(std::int64_t i) const {
    return distances.positions == nullptr ? i : distances.positions[i];
  }
  // Scores are products until exp, which multiplies them by scale * log2(e): what a bias is there.
  float bias_factor() const { return kLog2E / exponent.factor; }
};

struct Range {
  std::int64_t low;
  std::int64_t high;  // the last one, not the one behind
};

// The least and the largest position of rows [begin, end).
inline Range Positions(const Work& work, std::int64_t begin, std::int64_t end) {
  return {work.Position(begin), work.Position(end - 1)};
}

// Rows of the tables, from Distances::first on, that these queries need for these keys.
inline Range TableRows(const Work& work, Range queries, Range keys) {
  const Distances& distances = work.distances;
  const std::int64_t reach = distances.reach;
  const std::int64_t low = Larger(Smaller(queries.low - keys.high, reach), -reach);
  const std::int64_t high = Larger(Smaller(queries.high - keys.low, reach), -reach);
  std::int32_t least = distances.places[low], most = distances.places[low];
  for (std::int64_t d = low; d <= high; ++d) {
    least = distances.places[d] < least ? distances.places[d] : least;
    most = distances.places[d] > most ? distances.places[d] : most;
  }
  return {least / kLanes, most / kLanes};
}

// products[r, lane] = row r of a table times packed row `lane`, for rows of `range`.
inline void Multiply(const Work& work, const float* table, Range range, const float* packed,
                     std::int64_t count, float* products) {
  Head rows = work.head;
  rows.key = table;
  rows.key_stride = work.tables.pos_stride;
  rows.last_key_rows = 1;
  const std::int64_t first = work.distances.first;
  Score(rows, packed, count, first + range.low, first + range.high + 1,
        products + range.low * kLanes, kLanes);
}

// The products of all keys with the position queries, in blocks of keys.
inline void MultiplyKeys(const Work& work) {
  if (work.tables.pos_query == nullptr) return;
  Head keys = work.head;
  keys.query = work.head.key;
  keys.query_stride = work.head.key_stride;
  const std::int64_t length = work.head.length;
  const Range all = Positions(work, 0, length);
  for (std::int64_t begin = 0; begin < length; begin += kLanes) {
    const std::int64_t count = Smaller(kLanes, length - begin);
    PackQueries(keys, begin, count, work.scratch.query, kLanes);
    const Range queries{all.low, all.high + kLanes};  // lanes behind the last row are read as well
    const Range range = TableRows(work, queries, Positions(work, begin, begin + count));
    Multiply(work, work.tables.pos_query, range, work.scratch.query, count,
             work.by_key + begin / kLanes * work.distances.rows * kLanes);
  }
}

// The products of a block of queries with the position keys, and the bias.
inline void MultiplyQueries(const Work& work, std::int64_t begin, std::int64_t count) {
  const Tables& tables = work.tables;
  if (!tables.by_query()) return;
  Range queries = Positions(work, begin, begin + count);
  queries.high += kLanes;
  const Range range = TableRows(work, queries, Positions(work, 0, work.head.length));
  if (tables.pos_key != nullptr) {
    Multiply(work, tables.pos_key, range, work.scratch.query, count, work.by_query);
  }
  if (tables.bias == nullptr) return;
  for (std::int64_t r = range.low; r <= range.high; ++r) {
    const float bias = tables.bias[(work.distances.first + r) * tables.bias_stride];
    const Vector add = Simd::Set(bias * work.bias_factor());
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      float* at = work.by_query + r * kLanes + lane;
      Simd::Store(at, tables.pos_key == nullptr ? add : Simd::Add(Simd::Load(at), add));
    }
  }
}

// Where a vector of queries from row i on finds the products for key j.
inline Simd::Integers Places(const Distances& distances, std::int64_t i, std::int64_t j) {
  if (distances.positions == nullptr) return Simd::Load(distances.places + i - j);
  const Simd::Integers reach = Simd::Set(static_cast<std::int32_t>(distances.reach));
  const Simd::Integers least = Simd::Set(-static_cast<std::int32_t>(distances.reach));
  const Simd::Integers distance =
      Simd::Sub(Simd::Load(distances.positions + i), Simd::Set(distances.positions[j]));
  return Simd::Gather(distances.places, Simd::Max(Simd::Min(distance, reach), least));
}

// Adds the terms to the scores of keys [first, last).
inline void AddTerms(const Work& work, std::int64_t begin, std::int64_t count, std::int64_t first,
                     std::int64_t last) {
  const bool by_query = work.tables.by_query(), by_key = work.tables.pos_query != nullptr;
  if (!by_query && !by_key) return;
  const Simd::Integers lanes = Simd::Load(kLaneNumbers);
  const float* products = work.by_key + first / kLanes * work.distances.rows * kLanes;
  for (std::int64_t j = first; j < last; ++j) {
    float* line = work.scores + j * kLanes;
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      const Simd::Integers places = Places(work.distances, begin + lane, j);
      Vector score = Simd::Load(line + lane);
      if (by_query) {
        score = Simd::Add(score, Simd::Gather(work.by_query + lane, Simd::Add(places, lanes)));
      }
      if (by_key) score = Simd::Add(score, Simd::Gather(products + (j - first), places));
      Simd::Store(line + lane, score);
    }
  }
}

// Adds weights times values, key block by key block, and writes the rows.
inline void Mix(const Work& work, const float* weights, std::int64_t pitch, std::int64_t count,
                float* output, std::int64_t output_stride) {
  const Head& head = work.head;
  const Scratch& scratch = work.scratch;
  for (std::int64_t lane = 0; lane < count; lane += kWidth) {
    Simd::Store(scratch.old_factor + lane, Simd::Set(1.0f));
  }
  for (std::int64_t first = 0; first < head.length; first += kKeyBlock) {
    const std::int64_t last = Smaller(first + kKeyBlock, head.length);
    const Sink sink{.kept = scratch.kept,
                    .kept_stride = Padded(head.value_dim),
                    .old_factor = first > 0 ? scratch.old_factor : nullptr,
                    .new_factor = last == head.length ? scratch.sum : nullptr,
                    .output = output,
                    .output_stride = output_stride,
                    .output_columns = head.value_dim};
    AddValues(head, weights + first * pitch, pitch, count,
              PackValues(head, first, last, false, scratch.value), last - first, sink);
  }
}

// weights[j] = the largest softmax weight of key j so far, those of a block of rows included.
inline void TakeWeights(const Work& work, std::int64_t count, float* weights) {
  for (std::int64_t j = 0; j < work.head.length; ++j) {
    const float* line = work.scores + j * kLanes;
    Vector most = Simd::Set(weights[j]);
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      const Vector p = Simd::Mul(Simd::Load(line + lane), Simd::Load(work.scratch.sum + lane));
      // Lanes behind the last row hold other scores.
      const Vector own = lane + kWidth <= count ? p : Simd::Keep(p, 0, count - lane - 1);
      most = Simd::Max(own, most);
    }
    weights[j] = Simd::Largest(most);
  }
}

inline void Weigh(const Work& work, std::int64_t begin, std::int64_t count, Importance importance) {
  if (importance.weights == nullptr || (begin > 0 && !importance.maximum)) return;
  if (begin == 0) {
    for (std::int64_t j = 0; j < work.head.length; ++j) {
      importance.weights[j] = work.scores[j * kLanes] * work.scratch.sum[0];
    }
  }
  if (importance.maximum) TakeWeights(work, count, importance.weights);
}

void Rows(const Head& head, const Tables& tables, const Distances& distances, float* output,
          std::int64_t output_stride, Importance importance, float* memory) {
  const Work work(head, tables, distances, memory);
  MultiplyKeys(work);
  for (std::int64_t begin = 0; begin < head.length; begin += kLanes) {
    const std::int64_t count = Smaller(kLanes, head.length - begin);
    PackQueries(head, begin, count, work.scratch.query, kLanes);
    MultiplyQueries(work, begin, count);
    for (std::int64_t first = 0; first < head.length; first += kKeyBlock) {
      const std::int64_t last = Smaller(first + kKeyBlock, head.length);
      Score(head, work.scratch.query, count, first, last, work.scores + first * kLanes, kLanes);
      AddTerms(work, begin, count, first, last);
    }
    Reset(count, work.scratch);
    Normalize<true>(head, count, head.length, work.scores, kLanes, work.scratch);
    Invert(count, work.scratch.sum);
    Weigh(work, begin, count, importance);
    Mix(work, work.scores, kLanes, count, output + begin * output_stride, output_stride);
  }
}

// Products of the packed row with `row`, which may be shorter than whole vectors.
inline float Dot(const float* packed, const float* row, std::int64_t size) {
  Vector dot = Simd::Zero();
  std::int64_t k = 0;
  for (; k + kWidth <= size; k += kWidth) {
    dot = Simd::Fma(Simd::Load(row + k), Simd::Load(packed + k), dot);
  }
  if (k < size) dot = Simd::Fma(Simd::LoadFirst(row + k, size - k), Simd::Load(packed + k), dot);
  return Simd::Sum(dot);
}

// The row that a key meets: the query, scaled where exp does not scale, and the position query.
inline void MeetKeys(const Work& work, const float* pos_query, float* to) {
  for (std::int64_t k = 0; k < work.head.head_dim; ++k) {
    to[k] = work.scratch.query[k] + pos_query[k] * work.exponent.query;
  }
}

// The scores of row 0. Keys of one distance after another often share a row of the tables.
inline void ScoreFirstRow(const Work& work) {
  const Head& head = work.head;
  const Tables& tables = work.tables;
  const bool any = tables.by_query() || tables.pos_query != nullptr;
  const float* met = work.scratch.query;
  float* sums = work.scratch.query + Padded(head.head_dim);
  for (std::int64_t k = 0; k < Padded(head.head_dim); ++k) {
    work.scratch.query[k] = k < head.head_dim ? head.query[k] * work.exponent.query : 0.0f;
    sums[k] = 0.0f;
  }
  float term = 0;
  std::int64_t row = -1;
  for (std::int64_t j = 0; j < head.length; ++j) {
    if (any) {
      const std::int64_t reach = work.distances.reach;
      const std::int64_t distance = work.Position(0) - work.Position(j);
      const std::int64_t place =
          work.distances.places[Larger(Smaller(distance, reach), -reach)] / kLanes +
          work.distances.first;
      if (place != row) {
        row = place;
        term = tables.bias == nullptr ? 0.0f
                                      : tables.bias[row * tables.bias_stride] * work.bias_factor();
        if (tables.pos_key != nullptr) {
          term += Dot(work.scratch.query, tables.pos_key + row * tables.pos_stride, head.head_dim);
        }
        if (tables.pos_query != nullptr) {
          MeetKeys(work, tables.pos_query + row * tables.pos_stride, sums);
          met = sums;
        }
      }
    }
    work.scores[j] = Dot(met, head.key + j * head.key_stride, head.head_dim) + term;
  }
  if (head.last_key_rows != 1) work.scores[head.length - 1] += LastKeyTerm(head, work.exponent);
  for (std::int64_t j = head.length; j < Padded(head.length); ++j) {
    work.scores[j] = -__builtin_inff();
  }
}

void FirstRow(const Head& head, const Tables& tables, const Distances& distances, float* output,
              float* weights, float* memory) {
  const Work work(head, tables, distances, memory);
  ScoreFirstRow(work);
  Vector largest = Simd::Set(kLowest);
  for (std::int64_t j = 0; j < head.length; j += kWidth) {
    largest = Simd::Max(Simd::Load(work.scores + j), largest);
  }
  const Vector maximum = Simd::Set(Simd::Largest(largest));
  const Vector factor = Simd::Set(work.exponent.factor), least = Simd::Set(work.exponent.least);
  Vector sum = Simd::Zero();
  for (std::int64_t j = 0; j < head.length; j += kWidth) {
    const Vector p = Simd::Exp2(Simd::Sub(Simd::Load(work.scores + j), maximum), factor, least);
    Simd::Store(work.scores + j, p);
    sum = Simd::Add(sum, p);
  }
  work.scratch.sum[0] = 1.0f / Simd::Sum(sum);
  for (std::int64_t j = 0; weights != nullptr && j < head.length; ++j) {
    weights[j] = work.scores[j] * work.scratch.sum[0];
  }
  Mix(work, work.scores, 1, 1, output, 0);
}

constexpr Kernels kKernels{.rows = &Rows, .first_row = &FirstRow};

}  // namespace
}  // namespace attenuator::relative
