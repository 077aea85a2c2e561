// TokenSelect on CUDA: the rows of each sequence of a packed batch that matter most, in their
// order.
//
// Choose: a block owns a sequence, its 256 threads walk over the rows side by side; grid =
// (sequences). Importances are compared as 32-bit integers of the same order (order.h). FindLast
// finds the order of the last row to be kept, a digit of 8 bits at a time: how many of the rows
// that agree in the digits before have each value is counted in shared memory, and a running sum
// from the largest value down says in which one the last kept row lies. WritePlaces then walks over
// the rows once more in order: rows above that order are kept, of those equal to it as many of the
// first ones as there is room for; a row's place follows from the numbers of both kinds before it,
// by a running sum over the block. Counts are integers, so no result depends on the order of the
// additions: the same places as on the CPU. Memory traffic: five reads of the importances, all but
// the first from a cache, one write of the places.
//
// Copy: a warp owns a kept row and copies 16 bytes a lane where a row is a multiple of 16 bytes, an
// element a lane otherwise, four of them under way together; grid = (kept rows / 8). Bits are
// copied: no conversion, whatever the element type.
//
// Merge, where rows that are not kept become one more, their mean: Choose has put the place of the
// last of them behind those of the kept ones, and Copy that row where Merge writes the mean. A
// thread owns a column of a sequence; grid = (columns / 256, sequences). Rows are taken 256 at a
// time: each thread looks one up among the places, the block lists those left out in order, and
// each thread adds its column of them in float64, row after row as on the CPU, so that the bits are
// the CPU's; they are rounded once, half types too. Memory traffic: one more read of what is not
// kept.
#include "ops/common/cuda/device.h"
#include "ops/select/cuda/kernel.h"
#include "ops/select/order.h"

namespace attenuator::select {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / cuda::kWarp;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kAhead = 4, kRowsAhead = 8;
static_assert(kDigits == kThreads, "a thread owns a digit");

struct Counts {
  unsigned rows[kDigits];  // with this digit, of those that agree in the digits before
  unsigned warps[kWarps];  // sums of the warps
  unsigned digit;          // in which the last kept row lies
  unsigned above;          // rows with a larger one
};

// Inclusive running sum over the block's threads, and the sum of all. `warps` may be written again
// after the next barrier.
__device__ __forceinline__ unsigned RunningSum(unsigned* warps, unsigned value, unsigned& total) {
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  for (int lanes = 1; lanes < cuda::kWarp; lanes *= 2) {
    const unsigned other = __shfl_up_sync(cuda::kFullMask, value, lanes);
    if (lane >= lanes) value += other;
  }
  if (lane == cuda::kWarp - 1) warps[warp] = value;
  __syncthreads();
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) value += warps[w];
    total += warps[w];
  }
  return value;
}

// Of rows 1 to length - 1, `count` of which are kept: the order of the last one, and how many rows
// of that very order are among them.
__device__ __forceinline__ void FindLast(Counts& counts, const float* importance, int length,
                                         unsigned count, unsigned& last, unsigned& equal) {
  const unsigned own_digit = kDigits - 1 - threadIdx.x;
  unsigned prefix = 0;
  for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    counts.rows[own_digit] = 0;
    __syncthreads();
    for (int i = 1 + static_cast<int>(threadIdx.x); i < length; i += kThreads) {
      const unsigned order = Order(__float_as_uint(importance[i]));
      if (static_cast<std::uint64_t>(order) >> (shift + kDigitBits) == prefix) {
        atomicAdd(&counts.rows[(order >> shift) % kDigits], 1u);
      }
    }
    __syncthreads();
    const unsigned own = counts.rows[own_digit];
    unsigned total;
    const unsigned through = RunningSum(counts.warps, own, total);
    if (through - own < count && count <= through) {
      counts.digit = own_digit;
      counts.above = through - own;
    }
    __syncthreads();
    prefix = prefix << kDigitBits | counts.digit;
    count -= counts.above;
  }
  last = prefix;
  equal = count;
}

