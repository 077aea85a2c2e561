// McaAttention on CUDA: the values of each token, sampled or exact as the plan says.
//
// Project: a block owns 48 tokens of a head that are neighbours in the plan's order, that is eight
// groups of six, and computes 64 columns of the value at a time. It lists the columns of `hidden`
// that the largest r among its tokens keeps (all columns where one of its tokens is exact) and
// multiplies only those, 32 at a time: rows of sampled tokens come into shared memory centred and
// weighted, with zeros in columns that the token's own r does not keep. So the whole block does the
// work of its first group, the one with the largest r. `value_flops` counts each group's own
// columns, which is less by the spread of r over the eight groups. A thread has three tokens by
// four columns in registers. Sums are float32 over columns in a fixed order, so that a token's bits
// depend on its sequence alone.
//
// Stages, for every 64 columns of the value: StartSums; for each segment of columns of `hidden`
// ListColumns, then LoadRows, LoadWeight and MultiplyChunk for each chunk of the list; StoreValues.
// At the end CountColumns, once.
//
// Paper: one warp per token. Its lanes draw 32 columns at once by binary search in the distribution
// function; then each lane computes some dimensions of the value. A column list of its own for
// every token is slow, here as on the CPU.
#include "ops/mca/cpu/kernel.h"
#include "ops/mca/cuda/device.h"

namespace attenuator::mca {
namespace {

using cuda::FromFloat;
using cuda::ToFloat;

constexpr int kTokens = 48, kGroups = kTokens / kSampleGroup;
constexpr int kColumns = 64;    // columns of the value computed at a time
constexpr int kDepth = 32;      // columns of hidden multiplied at a time
constexpr int kSegment = 1024;  // columns of hidden listed at a time
constexpr int kTokenStride = kDepth + 1;

struct ProjectShared {
  float rows[kTokens * kTokenStride];
  float weight[kDepth * kColumns];
  int list[kSegment];
  int counts[kBlockWarps + 1];
  int token[kTokens];
  int r[kTokens];
};

// A block's tokens: `count` neighbours in the plan's order, of which the first `mine` are
// approximated, and what their head's rows and columns are weighted by.
template <class T>
struct Tokens {
  int count, mine;
  bool sampled;            // the estimator draws columns
  bool centred;            // sampled rows have the mean row taken off
  float largest;           // r of the first token, the largest
  const T* hidden;         // [length, C] of the sequence
  const T* weight;         // [C, H * D], the head's first column
  const float* reach;      // [C]
  const float* inverse_p;  // [C]
  const float* centre;     // [C]

  // Whether some token is exact and takes every column.
  __device__ bool all() const { return mine < count; }
};

// Thread (tx, ty) = (t % 16, t / 16) owns tokens 3 ty to 3 ty + 2 and columns 4 tx to 4 tx + 3 of
// those from `column` on.
using Sums = float[3][4];

template <class T>
__device__ __forceinline__ void StartSums(const DeviceCall& call, const float* base, const T* bias,
                                          int mine, int column, Sums& sums) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int token = 3 * ty + i;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int d = column + 4 * tx + c;
      sums[i][c] = d >= call.head_dim ? 0.0f : token < mine ? base[d] : ToFloat(bias[d]);
    }
  }
}

// Lists the columns of [segment, end) that some token of the block needs, ascending, and returns
// their number. Where `counting`, lane g adds to its *kept how many of this warp's columns group g
// keeps.
template <class T>
__device__ __forceinline__ int ListColumns(const Tokens<T>& tokens, int segment, int end,
                                           bool counting, ProjectShared& shared, int* kept) {
  const int t = static_cast<int>(threadIdx.x), lane = t % cuda::kWarp, warp = t / cuda::kWarp;
  int listed = 0;
  for (int start = segment; start < end; start += kThreads) {
    const int k = start + t;
    const float u = tokens.mine > 0 && tokens.sampled && k < end ? tokens.reach[k] : INFINITY;
    const bool needed = k < end && (tokens.all() || (tokens.sampled && u <= tokens.largest));
    if (tokens.mine > 0 && tokens.sampled && counting) {
      for (int g = 0; g < kGroups; ++g) {
        const float r = static_cast<float>(shared.r[g * kSampleGroup]);
        const unsigned keep = __ballot_sync(cuda::kFullMask, u <= r ? 1 : 0);
        if (lane == g) *kept += __popc(keep);
      }
    }
    const unsigned votes = __ballot_sync(cuda::kFullMask, needed ? 1 : 0);
    __syncthreads();  // counts have been read
    if (lane == 0) shared.counts[warp] = __popc(votes);
    __syncthreads();
    int place = listed + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kBlockWarps; ++w) {
      if (w < warp) place += shared.counts[w];
      listed += shared.counts[w];
    }
    if (needed) shared.list[place] = k;
  }
  return listed;
}

