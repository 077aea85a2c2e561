// YosoAttention on CUDA, the expectation (num_hashes = 0) in float16 and bfloat16, through tensor
// cores.
//
// The scheme is that of attention in half types (attention_half.cu): a block of four warps owns 64
// queries of one head, each warp 16 of them; keys and values come kKeys rows at a time by
// asynchronous copies, values while products of queries and keys are computed, the next keys while
// weights are; an accumulator has the layout of the next product's left operand.
//
// Cosines: the products are of the rows as they are, only by a power of two each (UnitRows), so
// that hardly anything is rounded before float32 adds it up (float16 loses what is 2^-14 of its
// row's largest coordinate); 1 / |q| and 1 / |k| then multiply the sum.
// Where a cosine is near 1 or -1, the unit rows in float32 give the angle, as in weights.h.
//
// Weights stay in float32 until they meet the values. There each is the sum of two numbers of the
// data's type, so that 16 bits of it count (22 in float16) and not 8, in two products. Float16 has
// few exponents, and weights are powers up to the 16th: each row's weights are multiplied by a
// power of two that brings the largest so far near 2^14, and sums are rescaled where it changes.
//
// Sums over keys are those of tensor cores, which are said to cut off what a sum in float32 cannot
// hold: an error of about 6e-9 of the largest output for each key, which passes half a step of
// float16 beyond about 65,536 keys. The test device rounds to nearest and does not show it.
//
// Model, a pair and head at head_dim 64, value_dim 64 and hash_bits 8: 64 + 2 x 64 multiply-adds of
// tensor cores, which are 3 of about 45 instructions of a lane. Memory: a block streams keys and
// values of the head once from L2, so n / 64 times in all.
#include "ops/common/attention/cuda/half_tile.h"
#include "ops/yoso/cuda/weights.h"

namespace attenuator::yoso {
namespace {

using attention::kHalfThreads;
using attention::Output;
using attention::Scores;
using attention::Shape;

// The power of two that a row's weights are multiplied by, as the exponent field of a float.
constexpr int kLeastExponent = 30;  // weights below 2^-97 are multiplied as if they were that
constexpr int kNear = 127 + 14;     // what brings the exponent field of the largest weight to 2^14
constexpr int kMostShift = 127 + kNear - kLeastExponent;
__device__ inline float PowerOfTwo(int exponent) { return __int_as_float(exponent << 23); }

// What a lane keeps of its rows lane / 4 and lane / 4 + 8.
struct Rows {
  float scale[2];  // 1 / |q| of the row as it is in shared memory
  float total[2];  // the lane's part of the weights' sum
  int shift[2];    // float16: an exponent field, see PowerOfTwo
};

// powers[n] = bases[n] to `exponent`, which starts as bases[n], for many at a time: a step of the
// loop squares, and where the exponent is no power of two may multiply.
template <int kCount>
__device__ __forceinline__ void Raise(int exponent, const float (&bases)[kCount][4],
                                      float (*powers)[4]) {
  const int highest = 31 - __clz(exponent);
  const auto each = [&](const auto& body) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) body(powers[n][e], bases[n][e]);
    }
  };
  if ((exponent & (exponent - 1)) == 0) {
#pragma unroll
    for (int bit = 0; bit < 4; ++bit) {  // up to the 16th power
      if (bit < highest) each([](float& power, float) { power *= power; });
    }
    return;
  }
#pragma unroll 1
  for (int bit = highest - 1; bit >= 0; --bit) {
    const bool odd = (exponent >> bit & 1) != 0;
    each([&](float& power, float base) { power = power * power * (odd ? base : 1.0f); });
  }
}

// The expected collisions of the block's keys: cosines become weights. `query` and `key` are the
// unit rows of the lane's first query and first key, in float32.
template <class S>
__device__ __forceinline__ void Weigh(const Node& node, const Rows& rows, const float* key_scales,
                                      const float* const (&query)[2], const float* key,
                                      Scores<S>& scores) {
  constexpr int kGroup = 4;  // key tiles at a time: 16 weights, for which a loop is worth its cost
  const int own = static_cast<int>(threadIdx.x) % 4 * 2, pitch = UnitDim(node.unit_dim());
#pragma unroll
  for (int group = 0; group < S::kKeyTiles; group += kGroup) {
    float rest[kGroup][4];
    bool is_near = false;
#pragma unroll
    for (int n = 0; n < kGroup; ++n) {
      const float2 scale = *reinterpret_cast<const float2*>(key_scales + (group + n) * 8 + own);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = scores[0][group + n][e];
        x *= rows.scale[e / 2] * (e % 2 == 0 ? scale.x : scale.y);
        rest[n][e] = fmaxf(1.0f - fabsf(x), 0.0f);
        is_near |= fabsf(x) > kNearCosine;
      }
    }
    if (is_near) {
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float x = scores[0][group + n][e];
          if (fabsf(x) <= kNearCosine) continue;
          rest[n][e] = NearRest(query[e / 2], key + ((group + n) * 8 + e % 2) * pitch,
                                node.unit_dim(), x < 0);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kGroup; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = scores[0][group + n][e];
        const float turn = cuda::Sqrt(rest[n][e]) * ArcShare(fabsf(x));
        rest[n][e] = x = x < 0 ? turn : 1.0f - turn;
      }
    }
    Raise<kGroup>(node.hash_bits, rest, &scores[0][group]);
  }
}

