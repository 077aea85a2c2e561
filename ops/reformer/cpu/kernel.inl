// ReformerAttention's kernels for any Simd.
//
// Attention is that of common/attention, whose steps on blocks of 64 queries and 64 keys are used:
// queries lie across the lanes, scores form a tile [key, query] that stays in the first cache, and
// maximum, sum and weighted values run along from one piece of keys to the next. What is new is
// where rows come from, that a row does not see itself, and where results go.
//
// A chunk's keys and values are gathered by the round's order into one of two slots, whole
// registers a row; the next chunk, which sees them again, gathers its own into the other slot. So a
// run of chunks reads every row once from memory, plus the chunk before its first one. Queries are
// gathered as they are transposed. Every row meets its keys in the same pieces, the chunk before in
// steps of 64 and then its own: its bits do not depend on how chunks are grouped into runs.
//
// A round's sums join those of the rounds before in the output's own rows, rescaled to the larger
// maximum, in the order of the rounds: softmax over rounds of their log-sum-exp without a
// logarithm. A key counts in the first round in which a row meets it, and is masked in later ones,
// which is the same as its share of 1 / N_ij in each of N_ij rounds: chunks of rounds before are
// compared, as floats that hold whole numbers. Memory traffic a round: x twice, values once, the
// output read and written.
#include "ops/reformer/cpu/hash.inl"

namespace attenuator::reformer {
namespace {

constexpr std::int64_t kAhead = 8;  // rows fetched ahead of those that are gathered

// Keys of a chunk and their values, whole registers a row, and where each key lay before.
struct Slot {
  float* keys;
  float* values;
  float* chunks;  // [chunk_size, rounds before]
  std::int64_t count;
};

inline void CopyRow(const float* from, std::int64_t columns, Vector factor, float* to) {
  const std::int64_t whole = columns / kWidth * kWidth;
  for (std::int64_t c = 0; c < whole; c += kWidth) {
    Simd::Store(to + c, Simd::Mul(Simd::Load(from + c), factor));
  }
  if (whole < columns) {
    Simd::Store(to + whole, Simd::Mul(Simd::LoadFirst(from + whole, columns - whole), factor));
  }
}

inline void Fetch(const float* row, std::int64_t columns) {
  for (std::int64_t c = 0; c < columns; c += 16) __builtin_prefetch(row + c);
}

void Gather(const HeadRows& rows, const Round& round, std::int64_t chunk, Slot& slot) {
  const std::int64_t begin = chunk * round.chunk_size;
  const std::int64_t end = Smaller(begin + round.chunk_size, rows.length);
  slot.count = end - begin;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t next = round.order[Smaller(i + kAhead, rows.length - 1)];
    Fetch(rows.x + next * rows.x_stride, rows.head_dim);
    Fetch(rows.value + next * rows.value_stride, rows.value_dim);
    const std::int64_t row = round.order[i];
    CopyRow(rows.x + row * rows.x_stride, rows.head_dim, Simd::Set(rows.factors[row]),
            slot.keys + (i - begin) * Padded(rows.head_dim));
    CopyRow(rows.value + row * rows.value_stride, rows.value_dim, Simd::Set(1.0f),
            slot.values + (i - begin) * Padded(rows.value_dim));
    for (std::int64_t r = 0; r < round.number; ++r) {
      slot.chunks[(i - begin) * round.number + r] = round.chunks[r * rows.length + row];
    }
  }
}

// What a block of queries has met: for each round before, each query's chunk and the one before.
struct Met {
  float* chunks;  // [rounds, 2, kBlock]
  std::int64_t rounds;

  template <class Row>
  void Start(const Round& round, std::int64_t length, std::int64_t count, const Row& row) {
    const std::int64_t all = (length + round.chunk_size - 1) / round.chunk_size;
    for (std::int64_t r = 0; r < rounds; ++r) {
      float* const own = chunks + 2 * r * kBlock;
      for (std::int64_t i = 0; i < kBlock; ++i) {
        own[i] = round.chunks[r * length + row(Smaller(i, count - 1))];
        own[kBlock + i] = own[i] > 0.0f ? own[i] - 1.0f : static_cast<float>(all - 1);
      }
    }
  }

