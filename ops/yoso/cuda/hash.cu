// YosoAttention on CUDA: hash codes.
//
// Gaussian hashes: a block takes 64 rows by 32 hashes of one head. Each warp quantises 16 rows to
// int8 in shared memory and multiplies them by 32 planes at a time: 16 x 32 exact int32 sums, of
// which the signs are kept. A product leaves each lane two signs of a row; two shuffles gather a
// row's 32 signs into one word, and 32 hashes fill hash_bits whole words. Codes are cut from the
// words and written along rows (table path) or along hashes (count path), both coalesced. A plane's
// coordinates are p + 1/2, so the sign is that of 2 sum p x + sum x.
//
// Hadamard hashes: a block takes 64 rows and one part of `size` hashes. A lane holds up to 64
// coordinates of a row in registers: up to size 64 the transform needs no shuffles, above it one or
// two levels of them. All lanes of a warp work on the same bit of the code, so that they share the
// random signs. Signs of coordinates become bit masks, on which the rule for ties (hadamard.inl)
// takes a few logical operations.
//
// Work per token (its query and its key), hash and head at head_dim 64, hash_bits 8: 2 x 512 int8
// multiply-adds, 16 sign extractions, 2 bytes of codes written; the 64 rows of a block share the
// planes' 512 bytes. Rows are read once for every 32 hashes.
#include "ops/yoso/cuda/common.h"

namespace attenuator::yoso {
namespace {

constexpr int kHashThreads = 128;  // four warps of 16 rows
constexpr int kWordPlanes = 32;
constexpr int kMaxBits = 16;
constexpr int kGapBytes =
    16;  // between rows in shared memory, so that eight neighbouring rows lie in different banks

// The rows that a block of a hash kernel owns.
struct HashPlace {
  int head, local_head, part, first_row, rows;
  bool key;
  std::int64_t row_pitch;   // of codes: distance of hashes, or hashes of a row
  std::int64_t source_row;  // first row in its tensor
  const void* source;
  unsigned char* codes;  // of this head
};

__device__ inline HashPlace Locate(const Node& node, const Job& job, int local, int parts,
                                   bool by_row) {
  HashPlace place;
  const int query_tiles = Quotient(job.num_queries, kCudaRowTile);
  const int tiles = query_tiles + Quotient(job.num_keys, kCudaRowTile);
  int tile = local % tiles;
  place.part = local / tiles % parts;
  place.local_head = local / tiles / parts;
  place.head = job.head + place.local_head;
  const bool key = tile >= query_tiles;
  if (key) tile -= query_tiles;
  place.key = key;
  const int all_rows = key ? job.num_keys : job.num_queries;
  place.first_row = tile * kCudaRowTile;
  place.rows = min(kCudaRowTile, all_rows - place.first_row);
  place.source_row = (key ? job.key_row : job.query_row) + place.first_row;
  place.source = key ? node.key : node.query;
  place.row_pitch = Quotient(by_row ? job.num_hashes : all_rows, kCodePad) * kCodePad;
  const std::int64_t codes_a_head = place.row_pitch * (by_row ? all_rows : job.num_hashes);
  place.codes = node.scratch + (key ? job.key_codes : job.query_codes) +
                place.local_head * codes_a_head * node.code_bytes();
  return place;
}

// Quantises rows to int8, rint(x * (127 / max|x|)), with zeros up to `padded` coordinates and
// kCudaRowTile rows, and sums each row. One warp per row. With a norm lift also half the coordinate
// that it adds, in steps of the rounding, from the rounded row's norm (hash.inl).
template <class T>
__device__ inline void QuantiseRows(const Node& node, const HashPlace& place, int padded,
                                    signed char* data, int* sums, int* half_lifts) {
  const int lane = threadIdx.x % cuda::kWarp;
  const std::int64_t stride = static_cast<std::int64_t>(node.num_heads) * node.head_dim;
  const T* rows = static_cast<const T*>(place.source) + place.source_row * stride +
                  static_cast<std::int64_t>(place.head) * node.head_dim;
  for (int r = threadIdx.x / cuda::kWarp; r < kCudaRowTile; r += blockDim.x / cuda::kWarp) {
    float x[8];  // 256 coordinates
    float largest = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int d = lane + k * cuda::kWarp;
      x[k] = r < place.rows && d < node.head_dim ? cuda::ToFloat(rows[r * stride + d]) : 0.0f;
      largest = fmaxf(largest, fabsf(x[k]));
    }
    largest = cuda::WarpMax(largest);
    const float scale = __fdiv_rn(127.0f, fmaxf(largest, 1e-30f));
    int sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int d = lane + k * cuda::kWarp;
      if (d >= padded) break;
      // The codes of a row that is not finite do not matter: its sequence's output is NaN.
      const float scaled = __fmul_rn(x[k], scale);
      const int rounded = fabsf(scaled) < 128.0f ? __float2int_rn(scaled) : 0;
      data[r * (padded + kGapBytes) + d] = static_cast<signed char>(rounded);
      sum += rounded;
      squares += rounded * rounded;
    }
    sum = WarpTotal(sum);
    if (lane == 0) sums[r] = sum;
    if (!node.lifted()) continue;
    squares = WarpTotal(squares);
    const float bound = fminf(__fmul_rn(node.lift_root, scale), 4194304.0f);
    const float rest = __fmaf_rn(bound, bound, -static_cast<float>(squares));
    if (lane == 0) half_lifts[r] = __float2int_rn(__fmul_rn(__fsqrt_rn(fmaxf(rest, 0.0f)), 0.5f));
  }
}

