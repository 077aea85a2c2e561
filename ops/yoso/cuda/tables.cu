// YosoAttention on CUDA, the table path: sums of values by bucket, then sums of buckets by query.
//
// Tables are built without atomic additions of values: a block sorts the keys of one (head, hash)
// by their codes, stably, in passes of 8 bits (one, or two where hash_bits > 8), and then adds
// neighbouring rows of the sorted order in registers. So every sum is fp32, in an order that only
// the codes decide: the same bits from run to run, no bound on the size of values or buckets, no
// scale to choose, and no bucket is visited twice.
//
// * Sorting (SortKeys, SortByDigit): each of the block's 8 warps owns a run of keys and counts
//   digits in its own 256 counters. After one prefix sum over (digit, warp) it writes the keys to
//   their places in order, 32 at a time; lanes with the same digit are found by __match_any_sync.
//   Orders of up to kSharedKeys keys stay in shared memory, longer ones in scratch.
// * Adding (CountStarts, AddRun, AddEdges): each warp owns an equal run of sorted places, whatever
//   the buckets' sizes, so one full bucket is no slower than many small ones. A lane owns every
//   32nd column. If a bucket began in an earlier run, this run's part of its sum goes to shared
//   memory, and the warp of that earlier run adds it, in order.
// * A table has one row for each bucket that holds a key, min(n, 2^hash_bits) at the most; a map of
//   2^hash_bits entries says which, so memory does not grow as 2^hash_bits times value_dim, and
//   nothing needs to be cleared.
//
// Gathering: a block takes a tile of queries (1024 groups of 4 columns) of one head, turns 32
// hashes' codes into rows of tables in shared memory, and adds those rows, 16 bytes a thread, four
// under way at a time. Sums stay in registers over all hashes of the pass; then 1/m, l2 norm,
// convolution, store. Only a job too large for the scratch limit takes several passes of hashes,
// whose sums wait in fp32, which does not change their bits.
//
// Model, a token, hash and head at value_dim 64, in bytes from L2: 256 (fp32) or 128 of values, 256
// of a table, about 20 of codes, orders and maps; so 0.5 KiB, about 100 ps at 5.5 TB/s, against
// which hashing is small. Sorting costs about 2 n / 8 warp-steps of a block in sequence.
#include "ops/yoso/cuda/common.h"

namespace attenuator::yoso {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
static_assert(kDigits == kBlockThreads, "one thread per digit");
constexpr int kGatherUnits = 4;       // groups of 4 columns of a thread
constexpr int kMaxTileQueries = 128;  // of a gather block
constexpr int kMaxColumns = 256;

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

// The keys' codes of one hash.
struct Codes {
  const unsigned char* data;
  bool wide;

  __device__ int operator[](int i) const {
    return wide ? reinterpret_cast<const std::uint16_t*>(data)[i] : data[i];
  }
};

// A warp's run of `count` places.
struct Run {
  int begin, end;
};
__device__ inline Run WarpRun(int count, int warp) {
  const int size = Quotient(Quotient(count, kBlockWarps), cuda::kWarp) * cuda::kWarp;
  return {min(warp * size, count), min((warp + 1) * size, count)};
}

// target = source (null: 0, 1, ...) ordered by 8 bits of the codes, stably. `counters` has room for
// kBlockWarps * kDigits and kBlockWarps more.
__device__ inline void SortByDigit(const Codes& codes, int shift, int count, const int* source,
                                   int* target, int* counters) {
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  for (int i = threadIdx.x; i < kBlockWarps * kDigits; i += kBlockThreads) counters[i] = 0;
  __syncthreads();
  const Run run = WarpRun(count, warp);
  int* mine = counters + warp * kDigits;
  for (int i = run.begin + lane; i < run.end; i += cuda::kWarp) {
    const int key = source == nullptr ? i : source[i];
    atomicAdd(mine + (codes[key] >> shift & (kDigits - 1)), 1);
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
    const int digit = active ? codes[key] >> shift & (kDigits - 1) : kDigits;
    const unsigned equal = __match_any_sync(cuda::kFullMask, digit);
    const int rank = __popc(equal & ((1u << lane) - 1));
    const int first = active ? mine[digit] : 0;
    __syncwarp();
    if (active && rank == 0) mine[digit] = first + __popc(equal);
    __syncwarp();
    if (active) target[first + rank] = key;
  }
  __syncthreads();
}

// The block's shared memory, beside the order of the keys.
struct TableShared {
  float* edges;    // [warp][kMaxColumns]: what a run adds to a bucket that an earlier run began
  int* counters;   // for SortByDigit
  int* starts;     // [warp]: buckets that begin in its run
  int* continues;  // [warp]: its run begins within a bucket
  int* end;        // of all these

