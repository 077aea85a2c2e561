// Softmax attention with both products in int8, for AVX-512 with VNNI.
//
// Layout. Queries lie across the vector lanes, as in block.inl: a block of up to 64 rows becomes
// [dimension / 4, lane, 4] bytes, a key [dimension] bytes, so that vpdpbusd multiplies four bytes
// of a broadcast key by four bytes of each of 16 queries. Scores are a [key, lane] tile of 32-bit
// sums. Weights are written as [key / 4, lane, 4] bytes, which vpdpbusd broadcasts against values
// [key / 4, column, 4]. Keys and weights are the unsigned side: a key is stored plus 128, and
// a row's sums begin with -128 times the sum of its query.
//
// Memory. Keys and values of a head are rounded once, D + Dv bytes a token, and read from the
// second-level cache by every block of rows; scores of 128 keys (32 KiB), weights (8 KiB) and sums
// so far (16 KiB at Dv = 64) of one block stay close. The rows of a task visit the keys in order.
//
// Numerics. A weight is a byte relative to its row's largest weight in the same 128 keys, so that a
// long flat row does not round to nothing; a float factor for each row and key block makes weights
// of all blocks comparable. A row's sum adds up the rounded weights: they sum to 1, whatever was
// rounded. Integer sums are exact, and float sums are chains over key blocks, whose borders lie at
// multiples of 128 from the start of the sequence; a key that a row does not see adds exactly 0.
// Hence a row's bits do not depend on the rows, tasks or sequences around it.
#include "ops/common/simd/avx512.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/common/attention/cpu/block.inl"
#include "ops/softmax/cpu/int8_paths.h"

namespace attenuator::softmax {
namespace {

using namespace attention;

#include "ops/softmax/cpu/int8_round.inl"
//
#include "ops/softmax/cpu/int8_tile.inl"

// Rows from `begin` on that are computed together.
struct Rows {
  std::int64_t begin;
  std::int64_t count;
  std::int64_t pitch;  // count in whole vectors
};

// Keys [first, last), in whole fours from `low` on.
struct Keys {
  std::int64_t first;
  std::int64_t last;
  std::int64_t low;
  std::int64_t count;