// Loads the tokens' entries in `depth` listed columns from `chunk` on, and zeros beyond. Entries of
// an exact token are taken as they are; those of a sampled one are centred and divided by the
// column's probability, or 0 where the token's own r does not keep the column.
template <class T>
__device__ __forceinline__ void LoadRows(const Tokens<T>& tokens, int channels, int chunk,
                                         int depth, ProjectShared& shared) {
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  for (int i = warp; i < kTokens; i += kBlockWarps) {
    float x = 0;
    if (lane < depth && i < tokens.count) {
      const int k = shared.list[chunk + lane];
      x = ToFloat(tokens.hidden[static_cast<std::int64_t>(shared.token[i]) * channels + k]);
      if (i < tokens.mine) {
        const float r = static_cast<float>(shared.r[i]);
        if (!tokens.sampled || !(tokens.reach[k] <= r)) {
          x = 0;
        } else {
          const float e = tokens.centred ? x - tokens.centre[k] : x;
          x = tokens.inverse_p[k] <= r ? e : e * (tokens.inverse_p[k] / r);
        }
      }
    }
    shared.rows[i * kTokenStride + lane] = x;
  }
}

// Loads the weight's entries: rows are the same listed columns of `hidden`, columns are those of
// the value from `column` on.
template <class T>
__device__ __forceinline__ void LoadWeight(const Tokens<T>& tokens, const DeviceCall& call,
                                           int chunk, int depth, int column,
                                           ProjectShared& shared) {
  for (int index = static_cast<int>(threadIdx.x); index < kDepth * kColumns; index += kThreads) {
    const int k = index / kColumns, d = column + index % kColumns;
    const bool there = k < depth && d < call.head_dim;
    shared.weight[index] =
        there ? ToFloat(tokens.weight[shared.list[chunk + k] * call.width() + d]) : 0.0f;
  }
}

__device__ __forceinline__ void MultiplyChunk(const ProjectShared& shared, int depth, Sums& sums) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  for (int k = 0; k < depth; ++k) {
    const float4 w = *reinterpret_cast<const float4*>(shared.weight + k * kColumns + 4 * tx);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const float x = shared.rows[(3 * ty + i) * kTokenStride + k];
      sums[i][0] = __fmaf_rn(x, w.x, sums[i][0]);
      sums[i][1] = __fmaf_rn(x, w.y, sums[i][1]);
      sums[i][2] = __fmaf_rn(x, w.z, sums[i][2]);
      sums[i][3] = __fmaf_rn(x, w.w, sums[i][3]);
    }
  }
}

// Writes tokens [first, count). `values` is the head's first column of the sequence's first row.
template <class T>
__device__ __forceinline__ void StoreValues(const ProjectShared& shared, const DeviceCall& call,
                                            int first, int count, int column, const Sums& sums,
                                            T* values) {
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const int token = 3 * ty + i;
    if (token >= count || token < first) continue;
    T* out = values + shared.token[token] * call.width();
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int d = column + 4 * tx + c;
      if (d < call.head_dim) out[d] = FromFloat<T>(sums[i][c]);
    }
  }
}

// Adds the block's multiply-adds, divided by head_dim; `kept` as ListColumns leaves it. Integers,
// so that the order of blocks and warps does not matter.
__device__ __forceinline__ void CountColumns(const DeviceCall& call, bool sampled, int count,
                                             int mine, int kept, unsigned long long* columns) {
  const int lane = threadIdx.x % cuda::kWarp;
  unsigned long long spent = 0;
  if (sampled && lane < kGroups) {
    spent = static_cast<unsigned long long>(kept) *
            static_cast<unsigned long long>(max(0, min(kSampleGroup, mine - lane * kSampleGroup)));
  }
  if (threadIdx.x == 0) {
    spent += static_cast<unsigned long long>(count - mine) *
             static_cast<unsigned long long>(call.channels);
  }
  if (spent > 0) atomicAdd(columns, spent);
}