  __device__ TableShared()
      : edges(cuda::SharedMemory<float>()),
        counters(reinterpret_cast<int*>(edges + kBlockWarps * kMaxColumns)),
        starts(counters + kBlockWarps * kDigits + kBlockWarps),
        continues(starts + kBlockWarps),
        end(continues + kBlockWarps) {}
};

// The keys' codes in sorted order.
struct Sorted {
  Codes codes;
  const int* order;

  __device__ int code(int i) const { return codes[order[i]]; }
  // Whether a bucket begins at place i.
  __device__ bool starts_at(int i) const { return i == 0 || code(i) != code(i - 1); }
};

// Sorts the keys by their codes into `order`, which has room for as many keys a pass.
__device__ __forceinline__ Sorted SortKeys(const Codes& codes, int hash_bits, int count, int* order,
                                           int* counters) {
  SortByDigit(codes, 0, count, nullptr, order, counters);
  if (hash_bits > kDigitBits) {
    SortByDigit(codes, kDigitBits, count, order, order + count, counters);
    order += count;
  }
  return {codes, order};
}

// The number of the table's last row that belongs to earlier runs, -1 where they begin none.
__device__ __forceinline__ int CountStarts(const Sorted& keys, const Run& run,
                                           const TableShared& shared) {
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  int begun = 0;
  for (int base = run.begin; base < run.end; base += cuda::kWarp) {
    const int i = base + lane;
    begun += __popc(__ballot_sync(cuda::kFullMask, i < run.end && keys.starts_at(i)));
  }
  if (lane == 0) {
    shared.starts[warp] = begun;
    shared.continues[warp] = run.begin < run.end && !keys.starts_at(run.begin);
  }
  __syncthreads();
  int row = -1;
  for (int w = 0; w < warp; ++w) row += shared.starts[w];
  return row;
}

// State of a warp within its run: the row of the table that it adds to, its sums (a lane owns every
// 32nd column), and whether an earlier run began that row's bucket.
template <int kRuns>
struct BucketSum {
  float* table;
  float* edge;  // the warp's
  int columns;
  int row;
  bool continued;
  float sums[kRuns];

  __device__ __forceinline__ void Write() const {
    const int lane = threadIdx.x % cuda::kWarp;
    float* target = continued ? edge : table + static_cast<std::int64_t>(row) * columns;
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      const int c = lane + k * cuda::kWarp;
      if (c < columns) target[c] = sums[k];
    }
  }
};

// Adds the run's values to `bucket` and writes each row that ends; the last one stays in registers.
// Notes in `map` which row a code has, and in `begins`, unless it is null, where the row's keys
// are. `values` is the lane's first column of the first key.
template <class T, int kRuns>
__device__ __forceinline__ void AddRun(const Sorted& keys, const Run& run, const T* values,
                                       std::int64_t stride, int value_dim, int* map, int* begins,
                                       BucketSum<kRuns>& bucket) {
  constexpr int kAhead = kRuns == 1 ? 8 : kRuns == 8 ? 2 : 4;  // rows under way
  const int lane = threadIdx.x % cuda::kWarp;
  for (int base = run.begin; base < run.end; base += cuda::kWarp) {
    const int i = base + lane, size = min(cuda::kWarp, run.end - base);
    const bool starting = i < run.end && keys.starts_at(i);
    const int key = keys.order[min(i, run.end - 1)];
    const unsigned mask = __ballot_sync(cuda::kFullMask, starting);
    if (starting) {
      const int row = bucket.row + __popc(mask << (31 - lane));
      map[keys.codes[key]] = row;
      if (begins != nullptr) begins[row] = i;
    }
    for (int j = 0; j < size; j += kAhead) {
      float ahead[kAhead][kRuns];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const T* source = values + __shfl_sync(cuda::kFullMask, key, min(j + a, size - 1)) * stride;
#pragma unroll
        for (int k = 0; k < kRuns; ++k) {
          ahead[a][k] =
              lane + k * cuda::kWarp < value_dim ? cuda::ToFloat(source[k * cuda::kWarp]) : 0.0f;
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (j + a >= size) break;
        if ((mask >> (j + a) & 1) != 0) {
          if (base + j + a > run.begin) bucket.Write();
          bucket.continued = false;
          ++bucket.row;
#pragma unroll
          for (int k = 0; k < kRuns; ++k) bucket.sums[k] = 0;
        }
#pragma unroll
        for (int k = 0; k < kRuns; ++k) bucket.sums[k] += ahead[a][k];
      }
    }
  }
}

