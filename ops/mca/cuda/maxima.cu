// McaAttention on CUDA: column maxima of the attention weights of sequences that are approximated.
//
// 64 (or 32) rows of a head a block, scores in float32 as the float tiles of
// ops/common/attention have them, asked for twice: for each row's maximum and sum, then for the
// weights. The second time goes backwards, so that the scores of the last tile of keys are still in
// registers; those of the first `kept` tiles wait in shared memory, a thread's where no other
// reads; only those between are computed again. A column's maximum goes to memory by atomicMax on
// its bits, which order non-negative floats, so that the order of blocks does not matter. A block
// of rows that belongs to the probe also raises a separate set of maxima, `probed`. The probe
// begins and ends at multiples of 64, so a block belongs to it entirely or not at all.
#include <algorithm>

#include "ops/common/attention/cuda/tile.h"
#include "ops/mca/cuda/device.h"

namespace attenuator::mca {
namespace {

template <class T, int kMicro>
__global__ __launch_bounds__(attention::kTileThreads, 2) void Maxima(Items items, DeviceCall call,
                                                                     DevicePlan plan, int kept) {
  constexpr int kRows = 16 * kMicro;
  const SequenceItem item = ItemAt(items, blockIdx.z, call);
  const int row = static_cast<int>(blockIdx.x) * kRows, head = static_cast<int>(blockIdx.y);
  if (item.way != Way::kApproximate || row >= item.length) return;
  const attention::Item attended{.begin = item.begin,
                                 .length = item.length,
                                 .query_row = item.query_row,
                                 .first_tile = 0,
                                 .last_key_log2 = item.last_key_log2};
  const attention::TileKeys keys =
      attention::KeysOf(attended, row, kRows, item.window, item.global != 0, kRows, call.ranges);
  const bool probed = row >= item.probe.first_row && row < item.probe.first_row + item.probe.rows;
  const int stride = attention::TileStride(call.head_dim), lane = threadIdx.x % cuda::kWarp;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float* query = cuda::SharedMemory<float>();
  float* key = query + kRows * stride;
  float* mine = key + kRows * stride + threadIdx.x;  // [kept, kMicro, kMicro, kTileThreads]
  const std::int64_t width = call.width();
  attention::LoadTile(
      query, kRows,
      static_cast<const T*>(call.query) + (item.query_row + row) * width + head * call.head_dim,
      width, 0, keys.row_end - row, call.head_dim, call.scale);
  const T* key_rows = static_cast<const T*>(call.key) + item.begin * width + head * call.head_dim;
  float scores[kMicro][kMicro];
  const auto score = [&](int start) {
    const int end = keys.end(start, kRows);
    __syncthreads();
    attention::LoadTile(key, kRows, key_rows + start * width, width, keys.begin(start) - start,
                        end - start, call.head_dim, 1.0f);
    __syncthreads();
    attention::ScoreTile<kMicro>(query, key, call.head_dim, scores);
    attention::CountLastKey(attended, start, scores);
    if (end - start < kRows || keys.masked(start, kRows)) {
      attention::MaskTile(keys, start, end, scores);
    }
  };
  // Calls body(score, its place in shared memory) for the thread's scores of a tile.
  const auto each = [&](int step, const auto& body) {
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
#pragma unroll
      for (int k = 0; k < kMicro; ++k) {
        body(scores[r][k], mine[((step * kMicro + r) * kMicro + k) * attention::kTileThreads]);
      }
    }
  };
  float largest[kMicro], sum[kMicro];
#pragma unroll
  for (int r = 0; r < kMicro; ++r) {
    largest[r] = attention::kLowest;
    sum[r] = 0;
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (int visit = 0; visit < keys.steps; ++visit) {
      const int step = pass == 0 ? visit : keys.steps - 1 - visit;
      const int start = keys.start(step, kRows);
      const bool stored = step < kept && step + 1 < keys.steps;
      if (pass == 0 || (visit > 0 && !stored)) score(start);
      if (pass == 0 && stored) each(step, [](float x, float& place) { place = x; });
      if (pass == 1 && stored) each(step, [](float& x, float place) { x = place; });
      if (pass == 0) {
#pragma unroll
        for (int r = 0; r < kMicro; ++r) {
          float most = largest[r];
#pragma unroll
          for (int k = 0; k < kMicro; ++k) most = fmaxf(most, scores[r][k]);
          most = attention::RowMax(most);
          float part = 0;
#pragma unroll
          for (int k = 0; k < kMicro; ++k) part += attention::Exp2(scores[r][k] - most);
          sum[r] = __fmaf_rn(sum[r], attention::Exp2(largest[r] - most), attention::RowSum(part));
          largest[r] = most;
        }
        continue;
      }
#pragma unroll
      for (int k = 0; k < kMicro; ++k) {
        float most = 0;
#pragma unroll
        for (int r = 0; r < kMicro; ++r) {
          const float p = attention::Exp2(scores[r][k] - largest[r]) * sum[r];
          most = largest[r] < INFINITY ? fmaxf(most, fminf(p, 1.0f)) : most;
        }
        most = fmaxf(most, __shfl_xor_sync(cuda::kFullMask, most, 16));
        const int j = start + tx + 16 * k;
        if (lane < 16 && j < keys.end(start, kRows) && most > 0) {
          const std::int64_t at = head * call.tokens + item.begin + j;
          atomicMax(plan.maxima + at, __float_as_uint(most));
          if (probed) atomicMax(plan.probed + at, __float_as_uint(most));
        }
      }
    }
    if (pass == 1) break;
#pragma unroll
    for (int r = 0; r < kMicro; ++r) {
      const int i = row + ty * kMicro + r;
      const bool counts = i < keys.row_end && !(keys.global && i == 0);
      largest[r] = counts ? largest[r] : INFINITY;  // excludes the row from the maxima
      sum[r] = 1.0f / sum[r];
    }
  }
}

// Shared memory of a block of Maxima that keeps the scores of so many tiles.
int MaximaBytes(const DeviceCall& call, int rows, int kept) {
  return static_cast<int>(sizeof(float)) *
         (2 * rows * attention::TileStride(call.head_dim) + kept * rows * rows);
}

// How many tiles' scores a block keeps: as many as fit without a multiprocessor holding fewer
// blocks, at most two as the kernel's bounds have it. CUDA takes 1 KiB besides of each block.
int KeptTiles(const DeviceCall& call, int rows, int longest) {
  constexpr int kReserved = 1024;
  const int whole = cuda::Limits().shared_bytes, half = (whole + kReserved) / 2 - kReserved;
  const int tiles = MaximaBytes(call, rows, 0);
  const int free = (tiles <= half ? half : whole) - tiles;
  return std::min(free / (MaximaBytes(call, rows, 1) - tiles),
                  static_cast<int>(Blocks(longest, rows)) - 1);
}

}  // namespace

void LaunchMaxima(ElementType data, const Items& items, const DeviceCall& call,
                  const DevicePlan& plan, cuda::Stream stream) {
  const auto heads = static_cast<unsigned>(call.heads), count = static_cast<unsigned>(items.count);
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    const auto maxima = [&](auto kernel, int rows) {
      const int longest = LongestOf(items), kept = KeptTiles(call, rows, longest);
      cuda::Launch("McaAttention, column maxima", kernel, dim3(Blocks(longest, rows), heads, count),
                   attention::kTileThreads, MaximaBytes(call, rows, kept), stream, items, call,
                   plan, kept);
    };
    if (call.head_dim <= 128) {
      maxima(Maxima<T, 4>, 64);
    } else {
      maxima(Maxima<T, 2>, 32);
    }
  });
}

}  // namespace attenuator::mca
