// YosoAttention on CUDA: codes of Hadamard hashes.
//
// A block takes 64 rows of one head, which it rounds once, and all parts of `size` hashes, or,
// where that leaves multiprocessors idle, a share of them. A lane holds up to 64 coordinates of a
// row in registers: up to size 64 the transform needs no shuffles, above it one or two levels of
// them. All lanes of a warp work on the same bit of the code, so that they share the random signs.
// Signs of coordinates become bit masks, on which the rule for ties (hadamard.inl) takes a few
// logical operations.
//
// Work per row, part and bit: three transforms of `size` log2(size) additions, and `size` signs.
#include "ops/yoso/cuda/hash_rows.h"

namespace attenuator::yoso {
namespace {

// Coordinates of a Hadamard block that one lane holds: up to 64, in registers.
__host__ __device__ constexpr int LanesOf(int size) { return size <= 64 ? 1 : size / 64; }

// Transforms a row that kLanes neighbouring lanes hold, coordinate lane + kLanes k in x[k]: by
// Walsh-Hadamard (weight 1, steps a + b and a - b), or unevenly (weight 2, steps 2a + b and a - 2b;
// hadamard.inl).
template <int kLanes, int kPer>
__device__ inline void Transform(int (&x)[kPer], int lane, int weight) {
#pragma unroll
  for (int half = 1; half < kLanes; half *= 2) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      const int other = __shfl_xor_sync(cuda::kFullMask, x[k], half);
      x[k] = other + ((lane & half) != 0 ? -weight * x[k] : weight * x[k]);
    }
  }
#pragma unroll
  for (int half = 1; half < kPer; half *= 2) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      if ((k & half) != 0) continue;
      const int a = x[k], b = x[k + half];
      x[k] = weight * a + b;
      x[k + half] = a - weight * b;
    }
  }
}

// As in hadamard.inl.
__device__ constexpr float LiftScale(int size) {
  return size == 32    ? 39.528470752104745f
         : size == 64  ? 125.0f
         : size == 128 ? 395.28470752104744f
                       : 1250.0f;
}

using Mask = unsigned long long;  // bit k: coordinate lane + kLanes k

// Rotates the mask of a row: bit k becomes that of the coordinate `ahead` (1 or 2) further on.
template <int kLanes, int kPer>
__device__ inline Mask Ahead(Mask mask, int lane, int ahead) {
  const int target = lane + ahead;
  if (kLanes > 1) {
    mask = __shfl_sync(cuda::kFullMask, mask, threadIdx.x % cuda::kWarp - lane + target % kLanes);
  }
  const int turn = target / kLanes;
  return turn == 0 ? mask : mask >> turn | (mask & ((1u << turn) - 1)) << (kPer - turn);
}

// QuantiseRows, of rows of any type.
__device__ inline void QuantiseRowsOf(ElementType data, const Node& node, const HashPlace& place,
                                      int padded, signed char* rounded, int* sums,
                                      int* half_lifts) {
  switch (data) {
    case ElementType::kFloat16:
      return QuantiseRows<cuda::Half>(node, place, padded, rounded, sums, half_lifts);
    case ElementType::kBfloat16:
      return QuantiseRows<cuda::Bfloat16>(node, place, padded, rounded, sums, half_lifts);
    default:
      return QuantiseRows<float>(node, place, padded, rounded, sums, half_lifts);
  }
}

// Three signed transforms of a row, with the signs of one bit of the code.
template <int kSize, int kPer>
__device__ __forceinline__ void Rotate(const std::uint32_t* signs, int lane, int (&x)[kPer]) {
  constexpr int kLanes = LanesOf(kSize);
#pragma unroll 1
  for (int round = 0; round < 3; ++round) {
#pragma unroll
    for (int w = 0; w < kSize / 32; ++w) {
      const std::uint32_t word = signs[round * (kSize / 32) + w] >> lane;
#pragma unroll
      for (int k = 0; k < 32 / kLanes; ++k) {
        int& y = x[w * (32 / kLanes) + k];
        y = (word >> (k * kLanes) & 1) != 0 ? -y : y;
      }
    }
    Transform<kLanes>(x, lane, round == 0 ? 2 : 1);
  }
}

// As AddLiftedBits of hadamard.inl: four times the coordinate and its ties against the lift.
// `planes` is that of coordinate `lane`, and those of neighbouring ones are `pitch` apart.
template <int kSize, int kPer>
__device__ __forceinline__ Mask LiftedBits(const int (&x)[kPer], Mask positive, Mask negative,
                                           int lane, const int* planes, int pitch,
                                           float half_lift) {
  constexpr int kLanes = LanesOf(kSize);
  const Mask up[2] = {Ahead<kLanes, kPer>(positive, lane, 1),
                      Ahead<kLanes, kPer>(positive, lane, 2)};
  const Mask down[2] = {Ahead<kLanes, kPer>(negative, lane, 1),
                        Ahead<kLanes, kPer>(negative, lane, 2)};
  Mask bits = 0;
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    const int ties = 2 * (static_cast<int>(up[0] >> k & 1) - static_cast<int>(down[0] >> k & 1)) +
                     static_cast<int>(up[1] >> k & 1) - static_cast<int>(down[1] >> k & 1);
    const float plane = static_cast<float>(*planes);
    planes += kLanes * pitch;
    const float against = __fmul_rn(-__fmul_rn(LiftScale(kSize), plane), half_lift);
    bits |= static_cast<Mask>(static_cast<float>(4 * x[k] + ties) > against) << k;
  }
  return bits;
}

