// The steps on one block of up to 64 queries and up to 64 keys, for any Simd.
//
// Queries lie across the vector lanes: they are transposed once, keys and values are read where
// they are, and the scores of a key block form a [key, query] tile, so that maximum and sum over
// keys need no horizontal step. Rows of both lie `pitch` floats apart: 64, or fewer where there are
// fewer queries: at 64, rows of a short sequence would all fall into the same few sets of the
// cache.
#pragma once

#include "ops/common/attention/cpu/paths.h"
#include "ops/common/attention/cpu/tile.inl"

namespace attenuator::attention {
namespace {

constexpr std::int64_t kWidth = Simd::kWidth;
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLowest = -3.402823466e38f;
constexpr std::int64_t kRowKeys = 256;  // keys that the one-row path takes at a time

inline std::int64_t Padded(std::int64_t columns) {
  return (columns + kWidth - 1) / kWidth * kWidth;
}

// Parts of the scratch memory, as ScratchFloats counts them: what all blocks of queries that
// are computed together share, and what block `slot` has of its own.
struct Scratch {
  float* scores;      // [kKeyBlock, pitch], or [kRowKeys]
  float* value;       // [kKeyBlock, padded value_dim] of values copied to whole vectors
  float* old_factor;  // [64]
  float* query;       // [head_dim, pitch], or one row
  float* kept;        // [64, padded value_dim]
  float* maximum;     // [64]
  float* sum;         // [64]

  Scratch() = default;
  Scratch(const Head& head, float* memory, std::int64_t slot = 0)
      : scores(memory),
        value(scores + kKeyBlock * kQueryBlock),
        old_factor(value + PaddedToVectors(head.value_dim) * kKeyBlock),
        query(old_factor + kQueryBlock + slot * SlotFloats(head)),
        kept(query + PaddedToVectors(head.head_dim) * kQueryBlock),
        maximum(kept + PaddedToVectors(head.value_dim) * kQueryBlock),
        sum(maximum + kQueryBlock) {}
};

// A scale of usual size is applied within exp, at no cost: scores are then plain dot products. Any
// other scale multiplies the queries instead: with a negative one the largest dot product would
// have the smallest weight; with a tiny one dot products could overflow though scaled scores do
// not; and a huge one would overflow when multiplied by log2(e).
struct Exponent {
  static constexpr float kSmallest = 1.0f / 64, kLargest = 64;
  float query = 1;        // what queries are multiplied by
  float factor = kLog2E;  // a weight is 2^(factor * (score - maximum))
  float least;            // score - maximum below which it is 0, just above where it is denormal

  explicit Exponent(const Head& head) {
    const bool usual = head.scale >= kSmallest && head.scale <= kLargest;
    (usual ? factor : query) *= head.scale;
    least = -125.99f / factor;
  }
};

// The head without its window where every row sees all keys anyway.
inline Head Normalized(Head head) {
  const bool all = head.ranges == nullptr ? head.window >= head.length - 1
                                          : head.window > 0 && head.ranges[0].end == head.length;
  if (all) {
    head.window = 0;
    head.ranges = nullptr;
  }
  return head;
}

// Four columns at a time of 16 (8) queries into lanes; row(i) is the i-th query.
template <class Row>
[[gnu::always_inline]] inline void PackLanes(std::int64_t head_dim, const Row& row, float* query,
                                             std::int64_t pitch) {
  std::int64_t k = 0;
  for (; k + 4 <= head_dim; k += 4) {
    Vector columns[4];
    Simd::Transpose4([&](int i) { return row(i) + k; }, columns);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) Simd::Store(query + (k + c) * pitch, columns[c]);
  }
  for (; k < head_dim; ++k) {
    for (int i = 0; i < kWidth; ++i) query[k * pitch + i] = row(i)[k];
  }
}

// query[k, lane] = row begin + lane, lanes beyond the last row repeat it.
inline void PackQueries(const Head& head, std::int64_t begin, std::int64_t count, float* query,
                        std::int64_t pitch) {
  const std::int64_t stride = head.query_stride;
  for (std::int64_t lane = 0; lane < count; lane += kWidth) {
    const float* first = head.query + (begin + lane) * stride;
    if (lane + kWidth <= count) {
      const float* base[kWidth / 4];
      for (int i = 0; i < kWidth / 4; ++i) base[i] = first + 4 * i * stride;
      PackLanes(
          head.head_dim, [&](int i) { return base[i / 4] + (i % 4) * stride; }, query + lane,
          pitch);
    } else {
      const std::int64_t last = count - 1 - lane;
      PackLanes(
          head.head_dim, [&](int i) { return first + Smaller(i, last) * stride; }, query + lane,
          pitch);
    }
  }
  const float factor = Exponent(head).query;
  if (factor == 1.0f) return;
  for (std::int64_t k = 0; k < head.head_dim; ++k) {
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      float* at = query + k * pitch + lane;
      Simd::Store(at, Simd::Mul(Simd::Load(at), Simd::Set(factor)));
    }
  }
}

