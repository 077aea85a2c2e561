// SoftmaxAttention on CUDA in float16 and bfloat16, through tensor cores.
//
// The scheme is FlashAttention-2's (Dao, 2023). A block of four warps owns 64 kRowTiles query rows
// of one head, each warp 16 kRowTiles of them, so that a fragment of keys or values, once in
// registers, serves kRowTiles products. Keys and values are processed kKeys rows at a time, brought
// by asynchronous copies. With two buffers (kBuffers), keys and values both arrive while the block
// before is computed, and warps meet once a block. With one, values arrive while scores are
// computed, the next keys while probabilities are multiplied by the values, and warps meet twice.
// Scores never leave the registers, since an accumulator has the layout of the next product's left
// operand.
//
// Stages of a block: LoadRows brings queries, LoadBlock each block of keys and of values; a warp
// then goes from ScoreKeys through Normalize to AddValues, block after block; StageOutput and
// StoreRows write its rows.
//
// Products are mma 16 x 8 x 16 with operands of the data's type and float32 sums. Softmax is
// float32 with base 2 and a running maximum and sum. Probabilities are summed in float32, then
// rounded to the data's type for the second product. Rows in shared memory lie kDim + 8 elements
// apart, which keeps ldmatrix free of bank conflicts; queries, keys and values together take 36 KiB
// at head_dim 64, 54 KiB with two buffers, 68 KiB at 128, 66 KiB at 256, and which keys each row
// sees 1 KiB. Each warp stages its output where its queries were in shared memory and writes it
// from there, 16 bytes at a time.
//
// Scores with terms (terms_half.h) have kernels of their own, with one row tile: 41 KiB at head_dim
// 64, 69 KiB at 128, 92 KiB at 256.
//
// head_dim = value_dim = 32, 64 or 128 have kernels of their own (kWhole); any other size takes the
// next larger of 128 and 256, pads with zeros and skips the fragments beyond its columns. Rows that
// are not 16-byte aligned are read element by element. Keys that no row of the block sees are
// loaded as zeros, so that a NaN among them cannot reach the block.
//
// Memory traffic: a block reads its keys and values once, mostly from L2; 64 kRowTiles rows share
// each read.
#include "ops/common/attention/cuda/terms_half.h"

namespace attenuator::attention {
namespace {

template <class S>
__device__ __forceinline__ void ClearRows(Output<S>& output, RowValues<S>& largest,
                                          RowValues<S>& sum) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < S::kValueTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) output[m][n][e] = 0;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[m][half] = kLowest;
      sum[m][half] = 0;
    }
  }
}

// -inf where a row does not see a key of the block that starts at `start`. `ranges` [kRows] is what
// the tile's rows see.
template <class S>
__device__ __forceinline__ void Mask(const TileKeys& keys, int start, const KeyRange* ranges,
                                     Scores<S>& scores) {
  const int lane = threadIdx.x % cuda::kWarp;
  const int first = threadIdx.x / cuda::kWarp * 16 * S::kRowTiles + lane / 4;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange inside = ranges[first + m * 16 + half * 8];
#pragma unroll
      for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int j = start + n * 8 + lane % 4 * 2 + e % 2;
          if (!keys.sees(inside, j)) scores[m][n][e] = -INFINITY;
        }
      }
    }
  }
}

// Lets the sequence's last key, if it is one of the block that starts at `start`, count as often as
// it stands for rows.
template <class S>
__device__ __forceinline__ void CountLastKey(const Item& item, int start, Scores<S>& scores) {
  const int last = item.length - 1 - start;  // in the block
  if (item.last_key_log2 == 0 || last >= S::kKeys) return;
  const int own = last - static_cast<int>(threadIdx.x) % cuda::kWarp % 4 * 2;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (own == n * 8 + e % 2) scores[m][n][e] += item.last_key_log2;
      }
    }
  }
}

