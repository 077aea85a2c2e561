// Softmax attention with both products in int8, by AMX tiles beside AVX-512 with VNNI. The numbers
// and all that happens to them are those of int8_avx512_vnni.cc, which describes them: sums of
// products of bytes are exact however they are added up, so that the bits are the same.
//
// Layout. Of scores, 16 keys are the rows of a tile of sums and 16 queries its columns: keys and
// queries are the two factors as they lie in memory. Of values, 16 columns are the rows and 16
// queries the columns: the weights are a factor as they lie in memory, and values lie as [column,
// key], so that 64 keys of a column are a row of a tile. Hence sums of values are [column, query].
//
// Tiles. 0 to 3 are sums of up to 64 queries, 4 and 5 the factors over 64 dimensions or keys, 6 and
// 7 those over what head_dim leaves of its last 64. All are shaped once for a block of rows.
//
// Memory. Tiles reach whole 16 keys in scores and whole 64 in sums of values. Scores of keys that
// are not in the key block are not looked at; weights behind it are set to zero, and their values
// are whatever bytes follow. Sums leave the tiles through memory: those of scores to where weights
// are computed from them, those of values through the same place afterwards.
#include "ops/common/amx.h"
#include "ops/common/simd/avx512.h"
// The Simd above comes first: the rest is written in terms of it.
#include "ops/common/attention/cpu/block.inl"
#include "ops/softmax/cpu/int8_paths.h"

namespace attenuator::softmax {
namespace {

using namespace attention;

// [columns, keys], a column's keys a whole number of cache lines, and an odd one: rows of a tile
// are then spread over the sets of the first-level cache.
struct ValueLayout {
  static constexpr std::int64_t kKeys = kTileBytes;  // that are stored together
  std::int64_t length;
  std::int64_t columns;

  std::int64_t stride() const { return kKeys * ((length + kKeys - 1) / kKeys | 1); }
  std::int64_t bytes() const { return columns * stride(); }

  // A vector of columns from `column` on of the keys from j on. four_keys(j): [column, 4] of four.
  template <class FourKeys>
  void Store(std::int8_t* values, std::int64_t j, std::int64_t column,
             const FourKeys& four_keys) const {
    alignas(64) std::int8_t fours[kKeys / 4][64];
    for (std::int64_t i = 0; i < kKeys; i += 4) _mm512_store_si512(fours[i / 4], four_keys(j + i));
    for (std::int64_t c = 0; c < kWidth; c += 4) {
      Vector keys[4];
      Simd::Transpose4([&](int i) { return reinterpret_cast<const float*>(fours[i] + 4 * c); },
                       keys);
      for (std::int64_t i = 0; i < 4; ++i) {
        _mm512_storeu_ps(values + (column + c + i) * stride() + j, keys[i]);
      }
    }
  }
};
constexpr std::int64_t kKeySlack = kTileRows - 4;  // read behind the last four keys, and not used

#include "ops/softmax/cpu/int8_round.inl"
//
#include "ops/softmax/cpu/int8_weigh.inl"

inline TileConfig Configure(const Head& head) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) config.Set(tile, kTileRows, kTileBytes);
  if (const int rest = static_cast<int>(Fours(head.head_dim) % kTileBytes); rest > 0) {
    config.Set(6, kTileRows, rest);
    config.Set(7, rest / 4, kTileBytes);
  }
  return config;
}

// Calls visit<0>() to visit<kCount - 1>().
template <int kCount, class Visit>
[[gnu::always_inline]] inline void ForTiles(const Visit& visit) {
  if constexpr (kCount > 1) ForTiles<kCount - 1>(visit);
  visit.template operator()<kCount - 1>();
}

// Scores of 16 keys and kTiles times 16 queries.
template <int kTiles>
inline void ScoreTiles(const std::uint8_t* keys, std::int64_t depth, std::int64_t pitch,
                       std::int32_t* scores, const Int8Scratch& scratch) {
  ForTiles<kTiles>([&]<int kTile>() { LoadTile<kTile>(scratch.start + kTile * kTileRows, 0); });
  const auto add = [&]<int kKeys, int kQueries>(std::int64_t d) {
    LoadTile<kKeys>(keys + d, depth);
    ForTiles<kTiles>([&]<int kTile>() {
      LoadTile<kQueries>(scratch.query + d * pitch + kTile * kTileBytes, 4 * pitch);
      DotTilesUnsignedFirst<kTile, kKeys, kQueries>();
    });
  };
  std::int64_t d = 0;
  for (; d + kTileBytes <= depth; d += kTileBytes) add.template operator()<4, 5>(d);
  if (d < depth) add.template operator()<6, 7>(d);
  ForTiles<kTiles>([&]<int kTile>() { StoreTile<kTile>(scores + kTile * kTileRows, 4 * pitch); });
}

