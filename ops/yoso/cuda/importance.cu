// YosoAttention on CUDA: what each key matters, the first query's collisions with it.
//
// Runs behind the kernels that make a wave's codes (or unit rows), whose scratch it reads. A warp
// owns a key and goes through the heads of the job in turn, the lanes sharing the hashes (or
// words) of a head; lane 0 adds the sum to the key's output, which started at 0. Waves follow one
// another, and heads of a sequence stand in order in them, so a key's sum is always taken in the
// order of heads: of whole numbers, exact in fp32, where there are hashes. Finish divides it once
// by the number of hashes, and makes sequences that are not finite NaN throughout.
//
// Memory: codes once from L2, lines of which the eight keys of a block share; one float a key read
// and written for each wave.
#include "ops/yoso/cuda/weights.h"

namespace attenuator::yoso {
namespace {

// The key that this warp owns; its block has kBlockWarps of them.
__device__ __forceinline__ int OwnKey(const Job& job) {
  return (static_cast<int>(blockIdx.x) - job.first_block) * kBlockWarps +
         static_cast<int>(threadIdx.x) / cuda::kWarp;
}

// Codes by row, or unit rows.
template <class Kind>
__global__ void WeighRows(Node node, Jobs jobs) {
  using Word = typename Kind::Word;
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int j = OwnKey(job), lane = threadIdx.x % cuda::kWarp;
  if (j >= job.num_keys) return;
  const int words = Kind::RowWords(node, job);
  const Word* queries = reinterpret_cast<const Word*>(node.scratch + job.query_codes);
  const Word* keys = reinterpret_cast<const Word*>(node.scratch + job.key_codes);
  float* own = node.importance + job.key_row + j;
  float total = *own;
  for (std::int64_t head = 0; head < job.num_heads; ++head) {
    const Word* query = queries + head * job.num_queries * words;
    const Word* key = keys + (head * job.num_keys + j) * words;
    typename Kind::Sum sum = 0;
    for (int w = lane; w < words; w += cuda::kWarp) Kind::Score(sum, query[w], key[w]);
    total += Kind::Weight(node, job, WarpTotal(sum), words, query, key);
  }
  if (lane == 0) *own = total;
}

// Codes by hash, as tables are filled from them.
template <class Code>
__global__ void WeighTables(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int j = OwnKey(job), lane = threadIdx.x % cuda::kWarp;
  if (j >= job.num_keys) return;
  const Code* queries = reinterpret_cast<const Code*>(node.scratch + job.query_codes);
  const Code* keys = reinterpret_cast<const Code*>(node.scratch + job.key_codes);
  const std::int64_t query_stride = Quotient(job.num_queries, kCodePad) * kCodePad;
  const std::int64_t key_stride = Quotient(job.num_keys, kCodePad) * kCodePad;
  const int codes = job.num_heads * job.num_hashes;
  int sum = 0;
  for (int t = lane; t < codes; t += cuda::kWarp) {
    sum += keys[t * key_stride + j] == queries[t * query_stride];
  }
  sum = WarpTotal(sum);
  if (lane == 0) node.importance[job.key_row + j] += static_cast<float>(sum);
}

__global__ void Finish(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int j = (static_cast<int>(blockIdx.x) - job.first_block) * kBlockThreads +
                static_cast<int>(threadIdx.x);
  if (j >= job.num_keys) return;
  float* own = node.importance + job.key_row + j;
  const float hashes = job.total_hashes == 0 ? 1.0f : static_cast<float>(job.total_hashes);
  *own = node.broken[job.sequence] != 0 ? __int_as_float(0x7FC00000) : __fdiv_rn(*own, hashes);
}

}  // namespace

int ImportanceBlocks(const Node&, const Job& job) { return Quotient(job.num_keys, kBlockWarps); }

void LaunchImportance(const Node& node, const Jobs& jobs, int blocks, bool tables, bool expectation,
                      cuda::Stream stream) {
  const auto launch = [&](auto* kernel) {
    cuda::Launch("YosoAttention importance", kernel, dim3(static_cast<unsigned>(blocks)),
                 kBlockThreads, 0, stream, node, jobs);
  };
  if (tables) {
    if (node.code_bytes() == 1) return launch(WeighTables<std::uint8_t>);
    return launch(WeighTables<std::uint16_t>);
  }
  ForKind(node, expectation, [&](auto kind) { launch(WeighRows<decltype(kind)>); });
}

int FinishImportanceBlocks(const Node&, const Job& job) {
  return Quotient(job.num_keys, kBlockThreads);
}

void LaunchFinishImportance(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream) {
  cuda::Launch("YosoAttention finish importance", Finish, dim3(static_cast<unsigned>(blocks)),
               kBlockThreads, 0, stream, node, jobs);
}

}  // namespace attenuator::yoso
