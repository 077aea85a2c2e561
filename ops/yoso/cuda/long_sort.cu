// YosoAttention on CUDA, the table path of sequences of more than kSharedKeys keys: keys in the
// order of their codes, by many blocks for each (head, hash).
//
// A stable radix sort by 8 bits of the codes, twice where hash_bits > 8. A block takes kSharedKeys
// keys, a part:
//
// * CountDigits counts a part's digits;
// * Offsets, a block for each (head, hash), turns counts into first places: by digit, then by part;
// * Scatter sorts a part in shared memory (sort.h) and then writes it, neighbouring threads to
//   neighbouring places: 16 keys of 256 digits are 64 bytes in a row, where each key written alone
//   would be a 32-byte sector of its own.
//
// Entries of the last order have kStart set where a bucket begins, so that who adds values reads no
// codes to find that out. Up to 8 bits Scatter knows where a digit begins, and CountBegun numbers
// the table's rows from the digits' first places, 1 KiB a piece. Beyond that Mark compares the
// codes of neighbours, from one array of orders into the other, and counts each piece's starts.
//
// The order is the one that a stable sort by one block gives, however many parts there are.
//
// Memory, a key, hash and head, in bytes from L2: 2 of codes, 4 of order written and 4 read by who
// adds; where hash_bits > 8 4 of codes, 12 of order written and 16 read, and 6 gathered codes.
// A block waits for memory twice, whatever its part.
#include "ops/yoso/cuda/long.h"

namespace attenuator::yoso {
namespace {

// Where a block finds its part of a (head, hash).
struct Part {
  int local;  // head, hash
  int part, begin, count;
  int* orders;    // of the (head, hash)
  int* counters;  // of the part
};

__device__ inline Part PartOf(const Node& node, const Job& job) {
  const LongSizes sizes = LongSizesOf(node, job);
  const int block = static_cast<int>(blockIdx.x) - job.first_block;
  Part part;
  part.local = block / sizes.parts;
  part.part = block % sizes.parts;
  part.begin = part.part * kSharedKeys;
  part.count = min(kSharedKeys, job.num_keys - part.begin);
  part.orders = LongScratch(node, job, part.local);
  part.counters = part.orders + sizes.counters + part.part * kDigits;
  return part;
}

// The part's digits of a pass, into shared memory.
__device__ __forceinline__ void LoadDigits(const Node& node, const Job& job, const Part& part,
                                           int pass, unsigned char* digits) {
  const Codes codes = CodesOf(node, job.key_codes, job.num_keys, part.local);
  const int* source = part.orders + part.begin;  // of the pass before
  const auto digit_of = [&](int i) {
    return pass == 0 ? codes[part.begin + i] & (kDigits - 1) : codes[source[i]] >> kDigitBits;
  };
  ForKeys(part.count, digit_of,
          [&](int i, int digit) { digits[i] = static_cast<unsigned char>(digit); });
}

__global__ void __launch_bounds__(kBlockThreads, 4) CountDigits(Node node, Jobs jobs, int pass) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const Part part = PartOf(node, job);
  int* counts = cuda::SharedMemory<int>();  // [digit]
  unsigned char* digits = reinterpret_cast<unsigned char*>(counts + kDigits);
  counts[threadIdx.x] = 0;
  LoadDigits(node, job, part, pass, digits);
  __syncthreads();
  for (int i = threadIdx.x; i < part.count; i += kBlockThreads) atomicAdd(counts + digits[i], 1);
  __syncthreads();
  part.counters[threadIdx.x] = counts[threadIdx.x];
  if (pass > 0) return;
  // Its share of the map, which Add fills.
  const int parts = Quotient(job.num_keys, kSharedKeys), buckets = 1 << node.hash_bits;
  int* map = reinterpret_cast<int*>(node.scratch + job.maps) +
             static_cast<std::int64_t>(part.local) * buckets;
  for (int i = part.part * kBlockThreads + threadIdx.x; i < buckets; i += parts * kBlockThreads) {
    map[i] = -1;
  }
}

__global__ void __launch_bounds__(kBlockThreads) Offsets(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const LongSizes sizes = LongSizesOf(node, job);
  int* counters = LongScratch(node, job, static_cast<int>(blockIdx.x) - job.first_block) +
                  sizes.counters + threadIdx.x;
  int total = 0;
#pragma unroll 8
  for (int part = 0; part < sizes.parts; ++part) total += counters[part * kDigits];
  int place = ExclusiveSum(total, cuda::SharedMemory<int>());
#pragma unroll 8
  for (int part = 0; part < sizes.parts; ++part) {
    const int count = counters[part * kDigits];
    counters[part * kDigits] = place;
    place += count;
  }
}

__global__ void __launch_bounds__(kBlockThreads, 4) Scatter(Node node, Jobs jobs, int pass) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const Part part = PartOf(node, job);
  int* counters = cuda::SharedMemory<int>();  // for SortByDigit
  int* first = counters + kSortCounters;      // [digit]: where the bucket begins
  int* base = first + kDigits;                // [digit]: from places in the part to places
  auto* order = reinterpret_cast<LocalKey*>(base + kDigits);
  auto* digits = reinterpret_cast<unsigned char*>(order + kSharedKeys);
  LoadDigits(node, job, part, pass, digits);
  SortByDigit([&](int key) { return static_cast<int>(digits[key]); }, part.count, nullptr, order,
              counters);
  const int digit = static_cast<int>(threadIdx.x);
  const int* ends = counters + (kBlockWarps - 1) * kDigits;
  first[digit] = part.counters[digit - part.part * kDigits];
  base[digit] = part.counters[digit] - (digit == 0 ? 0 : ends[digit - 1]);
  __syncthreads();
  const int* source = part.orders + part.begin;
  int* target = part.orders + (pass == 0 ? 0 : job.num_keys);
  const bool last = node.hash_bits <= kDigitBits;
  for (int i = threadIdx.x; i < part.count; i += kBlockThreads) {
    const int local = order[i], own = digits[local], place = base[own] + i;
    const int key = pass == 0 ? part.begin + local : source[local];
    target[place] = last && place == first[own] ? key | kStart : key;
  }
}

