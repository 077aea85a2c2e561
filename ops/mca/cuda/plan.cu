// McaAttention on CUDA: the plan made from the column maxima (maxima.cu): which tokens are
// approximated, and how (ops/mca/cpu/projection.cc, README.md section 2).
//
// Plan: one block per head of a sequence. It evaluates the probe's maxima first and stops, leaving
// the head exact, where they predict no gain. r is computed in float64 and counted in integers.
// Tokens are sorted by falling r: a stable counting sort with a histogram in global memory, 256
// tokens at a time; a token's rank among equal ones is found by comparing it with those before it.
// The order is the CPU's, and so are the groups of six and the r that a group shares. u_k comes
// from the same words of the Philox stream as on the CPU.
#include "ops/mca/cpu/projection.h"
#include "ops/mca/cuda/device.h"

namespace attenuator::mca {
namespace {

// root^2 rounded up, at least 1; 0 (exact) where that reaches `limit` or is NaN.
__device__ inline int Samples(double root, double limit) {
  const double square = root * root;
  const double clipped = square < limit ? square : limit;
  const int below = static_cast<int>(clipped);
  const int up = max(1, below + (static_cast<double>(below) < clipped ? 1 : 0));
  return up <= static_cast<int>(limit) - 1 ? up : 0;
}

// Turns a head's column maxima into r of its tokens: CountSamples and Replacing in projection.cc.
struct Rule {
  bool deterministic;
  double factor;           // on a maximum: n / alpha, of `deterministic` n ||W_a||_2
  double limit;            // from this r on a token is exact
  double allowed;          // error of a token that is replaced; `deterministic`
  const float* distances;  // [length]; `deterministic`

  // r of token j, 1 where it is replaced, 0 where it is exact.
  __device__ int operator()(int j, float maximum, double growth) const {
    if (deterministic) return factor * (growth * maximum) * distances[j] <= allowed ? 1 : 0;
    return Samples(factor * growth * maximum, limit);
  }
};

struct Counts {
  double tokens;   // that are approximated
  double samples;  // r of all of them
};

// Writes r of each of the first `tokens` tokens, their maxima multiplied by `growth`, and returns
// the counts, the same in every thread. `sums` has room for kBlockWarps values.
__device__ inline Counts Count(const Rule& rule, const unsigned* maxima, double growth, int tokens,
                               int* samples, unsigned long long* sums) {
  unsigned long long count = 0, total = 0;
  for (int j = static_cast<int>(threadIdx.x); j < tokens; j += kThreads) {
    const int r = rule(j, __uint_as_float(maxima[j]), growth);
    samples[j] = r;
    count += r > 0 ? 1 : 0;
    total += static_cast<unsigned long long>(r);
  }
  count = BlockSum(count, sums);
  return {static_cast<double>(count), static_cast<double>(BlockSum(total, sums))};
}

// The sum of the first `tokens` maxima, the same in every thread. `sums` has room for kBlockWarps
// values.
__device__ inline double Sum(const unsigned* maxima, int tokens, double* sums) {
  double sum = 0;
  for (int j = static_cast<int>(threadIdx.x); j < tokens; j += kThreads) {
    sum += __uint_as_float(maxima[j]);
  }
  return BlockSum(sum, sums);
}

// Decides whether approximating a head pays; the same in every thread.
struct Judge {
  Rule rule;
  bool paper;
  double channels;
  std::int64_t padded;  // columns of the CPU's packed weight, which WorthSampling is made for
  double overhead;      // cost of approximating the head beside its tokens, in columns

