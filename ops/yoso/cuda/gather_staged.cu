// YosoAttention on CUDA, the table path of many queries: sums of tables' rows by query, from tables
// in shared memory.
//
// Of one head a block takes 512 queries by 64 columns, or 1024 by 32: 16 queries by 4 columns a
// thread, whose sums stay in registers over all hashes. A hash's table comes into shared memory
// whole, one row for each code, zeros where no key has it: so a query's code alone says where its
// row is, and rows are read without conflicts of banks. While a hash is added the next one's table
// is on its way into the other of two buffers, and with it the map of the one after it.
//
// Sums are fp32 and taken hash by hash, as gather.cu takes them: the same bits.
//
// Memory, a query, hash and head at 256 buckets and 64 columns, in bytes: 128 of tables from L2,
// where rows read one by one are 256, and 1 of codes; 384 through shared memory.
#include "ops/yoso/cuda/sort.h"

namespace attenuator::yoso {
namespace {

constexpr int kStageThreads = 512;
constexpr int kOwnQueries = 16;  // of a thread: neighbours, whose codes it reads at once
constexpr int kLeastColumns = 20, kMostColumns = 64;
constexpr int kLeastBits = 2;  // maps of 16 bytes

// Threads that share queries, 4 columns each.
__host__ __device__ constexpr int StageQuads(int columns) { return columns <= 32 ? 8 : 16; }
// Queries of a block.
__host__ __device__ constexpr int StageTile(int quads) {
  return kStageThreads / quads * kOwnQueries;
}
// Of both tables, and then of the sums.
constexpr std::size_t kStageBytes = std::size_t{kStageThreads} * kOwnQueries * sizeof(float4);

// The codes that one hash gives a thread's queries.
struct OwnCodes {
  std::uint32_t word[kOwnQueries / 4];
};
__device__ __forceinline__ OwnCodes ReadCodes(const unsigned char* codes) {
  const uint4 loaded = *reinterpret_cast<const uint4*>(codes);
  return {{loaded.x, loaded.y, loaded.z, loaded.w}};
}

// A block's shared memory.
struct StageShared {
  unsigned char* tables;  // [2][code][4 kQuads] floats, then sums [query][4 kQuads]
  int* maps;              // [2][code]: the code's row of the table in L2, or -1
  int* counts;            // [2][code]: its keys, where rows are divided by their totals
  float* totals;          // [query], likewise

  __device__ StageShared()
      : tables(cuda::SharedMemory<unsigned char>()),
        maps(reinterpret_cast<int*>(tables + kStageBytes)),
        counts(maps + 2 * kDigits),
        totals(reinterpret_cast<float*>(counts + 2 * kDigits)) {}
};

// A head's tables, and the calling thread's share of bringing them into shared memory: 4 columns of
// every kStep-th code. Addresses move on from hash to hash, so that a row is one multiplication.
template <int kQuads>
struct Stage {
  static constexpr int kStep = kStageThreads / kQuads, kCodes = kDigits / kStep;

  const int* map;  // of the next hash whose map to copy
  const unsigned char*
      table;               // of the next hash whose table to copy: the thread's columns of row 0
  int pitch, table_bytes;  // bytes of a row and of a table
  int buckets;
  bool there;  // the table has the thread's columns

  // The thread's columns and its first code.
  __device__ static int Quad() { return static_cast<int>(threadIdx.x % kQuads); }
  __device__ static int Code() { return static_cast<int>(threadIdx.x / kQuads); }