// Writes the places of the rows above the order `last`, and of the first `equal` rows of it.
__device__ __forceinline__ void WritePlaces(Counts& counts, const float* importance, int begin,
                                            int length, unsigned last, unsigned equal,
                                            std::int64_t* places) {
  constexpr unsigned kHalf = 16;  // both counts of a step in one word
  unsigned above_before = 0, equal_before = 0;
  for (int first = 1; first < length; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const unsigned order = i < length ? Order(__float_as_uint(importance[i])) : 0;
    const unsigned is_above = i < length && order > last, is_equal = i < length && order == last;
    const unsigned own = is_above | is_equal << kHalf;
    unsigned total;
    const unsigned before = RunningSum(counts.warps, own, total) - own;
    const unsigned above = above_before + before % (1u << kHalf);
    const unsigned same = equal_before + (before >> kHalf);
    if (is_above || (is_equal && same < equal)) {
      places[above + min(same, equal)] = static_cast<std::int64_t>(begin) + i;
    }
    above_before += total % (1u << kHalf);
    equal_before += total >> kHalf;
    __syncthreads();  // all have read the sums
  }
}

// Row 0, which always is, and the `count` - 1 of largest importance of the first `length` rows.
__device__ __forceinline__ void ChooseRows(Counts& counts, const float* importance, int begin,
                                           int length, int count, std::int64_t* places) {
  if (threadIdx.x == 0) places[0] = begin;
  if (count == 1) return;
  unsigned last, equal;
  FindLast(counts, importance + begin, length, count - 1, last, equal);
  WritePlaces(counts, importance + begin, begin, length, last, equal, places + 1);
}

// The last row that is left out of `length` where `kept` others, fewer than all, have these places.
__device__ __forceinline__ std::int64_t LastLeftOut(const std::int64_t* places, int begin,
                                                    int length, int kept) {
  int low = 0, high = kept;  // places[k] - k rises; it is `end` where all rows behind are kept too
  const std::int64_t end = static_cast<std::int64_t>(begin) + length - kept;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (places[middle] - middle < end) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<std::int64_t>(begin) + length - 1 - (kept - low);
}

__global__ void Choose(cuda::Batch<SelectItem> batch, const float* importance,
                       std::int64_t* places) {
  Counts& counts = *cuda::SharedMemory<Counts>();
  const SelectItem item = batch.items[blockIdx.x];
  std::int64_t* own = places + item.kept;
  if (item.count == item.length) {
    for (int i = threadIdx.x; i < item.length; i += kThreads) {
      own[i] = static_cast<std::int64_t>(item.begin) + i;
    }
    return;
  }
  if (item.merged == 0) {
    return ChooseRows(counts, importance, item.begin, item.length, item.count, own);
  }
  const int kept = item.count - 1;
  ChooseRows(counts, importance, item.begin, item.length - (item.rows_of_last > 1), kept, own);
  __syncthreads();  // the places have been written
  if (threadIdx.x == 0) own[kept] = LastLeftOut(own, item.begin, item.length, kept);
}

template <class Word>
__global__ void Copy(const Word* rows, const std::int64_t* places, std::int64_t count,
                     std::int64_t words, Word* kept) {
  const std::int64_t k = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / cuda::kWarp;
  if (k >= count) return;
  const Word* from = rows + places[k] * words;
  Word* to = kept + k * words;
  std::int64_t w = threadIdx.x % cuda::kWarp;
  for (; w + (kAhead - 1) * cuda::kWarp < words; w += kAhead * cuda::kWarp) {
    Word ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) ahead[a] = from[w + a * cuda::kWarp];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) to[w + a * cuda::kWarp] = ahead[a];
  }
  for (; w < words; w += cuda::kWarp) to[w] = from[w];
}

struct LeftOut {
  int rows[kThreads];      // numbers of those left out of a step's rows
  unsigned warps[kWarps];  // sums of the warps
};

// Whether `place` is one of `count` ascending places.
__device__ inline bool Holds(const std::int64_t* places, int count, std::int64_t place) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (places[middle] < place) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && places[low] == place;
}

// Rounds to nearest, ties to even, in one step: half types from the float that is next to x towards
// zero, made odd where it is not x, so that it lies on the same side of every tie as x does.
template <class T>
__device__ inline T RoundOnce(double x) {
  const float nearest = static_cast<float>(x);
  if (sizeof(T) == sizeof(float) || !(nearest != static_cast<double>(x)) || nearest != nearest) {
    return cuda::FromFloat<T>(nearest);
  }
  const unsigned away = fabs(static_cast<double>(nearest)) > fabs(x) ? 1 : 0;
  return cuda::FromFloat<T>(__uint_as_float((__float_as_uint(nearest) - away) | 1u));
}