// What the score of the last key gets more, as it stands for several rows: log(rows), in the units
// in which scores are before `factor` is applied.
inline float LastKeyTerm(const Head& head, const Exponent& exponent) {
  return __builtin_log2f(head.last_key_rows) / exponent.factor;
}

// scores[j, lane] of keys [first, last) and `count` queries.
inline void Score(const Head& head, const float* query, std::int64_t count, std::int64_t first,
                  std::int64_t last, float* scores, std::int64_t pitch) {
  const int vectors = static_cast<int>((count + kWidth - 1) / kWidth);
  for (int v = 0; v < vectors; v += Simd::kTileVectors) {
    const int width = vectors - v < Simd::kTileVectors ? vectors - v : Simd::kTileVectors;
    const int rows = Simd::TileRows(width);
    const auto full = TileTable<ScoreTile>::Get(rows, width);
    std::int64_t j = first;
    for (; j + rows <= last; j += rows) {
      full(head.key + j * head.key_stride, head.key_stride, query + v * kWidth, pitch,
           head.head_dim, scores + (j - first) * pitch + v * kWidth);
    }
    if (j < last) {
      TileTable<ScoreTile>::Get(static_cast<int>(last - j), width)(
          head.key + j * head.key_stride, head.key_stride, query + v * kWidth, pitch, head.head_dim,
          scores + (j - first) * pitch + v * kWidth);
    }
  }
  if (last < head.length || head.last_key_rows == 1) return;
  const Vector term = Simd::Set(LastKeyTerm(head, Exponent(head)));
  float* const line = scores + (last - 1 - first) * pitch;
  for (std::int64_t lane = 0; lane < count; lane += kWidth) {
    Simd::Store(line + lane, Simd::Add(Simd::Load(line + lane), term));
  }
}

// Keys inside the window of row i, which are the rows inside the window of key i; both ends may lie
// beyond the sequence.
inline std::int64_t SeenBegin(const Head& head, std::int64_t i) {
  return head.ranges == nullptr ? i - head.window : head.ranges[i].begin;
}
inline std::int64_t SeenEnd(const Head& head, std::int64_t i) {
  return head.ranges == nullptr ? i + head.window + 1 : head.ranges[i].end;
}

// Puts -inf where a row does not see a key.
inline void Mask(const Head& head, std::int64_t begin, std::int64_t count, std::int64_t first,
                 std::int64_t last, float* scores, std::int64_t pitch) {
  for (std::int64_t j = first; j < last; ++j) {
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      float* line = scores + (j - first) * pitch + lane;
      const std::int64_t low = Larger(SeenBegin(head, j) - begin - lane, 0);
      const std::int64_t high = Smaller(SeenEnd(head, j) - 1 - begin - lane, kWidth);
      Simd::Store(line, Simd::Keep(Simd::Load(line), low, high));
    }
  }
}

// Calls visit(first, last, masked, final) for each range of keys that rows [begin, end) see, in
// order.
template <class Visit>
inline void ForKeys(const Head& head, std::int64_t begin, std::int64_t end, const Visit& visit) {
  std::int64_t low = 0;
  std::int64_t high = head.length;
  if (head.window > 0) {
    low = Larger(SeenBegin(head, begin), 0);
    high = Smaller(SeenEnd(head, end - 1), head.length);
    // Keys that every row sees come apart from the others: a row's sums must not depend on where
    // its range begins.
    const std::int64_t seen = head.global_token ? 1 : head.prefix;
    low = Larger(low, seen);
    for (std::int64_t first = 0, last; first < seen; first = last) {
      last = Smaller(first + kKeyBlock, seen);
      visit(first, last, false, last == seen && low >= high);
    }
  }
  for (std::int64_t first = low, last; first < high; first = last) {
    last = Smaller((first / kKeyBlock + 1) * kKeyBlock, high);
    const bool masked =
        head.window > 0 && (first < SeenBegin(head, end - 1) || last > SeenEnd(head, begin));
    visit(first, last, masked, last == high);
  }
}

// The largest of `maximum` and the scores in kGroup vectors of lanes, in four independent chains to
// hide the latency of one.
template <int kGroup>
[[gnu::always_inline]] inline void TakeMaximum(const float* scores, const float* end,
                                               std::int64_t pitch, Vector (&maximum)[kGroup]) {
  constexpr int kChains = 4 / kGroup;
  Vector most[kChains][kGroup];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) most[i / kGroup][i % kGroup] = maximum[i % kGroup];
  for (; scores + (kChains - 1) * pitch < end; scores += kChains * pitch) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      Vector& m = most[i / kGroup][i % kGroup];
      m = Simd::Max(Simd::Load(scores + i / kGroup * pitch + i % kGroup * kWidth), m);
    }
  }
  for (; scores < end; scores += pitch) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroup; ++v) {
      most[0][v] = Simd::Max(Simd::Load(scores + v * kWidth), most[0][v]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    maximum[i % kGroup] = Simd::Max(most[i / kGroup][i % kGroup], maximum[i % kGroup]);
  }
}

