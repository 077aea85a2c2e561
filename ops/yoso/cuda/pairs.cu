// YosoAttention on CUDA, pair by pair: the expectation (num_hashes = 0) of any length in float32,
// and counts of collisions for short sequences, where comparing all codes costs less than tables.
// The expectation in half types is pairs_half.cu's.
//
// A block takes 64 queries of one head and walks over its keys, 64 at a time: a 64 x 64 tile of
// weights, 4 x 4 a thread, then sums += weights x values, 4 queries x 4 columns of each 64 a
// thread, in registers over all keys and in their order. Both factors pass through shared memory.
// The two kinds of weights differ in what they stream and how a pair of words is scored:
//
// * Expectation: unit rows in fp32, computed once (float64 norms, since 1 / |row| of a huge or tiny
//   row is no float), dot products in fp32, then (1 - arccos(x) / pi)^hash_bits with arccos as
//   sqrt(1 - x) times a polynomial (2e-8). Where |x| > 0.99, rounding dominates 1 - |x|, so
//   |q - k|^2 / 2 is computed from the unit rows instead. Tensor cores have no fp32.
// * Counts: a word holds the codes of 4 hashes (2 where hash_bits > 8); equal codes are the zero
//   bytes of an exclusive or. Rows are padded to whole chunks of words with codes that always
//   collide, and their number is subtracted.
//
// Model, a pair and head at head_dim 64: expectation 64 + 25 + 64 fp32 instructions of a lane,
// counts 5 m / 4 + 64. Memory: a block streams keys and values of the head once from L2, so n / 64
// times in all.
#include "ops/yoso/cuda/weights.h"