  __device__ Stage(const Node& node, const Job& job, int local_head)
      : pitch(node.table_columns() * 4),
        table_bytes(job.table_rows * pitch),
        buckets(1 << node.hash_bits),
        there(Quad() * 4 < node.table_columns()) {
    const std::int64_t first = static_cast<std::int64_t>(local_head) * job.num_hashes;
    map = reinterpret_cast<const int*>(node.scratch + job.maps) + (first << node.hash_bits);
    table = node.scratch + job.tables + first * table_bytes + (there ? Quad() * 16 : 0);
  }
  // Begins to copy the next hash's map.
  __device__ __forceinline__ void CopyMap(int* target) {
    const int own = static_cast<int>(threadIdx.x) * 4;
    if (own < buckets) cuda::CopyAsync16(target + own, map + own);
    map += buckets;
  }
  // Begins to copy the next hash's table, whose map is there. `target` are the columns of code 0.
  __device__ __forceinline__ void CopyTable(const int* own_map, unsigned char* target) {
    const int code = Code();
    // Codes beyond the last bucket, which no query has, count as that one.
    own_map += min(code, buckets - 1);
    target += code * kQuads * 16;
#pragma unroll
    for (int k = 0; k < kCodes; ++k) {
      if (k * kStep >= buckets) break;
      const int row = own_map[k * kStep];
      cuda::CopyAsync16(
          target + k * kStep * kQuads * 16,
          table + std::uint64_t{static_cast<unsigned>(max(row, 0))} * static_cast<unsigned>(pitch),
          row >= 0 && there);
    }
    table += table_bytes;
  }
};

// Of how many keys each code is, of a hash whose rows are divided by their totals.
__device__ __forceinline__ void CountKeys(const Node& node, const Job& job, int local_hash,
                                          const int* map, int* counts) {
  const int code = static_cast<int>(threadIdx.x);
  if (code >= 1 << node.hash_bits) return;
  const int row = map[code];
  const int* bucket = reinterpret_cast<const int*>(node.scratch + job.begins) +
                      static_cast<std::int64_t>(local_hash) * (job.table_rows + 1) + row;
  counts[code] = row < 0 ? 0 : bucket[1] - bucket[0];
}

// Adds the rows that the codes name. `columns` is where the thread's columns of code 0 lie in
// `tables`: an offset that a code's row leaves free, so that it is joined and not added.
template <int kQuads>
__device__ __forceinline__ void AddRows(const OwnCodes& codes, const unsigned char* tables,
                                        unsigned columns, float4 (&sums)[kOwnQueries]) {
  constexpr int kShift = kQuads == 16 ? 8 : 7;  // of a code, to a row's first byte
#pragma unroll
  for (int q = 0; q < kOwnQueries; ++q) {
    const int shift = q % 4 * 8 - kShift;
    const std::uint32_t word = codes.word[q / 4];
    const std::uint32_t row = (shift < 0 ? word << -shift : word >> shift) & 0xFFu << kShift;
    const float4 added = *reinterpret_cast<const float4*>(tables + (row | columns));
    sums[q].x += added.x;
    sums[q].y += added.y;
    sums[q].z += added.z;
    sums[q].w += added.w;
  }
}

// Puts the sums of the thread's queries, the first of them `own`, in the tables' place, and how
// many keys they count.
template <int kQuads>
__device__ __forceinline__ void StoreSums(const StageShared& shared, int own,
                                          const float4 (&sums)[kOwnQueries],
                                          const int (&counted)[kOwnQueries / kQuads],
                                          bool divides) {
  const int quad = static_cast<int>(threadIdx.x % kQuads);
  __syncthreads();  // every thread has read the last table
#pragma unroll
  for (int q = 0; q < kOwnQueries; ++q) {
    reinterpret_cast<float4*>(shared.tables)[(own + q) * kQuads + quad] = sums[q];
  }
  if (divides) {
#pragma unroll
    for (int k = 0; k < kOwnQueries / kQuads; ++k) {
      shared.totals[own + quad + k * kQuads] = static_cast<float>(counted[k]);
    }
  }
  __syncthreads();
}

template <class T, int kQuads>
__global__ void __launch_bounds__(kStageThreads, 1) GatherStaged(Node node, Jobs jobs) {
  constexpr int kTile = StageTile(kQuads), kTotals = kOwnQueries / kQuads;
  constexpr unsigned kTableBytes = kDigits * kQuads * 16;
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int tiles = Quotient(job.num_queries, kTile);
  const int local = blockIdx.x - job.first_block;
  const int local_head = local / tiles, first = local % tiles * kTile;
  const int count = min(kTile, job.num_queries - first);
  const int pitch = Quotient(job.num_queries, kCodePad) * kCodePad;
  const StageShared shared;
  Stage<kQuads> stage(node, job, local_head);
  const int own = stage.Code() * kOwnQueries;  // the thread's first query
  // Codes reach to the next multiple of 16; threads without queries read the block's first ones.
  const unsigned char* code_bytes = node.scratch + job.query_codes + first +
                                    std::int64_t{local_head} * job.num_hashes * pitch +
                                    (own < count ? own : 0);

  float4 sums[kOwnQueries] = {};
  int counted[kTotals] = {};  // of queries quad and, where kQuads is 8, quad + 8 of the thread's
  stage.CopyMap(shared.maps);
  if (job.num_hashes > 1) stage.CopyMap(shared.maps + kDigits);
  cuda::CopyCommit();
  cuda::CopyWait<0>();
  __syncthreads();
  stage.CopyTable(shared.maps, shared.tables + stage.Quad() * 16);
  cuda::CopyCommit();
  const int first_hash = local_head * job.num_hashes;
  if (node.divides()) CountKeys(node, job, first_hash, shared.maps, shared.counts);
#pragma unroll 1
  for (int hash = 0; hash < job.num_hashes; ++hash) {
    const unsigned columns = hash % 2 * kTableBytes + static_cast<unsigned>(stage.Quad()) * 16;
    const OwnCodes codes = ReadCodes(code_bytes);
    cuda::CopyWait<0>();
    __syncthreads();  // this hash's table and the next map are there, the other buffers free
    if (hash + 1 < job.num_hashes) {
      const int other = (1 - hash % 2) * kDigits;
      stage.CopyTable(shared.maps + other, shared.tables + (columns ^ kTableBytes));
      if (node.divides()) {
        CountKeys(node, job, first_hash + hash + 1, shared.maps + other, shared.counts + other);
      }
      if (hash + 2 < job.num_hashes) stage.CopyMap(shared.maps + kDigits - other);
      cuda::CopyCommit();
    }
    AddRows<kQuads>(codes, shared.tables, columns, sums);
    if (node.divides()) {
#pragma unroll
      for (int k = 0; k < kTotals; ++k) {
        counted[k] += shared.counts[hash % 2 * kDigits + code_bytes[stage.Quad() + k * kQuads]];
      }
    }
    code_bytes += pitch;
  }
  StoreSums<kQuads>(shared, own, sums, counted, node.divides());
  FinishRows<T>(node, job, job.head + local_head, first, count,
                reinterpret_cast<const float*>(shared.tables), kQuads * 4,
                1.0f / static_cast<float>(job.total_hashes), shared.totals);
}

std::size_t StageShares(const Node& node) {
  const int totals = StageTile(StageQuads(node.table_columns()));
  return kStageBytes + (2 * kDigits + (node.divides() ? 2 * kDigits + totals : 0)) * sizeof(int);
}

}  // namespace

bool GathersStaged(const Node& node, const Job& job) {
  const int columns = node.table_columns();
  if (columns < kLeastColumns || columns > kMostColumns) return false;
  if (node.hash_bits < kLeastBits || node.hash_bits > kDigitBits) return false;
  const std::int64_t places = std::int64_t{StageTile(StageQuads(columns))} *
                              Quotient(job.num_queries, StageTile(StageQuads(columns)));
  return job.num_hashes == job.total_hashes && 4 * std::int64_t{job.num_queries} >= 3 * places &&
         StageShares(node) <= static_cast<std::size_t>(cuda::Limits().shared_bytes);
}

int GatherStagedBlocks(const Node& node, const Job& job) {
  return job.num_heads * Quotient(job.num_queries, StageTile(StageQuads(node.table_columns())));
}

void LaunchGatherStaged(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                        cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    const auto launch = [&](auto quads) {
      cuda::Launch("YosoAttention gather staged", GatherStaged<decltype(type), quads.value>,
                   dim3(static_cast<unsigned>(blocks)), kStageThreads, StageShares(node), stream,
                   node, jobs);
    };
    StageQuads(node.table_columns()) == 8 ? launch(std::integral_constant<int, 8>{})
                                          : launch(std::integral_constant<int, 16>{});
  });
}

}  // namespace attenuator::yoso