// Takes a key block into the running maximum and sum of kGroup vectors of lanes.
template <bool kStore, int kGroup>
[[gnu::always_inline]] inline void NormalizeLanes(std::int64_t lane, std::int64_t keys,
                                                  float* scores, std::int64_t pitch,
                                                  const Exponent& exponent,
                                                  const Scratch& scratch) {
  Vector old[kGroup], maximum[kGroup], sum[kGroup];
#pragma GCC unroll 2
  for (int v = 0; v < kGroup; ++v) {
    old[v] = maximum[v] = Simd::Load(scratch.maximum + lane + v * kWidth);
    sum[v] = Simd::Zero();
  }
  scores += lane;
  float* const end = scores + keys * pitch;
  TakeMaximum<kGroup>(scores, end, pitch, maximum);
  const Vector factor = Simd::Set(exponent.factor), least = Simd::Set(exponent.least);
  for (float* line = scores; line < end; line += pitch) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroup; ++v) {
      float* at = line + v * kWidth;
      const Vector p = Simd::Exp2(Simd::Sub(Simd::Load(at), maximum[v]), factor, least);
      if (kStore) Simd::Store(at, p);
      sum[v] = Simd::Add(sum[v], p);
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < kGroup; ++v) {
    const std::int64_t at = lane + v * kWidth;
    const Vector rescale = Simd::Exp2(Simd::Sub(old[v], maximum[v]), factor, least);
    Simd::Store(scratch.old_factor + at, rescale);
    Simd::Store(scratch.maximum + at, maximum[v]);
    Simd::Store(scratch.sum + at, Simd::Fma(Simd::Load(scratch.sum + at), rescale, sum[v]));
  }
}

// The same for all lanes. old_factor is what sums so far are multiplied by; kStore keeps the
// weights in place of the scores.
template <bool kStore>
inline void Normalize(const Head& head, std::int64_t count, std::int64_t keys, float* scores,
                      std::int64_t pitch, const Scratch& scratch) {
  const Exponent exponent(head);
  std::int64_t lane = 0;
  for (; lane + kWidth < count; lane += 2 * kWidth) {
    NormalizeLanes<kStore, 2>(lane, keys, scores, pitch, exponent, scratch);
  }
  if (lane < count) NormalizeLanes<kStore, 1>(lane, keys, scores, pitch, exponent, scratch);
}

inline void Reset(std::int64_t count, const Scratch& scratch) {
  for (std::int64_t lane = 0; lane < count; lane += kWidth) {
    Simd::Store(scratch.maximum + lane, Simd::Set(kLowest));
    Simd::Store(scratch.sum + lane, Simd::Zero());
  }
}

inline void Invert(std::int64_t count, float* sum) {
  for (std::int64_t lane = 0; lane < count; lane += kWidth) {
    Simd::Store(sum + lane, Simd::Div(Simd::Set(1.0f), Simd::Load(sum + lane)));
  }
}

// Values of keys [first, last): where they are, or copied to whole vectors.
struct Values {
  const float* rows;
  std::int64_t stride;
};

// A copy in one piece also spares blocks of queries that share it the cache lines that unaligned
// rows split, and rows far apart that fall into the same sets.
inline Values PackValues(const Head& head, std::int64_t first, std::int64_t last, bool shared,
                         float* memory) {
  const float* rows = head.value + first * head.value_stride;
  const std::int64_t whole = head.value_dim / kWidth * kWidth;
  if (!shared && head.value_dim == whole) return {rows, head.value_stride};
  const std::int64_t stride = Padded(head.value_dim);
  float* to = memory;
  for (std::int64_t j = first; j < last; ++j, rows += head.value_stride, to += stride) {
    for (std::int64_t c = 0; c < whole; c += kWidth) Simd::Store(to + c, Simd::Load(rows + c));
    if (whole < stride) {
      Simd::Store(to + whole, Simd::LoadFirst(rows + whole, head.value_dim - whole));
    }
  }
  return {memory, stride};
}

// Adds p [keys, pitch] times values to `count` rows of the sink.
inline void AddValues(const Head& head, const float* p, std::int64_t pitch, std::int64_t count,
                      const Values& values, std::int64_t keys, const Sink& sink) {
  const std::int64_t vectors = Padded(head.value_dim) / kWidth;
  for (std::int64_t v = 0; v < vectors; v += Simd::kTileVectors) {
    const int width = static_cast<int>(Smaller(vectors - v, Simd::kTileVectors));
    const int rows = Simd::TileRows(width);
    for (std::int64_t i = 0; i < count; i += rows) {
      const int tile = static_cast<int>(Smaller(rows, count - i));
      Sink at = sink;
      at.kept += i * sink.kept_stride + v * kWidth;
      at.output += i * sink.output_stride + v * kWidth;
      at.output_columns -= v * kWidth;
      if (at.old_factor != nullptr) at.old_factor += i;
      if (at.new_factor != nullptr) at.new_factor += i;
      TileTable<ValueTile>::Get(tile, width)(p + i, pitch, values.rows + v * kWidth, values.stride,
                                             keys, at);
    }
  }
}

}  // namespace
}  // namespace attenuator::attention