// Sums of 16 columns and kTiles times 16 queries over `keys` keys, a multiple of 64.
template <int kTiles>
inline void ValueTiles(const std::int8_t* values, std::int64_t stride, const std::uint8_t* weights,
                       std::int64_t pitch, std::int64_t keys, std::int32_t* sums) {
  ForTiles<kTiles>([]<int kTile>() { ZeroTile<kTile>(); });
  for (std::int64_t j = 0; j < keys; j += kTileBytes) {
    LoadTile<4>(values + j, stride);
    ForTiles<kTiles>([&]<int kTile>() {
      LoadTile<5>(weights + j * pitch + kTile * kTileBytes, 4 * pitch);
      DotTiles<kTile, 4, 5>();
    });
  }
  ForTiles<kTiles>([&]<int kTile>() { StoreTile<kTile>(sums + kTile * kTileRows, 4 * pitch); });
}

// Scores of a key block, and the largest of each row.
inline void Score(const Head& head, const Rounded& rounded, const Rows& rows, const Keys& keys,
                  const Int8Scratch& scratch) {
  const std::int64_t depth = Fours(head.head_dim), pitch = rows.pitch;
  ForVectors(pitch, [&]<int kVectors>(std::int64_t) {  // a block has no more than four vectors
    for (std::int64_t j = 0; j < keys.count; j += kTileRows) {
      ScoreTiles<kVectors>(rounded.keys + (keys.low + j) * depth, depth, pitch,
                           scratch.scores + j * pitch, scratch);
    }
    Integers most[kVectors];
#pragma GCC unroll 4
    for (Integers& largest : most) largest = Simd::Set(0);
    for (std::int64_t j = 0; j < keys.count; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        most[v] = Simd::Max(most[v], Simd::Load(scratch.scores + j * pitch + v * kWidth));
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Simd::Store(scratch.most + v * kWidth, most[v]);
  });
}

// Takes sums of columns [first, last) of a key block, [column, query], into those so far.
inline void TakeSums(const std::int32_t* sums, std::int64_t first, std::int64_t last,
                     std::int64_t pitch, bool any, const Int8Scratch& scratch) {
  for (std::int64_t lane = 0; lane < pitch; lane += kWidth) {
    const Vector old_factor = Simd::Load(scratch.old_factor + lane);
    const Vector new_factor = Simd::Load(scratch.new_factor + lane);
    const std::int32_t* some = sums + lane;
    float* kept = scratch.kept + first * pitch + lane;
    for (std::int64_t c = first; c < last; ++c, some += pitch, kept += pitch) {
      Vector sum = Simd::Mul(Simd::FloatOf(Simd::Load(some)), new_factor);
      if (any) sum = Simd::Fma(Simd::Load(kept), old_factor, sum);
      Simd::Store(kept, sum);
    }
  }
}

inline void AddValues(const Head& head, const Rounded& rounded, const Rows& rows, const Keys& keys,
                      std::uint8_t* weights, bool any, const Int8Scratch& scratch) {
  const std::int64_t columns = Padded(head.value_dim), pitch = rows.pitch;
  const std::int64_t stride = Rounded::LayoutOf(head).stride();
  const std::int64_t count = (keys.count + kTileBytes - 1) / kTileBytes * kTileBytes;
  __builtin_memset(weights + keys.count * pitch, 0, (count - keys.count) * pitch);
  std::int32_t* const sums = scratch.scores;  // nobody needs those any more; room for 128 columns
  ForVectors(pitch, [&]<int kVectors>(std::int64_t) {
    for (std::int64_t first = 0; first < columns; first += kInt8KeyBlock) {
      const std::int64_t last = Smaller(first + kInt8KeyBlock, columns);
      for (std::int64_t c = first; c < last; c += kTileRows) {
        ValueTiles<kVectors>(rounded.values + c * stride + keys.low, stride, weights, pitch, count,
                             sums + (c - first) * pitch);
      }
      TakeSums(sums, first, last, pitch, any, scratch);
    }
  });
}

// Sums of rows i to i + 3 in a vector of columns from c on; they lie as [column, query].
inline void LoadKept(const Rows& rows, std::int64_t, std::int64_t i, std::int64_t c,
                     const Int8Scratch& scratch, Vector (&kept)[4]) {
  Simd::Transpose4([&](int k) { return scratch.kept + (c + k) * rows.pitch + i; }, kept);
}

#include "ops/softmax/cpu/int8_block.inl"

std::uint64_t AttendByTiles(const Head& head, const std::byte* rounded, std::int64_t begin,
                            std::int64_t end, float* output, std::int64_t output_stride,
                            float* maxima, float* scratch) {
  const Tiles tiles(Configure(head));
  return Attend(head, rounded, begin, end, output, output_stride, maxima, scratch);
}

constexpr Int8Kernels kKernels{
    .rounded_bytes = Rounded::Bytes, .round = RoundHead, .attend = AttendByTiles};

}  // namespace

const Int8Kernels& Int8KernelsAvx512Amx() { return kKernels; }

}  // namespace attenuator::softmax