// Writes the codes cut(row, hash - first) of hashes [first, first + count), counted within the job,
// for the place's rows. Where codes lie by row, the hashes that pad a row get code 0.
template <class Cut>
__device__ inline void WriteCodes(const Node& node, const Job& job, const HashPlace& place,
                                  int first, int count, bool by_row, const Cut& cut) {
  const bool wide = node.code_bytes() == 2;
  const auto write = [&](std::int64_t i, std::uint32_t code) {
    if (wide) {
      reinterpret_cast<std::uint16_t*>(place.codes)[i] = static_cast<std::uint16_t>(code);
    } else {
      place.codes[i] = static_cast<unsigned char>(code);
    }
  };
  // Neighbouring threads write neighbouring codes: hashes of a row, or rows of a hash.
  const int side = by_row ? cuda::kWarp : kCudaRowTile;
  const int mine = threadIdx.x % side, group = threadIdx.x / side, groups = blockDim.x / side;
  const int begin = max(first, 0);
  if (by_row) {
    const int end = min(first + count, static_cast<int>(place.row_pitch));
    for (int r = group; r < place.rows; r += groups) {
      for (int t = begin + mine; t < end; t += side) {
        write((place.first_row + r) * place.row_pitch + t,
              t < job.num_hashes ? cut(r, t - first) : 0);
      }
    }
  } else if (mine < place.rows) {
    const int end = min(first + count, job.num_hashes);
    for (int t = begin + group; t < end; t += groups) {
      write(t * place.row_pitch + place.first_row + mine, cut(mine, t - first));
    }
  }
}

// The planes of the norm lift for the rows of a place; Hadamard ones begin with the first hash of
// all.
__device__ inline const int* LiftPlanes(const Node& node, const Job& job, const HashPlace& place) {
  return reinterpret_cast<const int*>(node.scratch + job.lift_planes +
                                      (place.head - job.plane_head) * job.lift_stride) +
         (place.key ? job.lift_stride / 8 : 0);
}

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
  const int first_part = job.first_hash / kSize;
  const int parts = Quotient(job.first_hash + job.num_hashes, kSize) - first_part;
  const HashPlace place = Locate(node, job, blockIdx.x - job.first_block, parts, by_row);
  const int part = first_part + place.part;
  Mask* masks = cuda::SharedMemory<Mask>();  // [bit][row][lane]
  signed char* data = reinterpret_cast<signed char*>(masks + kMaxBits * kRowLanes);
  int* sums = reinterpret_cast<int*>(data + kCudaRowTile * kPitch);
  int* half_lifts = sums + kCudaRowTile;
  QuantiseRowsOf(element, node, place, kSize, data, sums, half_lifts);
  __syncthreads();

  const int slot = threadIdx.x % kRowLanes, lane = slot % kLanes;
  const std::uint32_t* row = reinterpret_cast<const std::uint32_t*>(data + slot / kLanes * kPitch);
  const std::uint32_t* signs = reinterpret_cast<const std::uint32_t*>(
      node.scratch + job.planes + (place.head - job.plane_head) * job.plane_stride);
  signs += static_cast<std::int64_t>(part) * node.hash_bits * 3 * (kSize / 32);
  for (int bit = threadIdx.x / kRowLanes; bit < node.hash_bits; bit += kGroups) {
    int x[kPer];
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      x[k] = static_cast<signed char>(row[k * kLanes / 4] >> (8 * (k * kLanes % 4 + lane)) & 0xFF);
    }