  Keys(std::int64_t from, std::int64_t to)
      : first(from), last(to), low(from / 4 * 4), count(Fours(to) - low) {}
};

// Whether the last key is a key block of its own: the bytes of other weights would be next to
// nothing beside one that counts often.
inline bool LastApart(const Head& head) { return head.last_key_rows != 1; }

// Calls visit(keys, masked) for each range of keys that the rows see, in order. A key that all see
// comes apart from the others, as in ForKeys of block.inl, and so does one that stands for several.
template <class Visit>
inline void ForKeyBlocks(const Head& head, const Rows& rows, const Visit& visit) {
  const std::int64_t end = rows.begin + rows.count;
  std::int64_t low = 0, high = head.length;
  if (head.window > 0) {
    low = Larger(SeenBegin(head, rows.begin), head.global_token ? 1 : 0);
    high = Smaller(SeenEnd(head, end - 1), head.length);
    if (head.global_token) visit(Keys(0, 1), false);
  }
  for (std::int64_t first = low, last; first < high; first = last) {
    last = Smaller((first / kInt8KeyBlock + 1) * kInt8KeyBlock, high);
    if (LastApart(head) && last == head.length && first < last - 1) --last;
    const bool masked =
        head.window > 0 && (first < SeenBegin(head, end - 1) || last > SeenEnd(head, rows.begin));
    visit(Keys(first, last), masked);
  }
}

// Scores of a key block, and the largest of each row.
inline void Score(const Head& head, const Rounded& rounded, const Rows& rows, const Keys& keys,
                  const Int8Scratch& scratch) {
  const std::int64_t depth = Fours(head.head_dim), pitch = rows.pitch;
  for (std::int64_t lane = 0; lane < pitch; lane += kWidth) {
    Simd::Store(scratch.most + lane, Simd::Set(0));
  }
  ForVectors(pitch, [&]<int kVectors>(std::int64_t lane) {
    constexpr int kKeys = kTileRows<kVectors>;
    std::int64_t j = 0;
    const auto tile = [&]<int kSome>() {
      ScoreBytes<kSome, kVectors>(rounded.keys + (keys.low + j) * depth, depth, pitch, lane,
                                  scratch.scores + j * pitch, scratch);
    };
    for (; j + kKeys <= keys.count; j += kKeys) tile.template operator()<kKeys>();
    if (j < keys.count) tile.template operator()<4>();
  });
}

// Hides what rows do not see, and finds the largest scores again.
inline void Adjust(const Head& head, const Rows& rows, const Keys& keys, bool masked,
                   const Int8Scratch& scratch) {
  const std::int64_t pitch = rows.pitch;
  std::int32_t* const scores = scratch.scores - keys.low * pitch;
  if (masked) {
    Mask(head, rows.begin, rows.count, keys.first, keys.last,
         reinterpret_cast<float*>(scores + keys.first * pitch), pitch);
  }
  const Integers unseen = _mm512_castps_si512(Simd::Set(-__builtin_inff()));
  for (std::int64_t lane = 0; lane < pitch; lane += kWidth) {
    Integers most = unseen;
    for (std::int64_t j = keys.low; j < keys.low + keys.count; ++j) {
      std::int32_t* const at = scores + j * pitch + lane;
      if (j < keys.first || j >= keys.last) Simd::Store(at, unseen);
      most = Simd::Max(most, Simd::Load(at));
    }
    Simd::Store(scratch.most + lane, most);
  }
}

// Weights of a key block from its scores.
template <bool kSome>
inline void Weigh(const Rows& rows, const Keys& keys, std::uint8_t* weights,
                  const Int8Scratch& scratch) {
  std::int64_t lane = 0;
  for (; lane + 2 * kWidth <= rows.pitch; lane += 2 * kWidth) {
    WeighLanes<kSome, 2>(lane, keys.count, rows.pitch, scratch.scores, weights, scratch);
  }
  if (lane < rows.pitch) {
    WeighLanes<kSome, 1>(lane, keys.count, rows.pitch, scratch.scores, weights, scratch);
  }
}

inline void AddValues(const Head& head, const Rounded& rounded, const Rows& rows, const Keys& keys,
                      const std::uint8_t* weights, bool any, const Int8Scratch& scratch) {
  const std::int64_t columns = Padded(head.value_dim);
  ForVectors(columns, [&]<int kVectors>(std::int64_t c) {
    for (std::int64_t i = 0; i < rows.count; i += kTileRows<kVectors>) {
      AddBytes<kVectors>(weights, rows.pitch, rounded.values + keys.low * columns + c * 4, columns,
                         keys.count, i, any, scratch.kept + c, scratch);
    }
  });
}

inline void Write(const Head& head, const Rounded& rounded, const Rows& rows, float* output,
                  std::int64_t output_stride, const Int8Scratch& scratch) {
  const std::int64_t columns = Padded(head.value_dim);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const Vector inverse = Simd::Set(scratch.poison[i] / scratch.sum[i]);
    for (std::int64_t c = 0; c < head.value_dim; c += kWidth) {
      const Vector mean = Simd::Mul(Simd::Load(scratch.kept + i * columns + c), inverse);
      const Vector y =
          Simd::Fma(mean, Simd::Load(rounded.value_scale + c), Simd::Load(rounded.value_mean + c));
      Simd::StoreFirst(output + i * output_stride + c, y, Smaller(head.value_dim - c, kWidth));
    }
  }
}

// maxima[j] = max(maxima[j], max over rows of the weight of key j, relative to its row's sum).
inline void TakeMaxima(const Rows& rows, const Keys& keys, const std::uint8_t* weights,
                       const float* factors, float* maxima) {
  const Integers byte = Simd::Set(0xFF);
  for (std::int64_t j = 0; j < keys.count; j += 4) {
    Vector most[4] = {Simd::Zero(), Simd::Zero(), Simd::Zero(), Simd::Zero()};
    for (std::int64_t lane = 0; lane < rows.count; lane += kWidth) {
      const Integers four = _mm512_loadu_si512(weights + j * rows.pitch + lane * 4);
      const Vector factor = Simd::Load(factors + lane);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Integers weight = _mm512_and_si512(_mm512_srli_epi32(four, 8 * i), byte);
        most[i] = Simd::Max(Simd::Mul(Simd::FloatOf(weight), factor), most[i]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      const std::int64_t key = keys.low + j + i;
      if (key < keys.first || key >= keys.last) continue;
      const float largest = Simd::Largest(most[i]);
      maxima[key] = largest > maxima[key] ? largest : maxima[key];
    }
  }
}

// The same over all key blocks of rows whose weights are kept.
inline void AllMaxima(const Head& head, const Rows& rows, std::uint64_t unusable,
                      const Int8Scratch& scratch, float* maxima) {
  const Vector one = Simd::Set(1.0f), least = Simd::Set(-125.99f);
  const std::uint8_t* weights = scratch.weights;
  const float* tops = scratch.tops;
  float* const factors = scratch.new_factor;
  ForKeyBlocks(head, rows, [&](const Keys& keys, bool) {
    for (std::int64_t lane = 0; lane < rows.pitch; lane += kWidth) {
      const Vector below = Simd::Sub(Simd::Load(tops + lane), Simd::Load(scratch.maximum + lane));
      const Vector share =
          Simd::Div(Simd::Load(scratch.poison + lane), Simd::Load(scratch.sum + lane));
      Simd::Store(factors + lane, Simd::Mul(Simd::Exp2(below, one, least), share));
    }
    for (std::int64_t lane = 0; lane < rows.pitch; ++lane) {
      if (lane >= rows.count || (unusable >> lane & 1) != 0) factors[lane] = 0;
    }
    TakeMaxima(rows, keys, weights, factors, maxima);
    weights += keys.count * rows.pitch;
    tops += kQueryBlock;
  });
}

// The rows whose weights no bytes stand for: beside a large weight, a tail of small ones that all
// rounded down, or up, moved the row's sum by more than a 64th.
inline std::uint64_t Unusable(const Rows& rows, const Int8Scratch& scratch) {
  std::uint64_t bits = 0;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    if (scratch.lost[i] > 2 * scratch.sum[i]) bits |= std::uint64_t{1} << i;
  }
  return bits;
}

// One block of rows over all the keys that they see; which of them are not usable.
inline std::uint64_t AttendBlock(const Head& head, const Rounded& rounded, const Rows& rows,
                                 float* output, std::int64_t output_stride, float* maxima,
                                 const Int8Scratch& scratch) {
  RoundQueries(head, *rounded.key_factor, rows.begin, rows.count, rows.pitch, scratch);
  std::uint8_t* weights = scratch.weights;
  float* tops = maxima == nullptr ? nullptr : scratch.tops;
  bool any = false;
  ForKeyBlocks(head, rows, [&](const Keys& keys, bool masked) {
    const bool apart = LastApart(head) && keys.last == head.length;
    Score(head, rounded, rows, keys, scratch);
    if (masked || keys.count != keys.last - keys.first) {
      Adjust(head, rows, keys, masked, scratch);
      Weigh<true>(rows, keys, weights, scratch);
    } else {
      Weigh<false>(rows, keys, weights, scratch);
    }
    TakeWeights(rows.pitch, apart ? __builtin_log2f(head.last_key_rows) : 0, tops, scratch);
    AddValues(head, rounded, rows, keys, weights, any, scratch);
    any = true;
    if (maxima == nullptr) return;
    weights += keys.count * rows.pitch;
    tops += kQueryBlock;
  });
  Write(head, rounded, rows, output, output_stride, scratch);
  const std::uint64_t unusable = Unusable(rows, scratch);
  if (maxima != nullptr) AllMaxima(head, rows, unusable, scratch, maxima);
  return unusable;
}

std::uint64_t Attend(const Head& unchecked, const std::byte* memory, std::int64_t begin,
                     std::int64_t end, float* output, std::int64_t output_stride, float* maxima,
                     float* scratch_memory) {
  const Head head = Normalized(unchecked);
  const Rounded rounded(head, const_cast<std::byte*>(memory));
  if (!rounded.usable()) return ~std::uint64_t{0};
  const Int8Scratch scratch(unchecked, maxima != nullptr, scratch_memory);
  const std::int64_t count = end - begin;
  return AttendBlock(head, rounded, {.begin = begin, .count = count, .pitch = Padded(count)},
                     output, output_stride, maxima, scratch);
}

constexpr Int8Kernels kKernels{.round = RoundHead, .attend = Attend};

}  // namespace

const Int8Kernels& Int8KernelsAvx512Vnni() { return kKernels; }

}  // namespace attenuator::softmax
