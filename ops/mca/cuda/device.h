// What McaAttention's kernels share on the device.
#pragma once

#include "ops/common/cuda/device.h"
#include "ops/mca/cuda/kernel.h"

namespace attenuator::mca {

constexpr int kThreads = 256, kBlockWarps = kThreads / cuda::kWarp;

template <class T>
__device__ inline bool Finite(T x) {
  return x - x == 0;
}

// An item as its positions have it, which may make a sequence narrow that has no more rows than one
// side of a window: n of the rule is its length either way, and narrow it has no probe.
__device__ inline SequenceItem ItemAt(const Items& items, unsigned at, const DeviceCall& call) {
  SequenceItem item = items.items[at];
  if (item.window_if_narrow == 0 || call.ranges[item.begin].end == item.length) return item;
  item.window = item.window_if_narrow;
  item.global = call.global_token ? 1 : 0;
  item.probe = {};
  if (item.way == Way::kApproximate && item.keys > kStoredLength) item.way = Way::kExact;
  return item;
}

// x of all 256 threads joined by `join`; `shared` has room for kBlockWarps values.
template <class T, class Join>
__device__ inline T BlockReduce(T x, T* shared, const Join& join) {
  return cuda::BlockReduce<kBlockWarps>(x, shared, join);
}

template <class T>
__device__ inline T BlockSum(T x, T* shared) {
  return BlockReduce(x, shared, [](T a, T b) { return a + b; });
}

// Sum of what the threads before this one gave; *total of all. `shared` has room for kThreads + 1.
template <class T>
__device__ inline T BlockBefore(T x, T* shared, T* total) {
  __syncthreads();
  shared[threadIdx.x + 1] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    T sum = 0;
    shared[0] = 0;
    for (int t = 1; t <= kThreads; ++t) {
      sum += shared[t];
      shared[t] = sum;
    }
  }
  __syncthreads();
  *total = shared[kThreads];
  return shared[threadIdx.x];
}

inline unsigned Blocks(std::int64_t count, std::int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

inline int LongestOf(const Items& items) {
  int longest = 0;
  for (int i = 0; i < items.count; ++i) {
    if (items.items[i].length > longest) longest = items.items[i].length;
  }
  return longest;
}

inline bool AnyOf(const Items& items, Way way) {
  for (int i = 0; i < items.count; ++i) {
    if (items.items[i].way == way) return true;
  }
  return false;
}

}  // namespace attenuator::mca
