// YosoAttention on CUDA: codes of Gaussian hashes.
//
// A block takes 64 rows of one head and all the hashes, or, where that leaves multiprocessors idle,
// a share of their parts of 32. Its warps quantise the rows to int8 in shared memory once, several
// rows each at a time, 8 coordinates a lane; then each multiplies 16 of them by 32 planes, a word,
// at a time: 16 x 32 exact int32 sums, of which the signs are kept. A plane's coordinates are
// p + 1/2, so the sign is that of 2 sum p x + sum x. Sums start at what makes that their own sign
// bit, (sum x - 1) / 2 rounded down, and shift it into a byte. Planes lie so that the eight signs
// of a row in a lane are neighbours (OperandByte, planes.cu): a lane stores them as they are, and
// 32 hashes fill hash_bits whole words, from which codes are cut.
//
// Work per token (its query and its key), hash and head at head_dim 64, hash_bits 8: 2 x 512 int8
// multiply-adds, 16 signs, 2 bytes of codes written; the 64 rows of a block share the planes' 512
// bytes.
#include "ops/yoso/cuda/hash_rows.h"

namespace attenuator::yoso {
namespace {

constexpr int kHashThreads = 128;  // four warps of 16 rows
constexpr int kWordPlanes = 32;
constexpr int kBitPitch = kMaxBits + 1;  // one word more, since a code is cut from two words

// What the products of a part read: the calling lane's share.
struct Operands {
  const signed char* rows;  // of the warp's 16, for LoadMatrices
  const uint4* planes;      // of the part's first word
  int steps;                // of 32 coordinates
};

// Adds the products of the warp's rows with the planes of a word to c. kSteps is `steps`, or 0.
template <int kSteps>
__device__ __forceinline__ void Multiply(const Operands& operands, int word,
                                         std::int32_t (&c)[4][4]) {
  const int steps = kSteps == 0 ? operands.steps : kSteps;
  const uint4* planes = operands.planes + word * steps * (2 * cuda::kWarp);
#pragma unroll(kSteps == 0 ? 1 : kSteps)
  for (int step = 0; step < steps; ++step) {
    std::uint32_t a[4];
    cuda::LoadMatrices(a, operands.rows + step * 32);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 loaded = planes[(step * 2 + half) * cuda::kWarp];
      const std::uint32_t even[2] = {loaded.x, loaded.y}, odd[2] = {loaded.z, loaded.w};
      cuda::MmaInt8(c[2 * half], a, even);
      cuda::MmaInt8(c[2 * half + 1], a, odd);
    }
  }
}

// The signs of the warp's rows for `words` words, into bytes of `bits`: those of the lane's rows
// `low` and low + 8. `lift_planes` is null without a norm lift.
template <int kSteps>
__device__ __forceinline__ void HashWords(const Operands& operands, int words, int low,
                                          const int* sums, const int* half_lifts,
                                          const int* lift_planes, int last_plane,
                                          unsigned char* bits) {
  const int t = static_cast<int>(threadIdx.x % 4);
  const int start[2] = {(sums[low] - 1) >> 1, (sums[low + 8] - 1) >> 1};
  for (int word = 0; word < words; ++word) {
    std::int32_t c[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[j][i] = start[i / 2];
    }
    if (lift_planes != nullptr) {
      const int lifts[2] = {half_lifts[low], half_lifts[low + 8]};
      const int first = word * kWordPlanes + 8 * t;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int plane = lift_planes[min(first + k, last_plane)];
        c[k / 2][k % 2] += plane * lifts[0];
        c[k / 2][2 + k % 2] += plane * lifts[1];
      }
    }
    Multiply<kSteps>(operands, word, c);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t negative = 0;
#pragma unroll
      for (int k = 7; k >= 0; --k) {
        negative = negative << 1 | static_cast<std::uint32_t>(c[k / 2][2 * r + k % 2]) >> 31;
      }
      bits[((low + 8 * r) * kBitPitch + word) * 4 + t] = static_cast<unsigned char>(~negative);
    }
  }
}

// Six blocks a multiprocessor are asked for: then no register is spilled on sm_86 and sm_89.
template <class T>
__global__ void __launch_bounds__(kHashThreads, 6) HashGaussian(Node node, Jobs jobs, bool by_row) {
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const HashPlace place = Locate(node, job, blockIdx.x - job.first_block, by_row);
  const int padded = PaddedDim(node.head_dim), pitch = padded + kGapBytes, steps = padded / 32;
  signed char* data = cuda::SharedMemory<signed char>();
  int* sums = reinterpret_cast<int*>(data + kCudaRowTile * pitch);
  int* half_lifts = sums + kCudaRowTile;
  std::uint32_t* bits = reinterpret_cast<std::uint32_t*>(half_lifts + kCudaRowTile);
  QuantiseRows<T>(node, place, padded, data, sums, half_lifts);

  const int warp = threadIdx.x / cuda::kWarp, lane = threadIdx.x % cuda::kWarp;
  const int hash_bits = node.hash_bits;
  for (int first = place.part * kCudaHashChunk; first < job.num_hashes;
       first += job.hash_blocks * kCudaHashChunk) {
    __syncthreads();  // rows are there, and the codes of the part before are written
    // The part's first word: 32 hashes are whole words.
    const Operands operands{
        data + (warp * 16 + lane % 16) * pitch + lane / 16 * 16,
        reinterpret_cast<const uint4*>(node.scratch + job.planes +
                                       (place.head - job.plane_head) * job.plane_stride) +
            static_cast<std::int64_t>(first / kWordPlanes) * hash_bits * steps * 2 * cuda::kWarp +
            lane,
        steps};
    const int words =
        Quotient(min(kCudaHashChunk, job.num_hashes - first) * hash_bits, kWordPlanes);
    const int* lift_planes =
        node.lifted() ? LiftPlanes(node, job, place) + first * hash_bits : nullptr;
    const auto multiply = [&](auto kSteps) {
      HashWords<kSteps.value>(operands, words, warp * 16 + lane / 4, sums, half_lifts, lift_planes,
                              (job.num_hashes - first) * hash_bits - 1,
                              reinterpret_cast<unsigned char*>(bits));
    };
    steps == 2 ? multiply(std::integral_constant<int, 2>{})
               : multiply(std::integral_constant<int, 0>{});
    __syncthreads();
    WriteCodes(node, job, place, first, kCudaHashChunk, by_row, [&](int r, int hash) {
      const std::uint32_t* word = bits + r * kBitPitch + hash * hash_bits / 32;
      const std::uint64_t two = static_cast<std::uint64_t>(word[1]) << 32 | word[0];
      return static_cast<std::uint32_t>(two >> (hash * hash_bits % 32)) & ((1u << hash_bits) - 1);
    });
  }
}

}  // namespace

int HashParts(const Node& node, const Job& job) {
  if (!node.hadamard) return Quotient(job.num_hashes, kCudaHashChunk);
  const int size = HadamardSize(node.head_dim);
  return Quotient(job.first_hash + job.num_hashes, size) - job.first_hash / size;
}

int HashBlocks(const Node&, const Job& job) {
  return job.num_heads * job.hash_blocks *
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