namespace attenuator::yoso {
namespace {

constexpr int kTile = kCudaRowTile;  // queries, and keys, of a tile
constexpr int kChunk = 16;           // words of a row at a time
constexpr int kPitch =
    kTile + 4;  // keeps rows of shared memory at 16 bytes, off each other's banks
static_assert(kTile * kChunk / 4 == kBlockThreads, "a thread loads 4 words of each side");

// One warp per row: row / max(|row|, 1e-12), or lifted rows over their norm, with their added
// coordinate where the other side has 0; zeros up to UnitDim. In half types the rows as they are
// too (UnitSide).
template <class T>
__global__ void UnitRows(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int lane = threadIdx.x % cuda::kWarp;
  const int blocks_a_head = Quotient(job.num_queries + job.num_keys, kBlockWarps);
  const int local = blockIdx.x - job.first_block;
  const int local_head = local / blocks_a_head;
  int i = local % blocks_a_head * kBlockWarps + threadIdx.x / cuda::kWarp;
  const bool key = i >= job.num_queries;
  if (key) i -= job.num_queries;
  const int count = key ? job.num_keys : job.num_queries, dim = UnitDim(node.unit_dim());
  if (i >= count) return;
  const std::int64_t stride = static_cast<std::int64_t>(node.num_heads) * node.head_dim;
  const T* row = static_cast<const T*>(key ? node.key : node.query) +
                 ((key ? job.key_row : job.query_row) + i) * stride +
                 static_cast<std::int64_t>(job.head + local_head) * node.head_dim;
  double squares = 0;
  float largest = 0;
  for (int d = lane; d < node.head_dim; d += cuda::kWarp) {
    const double x = cuda::ToFloat(row[d]);
    squares += x * x;
    largest = fmaxf(largest, fabsf(static_cast<float>(x)));
  }
  const double norm = sqrt(WarpTotal(squares));
  const double floor = node.lift_root > 1e-12f ? static_cast<double>(node.lift_root) : 1e-12;
  const double inverse = 1.0 / (norm > floor ? norm : floor);
  const double share = norm * inverse;  // of the length
  const float added = norm < floor ? static_cast<float>(sqrt((1.0 - share) * (1.0 + share))) : 0.0f;
  const int added_at = node.lifted() ? node.head_dim + (key ? 1 : 0) : -1;
  const UnitSide side = UnitSideOf(node, job, key, local_head);
  float* unit = side.unit + static_cast<std::int64_t>(i) * dim;
  for (int d = lane; d < dim; d += cuda::kWarp) {
    unit[d] = d < node.head_dim ? static_cast<float>(cuda::ToFloat(row[d]) * inverse)
              : d == added_at   ? added
                                : 0.0f;
  }
  if constexpr (!std::is_same_v<T, float>) {
    largest = cuda::WarpMax(largest);
    const double power = largest > 0 ? scalbn(1.0, -ilogb(static_cast<double>(largest))) : 1.0;
    T* half_row = static_cast<T*>(side.rows) + static_cast<std::int64_t>(i) * dim;
    for (int d = lane; d < dim; d += cuda::kWarp) {
      const double x = d < node.head_dim ? cuda::ToFloat(row[d]) * power : 0.0;
      half_row[d] = cuda::FromFloat<T>(static_cast<float>(x));
    }
    if (lane == 0) side.scales[i] = static_cast<float>(inverse / power);
  }
}

// Words [chunk, chunk + kChunk) of rows [first, first + kTile), zeros beyond both ends, to
// [word][row].
template <class Word>
__device__ inline void LoadWords(const Word* rows, int words, int count, int first, int chunk,
                                 Word* shared) {
  const int r = threadIdx.x / 4, w = threadIdx.x % 4 * 4;
  struct alignas(16) Four {
    Word word[4];
  } four = {};
  if (first + r < count && chunk + w < words) {
    four = *reinterpret_cast<const Four*>(rows + static_cast<std::int64_t>(first + r) * words +
                                          chunk + w);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) shared[(w + e) * kPitch + r] = four.word[e];
}

template <class T, class Kind, int kRuns>
__global__ void __launch_bounds__(kBlockThreads, kRuns == 1 ? 2 : 1) Pairs(Node node, Jobs jobs) {
  using Word = typename Kind::Word;
  constexpr int kColumns = kRuns * 64;
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int tiles = Quotient(job.num_queries, kTile);
  const int local = blockIdx.x - job.first_block;
  const int local_head = local / tiles, first = local % tiles * kTile;
  const int head = job.head + local_head;
  const int words = Kind::RowWords(node, job), compared = Quotient(words, kChunk) * kChunk;
  const Word* queries = reinterpret_cast<const Word*>(node.scratch + job.query_codes) +
                        static_cast<std::int64_t>(local_head) * job.num_queries * words;
  const Word* keys = reinterpret_cast<const Word*>(node.scratch + job.key_codes) +
                     static_cast<std::int64_t>(local_head) * job.num_keys * words;
  const std::int64_t stride = static_cast<std::int64_t>(node.num_heads) * node.value_dim;
  const T* value_rows = static_cast<const T*>(node.value) + job.key_row * stride +
                        static_cast<std::int64_t>(head) * node.value_dim;

  Word* query_words = cuda::SharedMemory<Word>();                          // [word][query]
  Word* key_words = query_words + kChunk * kPitch;                         // [word][key]
  float* weights = reinterpret_cast<float*>(key_words + kChunk * kPitch);  // [key][query]
  float* values = weights + kTile * kPitch;                                // [key][kColumns]
  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  float sums[4][kRuns][4] = {};
  double totals[4] = {};  // of the weights of this thread's queries
  for (int begin = 0; begin < job.num_keys; begin += kTile) {
    typename Kind::Sum scores[4][4] = {};
    for (int chunk = 0; chunk < words; chunk += kChunk) {
      __syncthreads();  // the last chunk, or the last tile's values, have been read
      LoadWords(queries, words, job.num_queries, first, chunk, query_words);
      LoadWords(keys, words, job.num_keys, begin, chunk, key_words);
      __syncthreads();
#pragma unroll 4
      for (int w = 0; w < kChunk; ++w) {
        struct alignas(16) Four {
          Word word[4];
        };
        const Four q = *reinterpret_cast<const Four*>(query_words + w * kPitch + row);
        const Four k = *reinterpret_cast<const Four*>(key_words + w * kPitch + column);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) Kind::Score(scores[i][j], q.word[i], k.word[j]);
        }
      }
    }
    const int count = min(kTile, job.num_keys - begin);
    for (int i = threadIdx.x; i < kTile * kColumns; i += kBlockThreads) {
      const int j = i / kColumns, c = i % kColumns;
      values[i] = j < count && c < node.value_dim
                      ? cuda::ToFloat(value_rows[(begin + j) * stride + c])
                      : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Rows beyond the ends are read from the last ones, and have no weight.
        const int q = min(first + row + i, job.num_queries - 1),
                  k = min(begin + column + j, job.num_keys - 1);
        const float weight = Kind::Weight(node, job, scores[i][j], compared,
                                          queries + static_cast<std::int64_t>(q) * words,
                                          keys + static_cast<std::int64_t>(k) * words);
        weights[(column + j) * kPitch + row + i] = column + j < count ? weight : 0.0f;
      }
    }
    __syncthreads();
    if (node.divides() && column == 0) {
      for (int j = 0; j < count; ++j) {
        for (int i = 0; i < 4; ++i) totals[i] += weights[j * kPitch + row + i];
      }
    }
    for (int j = 0; j < count; ++j) {
      const float4 w = *reinterpret_cast<const float4*>(weights + j * kPitch + row);
#pragma unroll
      for (int s = 0; s < kRuns; ++s) {
        const float4 v = *reinterpret_cast<const float4*>(values + j * kColumns + s * 64 + column);
        const float ws[4] = {w.x, w.y, w.z, w.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int c = 0; c < 4; ++c) sums[i][s][c] = fmaf(ws[i], vs[c], sums[i][s][c]);
        }
      }
    }
  }
  __syncthreads();
  float* tile_sums = values;  // [query][kColumns]
  if (column == 0) {
    for (int i = 0; i < 4; ++i) weights[row + i] = static_cast<float>(totals[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int s = 0; s < kRuns; ++s) {
      *reinterpret_cast<float4*>(tile_sums + (row + i) * kColumns + s * 64 + column) =
          make_float4(sums[i][s][0], sums[i][s][1], sums[i][s][2], sums[i][s][3]);
    }
  }
  __syncthreads();
  FinishRows<T>(node, job, head, first, min(kTile, job.num_queries - first), tile_sums, kColumns,
                job.total_hashes == 0 ? 1.0f : 1.0f / static_cast<float>(job.total_hashes),
                weights);
}