template <class T>
__global__ __launch_bounds__(kThreads) void Merge(cuda::Batch<SelectItem> batch, const T* rows,
                                                  const std::int64_t* places, std::int64_t columns,
                                                  T* kept) {
  LeftOut& left_out = *cuda::SharedMemory<LeftOut>();
  const SelectItem item = batch.items[blockIdx.y];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const T* own = rows + item.begin * columns + column;
  const int single = item.length - (item.rows_of_last > 1);
  double sum = 0;
  for (int first = 0; first < single; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool out = i < single && !Holds(places + item.kept, item.count - 1,
                                          static_cast<std::int64_t>(item.begin) + i);
    unsigned total;
    const unsigned through = RunningSum(left_out.warps, out ? 1u : 0u, total);
    if (out) left_out.rows[through - 1] = i;
    __syncthreads();
    const int count = column < columns ? static_cast<int>(total) : 0;
    int k = 0;
    for (; k + kRowsAhead <= count; k += kRowsAhead) {
      T ahead[kRowsAhead];
#pragma unroll
      for (int a = 0; a < kRowsAhead; ++a) ahead[a] = own[left_out.rows[k + a] * columns];
#pragma unroll
      for (int a = 0; a < kRowsAhead; ++a) sum += static_cast<double>(cuda::ToFloat(ahead[a]));
    }
    for (; k < count; ++k) {
      sum += static_cast<double>(cuda::ToFloat(own[left_out.rows[k] * columns]));
    }
    __syncthreads();  // the numbers have been read
  }
  if (column >= columns) return;
  if (single < item.length) {
    sum += item.rows_of_last * static_cast<double>(cuda::ToFloat(own[single * columns]));
  }
  kept[(static_cast<std::int64_t>(item.kept) + item.count - 1) * columns + column] =
      RoundOnce<T>(sum / item.merged);
}

template <class Word>
void LaunchCopyOf(const void* rows, const std::int64_t* places, std::int64_t count,
                  std::int64_t row_bytes, void* kept, cuda::Stream stream) {
  const std::int64_t words = row_bytes / static_cast<std::int64_t>(sizeof(Word));
  const dim3 grid(static_cast<unsigned>(words == 0 ? 0 : (count + kWarps - 1) / kWarps));
  cuda::Launch("TokenSelect", Copy<Word>, grid, kThreads, 0, stream, static_cast<const Word*>(rows),
               places, count, words, static_cast<Word*>(kept));
}

}  // namespace

void LaunchChoose(const cuda::Batch<SelectItem>& batch, const float* importance,
                  std::int64_t* places, cuda::Stream stream) {
  cuda::Launch("TokenSelect", Choose, dim3(static_cast<unsigned>(batch.count)), kThreads,
               sizeof(Counts), stream, batch, importance, places);
}

void LaunchCopy(ElementType data, const void* rows, const std::int64_t* places, std::int64_t count,
                std::int64_t columns, void* kept, cuda::Stream stream) {
  const bool whole = data == ElementType::kFloat;
  const std::int64_t row_bytes = columns * (whole ? 4 : 2);
  if (row_bytes % static_cast<std::int64_t>(sizeof(uint4)) == 0) {
    LaunchCopyOf<uint4>(rows, places, count, row_bytes, kept, stream);
  } else if (whole) {
    LaunchCopyOf<std::uint32_t>(rows, places, count, row_bytes, kept, stream);
  } else {
    LaunchCopyOf<std::uint16_t>(rows, places, count, row_bytes, kept, stream);
  }
}

void LaunchMerge(ElementType data, const cuda::Batch<SelectItem>& batch, const void* rows,
                 const std::int64_t* places, std::int64_t columns, void* kept,
                 cuda::Stream stream) {
  const dim3 grid(static_cast<unsigned>((columns + kThreads - 1) / kThreads),
                  static_cast<unsigned>(batch.count));
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    cuda::Launch("TokenSelect", Merge<T>, grid, kThreads, sizeof(LeftOut), stream, batch,
                 static_cast<const T*>(rows), places, columns, static_cast<T*>(kept));
  });
}

}  // namespace attenuator::select