  // score, -inf in the lanes that have met the key whose chunks these are: there a difference is 0.
  Vector Mask(Vector score, const float* of_key, std::int64_t lane) const {
    Vector nearest = Simd::Set(1.0f);
    for (std::int64_t r = 0; r < rounds; ++r) {
      const float* const own = chunks + 2 * r * kBlock + lane;
      const Vector key = Simd::Set(of_key[r]);
      const Vector product =
          Simd::Mul(Simd::Sub(key, Simd::Load(own)), Simd::Sub(key, Simd::Load(own + kBlock)));
      nearest = Simd::Min(Simd::Abs(product), nearest);
    }
    return Simd::WhereGreater(Simd::Set(0.5f), nearest, Simd::Set(-__builtin_inff()), score);
  }
};

// The block of queries that runs: its scratch memory, and whether it has taken in any keys.
struct Queries {
  const Head& head;
  std::int64_t count;
  const Scratch& scratch;
  Met met{nullptr, 0};
  bool any = false;

  std::int64_t pitch() const { return Padded(count); }

  template <class Row>
  void Start(const Row& row) {
    PackRows(head.head_dim, count, row, scratch.query, pitch());
    const float factor = Exponent(head).query;
    if (factor != 1.0f) {
      for (std::int64_t i = 0; i < head.head_dim * pitch(); i += kWidth) {
        float* at = scratch.query + i;
        Simd::Store(at, Simd::Mul(Simd::Load(at), Simd::Set(factor)));
      }
    }
    Reset(count, scratch);
    any = false;
  }

  // Takes in at most kBlock keys; row i is key own + i of them, if there is such a key. `chunks` as
  // in Slot, of these keys.
  void Take(const float* keys, const Values& values, const float* chunks, std::int64_t number,
            std::int64_t own) {
    Head piece = head;
    piece.key = keys;
    piece.key_stride = Padded(head.head_dim);
    Score(piece, scratch.query, count, 0, number, scratch.scores, pitch());
    const std::int64_t from = Larger(0, -own), to = Smaller(count, number - own);
    for (std::int64_t i = from; i < to; ++i) {
      scratch.scores[(own + i) * pitch() + i] = -__builtin_inff();
    }
    for (std::int64_t j = 0; met.rounds > 0 && j < number; ++j) {
      for (std::int64_t lane = 0; lane < count; lane += kWidth) {
        float* const at = scratch.scores + j * pitch() + lane;
        Simd::Store(at, met.Mask(Simd::Load(at), chunks + j * met.rounds, lane));
      }
    }
    Normalize<true>(head, count, number, scratch.scores, pitch(), scratch);
    const Sink sink{.kept = scratch.kept,
                    .kept_stride = Padded(head.value_dim),
                    .old_factor = any ? scratch.old_factor : nullptr,
                    .new_factor = nullptr,
                    .output = nullptr,
                    .output_stride = 0,
                    .output_columns = 0};
    AddValues(head, scratch.scores, pitch(), count, values, number, sink);
    any = true;
  }

