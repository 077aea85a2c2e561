// YosoAttention on CUDA, the table path: sums of tables' rows by query, read one by one. Most of
// the queries of long texts go through gather_staged.cu.
//
// A block takes a tile of queries (1024 groups of 4 columns) of one head, turns 32 hashes' codes
// into rows of tables in shared memory, and adds those rows, 16 bytes a thread, four under way at a
// time: 16 KiB a block. Sums stay in registers over all hashes of the pass; then 1/m, l2 norm,
// convolution, store. Only a job too large for the scratch limit takes several passes of hashes,
// whose sums wait in fp32, which does not change their bits.
#include "ops/yoso/cuda/sort.h"

namespace attenuator::yoso {
namespace {

constexpr int kGatherUnits = 4;       // groups of 4 columns of a thread
constexpr int kMaxTileQueries = 128;  // of a gather block

__host__ __device__ inline int TileQueries(const Node& node) {
  return min(kMaxTileQueries, kBlockThreads * kGatherUnits / (node.table_columns() / 4));
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads, 2) Gather(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int tile = TileQueries(node), tiles = Quotient(job.num_queries, tile);
  const int local = blockIdx.x - job.first_block;
  const int local_head = local / tiles, first = local % tiles * tile;
  const int count = min(tile, job.num_queries - first);
  const int columns = node.table_columns(), quads = columns / 4;
  const std::int64_t pitch = Quotient(job.num_queries, kCodePad) * kCodePad;
  const std::int64_t first_hash = static_cast<std::int64_t>(local_head) * job.num_hashes;
  const unsigned char* code_bytes =
      node.scratch + job.query_codes + first_hash * pitch * node.code_bytes();
  const int* map =
      reinterpret_cast<const int*>(node.scratch + job.maps) + (first_hash << node.hash_bits);
  const float4* tables = reinterpret_cast<const float4*>(node.scratch + job.tables) +
                         first_hash * job.table_rows * quads;
  float4* partial = reinterpret_cast<float4*>(node.scratch + job.sums) +
                    (static_cast<std::int64_t>(local_head) * job.num_queries + first) * quads;

  float4* tile_sums = cuda::SharedMemory<float4>();                              // [query][quads]
  int* rows = reinterpret_cast<int*>(tile_sums + kBlockThreads * kGatherUnits);  // [hash][tile]
  // Of each query's collisions with any key; whole numbers, whose order does not matter.
  int* counted = rows + kCudaHashChunk * tile;
  const int* begins =
      reinterpret_cast<const int*>(node.scratch + job.begins) + first_hash * (job.table_rows + 1);
  int* partial_totals = reinterpret_cast<int*>(node.scratch + job.totals) +
                        static_cast<std::int64_t>(local_head) * job.num_queries + first;
  if (node.divides()) {
    for (int q = threadIdx.x; q < tile; q += kBlockThreads) {
      counted[q] = q < count && job.first_hash > 0 ? partial_totals[q] : 0;
    }
    __syncthreads();
  }
  float4 sums[kGatherUnits];
  int query[kGatherUnits], column[kGatherUnits];
#pragma unroll
  for (int u = 0; u < kGatherUnits; ++u) {
    const int unit = threadIdx.x + u * kBlockThreads;
    query[u] = unit / quads;
    column[u] = unit % quads;
    const bool more = query[u] < count && job.first_hash > 0;
    sums[u] = more ? partial[unit] : make_float4(0, 0, 0, 0);
  }
  for (int chunk = 0; chunk < job.num_hashes; chunk += kCudaHashChunk) {
    const int hashes = min(kCudaHashChunk, job.num_hashes - chunk);
    for (int i = threadIdx.x; i < hashes * tile; i += kBlockThreads) {
      const int hash = chunk + i / tile, q = i % tile;
      int row = -1;
      if (q < count) {
        const Codes codes{code_bytes + hash * pitch * node.code_bytes(), node.code_bytes() == 2};
        row = map[(static_cast<std::int64_t>(hash) << node.hash_bits) + codes[first + q]];
        if (row >= 0 && node.divides()) {
          const int* bucket = begins + static_cast<std::int64_t>(hash) * (job.table_rows + 1) + row;
          atomicAdd(counted + q, bucket[1] - bucket[0]);
        }
        if (row >= 0) row += hash * job.table_rows;
      }
      rows[i] = row;
    }
    __syncthreads();
    for (int t = 0; t < hashes; ++t) {
      float4 loaded[kGatherUnits];
#pragma unroll
      for (int u = 0; u < kGatherUnits; ++u) {
        const int row = query[u] < tile ? rows[t * tile + query[u]] : -1;
        loaded[u] = row < 0 ? make_float4(0, 0, 0, 0)
                            : tables[static_cast<std::int64_t>(row) * quads + column[u]];
      }
#pragma unroll
      for (int u = 0; u < kGatherUnits; ++u) {
        sums[u].x += loaded[u].x;
        sums[u].y += loaded[u].y;
        sums[u].z += loaded[u].z;
        sums[u].w += loaded[u].w;
      }
    }
    __syncthreads();
  }
  const bool last = job.first_hash + job.num_hashes == job.total_hashes;
#pragma unroll
  for (int u = 0; u < kGatherUnits; ++u) {
    const int unit = threadIdx.x + u * kBlockThreads;
    if (last) {
      tile_sums[unit] = sums[u];
    } else if (query[u] < count) {
      partial[unit] = sums[u];
    }
  }
  if (!last) {
    for (int q = threadIdx.x; node.divides() && q < count; q += kBlockThreads) {
      partial_totals[q] = counted[q];
    }
    return;
  }
  float* totals = reinterpret_cast<float*>(rows);
  for (int q = threadIdx.x; node.divides() && q < count; q += kBlockThreads) {
    totals[q] = static_cast<float>(counted[q]);
  }
  __syncthreads();
  FinishRows<T>(node, job, job.head + local_head, first, count,
                reinterpret_cast<const float*>(tile_sums), columns,
                1.0f / static_cast<float>(job.total_hashes), totals);
}

}  // namespace

int GatherBlocks(const Node& node, const Job& job) {
  return job.num_heads * Quotient(job.num_queries, TileQueries(node));
}

void LaunchGather(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                  cuda::Stream stream) {
  const std::size_t shared = kBlockThreads * kGatherUnits * sizeof(float4) +
                             (kCudaHashChunk + 1) * TileQueries(node) * sizeof(int);
  cuda::ForType(data, [&](auto type) {
    cuda::Launch("YosoAttention gather", Gather<decltype(type)>,
                 dim3(static_cast<unsigned>(blocks)), kBlockThreads, shared, stream, node, jobs);
  });
}

}  // namespace attenuator::yoso