// Turns the scores of the block of keys that starts at `start` into probabilities relative to the
// largest score so far, and rescales the sum and output so far to that. `ranges` as for Mask.
template <class S>
__device__ __forceinline__ void Normalize(const Item& item, const TileKeys& keys, int start,
                                          const KeyRange* ranges, float scale, Scores<S>& scores,
                                          RowValues<S>& largest, RowValues<S>& sum,
                                          Output<S>& output) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[m][n][e] *= scale;
    }
  }
  CountLastKey<S>(item, start, scores);
  if (keys.masked(start, S::kKeys)) Mask<S>(keys, start, ranges, scores);
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = largest[m][half];
#pragma unroll
      for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) most = fmaxf(most, scores[m][n][e]);
      }
      most = fmaxf(most, __shfl_xor_sync(cuda::kFullMask, most, 1));
      most = fmaxf(most, __shfl_xor_sync(cuda::kFullMask, most, 2));
      const float factor = Exp2(largest[m][half] - most);
      largest[m][half] = most;
      float part = 0;
#pragma unroll
      for (int n = 0; n < S::kKeyTiles; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const float p = Exp2(scores[m][n][e] - most);
          scores[m][n][e] = p;
          part += p;
        }
      }
      // A lane's share of the row's sum; the four lanes of a row are added at the end.
      sum[m][half] = __fmaf_rn(sum[m][half], factor, part);
#pragma unroll
      for (int n = 0; n < S::kValueTiles; ++n) {
        output[m][n][2 * half] *= factor;
        output[m][n][2 * half + 1] *= factor;
      }
    }
  }
}

// output += probabilities, rounded to T, times the block of values.
template <class T, class S>
__device__ __forceinline__ void AddValues(const Scores<S>& probabilities, const T* value,
                                          int value_dim, Output<S>& output) {
  const int lane = threadIdx.x % cuda::kWarp;
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
    std::uint32_t a[S::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float (&p)[4] = probabilities[m][2 * k + e / 2];
        a[m][e] = cuda::Pack<T>(p[e % 2 * 2], p[e % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < S::kValueTiles; n += 2) {
      if (!S::kWhole && n * 8 >= value_dim) continue;
      std::uint32_t b[4];
      cuda::LoadMatricesTransposed(
          b, value + (k * 16 + lane % 16) * S::kStride + n * 8 + lane / 16 * 8);
      const std::uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        cuda::Mma<T>(output[m][n], a[m], low);
        cuda::Mma<T>(output[m][n + 1], a[m], high);
      }
    }
  }
}

// Divides by the sums and stages the warp's rows in `own_rows`, where its queries were.
template <class T, class S>
__device__ __forceinline__ void StageOutput(const Output<S>& output, const RowValues<S>& sum,
                                            T* own_rows) {
  const int lane = threadIdx.x % cuda::kWarp;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float all = sum[m][half];
      all += __shfl_xor_sync(cuda::kFullMask, all, 1);
      all += __shfl_xor_sync(cuda::kFullMask, all, 2);
      const float inverse = 1.0f / all;
      T* row = own_rows + (m * 16 + half * 8 + lane / 4) * S::kStride + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < S::kValueTiles; ++n) {
        const std::uint32_t pair =
            cuda::Pack<T>(output[m][n][2 * half] * inverse, output[m][n][2 * half + 1] * inverse);
        memcpy(row + n * 8, &pair, sizeof pair);
      }
    }
  }
}

// Rows [first, count) of the warp from shared memory to `out`, 16 bytes at a time where `vector`.
template <class T, class S>
__device__ __forceinline__ void StoreRows(const T* own_rows, int first, int count, int value_dim,
                                          bool vector, T* out, std::int64_t out_stride) {
  const int lane = threadIdx.x % cuda::kWarp;
  if (S::kWhole || vector) {
    const int chunks = value_dim / 8;
    for (int index = lane + first * chunks; index < count * chunks; index += cuda::kWarp) {
      const int i = index / chunks, c = index % chunks * 8;
      *reinterpret_cast<uint4*>(out + i * out_stride + c) =
          *reinterpret_cast<const uint4*>(own_rows + i * S::kStride + c);
    }
  } else {
    for (int i = first; i < count; ++i) {
      for (int c = lane; c < value_dim; c += cuda::kWarp) {
        out[i * out_stride + c] = own_rows[i * S::kStride + c];
      }
    }
  }
}