// No weight for the keys from `count` on.
template <class S>
__device__ __forceinline__ void Mask(int count, Scores<S>& weights) {
  const int own = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (n * 8 + own + e % 2 >= count) weights[0][n][e] = 0;
    }
  }
}

// Adds up the weights, and in float16 multiplies them, and the sums of values so far, by the row's
// power of two.
template <class T, class S>
__device__ __forceinline__ void Total(Rows& rows, Scores<S>& weights, Output<S>& output) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float part = 0, largest = 0;
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        part += weights[0][n][e];
        largest = fmaxf(largest, weights[0][n][e]);
      }
    }
    rows.total[half] += part;
    if constexpr (std::is_same_v<T, cuda::Half>) {
      largest = fmaxf(largest, __shfl_xor_sync(cuda::kFullMask, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(cuda::kFullMask, largest, 2));
      const int exponent = max(__float_as_int(largest) >> 23, kLeastExponent);
      const int shift = min(rows.shift[half], 127 + kNear - exponent);
      if (__any_sync(cuda::kFullMask, shift != rows.shift[half])) {
        const float factor = PowerOfTwo(127 + shift - rows.shift[half]);
#pragma unroll
        for (int n = 0; n < S::kValueTiles; ++n) {
          output[0][n][2 * half] *= factor;
          output[0][n][2 * half + 1] *= factor;
        }
        rows.shift[half] = shift;
      }
      const float power = PowerOfTwo(shift);
#pragma unroll
      for (int n = 0; n < S::kKeyTiles; ++n) {
        weights[0][n][2 * half] *= power;
        weights[0][n][2 * half + 1] *= power;
      }
    }
  }
}

// output += weights, as sums of two numbers of type T, times the block of values.
template <class T, class S>
__device__ __forceinline__ void AddValues(const Scores<S>& weights, const T* value, int value_dim,
                                          Output<S>& output) {
  const int lane = threadIdx.x % cuda::kWarp;
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
    std::uint32_t high[4], low[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float (&w)[4] = weights[0][2 * k + e / 2];
      const float first = w[e % 2 * 2], second = w[e % 2 * 2 + 1];
      high[e] = cuda::Pack<T>(first, second);
      T pair[2];
      memcpy(pair, &high[e], sizeof pair);
      low[e] = cuda::Pack<T>(first - cuda::ToFloat(pair[0]), second - cuda::ToFloat(pair[1]));
    }
#pragma unroll
    for (int n = 0; n < S::kValueTiles; n += 2) {
      if (!S::kWhole && n * 8 >= value_dim) continue;
      std::uint32_t b[4];
      cuda::LoadMatricesTransposed(
          b, value + (k * 16 + lane % 16) * S::kStride + n * 8 + lane / 16 * 8);
      const std::uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      cuda::Mma<T>(output[0][n], high, left);
      cuda::Mma<T>(output[0][n + 1], high, right);
      cuda::Mma<T>(output[0][n], low, left);
      cuda::Mma<T>(output[0][n + 1], low, right);
    }
  }
}

// Sums of values to `sums` [row][kStride] and of weights to `totals` [row], `first` being the
// warp's first row.
template <class T, class S>
__device__ __forceinline__ void StageSums(const Rows& rows, const Output<S>& output, int first,
                                          float* sums, float* totals) {
  const int lane = threadIdx.x % cuda::kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + half * 8 + lane / 4;
    float total = rows.total[half];
    total += __shfl_xor_sync(cuda::kFullMask, total, 1);
    total += __shfl_xor_sync(cuda::kFullMask, total, 2);
    if (lane % 4 == 0) totals[row] = total;
    const float power = std::is_same_v<T, cuda::Half> ? PowerOfTwo(254 - rows.shift[half]) : 1.0f;
#pragma unroll
    for (int n = 0; n < S::kValueTiles; ++n) {
      *reinterpret_cast<float2*>(sums + row * S::kStride + n * 8 + lane % 4 * 2) =
          make_float2(output[0][n][2 * half] * power, output[0][n][2 * half + 1] * power);
    }
  }
}