template <class T>
__global__ __launch_bounds__(kThreads, 2) void Project(Items items, DeviceCall call,
                                                       DeviceWeights weights, DeviceFacts facts,
                                                       DevicePlan plan) {
  auto& shared = *cuda::SharedMemory<ProjectShared>();
  const SequenceItem item = items.items[blockIdx.z];
  const int head = static_cast<int>(blockIdx.y), t = static_cast<int>(threadIdx.x);
  const int begin = static_cast<int>(blockIdx.x) * kTokens;
  // LaunchDense computes exact sequences in half types.
  const bool elsewhere = item.way == Way::kExact && sizeof(T) < sizeof(float);
  if (item.way == Way::kMixed || elsewhere || begin >= item.length) return;
  const std::int64_t slot = static_cast<std::int64_t>(item.index) * call.heads + head;
  const std::int64_t first = head * call.tokens + item.begin;
  const int approximated = plan.approximated[slot];
  Tokens<T> tokens;
  tokens.count = min(kTokens, item.length - begin);
  tokens.mine = max(0, min(tokens.count, approximated - begin));
  tokens.sampled = call.estimator == DeviceEstimator::kSampled;
  // ProjectPaper computes the approximated tokens of `paper`.
  const bool paper = call.estimator == DeviceEstimator::kPaper;
  if (paper && tokens.mine == tokens.count) return;
  if (t < kTokens) {
    const int at = min(begin + t, item.length - 1);
    shared.token[t] = approximated > 0 ? plan.order[first + at] : at;
    shared.r[t] = t < tokens.mine ? plan.shared[first + at] : 0;
  }
  __syncthreads();
  tokens.centred = tokens.mine > 0 && tokens.sampled && facts.centred[item.index] != 0;
  tokens.largest = static_cast<float>(shared.r[0]);
  tokens.hidden =
      static_cast<const T*>(call.hidden) + static_cast<std::int64_t>(item.begin) * call.channels;
  tokens.weight = static_cast<const T*>(call.weight) + head * call.head_dim;
  tokens.reach = plan.reach + slot * call.channels;
  tokens.inverse_p = weights.inverse_p + static_cast<std::int64_t>(head) * call.channels;
  tokens.centre = facts.centre + static_cast<std::int64_t>(item.index) * call.channels;
  const T* bias = static_cast<const T*>(call.bias) + head * call.head_dim;
  const float* base = plan.base + slot * call.head_dim;
  T* values = static_cast<T*>(plan.values) + item.begin * call.width() + head * call.head_dim;
  int kept = 0;

  for (int column = 0; column < call.head_dim; column += kColumns) {
    Sums sums;
    StartSums(call, base, bias, tokens.mine, column, sums);
    for (int segment = 0; segment < call.channels; segment += kSegment) {
      const int end = min(segment + kSegment, call.channels);
      const int listed = ListColumns(tokens, segment, end, column == 0, shared, &kept);
      for (int chunk = 0; chunk < listed; chunk += kDepth) {
        const int depth = min(kDepth, listed - chunk);
        __syncthreads();  // the list is complete, and the chunk before has been multiplied
        LoadRows(tokens, call.channels, chunk, depth, shared);
        LoadWeight(tokens, call, chunk, depth, column, shared);
        __syncthreads();
        MultiplyChunk(shared, depth, sums);
      }
    }
    StoreValues(shared, call, paper ? tokens.mine : 0, tokens.count, column, sums, values);
  }
  CountColumns(call, tokens.sampled, tokens.count, tokens.mine, kept, plan.columns + slot);
}

