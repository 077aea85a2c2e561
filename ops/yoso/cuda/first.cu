// YosoAttention on CUDA for one query of a sequence (queries = first): every key is read once.
//
// A block takes 256 keys of one head: each key is weighed by one warp, whose lanes share its words;
// then threads own columns, 256 / columns of them taking turns at the keys, and add their sums in
// order through shared memory. The sums of each block go to scratch and one block per head adds
// them in the order of the keys, which no other sequence changes, and finishes the row.
//
// Memory: codes (or unit rows) and values once from L2, table_columns floats for each 256 keys.
#include "ops/yoso/cuda/weights.h"

namespace attenuator::yoso {
namespace {

constexpr int kMaxColumns = 256;

template <class T, class Kind>
__global__ void __launch_bounds__(kBlockThreads) First(Node node, Jobs jobs) {
  using Word = typename Kind::Word;
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int runs = Quotient(job.num_keys, kFirstKeys);
  const int local = blockIdx.x - job.first_block;
  const int local_head = local / runs, begin = local % runs * kFirstKeys;
  const int count = min(kFirstKeys, job.num_keys - begin);
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  const int words = Kind::RowWords(node, job);
  const Word* query = reinterpret_cast<const Word*>(node.scratch + job.query_codes) +
                      static_cast<std::int64_t>(local_head) * words;
  const Word* keys = reinterpret_cast<const Word*>(node.scratch + job.key_codes) +
                     (static_cast<std::int64_t>(local_head) * job.num_keys + begin) * words;
  float* weights = cuda::SharedMemory<float>();  // [key]
  float* parts = weights + kFirstKeys;           // [turn][column], kBlockThreads in all
  for (int j = warp; j < count; j += kBlockWarps) {
    const Word* key = keys + static_cast<std::int64_t>(j) * words;
    typename Kind::Sum sum = 0;
    for (int w = lane; w < words; w += cuda::kWarp) Kind::Score(sum, query[w], key[w]);
    sum = WarpTotal(sum);
    if (lane == 0) weights[j] = Kind::Weight(node, job, sum, words, query, key);
  }
  __syncthreads();
  int width = cuda::kWarp;  // threads side by side
  while (width < node.value_dim) width *= 2;
  const int turns = kBlockThreads / width, turn = threadIdx.x / width, c = threadIdx.x % width;
  const std::int64_t stride = static_cast<std::int64_t>(node.num_heads) * node.value_dim;
  const T* values = static_cast<const T*>(node.value) + (job.key_row + begin) * stride +
                    static_cast<std::int64_t>(job.head + local_head) * node.value_dim + c;
  float sum = 0;
  if (c < node.value_dim) {
#pragma unroll 4
    for (int j = turn; j < count; j += turns)
      sum = fmaf(weights[j], cuda::ToFloat(values[j * stride]), sum);
  }
  parts[threadIdx.x] = sum;
  if (node.divides() && warp == 0) {
    float total = 0;
    for (int j = lane; j < count; j += cuda::kWarp) total += weights[j];
    total = WarpTotal(total);
    if (lane == 0) reinterpret_cast<float*>(node.scratch + job.totals)[local] = total;
  }
  __syncthreads();
  if (turn > 0 || c >= node.table_columns()) return;
  for (int other = 1; other < turns; ++other) sum += parts[other * width + c];
  float* target = reinterpret_cast<float*>(node.scratch + job.sums) +
                  static_cast<std::int64_t>(local) * node.table_columns();
  target[c] = sum;
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads) FinishFirst(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int runs = Quotient(job.num_keys, kFirstKeys), columns = node.table_columns();
  const int local_head = blockIdx.x - job.first_block, c = threadIdx.x;
  float* row = cuda::SharedMemory<float>();
  if (c < columns) {
    const float* parts = reinterpret_cast<const float*>(node.scratch + job.sums) +
                         static_cast<std::int64_t>(local_head) * runs * columns + c;
    float sum = 0;
#pragma unroll 4
    for (int run = 0; run < runs; ++run) sum += parts[static_cast<std::int64_t>(run) * columns];
    row[c] = sum;
  }
  float* total = row + kMaxColumns;
  if (node.divides() && threadIdx.x == 0) {
    const float* parts = reinterpret_cast<const float*>(node.scratch + job.totals) +
                         static_cast<std::int64_t>(local_head) * runs;
    double sum = 0;
    for (int run = 0; run < runs; ++run) sum += parts[run];
    *total = static_cast<float>(sum);
  }
  __syncthreads();
  FinishRows<T>(node, job, job.head + local_head, 0, 1, row, columns,
                job.total_hashes == 0 ? 1.0f : 1.0f / static_cast<float>(job.total_hashes), total);
}

}  // namespace

int FirstBlocks(const Node&, const Job& job) {
  return job.num_heads * Quotient(job.num_keys, kFirstKeys);
}
int FinishFirstBlocks(const Node&, const Job& job) { return job.num_heads; }

void LaunchFirst(ElementType data, const Node& node, const Jobs& jobs, int blocks, bool expectation,
                 cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    ForKind(node, expectation, [&](auto kind) {
      cuda::Launch("YosoAttention first", First<decltype(type), decltype(kind)>,
                   dim3(static_cast<unsigned>(blocks)), kBlockThreads,
                   (kFirstKeys + kBlockThreads) * sizeof(float), stream, node, jobs);
    });
  });
}

void LaunchFinishFirst(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                       cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    cuda::Launch("YosoAttention finish first", FinishFirst<decltype(type)>,
                 dim3(static_cast<unsigned>(blocks)), kBlockThreads,
                 (kMaxColumns + 1) * sizeof(float), stream, node, jobs);
  });
}

}  // namespace attenuator::yoso