  // Whether approximating saves more than `overhead` plus `cost` columns.
  __device__ bool Worth(double tokens, double samples, double cost) const {
    if (rule.deterministic) return WorthReplacing(tokens, channels, overhead + cost);
    if (paper) return tokens * channels - samples >= overhead + cost;
    return WorthSampling(tokens, samples, channels, padded, overhead + cost);
  }
};

__device__ __forceinline__ Judge JudgeOf(const SequenceItem& item, int head, const DeviceCall& call,
                                         const DeviceWeights& weights, const DeviceFacts& facts) {
  const double channels = call.channels, alpha = item.alpha;
  const bool paper = call.estimator == DeviceEstimator::kPaper;
  const bool deterministic = call.estimator == DeviceEstimator::kDeterministic;
  Judge judge;
  judge.paper = paper;
  judge.channels = channels;
  judge.padded = PaddedColumns(call.head_dim);
  judge.overhead =
      item.global != 0 ? channels * (1 + static_cast<double>(item.length) / call.head_dim) : 0.0;
  judge.rule.deterministic = deterministic;
  judge.rule.limit = deterministic ? 2 : paper ? channels : ceil(channels * kBreakEven);
  judge.rule.factor = item.keys / alpha;
  judge.rule.allowed = 0;
  judge.rule.distances = nullptr;
  if (deterministic) {
    judge.rule.factor = item.keys * weights.spectral[head];
    judge.rule.allowed =
        alpha * (1 - kRoundingMargin) * facts.beta[item.index] * weights.frobenius[head];
    judge.rule.distances = facts.distances + item.begin;
  }
  return judge;
}

// Whether the probe's maxima `probed` [length] predict that approximating pays, assuming that the
// other tokens are like those the probe looks at.
__device__ __forceinline__ bool ProbePays(const SequenceItem& item, const Judge& judge,
                                          const unsigned* probed, int* samples,
                                          unsigned long long* sums) {
  const int tokens = static_cast<int>(item.probe.tokens);
  const double share = static_cast<double>(item.length) / tokens;
  probed += item.probe.first_token;
  const double growth =
      Growth(item.probe, item.keys, Sum(probed, tokens, reinterpret_cast<double*>(sums)));
  Rule rule = judge.rule;
  if (rule.deterministic) rule.distances += item.probe.first_token;
  const Counts counts = Count(rule, probed, growth, tokens, samples, sums);
  return judge.Worth(share * counts.tokens, share * counts.samples, item.maxima_cost);
}

// order = tokens by falling r (`samples`), equal ones in token order, exact ones (r = 0) last.
// `place` has room for r up to `highest`, `run` for kThreads + 1 values.
__device__ __forceinline__ void SortBySamples(const int* samples, int n, int highest, int* place,
                                              int* run, int* order) {
  const int t = static_cast<int>(threadIdx.x);
  for (int x = t; x <= highest; x += kThreads) place[x] = 0;
  __syncthreads();
  for (int j = t; j < n; j += kThreads) atomicAdd(place + samples[j], 1);
  __syncthreads();
  // A histogram becomes first places, the highest r first.
  const int share = (highest + kThreads) / kThreads;  // of highest + 1 values
  const int top = highest - t * share, bottom = max(top - share + 1, 0);
  int mine = 0, total;
  for (int x = top; x >= bottom; --x) mine += place[x];
  mine = BlockBefore(mine, run, &total);
  for (int x = top; x >= bottom; --x) {
    const int here = place[x];
    place[x] = mine;
    mine += here;
  }
  for (int start = 0; start < n; start += kThreads) {
    const int j = start + t, r = j < n ? samples[j] : -1;
    __syncthreads();
    run[t] = r;
    __syncthreads();
    int rank = 0;
    for (int i = 0; i < t; ++i) rank += run[i] == r ? 1 : 0;
    const int at = r >= 0 ? place[r] + rank : 0;
    __syncthreads();
    if (r >= 0) {
      order[at] = j;
      atomicAdd(place + r, 1);
    }
  }
  __syncthreads();
}

// reach = u_k / p_k of each column, u_k from the CPU's words.
__device__ __forceinline__ void DrawReach(const SequenceItem& item, int head,
                                          const DeviceCall& call, const float* inverse_p,
                                          float* reach) {
  const int t = static_cast<int>(threadIdx.x);
  for (int block = t; 4 * block < call.channels; block += kThreads) {
    const PhiloxWords words = StreamBlock(item.seed, call.layer, static_cast<std::uint32_t>(head),
                                          Stream::kMcaSamples, static_cast<std::uint64_t>(block));
    for (int e = 0; e < 4 && 4 * block + e < call.channels; ++e) {
      const int k = 4 * block + e;
      const float u = __fmul_rn(__fadd_rn(static_cast<float>(words.word[e]), 0.5f), 0x1p-32f);
      reach[k] = __fmul_rn(u, inverse_p[k]);
    }
  }
}

__global__ __launch_bounds__(kThreads, 4) void MakePlan(Items items, DeviceCall call,
                                                        DeviceWeights weights, DeviceFacts facts,
                                                        DevicePlan plan) {
  auto* sums = cuda::SharedMemory<unsigned long long>();  // [kBlockWarps], or as many doubles
  int* run = reinterpret_cast<int*>(sums + kBlockWarps);  // [kThreads + 1]
  const SequenceItem item = ItemAt(items, blockIdx.y, call);
  const int head = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x);
  const int n = item.length;
  const std::int64_t slot = static_cast<std::int64_t>(item.index) * call.heads + head;
  const std::int64_t first = head * call.tokens + item.begin;
  // A head that returns early stays exact: `approximated` holds 0.
  if (item.way != Way::kApproximate || weights.approximable[head] == 0 ||
      facts.broken[item.index] != 0) {
    return;
  }
  const Judge judge = JudgeOf(item, head, call, weights, facts);
  int* samples = plan.samples + first;
  if (item.probe.rows > 0 && !ProbePays(item, judge, plan.probed + first, samples, sums)) return;
  const Counts all = Count(judge.rule, plan.maxima + first, 1.0, n, samples, sums);
  if (!judge.Worth(all.tokens, all.samples, 0) || all.tokens == 0) return;

