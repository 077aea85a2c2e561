// YosoAttention on CUDA, the table path of sequences of more than kSharedKeys keys: sums of values
// by bucket, from the order that long_sort.cu leaves.
//
// AddPieces: a warp takes a piece, kPieceKeys places of one of the eight runs, and adds the buckets
// that begin there (buckets.h): n / 512 warps for each (head, hash), a bucket's rows one after
// another in one of them. Runs' edges go to scratch. JoinRuns, a block for each (head, hash), adds
// edges to the buckets that they belong to. Both do what one block of tables.cu does, in its order,
// so that sums have the bits they would have there. Sums that are not finite flag their sequence
// (BucketSum::Report).
//
// Blocks of a (head, hash) are neighbours, and so are its head's hashes: those that run at a time
// share the values of a head or two, n value_dim elements, which the L2 cache then holds.
//
// Memory, a key, hash and head at value_dim 64, in bytes from L2: 256 (fp32) or 128 of values and 4
// of order, and tables written once.
#include "ops/yoso/cuda/long.h"

namespace attenuator::yoso {
namespace {

// The keys in sorted order.
struct Marked {
  const int* order;
  Codes codes;

  __device__ int code(int key) const { return codes[key]; }
  __device__ Place at(int i) const {
    const int entry = order[i];
    return {entry & ~kStart, entry < 0};
  }
};

__device__ inline float* TableOf(const Node& node, const Job& job, int local) {
  return reinterpret_cast<float*>(node.scratch + job.tables) +
         static_cast<std::int64_t>(local) * job.table_rows * node.table_columns();
}

__device__ inline int* BeginsOf(const Node& node, const Job& job, int local) {
  return node.divides() ? reinterpret_cast<int*>(node.scratch + job.begins) +
                              static_cast<std::int64_t>(local) * (job.table_rows + 1)
                        : nullptr;
}

template <class T, int kWide, int kRuns>
__global__ void __launch_bounds__(kBlockThreads, 3) AddPieces(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const LongSizes sizes = LongSizesOf(node, job);
  const PiecePlace place = PieceOf(job, sizes);
  if (place.piece.begin >= place.piece.end) return;
  const int* orders = LongScratch(node, job, place.local);
  const int head = job.head + place.local / job.num_hashes;
  const Marked keys{orders, CodesOf(node, job.key_codes, job.num_keys, place.local)};
  BucketSum<kWide, kRuns> bucket = {};
  bucket.columns = node.table_columns();
  bucket.table = TableOf(node, job, place.local);
  bucket.edge = reinterpret_cast<float*>(LongScratch(node, job, place.local)) + sizes.edges +
                place.run * bucket.columns;
  bucket.row = CountBegun(node, job, orders, sizes, {0, place.index}, {0, place.piece.begin}) - 1;
  bucket.open = bucket.continued = place.piece.begin == place.all.begin;
  const ValueColumns<T, kWide, kRuns> values(node, job, head);
  int* map = reinterpret_cast<int*>(node.scratch + job.maps) +
             (static_cast<std::int64_t>(place.local) << node.hash_bits);
  AddPiece(keys, place.all, place.piece, values, map, BeginsOf(node, job, place.local), bucket);
  if (bucket.open) bucket.Write();
  bucket.Report(node, job);
}

__global__ void __launch_bounds__(kBlockThreads) JoinRuns(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const LongSizes sizes = LongSizesOf(node, job);
  const int local = static_cast<int>(blockIdx.x) - job.first_block;
  const int lane = threadIdx.x % cuda::kWarp, warp = threadIdx.x / cuda::kWarp;
  const int of_run = sizes.pieces / kBlockWarps;
  const int* orders = LongScratch(node, job, local);
  int* starts = cuda::SharedMemory<int>();  // [run]
  int* continues = starts + kBlockWarps;    // [run]
  const Run run = WarpRun(job.num_keys, warp);
  const int begun = CountBegun(node, job, orders, sizes, {warp * of_run, (warp + 1) * of_run}, run);
  if (lane == 0) {
    starts[warp] = begun;
    continues[warp] = run.begin < run.end && orders[run.begin] >= 0;
  }
  __syncthreads();
  int row = -1, used = 0;
  for (int w = 0; w < kBlockWarps; ++w) {
    if (w <= warp) row += starts[w];
    used += starts[w];
  }
  int* begins = BeginsOf(node, job, local);
  if (begins != nullptr && threadIdx.x == 0) begins[used] = job.num_keys;
  if (begun == 0 || warp + 1 == kBlockWarps || continues[warp + 1] == 0) return;
  BucketSum<1, kMaxColumns / cuda::kWarp> bucket = {};
  bucket.columns = node.table_columns();
  bucket.table = TableOf(node, job, local);
  bucket.row = row;
  bucket.Read();
  AddEdges(warp, starts, continues, reinterpret_cast<const float*>(orders) + sizes.edges,
           bucket.columns, bucket);
  bucket.Write();
  bucket.Report(node, job);
}

}  // namespace

void LaunchAddPieces(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                     cuda::Stream stream) {
  cuda::ForType(data, [&](auto type) {
    ForLanes(node.value_dim, [&](auto wide, auto runs) {
      cuda::Launch("YosoAttention add pieces", AddPieces<decltype(type), wide.value, runs.value>,
                   dim3(static_cast<unsigned>(blocks)), kBlockThreads, 0, stream, node, jobs);
    });
  });
}

void LaunchJoinRuns(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream) {
  cuda::Launch("YosoAttention join runs", JoinRuns, dim3(static_cast<unsigned>(blocks)),
               kBlockThreads, 2 * kBlockWarps * sizeof(int), stream, node, jobs);
}

}  // namespace attenuator::yoso