// One block a multiprocessor is asked for, lest the compiler spill registers to fit more.
template <class T, int kDim, int kRowTiles, int kKeys, bool kWhole, int kBuffers, bool kTerms>
__global__ __launch_bounds__(kHalfThreads, 1) void HalfTiles(cuda::Batch<Item> batch,
                                                             Call parameter) {
  const Call call = parameter;  // what is not used of a copy costs no registers
  using S = Shape<kDim, kRowTiles, kKeys, kWhole, kBuffers, kTerms>;
  const int head_dim = kWhole ? kDim : call.head_dim, value_dim = kWhole ? kDim : call.value_dim;
  const int tile = static_cast<int>(blockIdx.x) + batch.items[0].first_tile;
  const Item item = ItemOf(batch, tile);
  const int head = static_cast<int>(blockIdx.y);
  const TileKeys keys = KeysOf(item, (tile - item.first_tile) * S::kRows, S::kRows, call.window,
                               call.global_token, kKeys, call.ranges);
  const int warp_row = threadIdx.x / cuda::kWarp * 16 * kRowTiles;  // in the tile
  const bool idle = keys.row + warp_row >= keys.row_end;

  T* query = cuda::SharedMemory<T>();
  T* buffers = query + S::kRows * S::kStride;  // of keys and of values in turns, [kKeys, kStride]
  T* own_rows = query + warp_row * S::kStride;
  // In shared memory, since registers have no room for it.
  auto* ranges = reinterpret_cast<KeyRange*>(buffers + 2 * kBuffers * kKeys * S::kStride);
  for (int i = threadIdx.x; i < S::kRows; i += kHalfThreads) {
    ranges[i] = keys.seen(keys.row + i, keys.high);
  }
  const T* key_rows =
      static_cast<const T*>(call.key) + item.begin * call.query_stride + head * head_dim;
  const T* value_rows =
      static_cast<const T*>(call.value) + item.begin * call.value_stride + head * value_dim;
  const auto keys_of = [&](int step) {
    return buffers + step % kBuffers * (2 * kKeys * S::kStride);
  };
  const auto values_of = [&](int step) { return keys_of(step) + kKeys * S::kStride; };
  const auto load = [&](T* target, const T* source, std::int64_t stride, int columns, int step) {
    const int start = keys.start(step, kKeys);
    LoadBlock<T, S>(target, source + start * stride, stride, keys.begin(start) - start,
                    keys.end(start, kKeys) - start, columns, call.vector);
  };
  const auto load_keys = [&](int step) {
    load(keys_of(step), key_rows, call.query_stride, head_dim, step);
  };
  const auto load_values = [&](int step) {
    load(values_of(step), value_rows, call.value_stride, value_dim, step);
  };

  LoadRows<T, S>(query, S::kRows,
                 static_cast<const T*>(call.query) +
                     (item.query_row + keys.row) * call.query_stride + head * head_dim,
                 call.query_stride, 0, keys.row_end - keys.row, head_dim, call.vector);
  load_keys(0);
  if constexpr (kBuffers == 2) load_values(0);
  cuda::CopyCommit();

  Output<S> output;
  RowValues<S> largest, sum;
  ClearRows<S>(output, largest, sum);
  Queries<S> kept;
  for (int step = 0; step < keys.steps; ++step) {
    const int start = keys.start(step, kKeys);
    const T* key = keys_of(step);
    const T* value = values_of(step);
    cuda::CopyWait<0>();
    __syncthreads();  // copies have arrived, and every warp has read the block before
    if constexpr (kBuffers == 1) {
      load_values(step);
    } else if (step + 1 < keys.steps) {
      load_keys(step + 1);
      load_values(step + 1);
    }
    cuda::CopyCommit();
    Scores<S> scores;
    if (!idle) {
      if (step == 0) KeepQueries<T, S>(own_rows, head_dim, kept);
      ScoreKeys<T, S>(own_rows, kept, key, head_dim, scores);
    }
    if constexpr (kTerms) {
      // Every warp takes part, and waits for the values too.
      HalfTerms<T, S>(reinterpret_cast<T*>(ranges + S::kRows))
          .Add(call, item, head, head_dim, keys, start, keys.end(start, kKeys), own_rows, key,
               scores);
    }
    if constexpr (kBuffers == 1) {
      cuda::CopyWait<0>();
      __syncthreads();  // the values have arrived, and every warp has read the keys
      if (step + 1 < keys.steps) load_keys(step + 1);
      cuda::CopyCommit();
    }
    if (idle) continue;
    Normalize<S>(item, keys, start, ranges, kTerms ? 1.0f : call.scale, scores, largest, sum,
                 output);
    AddValues<T, S>(scores, value, value_dim, output);
  }
  if (idle) return;

  __syncwarp();  // every lane has read its queries, whose place the output takes
  StageOutput<T, S>(output, sum, own_rows);
  __syncwarp();
  T* out = static_cast<T*>(call.output) +
           (item.query_row + keys.row + warp_row) * call.value_stride + head * value_dim;
  const int first = keys.global && keys.row + warp_row == 0 ? 1 : 0;
  const int count = min(16 * kRowTiles, keys.row_end - keys.row - warp_row);
  StoreRows<T, S>(own_rows, first, count, value_dim, call.vector, out, call.value_stride);
}