  void Take(const Slot& slot, std::int64_t own) {
    for (std::int64_t first = 0; first < slot.count; first += kBlock) {
      const Values values{slot.values + first * Padded(head.value_dim), Padded(head.value_dim)};
      Take(slot.keys + first * Padded(head.head_dim), values, slot.chunks + first * met.rounds,
           Smaller(kBlock, slot.count - first), own - first);
    }
  }
};

// What results of a block are multiplied by, and what lies in their output rows before.
struct Factors {
  alignas(64) float before[kBlock], now[kBlock];
};

// Joins a block's maxima and sums to those of the rounds before; row(i) is the row of lane i.
template <class Row>
void JoinSums(const Queries& queries, const Round& round, const Sums& sums, const Row& row,
              Factors& factors) {
  const Scratch& scratch = queries.scratch;
  const Exponent exponent(queries.head);
  const Vector factor = Simd::Set(exponent.factor), least = Simd::Set(exponent.least);
  alignas(64) float largest[kBlock], sum[kBlock];
  for (std::int64_t i = 0; i < kBlock; ++i) {
    const std::int64_t at = row(Smaller(i, queries.count - 1));
    largest[i] = round.number == 0 ? kLowest : sums.largest[at];
    sum[i] = round.number == 0 ? 0.0f : sums.sum[at];
  }
  for (std::int64_t i = 0; i < queries.count; i += kWidth) {
    const Vector old = Simd::Load(largest + i), own = Simd::Load(scratch.maximum + i);
    const Vector most = Simd::Max(old, own);
    const Vector before = Simd::Exp2(Simd::Sub(old, most), factor, least);
    const Vector now = Simd::Exp2(Simd::Sub(own, most), factor, least);
    const Vector all =
        Simd::Fma(Simd::Load(sum + i), before, Simd::Mul(Simd::Load(scratch.sum + i), now));
    const Vector quotient = round.last ? Simd::Div(Simd::Set(1.0f), all) : Simd::Set(1.0f);
    Simd::Store(factors.before + i, Simd::Mul(before, quotient));
    Simd::Store(factors.now + i, Simd::Mul(now, quotient));
    Simd::Store(largest + i, most);
    Simd::Store(sum + i, all);
  }
  if (round.last) return;
  for (std::int64_t i = 0; i < queries.count; ++i) {
    sums.largest[row(i)] = largest[i];
    sums.sum[row(i)] = sum[i];
  }
}

// output = factor * kept, or added to what is there.
template <bool kAdd>
inline void WriteRow(const float* kept, float now, float before, std::int64_t columns, float* to) {
  const Vector factor = Simd::Set(now), factor_before = Simd::Set(before);
  for (std::int64_t c = 0; c < columns; c += kWidth) {
    const std::int64_t remaining = Smaller(kWidth, columns - c);
    Vector y = Simd::Mul(Simd::Load(kept + c), factor);
    if (kAdd) y = Simd::Fma(Simd::LoadFirst(to + c, remaining), factor_before, y);
    Simd::StoreFirst(to + c, y, remaining);
  }
}

template <class Row>
void Write(const HeadRows& rows, const Queries& queries, const Round& round, const Sums& sums,
           const Row& row) {
  Factors factors;
  JoinSums(queries, round, sums, row, factors);
  const std::int64_t stride = Padded(rows.value_dim);
  for (std::int64_t i = 0; i < queries.count; ++i) {
    const auto write = round.number == 0 ? &WriteRow<false> : &WriteRow<true>;
    write(queries.scratch.kept + i * stride, factors.now[i], factors.before[i], rows.value_dim,
          rows.output + row(i) * rows.output_stride);
  }
}

void AttendChunks(const HeadRows& rows, const Round& round, const Sums& sums, std::int64_t begin,
                  std::int64_t end, float* memory) {
  const Head head = HeadOf(rows, rows.scale);
  const Scratch scratch(head, memory);
  const std::int64_t chunks = (rows.length + round.chunk_size - 1) / round.chunk_size;
  float* free = memory + attention::ScratchFloats(head, 1);
  Slot slots[2];
  for (Slot& slot : slots) {
    slot.keys = free;
    slot.values = slot.keys + round.chunk_size * PaddedToVectors(rows.head_dim);
    slot.chunks = slot.values + round.chunk_size * PaddedToVectors(rows.value_dim);
    free = slot.chunks + round.chunk_size * round.number;
  }
  Slot* before = &slots[0];
  Slot* own = &slots[1];
  Gather(rows, round, begin == 0 ? chunks - 1 : begin - 1, *before);
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    Gather(rows, round, chunk, *own);
    const std::int32_t* order = round.order + chunk * round.chunk_size;
    for (std::int64_t first = 0; first < own->count; first += kBlock) {
      Queries queries{head, Smaller(kBlock, own->count - first), scratch, {free, round.number}};
      const auto row = [&](std::int64_t i) { return static_cast<std::int64_t>(order[first + i]); };
      queries.met.Start(round, rows.length, queries.count, row);
      queries.Start([&](std::int64_t i) { return rows.x + row(i) * rows.x_stride; });
      queries.Take(*before, before->count);
      queries.Take(*own, first);
      Write(rows, queries, round, sums, row);
    }
    Slot* const done = before;
    before = own;
    own = done;
  }
}

void AttendAll(const HeadRows& rows, std::int64_t begin, std::int64_t end, float* memory) {
  const Head head = HeadOf(rows, rows.scale);
  const Scratch scratch(head, memory);
  float* const keys = memory + attention::ScratchFloats(head, 1);
  constexpr Round kOnly{
      .order = nullptr, .chunk_size = 0, .chunks = nullptr, .number = 0, .last = true};
  for (std::int64_t block = begin; block < end; block += kBlock) {
    Queries queries{head, Smaller(kBlock, end - block), scratch};
    const auto row = [&](std::int64_t i) { return block + i; };
    queries.Start([&](std::int64_t i) { return rows.x + row(i) * rows.x_stride; });
    for (std::int64_t first = 0; first < rows.length; first += kBlock) {
      const std::int64_t last = Smaller(first + kBlock, rows.length);
      for (std::int64_t j = first; j < last; ++j) {
        CopyRow(rows.x + j * rows.x_stride, rows.head_dim, Simd::Set(rows.factors[j]),
                keys + (j - first) * Padded(rows.head_dim));
      }
      queries.Take(keys, PackValues(head, first, last, false, scratch.value), nullptr, last - first,
                   block - first);
    }
    Write(rows, queries, kOnly, Sums{}, row);
  }
}

constexpr Kernels kKernels{
    .key_factors = &KeyFactors,
    .buckets = &Buckets,
    .attend_chunks = &AttendChunks,
    .attend_all = &AttendAll,
};

}  // namespace
}  // namespace attenuator::reformer
