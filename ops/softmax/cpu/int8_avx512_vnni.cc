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

// vpdpbusd takes four keys at a time: [keys / 4, columns, 4].
struct ValueLayout {
  static constexpr std::int64_t kKeys = 4;  // that are stored together
  std::int64_t length;
  std::int64_t columns;

  std::int64_t bytes() const { return Fours(length) * columns; }

  // A vector of columns from `column` on of the keys from j on. four_keys(j): [column, 4] of four.
  template <class FourKeys>
  void Store(std::int8_t* values, std::int64_t j, std::int64_t column,
             const FourKeys& four_keys) const {
    _mm512_storeu_si512(values + j * columns + column * 4, four_keys(j));
  }
};
constexpr std::int64_t kKeySlack = 0;  // read behind the last four keys, and not used

#include "ops/softmax/cpu/int8_round.inl"
//
#include "ops/softmax/cpu/int8_weigh.inl"

// Four bytes in every lane.
[[gnu::always_inline]] inline Integers Broadcast(const void* bytes) {
  std::int32_t four;
  __builtin_memcpy(&four, bytes, 4);
  return Simd::Set(four);
}

// sums[r, :] += products of the bytes of a(r, k), broadcast, and those of b(k), a vector: unsigned
// times signed. From one k to the next it is a_step and b_step bytes, from one r a_stride.
template <int kRows, int kVectors>
[[gnu::always_inline]] inline void MultiplyBytes(const std::uint8_t* a, std::int64_t a_stride,
                                                 std::int64_t a_step, const std::int8_t* b,
                                                 std::int64_t b_step, std::int64_t depth,
                                                 Integers (&sums)[kRows][kVectors]) {
  for (std::int64_t k = 0; k < depth; k += 4, a += a_step, b += b_step) {
    Integers line[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) line[v] = _mm512_loadu_si512(b + v * 64);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Integers x = Broadcast(a + r * a_stride);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Dot(sums[r][v], x, line[v]);
    }
  }
}

// Rows that keep enough sums in flight to hide the latency of one, with so many vectors.
template <int kVectors>
inline constexpr int kTileRows = kVectors > 2 ? 4 : 8;

// Scores of kKeys keys and kVectors vectors of lanes from `lane` on, taken into `most` too.
template <int kKeys, int kVectors>
inline void ScoreBytes(const std::uint8_t* keys, std::int64_t depth, std::int64_t pitch,
                       std::int64_t lane, std::int32_t* scores, const Int8Scratch& scratch) {
  Integers sums[kKeys][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kKeys; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::Load(scratch.start + lane + v * kWidth);
  }
  MultiplyBytes(keys, depth, 4, scratch.query + lane * 4, 4 * pitch, depth, sums);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    Integers most = Simd::Load(scratch.most + lane + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kKeys; ++r) {
      Simd::Store(scores + r * pitch + lane + v * kWidth, sums[r][v]);
      most = Simd::Max(most, sums[r][v]);
    }
    Simd::Store(scratch.most + lane + v * kWidth, most);
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

// Adds weights [keys, pitch] times values to kTileRows rows of `kept` from `row` on, whose earlier
// sums are scaled first where there are any.
template <int kVectors>
inline void AddBytes(const std::uint8_t* weights, std::int64_t pitch, const std::int8_t* values,
                     std::int64_t columns, std::int64_t keys, std::int64_t row, bool any,
                     float* kept, const Int8Scratch& scratch) {
  constexpr int kRows = kTileRows<kVectors>;
  Integers sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::Set(0);
  }
  MultiplyBytes(weights + row * 4, 4, 4 * pitch, values, 4 * columns, keys, sums);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float* const line = kept + (row + r) * columns;
    const Vector old_factor = Simd::Set(scratch.old_factor[row + r]);
    const Vector new_factor = Simd::Set(scratch.new_factor[row + r]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vector sum = Simd::Mul(Simd::FloatOf(sums[r][v]), new_factor);
      if (any) sum = Simd::Fma(Simd::Load(line + v * kWidth), old_factor, sum);
      Simd::Store(line + v * kWidth, sum);
    }
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

// Sums of rows i to i + 3 in a vector of columns from c on.
inline void LoadKept(const Rows&, std::int64_t columns, std::int64_t i, std::int64_t c,
                     const Int8Scratch& scratch, Vector (&kept)[4]) {
  for (std::int64_t r = 0; r < 4; ++r) {
    kept[r] = Simd::Load(scratch.kept + (i + r) * columns + c);
  }
}

#include "ops/softmax/cpu/int8_block.inl"

constexpr Int8Kernels kKernels{
    .rounded_bytes = Rounded::Bytes, .round = RoundHead, .attend = Attend};

}  // namespace

const Int8Kernels& Int8KernelsAvx512Vnni() { return kKernels; }

}  // namespace attenuator::softmax