// Section 3.1 of the paper as written: every token draws its own r_j columns with replacement.
template <class T>
__global__ __launch_bounds__(kThreads, 4) void ProjectPaper(Items items, DeviceCall call,
                                                            DeviceWeights weights,
                                                            DevicePlan plan) {
  constexpr int kOwned = kHeadDimHigh / cuda::kWarp;
  const SequenceItem item = items.items[blockIdx.z];
  const int head = static_cast<int>(blockIdx.y);
  const int lane = threadIdx.x % cuda::kWarp;
  const int at = static_cast<int>(blockIdx.x) * kBlockWarps + threadIdx.x / cuda::kWarp;
  const std::int64_t slot = static_cast<std::int64_t>(item.index) * call.heads + head;
  if (item.way != Way::kApproximate || at >= plan.approximated[slot]) return;
  const std::int64_t first = head * call.tokens + item.begin;
  const int token = plan.order[first + at], r = plan.shared[first + at];
  const std::int64_t offset = static_cast<std::int64_t>(head) * call.channels;
  const std::uint64_t* cdf = weights.cdf + offset;
  const T* row = static_cast<const T*>(call.hidden) +
                 (static_cast<std::int64_t>(item.begin) + token) * call.channels;
  const T* weight = static_cast<const T*>(call.weight) + head * call.head_dim;
  const std::uint64_t first_block =
      static_cast<std::uint64_t>(token) * static_cast<std::uint64_t>((call.channels + 1) / 2);
  float sums[kOwned];
#pragma unroll
  for (int i = 0; i < kOwned; ++i) sums[i] = 0;
  for (int start = 0; start < r; start += cuda::kWarp) {
    const int draw = start + lane;
    int column = 0;
    float x = 0;
    if (draw < r) {
      const PhiloxWords words =
          StreamBlock(item.seed, call.layer, static_cast<std::uint32_t>(head), Stream::kMcaPaper,
                      first_block + static_cast<std::uint64_t>(draw / 2));
      const std::uint64_t u = DrawOf(words, draw % 2);
      int low = 0, high = call.channels - 1;  // first k with cdf[k] > u
      while (low < high) {
        const int middle = (low + high) / 2;
        if (cdf[middle] > u) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      column = low;
      x = ToFloat(row[column]) * weights.inverse_p[offset + column];
    }
    for (int i = 0; i < min(cuda::kWarp, r - start); ++i) {
      const int k = __shfl_sync(cuda::kFullMask, column, i);
      const float e = __shfl_sync(cuda::kFullMask, x, i);
#pragma unroll
      for (int own = 0; own < kOwned; ++own) {
        const int d = own * cuda::kWarp + lane;
        if (d < call.head_dim) {
          sums[own] = __fmaf_rn(e, ToFloat(weight[k * call.width() + d]), sums[own]);
        }
      }
    }
  }
  const float inverse_r = 1.0f / static_cast<float>(r);
  T* out = static_cast<T*>(plan.values) +
           (static_cast<std::int64_t>(item.begin) + token) * call.width() + head * call.head_dim;
#pragma unroll
  for (int own = 0; own < kOwned; ++own) {
    const int d = own * cuda::kWarp + lane;
    if (d < call.head_dim) {
      out[d] = FromFloat<T>(__fmaf_rn(sums[own], inverse_r, plan.base[slot * call.head_dim + d]));
    }
  }
  if (lane == 0) atomicAdd(plan.columns + slot, static_cast<unsigned long long>(r));
}

}  // namespace

void LaunchProject(ElementType data, const Items& items, const DeviceCall& call,
                   const DeviceWeights& weights, const DeviceFacts& facts, const DevicePlan& plan,
                   cuda::Stream stream) {
  const bool exact = AnyOf(items, Way::kExact) && !IsDense(data);
  if (!exact && !AnyOf(items, Way::kApproximate)) return;
  const auto heads = static_cast<unsigned>(call.heads), count = static_cast<unsigned>(items.count);
  const int longest = LongestOf(items);
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    cuda::Launch("McaAttention, projection", Project<T>,
                 dim3(Blocks(longest, kTokens), heads, count), kThreads, sizeof(ProjectShared),
                 stream, items, call, weights, facts, plan);
    if (call.estimator != DeviceEstimator::kPaper || !AnyOf(items, Way::kApproximate)) return;
    cuda::Launch("McaAttention, paper's projection", ProjectPaper<T>,
                 dim3(Blocks(longest, kBlockWarps), heads, count), kThreads, 0, stream, items, call,
                 weights, plan);
  });
}

}  // namespace attenuator::mca
