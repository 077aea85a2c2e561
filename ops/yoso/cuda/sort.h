// What YosoAttention's table kernels share: codes of a hash, and a block's stable sort of up to
// kSharedKeys keys by 8 bits of them.
//
// Digits lie in shared memory before the sort begins, read 16 a thread at once, so that a block
// waits for memory once and not at every step. Each of the block's 8 warps owns a run of keys and
// counts digits in its own 256 counters. After one prefix sum over (digit, warp) it writes the keys
// to their places in order, 32 at a time; lanes with the same digit are found by __match_any_sync.
#pragma once

#include "ops/yoso/cuda/common.h"

namespace attenuator::yoso {

inline constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kBlockThreads, "one thread per digit");
static_assert(kSortedRuns == kBlockWarps, "one warp per run");
inline constexpr int kMaxColumns = 256;
// Of SortByDigit: [warp][digit], and one more of each warp.
inline constexpr int kSortCounters = kBlockWarps * kDigits + kBlockWarps;

using LocalKey = std::uint16_t;  // number of a key among those that a block sorts
static_assert(kSharedKeys <= 1 << 16);

// The keys' codes of one hash.
struct Codes {
  const unsigned char* data;
  bool wide;

  __device__ int operator[](int i) const {
    return wide ? reinterpret_cast<const std::uint16_t*>(data)[i] : data[i];
  }
};

// Codes of keys, or of queries, of the job's table `local`: head, then hash.
__device__ inline Codes CodesOf(const Node& node, std::int64_t offset, int count, int local) {
  const std::int64_t pitch = Quotient(count, kCodePad) * kCodePad;
  return {node.scratch + offset + local * pitch * node.code_bytes(), node.code_bytes() == 2};
}

// A run of places.
struct Run {
  int begin, end;
};
// A warp's run of `count` places.
__device__ inline Run WarpRun(int count, int warp) {
  const int size = RunSize(count);
  return {min(warp * size, count), min((warp + 1) * size, count)};
}

// The sum of `value` over all threads before the calling one. `warps` has room for kBlockWarps.
__device__ inline int ExclusiveSum(int value, int* warps) {
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  int sum = value;
  for (int lanes = 1; lanes < cuda::kWarp; lanes *= 2) {
    const int other = __shfl_up_sync(cuda::kFullMask, sum, lanes);
    if (lane >= lanes) sum += other;
  }
  if (lane == cuda::kWarp - 1) warps[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += warps[w];
  __syncthreads();
  return sum - value;
}

// store(i, load(i)) for the first `count` of up to kSharedKeys keys, all of a thread's loads under
// way at once.
template <class Load, class Store>
__device__ __forceinline__ void ForKeys(int count, const Load& load, const Store& store) {
  constexpr int kOwn = kSharedKeys / kBlockThreads;
  int value[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int i = threadIdx.x + k * kBlockThreads;
    value[k] = i < count ? load(i) : 0;
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int i = threadIdx.x + k * kBlockThreads;
    if (i < count) store(i, value[k]);
  }
}

// target = source (null: 0, 1, ...) ordered by digit(key), stably, all in shared memory. Of
// `counters` (kSortCounters) the last warp's are left: the place behind each digit's last key.
template <class Digit>
__device__ __forceinline__ void SortByDigit(const Digit& digit_of, int count,
                                            const LocalKey* source, LocalKey* target,
                                            int* counters) {
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  for (int i = threadIdx.x; i < kBlockWarps * kDigits; i += kBlockThreads) counters[i] = 0;
  __syncthreads();
  const Run run = WarpRun(count, warp);
  int* mine = counters + warp * kDigits;
  for (int i = run.begin + lane; i < run.end; i += cuda::kWarp) {
    atomicAdd(mine + digit_of(source == nullptr ? i : source[i]), 1);
  }
  __syncthreads();
  // Counts become first places: by digit, then by warp.
  int total = 0;
  for (int w = 0; w < kBlockWarps; ++w) total += counters[w * kDigits + threadIdx.x];
  int place = ExclusiveSum(total, counters + kBlockWarps * kDigits);
  for (int w = 0; w < kBlockWarps; ++w) {
    int& counter = counters[w * kDigits + threadIdx.x];
    const int size = counter;
    counter = place;
    place += size;
  }
  __syncthreads();
  for (int base = run.begin; base < run.end; base += cuda::kWarp) {
    const int i = base + lane;
    const bool active = i < run.end;
    const int key = !active ? 0 : source == nullptr ? i : source[i];
    const int digit = active ? digit_of(key) : kDigits;
    const unsigned equal = __match_any_sync(cuda::kFullMask, digit);
    const int rank = __popc(equal & ((1u << lane) - 1));
    const int first = active ? mine[digit] : 0;
    __syncwarp();
    if (active && rank == 0) mine[digit] = first + __popc(equal);
    __syncwarp();
    if (active) target[first + rank] = static_cast<LocalKey>(key);
  }
  __syncthreads();
}

}  // namespace attenuator::yoso