// One warp for each piece; where hash_bits > 8.
__global__ void __launch_bounds__(kBlockThreads, 4) Mark(Node node, Jobs jobs) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const LongSizes sizes = LongSizesOf(node, job);
  const PiecePlace place = PieceOf(job, sizes);
  const int lane = threadIdx.x % cuda::kWarp;
  int* orders = LongScratch(node, job, place.local);
  const int* source = orders + job.num_keys;
  const Run piece = place.piece;
  const Codes codes = CodesOf(node, job.key_codes, job.num_keys, place.local);
  int before = -1, begun = 0;  // the code of the key before the step
  if (piece.begin > 0 && piece.begin < piece.end) before = codes[source[piece.begin - 1]];
#pragma unroll 4
  for (int base = piece.begin; base < piece.end; base += cuda::kWarp) {
    const int i = base + lane, at = min(i, piece.end - 1);
    const int key = source[at], code = codes[key];
    const int neighbour = __shfl_up_sync(cuda::kFullMask, code, 1);
    const bool starts = code != (lane == 0 ? before : neighbour);
    before = __shfl_sync(cuda::kFullMask, code, cuda::kWarp - 1);
    if (i < piece.end) orders[i] = starts ? key | kStart : key;
    begun += __popc(__ballot_sync(cuda::kFullMask, i < piece.end && starts));
  }
  if (lane == 0 && place.index < sizes.pieces) orders[sizes.starts + place.index] = begun;
}

}  // namespace

int PartBlocks(const Node& node, const Job& job) {
  return job.num_heads * job.num_hashes * LongSizesOf(node, job).parts;
}

void LaunchCountDigits(const Node& node, const Jobs& jobs, int blocks, int pass,
                       cuda::Stream stream) {
  cuda::Launch("YosoAttention count digits", CountDigits, dim3(static_cast<unsigned>(blocks)),
               kBlockThreads, kDigits * sizeof(int) + kSharedKeys, stream, node, jobs, pass);
}

void LaunchOffsets(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream) {
  cuda::Launch("YosoAttention offsets", Offsets, dim3(static_cast<unsigned>(blocks)), kBlockThreads,
               kBlockWarps * sizeof(int), stream, node, jobs);
}

void LaunchScatter(const Node& node, const Jobs& jobs, int blocks, int pass, cuda::Stream stream) {
  const std::size_t shared =
      (kSortCounters + 2 * kDigits) * sizeof(int) + kSharedKeys * (sizeof(LocalKey) + 1);
  cuda::Launch("YosoAttention scatter", Scatter, dim3(static_cast<unsigned>(blocks)), kBlockThreads,
               shared, stream, node, jobs, pass);
}

int PieceBlocks(const Node& node, const Job& job) {
  return job.num_heads * job.num_hashes * PieceBlocksOf(LongSizesOf(node, job));
}

void LaunchMark(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream) {
  cuda::Launch("YosoAttention mark", Mark, dim3(static_cast<unsigned>(blocks)), kBlockThreads, 0,
               stream, node, jobs);
}

}  // namespace attenuator::yoso
