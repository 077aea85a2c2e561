// YosoAttention on CUDA, the table path: sums of values by bucket, of sequences of up to
// kSharedKeys keys. Longer ones are sorted and added by many blocks (long_sort.cu, long_add.cu).
//
// Tables are built without atomic additions of values: a block sorts the keys of one (head, hash)
// by their codes, stably, in passes of 8 bits (one, or two where hash_bits > 8), and then adds
// neighbouring rows of the sorted order in registers. So every sum is fp32, in an order that only
// the codes decide: the same bits from run to run, no bound on the size of values or buckets, no
// scale to choose, and no bucket is visited twice.
//
// * Sorting (SortKeys, sort.h): codes come into shared memory first, where orders stay, 2 bytes a
//   key and pass.
// * Adding (CountStarts; AddPiece and AddEdges, buckets.h): each warp owns an equal run of sorted
//   places, whatever the buckets' sizes, so one full bucket is no slower than many small ones. A
//   run's edge goes to shared memory, and the warp of the run in which its bucket began adds it.
//   Sums that are not finite flag their sequence (BucketSum::Report).
// * A table has one row for each bucket that holds a key, min(n, 2^hash_bits) at the most; a map of
//   2^hash_bits entries says which, so memory does not grow as 2^hash_bits times value_dim, and
//   nothing needs to be cleared.
//
// Memory, a key, hash and head at value_dim 64, in bytes from L2: 256 (fp32) or 128 of values, 1 or
// 2 of codes; and a table written once. benchmarks/operators/yoso.md has the model.
#include "ops/yoso/cuda/buckets.h"

namespace attenuator::yoso {
namespace {

// The block's shared memory.
struct TableShared {
  float* edges;      // [warp][kMaxColumns]
  int* counters;     // for SortByDigit
  int* starts;       // [warp]: buckets that begin in its run
  int* continues;    // [warp]: its run begins within a bucket
  LocalKey* orders;  // one a pass, of `room` keys
  LocalKey* codes;   // [key]
  int room;          // keys, a multiple of 8

  __device__ explicit TableShared(int count, bool two_passes)
      : edges(cuda::SharedMemory<float>()),
        counters(reinterpret_cast<int*>(edges + kBlockWarps * kMaxColumns)),
        starts(counters + kSortCounters),
        continues(starts + kBlockWarps),
        orders(reinterpret_cast<LocalKey*>(continues + kBlockWarps)),
        codes(orders + (two_passes ? 2 : 1) * Quotient(count, 8) * 8),
        room(Quotient(count, 8) * 8) {}
};

// The keys in sorted order.
struct Sorted {
  const LocalKey* codes;
  const LocalKey* order;

  __device__ int code(int key) const { return codes[key]; }
  __device__ bool starts_at(int i) const {
    return i == 0 || codes[order[i]] != codes[order[i - 1]];
  }
  __device__ Place at(int i) const { return {order[i], starts_at(i)}; }
};

// Reads the keys' codes and sorts the keys by them.
__device__ __forceinline__ Sorted SortKeys(const Codes& codes, int count,
                                           const TableShared& shared) {
  ForKeys(
      count, [&](int i) { return codes[i]; },
      [&](int i, int code) { shared.codes[i] = static_cast<LocalKey>(code); });
  LocalKey* order = shared.orders;
  SortByDigit([&](int key) { return shared.codes[key] & (kDigits - 1); }, count, nullptr, order,
              shared.counters);
  if (codes.wide) {
    SortByDigit([&](int key) { return shared.codes[key] >> kDigitBits; }, count, order,
                order + shared.room, shared.counters);
    order += shared.room;
  }
  return {shared.codes, order};
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

template <class T, int kWide, int kRuns>
__global__ void __launch_bounds__(kBlockThreads, 2) Tables(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int warp = threadIdx.x / cuda::kWarp;
  const int local = blockIdx.x - job.first_block;  // head, hash
  const int head = job.head + local / job.num_hashes;
  const int count = job.num_keys, columns = node.table_columns(), buckets = 1 << node.hash_bits;
  const TableShared shared(count, node.hash_bits > kDigitBits);
  int* map =
      reinterpret_cast<int*>(node.scratch + job.maps) + static_cast<std::int64_t>(local) * buckets;
  for (int i = threadIdx.x; i < buckets; i += kBlockThreads) map[i] = -1;

  const Sorted keys = SortKeys(CodesOf(node, job.key_codes, count, local), count, shared);
  const Run run = WarpRun(count, warp);
  BucketSum<kWide, kRuns> bucket = {};
  bucket.table = reinterpret_cast<float*>(node.scratch + job.tables) +
                 static_cast<std::int64_t>(local) * job.table_rows * columns;
  bucket.edge = shared.edges + warp * kMaxColumns;
  bucket.columns = columns;
  bucket.row = CountStarts(keys, run, shared);
  bucket.open = bucket.continued = true;
  const ValueColumns<T, kWide, kRuns> values(node, job, head);
  int* begins = nullptr;
  if (node.divides()) {
    begins = reinterpret_cast<int*>(node.scratch + job.begins) +
             static_cast<std::int64_t>(local) * (job.table_rows + 1);
    int used = 0;
    for (int w = 0; w < kBlockWarps; ++w) used += shared.starts[w];
    if (threadIdx.x == 0) begins[used] = count;
  }
  if (run.begin < run.end) {
    AddPiece(keys, run, run, values, map, begins, bucket);
    if (bucket.continued) bucket.Write();
  }
  __syncthreads();  // edges are there
  if (!bucket.continued) {
    AddEdges(warp, shared.starts, shared.continues, shared.edges, kMaxColumns, bucket);
    bucket.Write();
  }
  bucket.Report(node, job);
}

}  // namespace

int TableBlocks(const Node&, const Job& job) { return job.num_heads * job.num_hashes; }

void LaunchTables(ElementType data, const Node& node, const Jobs& jobs, int blocks, int most_keys,
                  cuda::Stream stream) {
  const int arrays = node.hash_bits > kDigitBits ? 3 : 2;
  const std::size_t shared =
      (kBlockWarps * kMaxColumns + kSortCounters + 2 * kBlockWarps) * sizeof(int) +
      static_cast<std::size_t>(arrays) * Quotient(most_keys, 8) * 8 * sizeof(LocalKey);
  cuda::ForType(data, [&](auto type) {
    ForLanes(node.value_dim, [&](auto wide, auto runs) {
      cuda::Launch("YosoAttention tables", Tables<decltype(type), wide.value, runs.value>,
                   dim3(static_cast<unsigned>(blocks)), kBlockThreads, shared, stream, node, jobs);
    });
  });
}

}  // namespace attenuator::yoso