// kLifted: whether the node has a norm lift, whose registers the other kernels then do without.
template <int kSize, bool kLifted>
__global__ void __launch_bounds__(kBlockThreads, 1)
    HashHadamard(Node node, Jobs jobs, bool by_row, ElementType element) {
  constexpr int kLanes = LanesOf(kSize), kPer = kSize / kLanes;
  constexpr int kPitch = kSize + kGapBytes;
  constexpr int kRowLanes = kCudaRowTile * kLanes;
  // Bits of the code computed at a time; all lanes of a warp have the same one.
  constexpr int kGroups = kBlockThreads / kRowLanes;
  const Job job = jobs.items[FindItem(jobs, blockIdx.x)];
  const int hash_bits = node.hash_bits, first_part = job.first_hash / kSize;
  const int parts = Quotient(job.first_hash + job.num_hashes, kSize);
  const HashPlace place = Locate(node, job, blockIdx.x - job.first_block, by_row);
  Mask* masks = cuda::SharedMemory<Mask>();  // [bit][row][lane]
  signed char* data = reinterpret_cast<signed char*>(masks + kMaxBits * kRowLanes);
  int* sums = reinterpret_cast<int*>(data + kCudaRowTile * kPitch);
  int* half_lifts = sums + kCudaRowTile;
  QuantiseRowsOf(element, node, place, kSize, data, sums, half_lifts);

  const int slot = threadIdx.x % kRowLanes, lane = slot % kLanes;
  const std::uint32_t* row = reinterpret_cast<const std::uint32_t*>(data + slot / kLanes * kPitch);
  const std::uint32_t* signs = reinterpret_cast<const std::uint32_t*>(
      node.scratch + job.planes + (place.head - job.plane_head) * job.plane_stride);
#pragma unroll 1
  for (int part = first_part + place.part; part < parts; part += job.hash_blocks) {
    __syncthreads();  // rows are there, and the codes of the part before are written
#pragma unroll 1
    for (int bit = threadIdx.x / kRowLanes; bit < hash_bits; bit += kGroups) {
      int x[kPer];
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        x[k] =
            static_cast<signed char>(row[k * kLanes / 4] >> (8 * (k * kLanes % 4 + lane)) & 0xFF);
      }
      Rotate<kSize>(signs + (static_cast<std::int64_t>(part) * hash_bits + bit) * 3 * (kSize / 32),
                    lane, x);
      Mask positive = 0, negative = 0;
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        positive |= static_cast<Mask>(x[k] > 0) << k;
        negative |= static_cast<Mask>(x[k] < 0) << k;
      }
      Mask bits;
      if constexpr (kLifted) {
        const int* planes = LiftPlanes(node, job, place) + (part * kSize + lane) * hash_bits + bit;
        bits = LiftedBits<kSize>(x, positive, negative, lane, planes, hash_bits,
                                 static_cast<float>(half_lifts[slot / kLanes]));
      } else {
        // A coordinate of exactly 0 takes the sign of the next one, or else of the one after.
        const Mask next =
            Ahead<kLanes, kPer>(positive, lane, 1) |
            (~Ahead<kLanes, kPer>(negative, lane, 1) & Ahead<kLanes, kPer>(positive, lane, 2));
        bits = positive | (~negative & next);
      }
      masks[bit * kRowLanes + slot] = bits;
    }
    __syncthreads();
    WriteCodes(node, job, place, part * kSize - job.first_hash, kSize, by_row,
               [&](int r, int hash) {
                 std::uint32_t code = 0;
                 for (int bit = 0; bit < hash_bits; ++bit) {
                   const Mask mask = masks[bit * kRowLanes + r * kLanes + hash % kLanes];
                   code |= static_cast<std::uint32_t>(mask >> (hash / kLanes) & 1) << bit;
                 }
                 return code;
               });
  }
}

}  // namespace

void LaunchHadamard(ElementType data, const Node& node, const Jobs& jobs, dim3 grid, bool by_row,
                    cuda::Stream stream) {
  const auto launch = [&](auto size) {
    const std::size_t shared =
        kCudaRowTile * (kMaxBits * LanesOf(size.value) * sizeof(Mask) + size.value + kGapBytes + 8);
    cuda::Launch("YosoAttention hadamard",
                 node.lifted() ? HashHadamard<size.value, true> : HashHadamard<size.value, false>,
                 grid, kBlockThreads, shared, stream, node, jobs, by_row, data);
  };
  switch (HadamardSize(node.head_dim)) {
    case 32:
      return launch(std::integral_constant<int, 32>{});
    case 64:
      return launch(std::integral_constant<int, 64>{});
    case 128:
      return launch(std::integral_constant<int, 128>{});
    default:
      return launch(std::integral_constant<int, 256>{});
  }
}

}  // namespace attenuator::yoso
