// Sums of the values of a bucket's keys, for YosoAttention's table kernels: a warp walks over keys
// in sorted order and adds their rows in registers.
//
// Sums never depend on how walks are cut. Of a (head, hash) the sorted places are eight equal runs;
// a bucket's keys within a run are added up one after another from 0, and where it spans several
// runs those sums are added in order of the runs. A run's keys before its first bucket begins are
// its edge: the rest of an earlier run's bucket. A warp takes a run, or a piece of one: then the
// buckets that begin in its piece, to their ends in the run, and the run's edge if it is the first.
//
// Work in flight: values are reached through the order, so each row is a wait of its own unless
// many are asked for at once. A lane owns two neighbouring columns of every 64 (one of every 32
// where value_dim is odd) and has kAhead rows under way in 16 registers: of 64 columns 8 rows in
// float and 16 in half types, 2 KiB a warp either way. Keys are read a step of 32 ahead. Where no
// bucket begins among rows that were asked for together, they are added without a question: a row
// of 64 columns in half types then takes 10 instructions.
#pragma once

#include "ops/yoso/cuda/sort.h"

namespace attenuator::yoso {

// A key in sorted order, and whether it is the first of its bucket.
struct Place {
  int key;
  bool starts;
};

// kWide neighbouring elements, read at once.
template <class T, int kWide>
struct alignas(sizeof(T) * kWide) Wide {
  T of[kWide];
};

// State of a warp: the row of the table that it adds to, its sums, and whether that is a run's
// edge. Lanes own kWide columns of each of kRuns times 32 kWide.
template <int kWide, int kRuns>
struct BucketSum {
  float* table;
  float* edge;  // the run's
  int columns;
  int row;
  bool open;         // there is something to write
  bool continued;    // it belongs to the run's edge
  unsigned largest;  // magnitude of what was written, as bits: those of infinity, NaN are the most
  Wide<float, kWide> sums[kRuns];

  __device__ static int Column(int run) {
    return (run * cuda::kWarp + static_cast<int>(threadIdx.x) % cuda::kWarp) * kWide;
  }
  __device__ __forceinline__ float* Target() const {
    return continued ? edge : table + static_cast<std::int64_t>(row) * columns;
  }
  __device__ __forceinline__ void Write() {
    float* target = Target();
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) largest = max(largest, Magnitude(sums[k].of[w]));
      if (Column(k) < columns) *reinterpret_cast<Wide<float, kWide>*>(target + Column(k)) = sums[k];
    }
  }
  __device__ __forceinline__ void Read() {
    const float* source = Target();
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      if (Column(k) < columns) {
        sums[k] = *reinterpret_cast<const Wide<float, kWide>*>(source + Column(k));
      }
    }
  }
  // Every value is in some sum, and a sum with an infinity or a NaN in it is not finite.
  __device__ __forceinline__ void Report(const Node& node, const Job& job) const {
    if (largest >= kInfinite) atomicMax(node.broken + job.sequence, 1);
  }
  template <class T>
  __device__ __forceinline__ void Add(const Wide<T, kWide> (&values)[kRuns]) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) sums[k].of[w] += cuda::ToFloat(values[k].of[w]);
    }
  }
  __device__ __forceinline__ void Begin() {
    continued = false;
    open = true;
    ++row;
#pragma unroll
    for (int k = 0; k < kRuns; ++k) sums[k] = {};
  }
};

// The calling lane's columns of values, which are read by key. A lane beyond the last column reads
// the last ones again, which nobody adds up: reads without a branch are all under way at once.
template <class T, int kWide, int kRuns>
struct ValueColumns {
  using Row = Wide<T, kWide>;

  const unsigned char* first;  // the lane's columns of run 0, of key 0
  unsigned further[kRuns];     // bytes from there to those of other runs
  unsigned pitch;              // from key to key: with 32 bits an address is one multiplication

  __device__ __forceinline__ ValueColumns(const Node& node, const Job& job, int head)
      : pitch(
            static_cast<unsigned>(node.num_heads * node.value_dim * static_cast<int>(sizeof(T)))) {
    const auto column = [&](int run) {
      return min(BucketSum<kWide, kRuns>::Column(run), node.value_dim - kWide);
    };
    const std::int64_t row = std::int64_t{job.key_row} * node.num_heads + head;
    first = reinterpret_cast<const unsigned char*>(static_cast<const T*>(node.value) +
                                                   row * node.value_dim + column(0));
    further[0] = 0;
#pragma unroll
    for (int k = 1; k < kRuns; ++k) {
      further[k] = static_cast<unsigned>(column(k) - column(0)) * sizeof(T);
    }
  }
  __device__ __forceinline__ void Read(int key, Row (&row)[kRuns]) const {
    const unsigned char* columns = first + std::uint64_t{static_cast<unsigned>(key)} * pitch;
#pragma unroll
    for (int k = 0; k < kRuns; ++k) row[k] = *reinterpret_cast<const Row*>(columns + further[k]);
  }
};