// Calls body with the smallest shape that fits the call. Heads of exactly 32 or 128 columns have
// two buffers; those of 64 do unless a multiprocessor, whose blocks may have `most` bytes of shared
// memory, would then hold one block in place of two. All others have one.
template <class Body>
void ForShape(const Call& call, int most, const Body& body) {
  const int widest = max(call.head_dim, call.value_dim);
  const bool whole = call.vector && call.head_dim == call.value_dim;
  if (call.terms.rows > 0) {
    if (whole && widest == 64) return body(Shape<64, 1, 64, true, 1, true>{});
    if (widest <= 128) return body(Shape<128, 1, 64, false, 1, true>{});
    return body(Shape<256, 1, 32, false, 1, true>{});
  }
  if (whole && widest == 32) return body(Shape<32, 2, 64, true, 2>{});
  if (whole && widest == 64) {
    using One = Shape<64, 2, 64, true>;
    using Two = Shape<64, 2, 64, true, 2>;
    if (Two::Resident(most) < One::Resident(most)) return body(One{});
    return body(Two{});
  }
  if (whole && widest == 128) return body(Shape<128, 2, 32, true, 2>{});
  if (widest <= 128) return body(Shape<128, 1, 64, false>{});
  body(Shape<256, 1, 32, false>{});
}

}  // namespace

int TileRows(ElementType data, const Call& call) {
  if (data == ElementType::kFloat) return 16 * FloatMicro(call, max(call.head_dim, call.value_dim));
  int rows = 0;  // the same with one buffer and two
  ForShape(call, 0, [&](auto shape) { rows = decltype(shape)::kRows; });
  return rows;
}

void LaunchTiles(ElementType data, const cuda::Batch<Item>& batch, int tiles, const Call& call,
                 cuda::Stream stream) {
  if (data == ElementType::kFloat) return LaunchFloatTiles(batch, tiles, call, stream);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(call.heads));
  ForShape(call, cuda::Limits().shared_bytes, [&](auto shape) {
    using S = decltype(shape);
    std::size_t shared = S::kShared;
    if constexpr (S::kTerms) shared += HalfTerms<std::uint16_t, S>::kShared;
    const auto launch = [&](auto kernel) {
      cuda::Launch("attention, tiles", kernel, grid, kHalfThreads, shared, stream, batch, call);
    };
    if (data == ElementType::kFloat16) {
      launch(HalfTiles<cuda::Half, S::kDim, S::kRowTiles, S::kKeys, S::kWhole, S::kBuffers,
                       S::kTerms>);
    } else {
      launch(HalfTiles<cuda::Bfloat16, S::kDim, S::kRowTiles, S::kKeys, S::kWhole, S::kBuffers,
                       S::kTerms>);
    }
  });
}

}  // namespace attenuator::attention
