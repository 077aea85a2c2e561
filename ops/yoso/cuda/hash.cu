// YosoAttention on CUDA: codes of Gaussian hashes.
//
// A block takes 64 rows by 32 hashes of one head. Its warps quantise the rows to int8 in shared
// memory, several rows each at a time, 8 coordinates a lane; then each multiplies 16 of them by 32
// planes at a time: 16 x 32 exact int32 sums, of which the signs are kept. A product leaves each
// lane two signs of a row; two shuffles gather a row's 32 signs into one word, and 32 hashes fill
// hash_bits whole words, from which codes are cut. A plane's coordinates are p + 1/2, so the sign
// is that of 2 sum p x + sum x.
//
// Work per token (its query and its key), hash and head at head_dim 64, hash_bits 8: 2 x 512 int8
// multiply-adds, 16 sign extractions, 2 bytes of codes written; the 64 rows of a block share the
// planes' 512 bytes. Rows are read once for every 32 hashes.
#include "ops/yoso/cuda/hash_rows.h"

namespace attenuator::yoso {
namespace {

constexpr int kHashThreads = 128;  // four warps of 16 rows
constexpr int kWordPlanes = 32;

template <class T>
__global__ void __launch_bounds__(kHashThreads) HashGaussian(Node node, Jobs jobs, bool by_row) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const HashPlace place = Locate(node, job, blockIdx.x - job.first_block,
                                 Quotient(job.num_hashes, kCudaHashChunk), by_row);
  const int padded = PaddedDim(node.head_dim), pitch = padded + kGapBytes, steps = padded / 32;
  signed char* data = cuda::SharedMemory<signed char>();
  int* sums = reinterpret_cast<int*>(data + kCudaRowTile * pitch);
  constexpr int kBitPitch = kMaxBits + 1;  // one word more, since a code is cut from two words
  int* half_lifts = sums + kCudaRowTile;
  std::uint32_t* bits = reinterpret_cast<std::uint32_t*>(half_lifts + kCudaRowTile);
  QuantiseRows<T>(node, place, padded, data, sums, half_lifts);
  __syncthreads();

  const int first = place.part * kCudaHashChunk;
  const int words =
      Quotient(min(kCudaHashChunk, job.num_hashes - first) * node.hash_bits, kWordPlanes);
  const int warp = threadIdx.x / cuda::kWarp, lane = threadIdx.x % cuda::kWarp;
  const int group = lane / 4, t = lane % 4;
  const int low = warp * 16 + group, high = low + 8;
  // The chunk's first group of 8 planes: 32 hashes are whole groups.
  const std::int64_t chunk =
      static_cast<std::int64_t>(first) * node.hash_bits / 8 * steps * cuda::kWarp;
  const uint2* planes =
      reinterpret_cast<const uint2*>(node.scratch + job.planes +
                                     (place.head - job.plane_head) * job.plane_stride) +
      chunk + lane;
  const int* lift_planes = LiftPlanes(node, job, place) + first * node.hash_bits;
  const int last_plane = (job.num_hashes - first) * node.hash_bits - 1;
  const signed char* operand = data + (warp * 16 + lane % 16) * pitch + lane / 16 * 16;
  for (int word = 0; word < words; ++word) {
    std::int32_t c[4][4] = {};
    for (int step = 0; step < steps; ++step) {
      std::uint32_t a[4];
      cuda::LoadMatrices(a, operand + step * 32);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 loaded =
            planes[(static_cast<std::int64_t>(word * 4 + j) * steps + step) * cuda::kWarp];
        const std::uint32_t b[2] = {loaded.x, loaded.y};
        cuda::MmaInt8(c[j], a, b);
      }
    }
    std::uint32_t row[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int bit = 8 * j + 2 * t + i % 2;
        int sum = 2 * c[j][i] + sums[i < 2 ? low : high];
        if (node.lifted()) {
          sum += 2 * lift_planes[min(word * kWordPlanes + bit, last_plane)] *
                 half_lifts[i < 2 ? low : high];
        }
        row[i / 2] |= static_cast<std::uint32_t>(sum > 0) << bit;
      }
    }
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2) {
      row[0] |= __shfl_xor_sync(cuda::kFullMask, row[0], lanes);
      row[1] |= __shfl_xor_sync(cuda::kFullMask, row[1], lanes);
    }
    if (t < 2) bits[(t == 0 ? low : high) * kBitPitch + word] = row[t];
  }
  __syncthreads();
  const int hash_bits = node.hash_bits;
  WriteCodes(node, job, place, first, kCudaHashChunk, by_row, [&](int r, int hash) {
    const std::uint32_t* word = bits + r * kBitPitch + hash * hash_bits / 32;
    const std::uint64_t two = static_cast<std::uint64_t>(word[1]) << 32 | word[0];
    return static_cast<std::uint32_t>(two >> (hash * hash_bits % 32)) & ((1u << hash_bits) - 1);
  });
}

int HashParts(const Node& node, const Job& job) {
  if (!node.hadamard) return Quotient(job.num_hashes, kCudaHashChunk);
  const int size = HadamardSize(node.head_dim);
  return Quotient(job.first_hash + job.num_hashes, size) - job.first_hash / size;
}

}  // namespace

int HashBlocks(const Node& node, const Job& job) {
  return job.num_heads * HashParts(node, job) *
         (Quotient(job.num_queries, kCudaRowTile) + Quotient(job.num_keys, kCudaRowTile));
}

void LaunchHash(ElementType data, const Node& node, const Jobs& jobs, int blocks, bool by_row,
                cuda::Stream stream) {
  const dim3 grid(static_cast<unsigned>(blocks));
  if (node.hadamard) return LaunchHadamard(data, node, jobs, grid, by_row, stream);
  const int padded = PaddedDim(node.head_dim);
  const std::size_t shared = kCudaRowTile * (padded + kGapBytes + 8 + 4 * (kMaxBits + 1)) + 16;
  cuda::ForType(data, [&](auto type) {
    cuda::Launch("YosoAttention hash", HashGaussian<decltype(type)>, grid, kHashThreads, shared,
                 stream, node, jobs, by_row);
  });
}

}  // namespace attenuator::yoso