// Adds the values of the buckets that begin in `piece` of `run` to `bucket`, which is open where
// the piece is the run's first, and writes each row that ends; the last one stays in registers.
// Notes in `map` which row a code has, and in `begins`, unless it is null, where the row's keys
// are. `keys.at(i)` is the Place i.
template <class T, int kWide, int kRuns, class Keys>
__device__ __forceinline__ void AddPiece(const Keys& keys, const Run& run, const Run& piece,
                                         const ValueColumns<T, kWide, kRuns>& values, int* map,
                                         int* begins, BucketSum<kWide, kRuns>& bucket) {
  using Row = Wide<T, kWide>;
  constexpr int kRegisters = kRuns * static_cast<int>((sizeof(Row) + 3) / 4);  // of a row's reads
  constexpr int kAhead = kRegisters <= 1 ? 16 : kRegisters >= 8 ? 2 : 16 / kRegisters;
  const int lane = threadIdx.x % cuda::kWarp;
  Place place = keys.at(min(piece.begin + lane, run.end - 1));
  for (int base = piece.begin; base < (bucket.open ? run.end : piece.end); base += cuda::kWarp) {
    const Place next = keys.at(min(base + cuda::kWarp + lane, run.end - 1));
    const int i = base + lane;
    int size = min(cuda::kWarp, run.end - base);
    unsigned starts = __ballot_sync(cuda::kFullMask, i < run.end && place.starts);
    const bool over = base >= piece.end && starts != 0;  // another piece's buckets begin
    if (over) {
      size = __ffs(static_cast<int>(starts)) - 1;
      starts = 0;
    }
    if ((starts >> lane & 1) != 0) {
      const int row = bucket.row + __popc(starts << (31 - lane));
      map[keys.code(place.key)] = row;
      if (begins != nullptr) begins[row] = i;
    }
    // Keys before the first start of a piece belong to an earlier one.
    const int first = bucket.open ? 0 : starts != 0 ? __ffs(static_cast<int>(starts)) - 1 : size;
    for (int j = first; j < size; j += kAhead) {
      Row ahead[kAhead][kRuns];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        // Lanes count modulo the warp: beyond the last place this is some other key of the step,
        // whose row is not added.
        values.Read(__shfl_sync(cuda::kFullMask, place.key, j + a), ahead[a]);
      }
      // Mostly no bucket begins here, and nothing needs to be asked from row to row.
      if ((starts >> j & ((1u << kAhead) - 1)) == 0 && j + kAhead <= size) {
#pragma unroll
        for (int a = 0; a < kAhead; ++a) bucket.Add(ahead[a]);
        continue;
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        if (j + a >= size) break;
        if ((starts >> (j + a) & 1) != 0) {
          if (bucket.open && base + j + a > run.begin) bucket.Write();
          bucket.Begin();
        }
        bucket.Add(ahead[a]);
      }
    }
    if (over) return;
    place = next;
  }
}

// Adds to the bucket of run `warp` that is the last to begin there what later runs hold of it, in
// their order. Of each run, `starts` counts the buckets that begin there, `continues` is not 0
// where it has an edge, and `edges` are [run][stride].
template <int kWide, int kRuns>
__device__ __forceinline__ void AddEdges(int warp, const int* starts, const int* continues,
                                         const float* edges, int stride,
                                         BucketSum<kWide, kRuns>& bucket) {
  for (int w = warp + 1; w < kBlockWarps && continues[w] != 0; ++w) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      const int c = BucketSum<kWide, kRuns>::Column(k);
      if (c >= bucket.columns) continue;
#pragma unroll
      for (int e = 0; e < kWide; ++e) bucket.sums[k].of[e] += edges[w * stride + c + e];
    }
    if (starts[w] > 0) break;
  }
}

// Calls body(kWide, kRuns), as integral constants, for rows of value_dim columns.
template <class Body>
void ForLanes(int value_dim, const Body& body) {
  if (value_dim % 2 != 0) {
    return body(std::integral_constant<int, 1>{}, std::integral_constant<int, 8>{});
  }
  ForRuns<4>(value_dim, 2 * cuda::kWarp,
             [&](auto runs) { body(std::integral_constant<int, 2>{}, runs); });
}

}  // namespace attenuator::yoso