template <class T, class Kind>
void LaunchPairsAs(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream) {
  ForRuns<4>(node.value_dim, 64, [&](auto runs) {
    const std::size_t floats = 2 * kChunk * kPitch + kTile * kPitch + kTile * 64 * runs.value;
    cuda::Launch("YosoAttention pairs", Pairs<T, Kind, runs.value>,
                 dim3(static_cast<unsigned>(blocks)), kBlockThreads, floats * sizeof(float), stream,
                 node, jobs);
  });
}

}  // namespace

int UnitBlocks(const Node&, const Job& job) {
  return job.num_heads * Quotient(job.num_queries + job.num_keys, kBlockWarps);
}

void LaunchUnits(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                 cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    cuda::Launch("YosoAttention units", UnitRows<decltype(type)>,
                 dim3(static_cast<unsigned>(blocks)), kBlockThreads, 0, stream, node, jobs);
  });
}

int PairBlocks(const Node&, const Job& job) {
  return job.num_heads * Quotient(job.num_queries, kTile);
}

void LaunchPairs(ElementType data, const Node& node, const Jobs& jobs, int blocks, bool expectation,
                 cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same_v<T, float>) {
      if (expectation) return LaunchHalfPairs(data, node, jobs, blocks, stream);
    }
    ForKind(node, expectation, [&](auto kind) {
      using Kind = decltype(kind);
      // What the kernel of half types computes is not compiled a second time.
      if constexpr (std::is_same_v<T, float> || !std::is_same_v<Kind, Expectation>) {
        LaunchPairsAs<T, Kind>(node, jobs, blocks, stream);
      }
    });
  });
}

}  // namespace attenuator::yoso