template <class T, int kDim, int kKeys, bool kWhole>
__global__ void __launch_bounds__(kHalfThreads, kDim == 64 ? 3 : 2)
    HalfPairs(Node node, Jobs jobs) {
  using S = Shape<kDim, 1, kKeys, kWhole>;
  static_assert(S::kRows == kCudaRowTile);
  static_assert(S::kShared >= sizeof(float) * S::kRows * (S::kStride + 1), "room for the sums");
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int tiles = Quotient(job.num_queries, S::kRows);
  const int local = static_cast<int>(blockIdx.x) - job.first_block;
  const int local_head = local / tiles, first = local % tiles * S::kRows;
  const int head = job.head + local_head, pitch = UnitDim(node.unit_dim());
  const int head_dim = kWhole ? kDim : node.head_dim, value_dim = kWhole ? kDim : node.value_dim;
  const UnitSide queries = UnitSideOf(node, job, false, local_head);
  const UnitSide keys = UnitSideOf(node, job, true, local_head);
  const std::int64_t stride = static_cast<std::int64_t>(node.num_heads) * node.value_dim;
  const T* value_rows = static_cast<const T*>(node.value) + job.key_row * stride +
                        static_cast<std::int64_t>(head) * node.value_dim;
  const int lane = threadIdx.x % cuda::kWarp, warp_row = threadIdx.x / cuda::kWarp * 16;
  const bool idle = first + warp_row >= job.num_queries;

  T* query = cuda::SharedMemory<T>();
  T* key = query + S::kRows * S::kStride;
  T* value = key + kKeys * S::kStride;
  float* key_scales = reinterpret_cast<float*>(value + kKeys * S::kStride);  // [kKeys]
  // Rows [begin, begin + count) of a side, of which those from `end` on are zeros.
  const auto load_side = [&](T* target, const UnitSide& side, int count, int begin, int end) {
    attention::LoadRows<T, S>(target, count,
                              static_cast<const T*>(side.rows) + std::int64_t{begin} * pitch, pitch,
                              0, end - begin, head_dim, true);
    cuda::CopyCommit();
  };
  load_side(query, queries, S::kRows, first, job.num_queries);
  load_side(key, keys, kKeys, 0, job.num_keys);

  Rows rows = {};
  const float* unit_queries[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(first + warp_row + half * 8 + lane / 4, job.num_queries - 1);
    rows.scale[half] = queries.scales[row];
    rows.shift[half] = kMostShift;
    unit_queries[half] = queries.unit + std::int64_t{row} * pitch;
  }
  Output<S> output = {};
  const attention::Queries<S> kept = {};
  for (int begin = 0; begin < job.num_keys; begin += kKeys) {
    const int count = min(kKeys, job.num_keys - begin);
    cuda::CopyWait<0>();
    __syncthreads();  // the keys have arrived, and every warp has read scales and values before
    attention::LoadRows<T, S>(value, kKeys, value_rows + begin * stride, stride, 0, count,
                              value_dim, value_dim % 8 == 0);
    cuda::CopyCommit();
    if (threadIdx.x < kKeys) {
      const int i = static_cast<int>(threadIdx.x);
      key_scales[i] = i < count ? keys.scales[begin + i] : 0.0f;
    }
    Scores<S> weights;
    if (!idle)
      attention::ScoreKeys<T, S>(query + warp_row * S::kStride, kept, key, head_dim, weights);
    cuda::CopyWait<0>();
    __syncthreads();  // values and scales have arrived, and every warp has read the keys
    if (begin + kKeys < job.num_keys) load_side(key, keys, kKeys, begin + kKeys, job.num_keys);
    if (idle) continue;
    Weigh<S>(node, rows, key_scales, unit_queries,
             keys.unit + std::int64_t{begin + lane % 4 * 2} * pitch, weights);
    if (count < kKeys) Mask<S>(count, weights);
    Total<T, S>(rows, weights, output);
    AddValues<T, S>(weights, value, value_dim, output);
  }
  __syncthreads();  // every warp has read queries and values, whose place the sums take
  float* sums = reinterpret_cast<float*>(query);
  float* totals = key_scales;  // [kRows]
  StageSums<T, S>(rows, output, warp_row, sums, totals);
  __syncthreads();
  FinishRows<T>(node, job, head, first, min(S::kRows, job.num_queries - first), sums, S::kStride,
                1.0f, totals);
}

}  // namespace

void LaunchHalfPairs(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                     cuda::Stream stream) {
  const auto launch = [&](auto kernel, std::size_t shared) {
    cuda::Launch("YosoAttention pairs in half types", kernel, dim3(static_cast<unsigned>(blocks)),
                 kHalfThreads, shared, stream, node, jobs);
  };
  const auto launch_as = [&](auto type) {
    using T = decltype(type);
    const int widest = max(node.head_dim, node.value_dim);
    if (node.head_dim == 64 && node.value_dim == 64) {
      launch(HalfPairs<T, 64, 64, true>, Shape<64, 1, 64, true>::kShared);
    } else if (widest <= 64) {
      launch(HalfPairs<T, 64, 64, false>, Shape<64, 1, 64, false>::kShared);
    } else if (widest <= 128) {
      launch(HalfPairs<T, 128, 64, false>, Shape<128, 1, 64, false>::kShared);
    } else {
      launch(HalfPairs<T, 256, 32, false>, Shape<256, 1, 32, false>::kShared);
    }
  };
  if (data == ElementType::kFloat16) return launch_as(cuda::Half{});
  launch_as(cuda::Bfloat16{});
}

}  // namespace attenuator::yoso