#pragma unroll 1
    for (int round = 0; round < 3; ++round) {
#pragma unroll
      for (int w = 0; w < kSize / 32; ++w) {
        const std::uint32_t word = signs[(bit * 3 + round) * (kSize / 32) + w] >> lane;
#pragma unroll
        for (int k = 0; k < 32 / kLanes; ++k) {
          int& y = x[w * (32 / kLanes) + k];
          y = (word >> (k * kLanes) & 1) != 0 ? -y : y;
        }
      }
      Transform<kLanes>(x, lane, round == 0 ? 2 : 1);
    }
    Mask positive = 0, negative = 0;
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      positive |= static_cast<Mask>(x[k] > 0) << k;
      negative |= static_cast<Mask>(x[k] < 0) << k;
    }
    // A coordinate of exactly 0 takes the sign of the next one, or else of the one after.
    const Mask next =
        Ahead<kLanes, kPer>(positive, lane, 1) |
        (~Ahead<kLanes, kPer>(negative, lane, 1) & Ahead<kLanes, kPer>(positive, lane, 2));
    Mask bits = positive | (~negative & next);
    if constexpr (kLifted) {
      // As AddLiftedBits of hadamard.inl: four times the coordinate and its ties against the lift.
      const Mask up[2] = {Ahead<kLanes, kPer>(positive, lane, 1),
                          Ahead<kLanes, kPer>(positive, lane, 2)};
      const Mask down[2] = {Ahead<kLanes, kPer>(negative, lane, 1),
                            Ahead<kLanes, kPer>(negative, lane, 2)};
      const float half_lift = static_cast<float>(half_lifts[slot / kLanes]);
      const int* planes = LiftPlanes(node, job, place) + bit;
      bits = 0;
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        const int ties =
            2 * (static_cast<int>(up[0] >> k & 1) - static_cast<int>(down[0] >> k & 1)) +
            static_cast<int>(up[1] >> k & 1) - static_cast<int>(down[1] >> k & 1);
        const int hash = part * kSize + lane + kLanes * k;
        const float plane =
            static_cast<float>(planes[static_cast<std::int64_t>(hash) * node.hash_bits]);
        const float against = __fmul_rn(-__fmul_rn(LiftScale(kSize), plane), half_lift);
        bits |= static_cast<Mask>(static_cast<float>(4 * x[k] + ties) > against) << k;
      }
    }
    masks[bit * kRowLanes + slot] = bits;
  }
  __syncthreads();
  const int hash_bits = node.hash_bits;
  WriteCodes(node, job, place, part * kSize - job.first_hash, kSize, by_row, [&](int r, int hash) {
    std::uint32_t code = 0;
    for (int bit = 0; bit < hash_bits; ++bit) {
      const Mask mask = masks[bit * kRowLanes + r * kLanes + hash % kLanes];
      code |= static_cast<std::uint32_t>(mask >> (hash / kLanes) & 1) << bit;
    }
    return code;
  });
}

int HashParts(const Node& node, const Job& job) {
  if (!node.hadamard) return Quotient(job.num_hashes, kCudaHashChunk);
  const int size = HadamardSize(node.head_dim);
  return Quotient(job.first_hash + job.num_hashes, size) - job.first_hash / size;
}

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