// Adds to the run's last bucket the parts that later runs hold of it, in order of the runs.
template <int kRuns>
__device__ __forceinline__ void AddEdges(const TableShared& shared, BucketSum<kRuns>& bucket) {
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  for (int w = warp + 1; w < kBlockWarps && shared.continues[w] != 0; ++w) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      const int c = lane + k * cuda::kWarp;
      if (c < bucket.columns) bucket.sums[k] += shared.edges[w * kMaxColumns + c];
    }
    if (shared.starts[w] > 0) break;
  }
}

template <class T, int kRuns>
__global__ void __launch_bounds__(kBlockThreads, 2)
    Tables(Node node, Jobs jobs, bool shared_orders) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  const int local = blockIdx.x - job.first_block;  // head, hash
  const int head = job.head + local / job.num_hashes;
  const int count = job.num_keys, columns = node.table_columns(), buckets = 1 << node.hash_bits;
  const TableShared shared;
  int* order = shared_orders ? shared.end
                             : reinterpret_cast<int*>(node.scratch + job.orders) +
                                   std::int64_t{2} * local * count;
  const std::int64_t pitch = Quotient(count, kCodePad) * kCodePad;
  const Codes codes{node.scratch + job.key_codes + local * pitch * node.code_bytes(),
                    node.code_bytes() == 2};
  int* map =
      reinterpret_cast<int*>(node.scratch + job.maps) + static_cast<std::int64_t>(local) * buckets;
  for (int i = threadIdx.x; i < buckets; i += kBlockThreads) map[i] = -1;

  const Sorted keys = SortKeys(codes, node.hash_bits, count, order, shared.counters);
  const Run run = WarpRun(count, warp);
  BucketSum<kRuns> bucket = {};
  bucket.table = reinterpret_cast<float*>(node.scratch + job.tables) +
                 static_cast<std::int64_t>(local) * job.table_rows * columns;
  bucket.edge = shared.edges + warp * kMaxColumns;
  bucket.columns = columns;
  bucket.row = CountStarts(keys, run, shared);
  bucket.continued = true;
  const std::int64_t stride = static_cast<std::int64_t>(node.num_heads) * node.value_dim;
  const T* values = static_cast<const T*>(node.value) + job.key_row * stride +
                    static_cast<std::int64_t>(head) * node.value_dim + lane;
  int* begins = nullptr;
  if (node.divides()) {
    begins = reinterpret_cast<int*>(node.scratch + job.begins) +
             static_cast<std::int64_t>(local) * (job.table_rows + 1);
    int used = 0;
    for (int w = 0; w < kBlockWarps; ++w) used += shared.starts[w];
    if (threadIdx.x == 0) begins[used] = count;
  }
  AddRun(keys, run, values, stride, node.value_dim, map, begins, bucket);
  if (bucket.continued && run.begin < run.end) bucket.Write();
  __syncthreads();  // edges are there
  if (bucket.continued) return;
  AddEdges(shared, bucket);
  bucket.Write();
}

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

int TableBlocks(const Node&, const Job& job) { return job.num_heads * job.num_hashes; }

void LaunchTables(ElementType data, const Node& node, const Jobs& jobs, int blocks, int shared_keys,
                  cuda::Stream stream) {
  const int orders = node.hash_bits > kDigitBits ? 2 : 1;
  const std::size_t ints =
      kBlockWarps * (kMaxColumns + kDigits + 3) + static_cast<std::size_t>(shared_keys) * orders;
  cuda::ForType(data, [&](auto type) {
    ForRuns<8>(node.value_dim, cuda::kWarp, [&](auto runs) {
      cuda::Launch("YosoAttention tables", Tables<decltype(type), runs.value>,
                   dim3(static_cast<unsigned>(blocks)), kBlockThreads, ints * sizeof(int), stream,
                   node, jobs, shared_keys > 0);
    });
  });
}

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