  SortBySamples(samples, n, static_cast<int>(judge.rule.limit) - 1,
                plan.place + slot * (call.channels + 1), run, plan.order + first);
  const int count = static_cast<int>(all.tokens);
  for (int i = t; i < n; i += kThreads) {
    const int leader = judge.paper ? i : i - i % kSampleGroup;
    plan.shared[first + i] = i < count ? samples[plan.order[first + leader]] : 0;
  }
  if (t == 0) {
    plan.approximated[slot] = count;
    // The mean row is projected too.
    const bool centred = !judge.paper && facts.centred[item.index] != 0;
    if (centred) plan.columns[slot] = static_cast<unsigned long long>(call.channels);
  }
  if (call.estimator != DeviceEstimator::kSampled) return;
  DrawReach(item, head, call, weights.inverse_p + static_cast<std::int64_t>(head) * call.channels,
            plan.reach + slot * call.channels);
}

// base = b_a + mu W_a of heads in which anything is approximated.
template <class T>
__global__ __launch_bounds__(kThreads) void ProjectCentre(Items items, DeviceCall call,
                                                          DeviceFacts facts, DevicePlan plan) {
  const SequenceItem item = items.items[blockIdx.y];
  const int head = static_cast<int>(blockIdx.x), d = static_cast<int>(threadIdx.x);
  const std::int64_t slot = static_cast<std::int64_t>(item.index) * call.heads + head;
  if (plan.approximated[slot] == 0 || d >= call.head_dim) return;
  const int column = head * call.head_dim + d;
  float sum = cuda::ToFloat(static_cast<const T*>(call.bias)[column]);
  if (call.estimator != DeviceEstimator::kPaper && facts.centred[item.index] != 0) {
    const float* centre = facts.centre + static_cast<std::int64_t>(item.index) * call.channels;
    const T* weight = static_cast<const T*>(call.weight) + column;
#pragma unroll 8
    for (int k = 0; k < call.channels; ++k) {
      sum = __fmaf_rn(centre[k], cuda::ToFloat(weight[k * call.width()]), sum);
    }
  }
  plan.base[slot * call.head_dim + d] = sum;
}

}  // namespace

void LaunchPlan(ElementType data, const Items& items, const DeviceCall& call,
                const DeviceWeights& weights, const DeviceFacts& facts, const DevicePlan& plan,
                cuda::Stream stream) {
  if (!AnyOf(items, Way::kApproximate)) return;
  const auto heads = static_cast<unsigned>(call.heads), count = static_cast<unsigned>(items.count);
  LaunchMaxima(data, items, call, plan, stream);
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    cuda::Launch("McaAttention, plan", MakePlan, dim3(heads, count), kThreads,
                 kBlockWarps * sizeof(unsigned long long) + (kThreads + 1) * sizeof(int), stream,
                 items, call, weights, facts, plan);
    cuda::Launch("McaAttention, mean row's projection", ProjectCentre<T>, dim3(heads, count),
                 kThreads, 0, stream, items, call, facts, plan);
  });
}

}  // namespace attenuator::mca
