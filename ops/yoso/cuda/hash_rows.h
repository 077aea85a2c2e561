// What YosoAttention's hash kernels share: which rows a block owns, their int8 form in shared
// memory, and how codes are written: along rows (table path) or along hashes (count path), both
// coalesced.
#pragma once

#include "ops/yoso/cuda/common.h"

namespace attenuator::yoso {

inline constexpr int kMaxBits = 16;
// Between rows in shared memory, so that eight neighbouring rows lie in different banks.
inline constexpr int kGapBytes = 16;

// The rows that a block of a hash kernel owns, and the first of its parts: of the job's parts it
// hashes every job.hash_blocks-th.
struct HashPlace {
  int sequence, head, local_head, part, first_row, rows;
  bool key;
  std::int64_t row_pitch;   // of codes: distance of hashes, or hashes of a row
  std::int64_t source_row;  // first row in its tensor
  const void* source;
  unsigned char* codes;  // of this head
};

__device__ inline HashPlace Locate(const Node& node, const Job& job, int local, bool by_row) {
  HashPlace place;
  place.sequence = job.sequence;
  const int query_tiles = Quotient(job.num_queries, kCudaRowTile);
  const int tiles = query_tiles + Quotient(job.num_keys, kCudaRowTile);
  int tile = local % tiles;
  place.part = local / tiles % job.hash_blocks;
  place.local_head = local / tiles / job.hash_blocks;
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

// Neighbouring coordinates of a row that a lane quantises.
inline constexpr int kOwn = 8;
template <class T>
struct alignas(16) OwnCoordinates {
  T of[kOwn];
};

// Coordinates [d, d + kOwn) of a row, zeros from head_dim on. Rows of whole eights are read 16
// bytes at a time.
template <class T>
__device__ __forceinline__ void LoadOwn(const T* row, int d, int head_dim, float (&x)[kOwn]) {
  OwnCoordinates<T> own;
  if (head_dim % kOwn == 0 && d < head_dim) {
    own = *reinterpret_cast<const OwnCoordinates<T>*>(row + d);
  } else {
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      own.of[e] = d + e < head_dim ? row[d + e] : cuda::FromFloat<T>(0.0f);
    }
  }
#pragma unroll
  for (int e = 0; e < kOwn; ++e) x[e] = cuda::ToFloat(own.of[e]);
}

// rint(x * scale), of magnitudes below 128: added to 1.5 * 2^23 a float keeps no fraction, and its
// lowest bits are the integer's. What comes of a row that is not finite does not matter: its
// sequence's output is NaN.
__device__ inline signed char Quantise(float x, float scale) {
  const float shifted = __fadd_rn(__fmul_rn(x, scale), 12582912.0f);
  return static_cast<signed char>(__float_as_uint(shifted) & 0xFFu);
}

// Half the coordinate that a norm lift adds to a row, in steps of its rounding, from the rounded
// row's squares (hash.inl).
__device__ inline int HalfLift(const Node& node, float scale, int squares) {
  const float bound = fminf(__fmul_rn(node.lift_root, scale), 4194304.0f);
  const float rest = __fmaf_rn(bound, bound, -static_cast<float>(squares));
  return __float2int_rn(__fmul_rn(__fsqrt_rn(fmaxf(rest, 0.0f)), 0.5f));
}

// Quantises rows to int8, rint(x * (127 / max|x|)), with zeros up to `padded` coordinates and
// kCudaRowTile rows, and sums each row; with a norm lift also its HalfLift. Flags the sequence
// where a row is not finite. A row belongs to the least power of 2 of lanes that hold `padded`
// coordinates, so that a warp has one to eight rows at a time.
template <class T>
__device__ inline void QuantiseRows(const Node& node, const HashPlace& place, int padded,
                                    signed char* data, int* sums, int* half_lifts) {
  int lanes = 4;
  while (lanes * kOwn < padded) lanes *= 2;
  const auto over_row = [&](auto x, const auto& join) {
    for (int step = lanes / 2; step > 0; step /= 2) {
      x = join(x, __shfl_xor_sync(cuda::kFullMask, x, step));
    }
    return x;
  };
  const auto add = [](int a, int b) { return a + b; };
  const int d = static_cast<int>(threadIdx.x) % lanes * kOwn, blocks_rows = blockDim.x / lanes;
  const std::int64_t stride = static_cast<std::int64_t>(node.num_heads) * node.head_dim;
  const T* rows = static_cast<const T*>(place.source) + place.source_row * stride +
                  static_cast<std::int64_t>(place.head) * node.head_dim;
  for (int r = threadIdx.x / lanes; r < kCudaRowTile; r += blocks_rows) {
    float x[kOwn] = {};
    if (r < place.rows) LoadOwn(rows + r * stride, d, node.head_dim, x);
    unsigned largest = 0;
#pragma unroll
    for (int e = 0; e < kOwn; ++e) largest = max(largest, Magnitude(x[e]));
    largest = over_row(largest, [](unsigned a, unsigned b) { return max(a, b); });
    if (largest >= kInfinite) atomicMax(node.broken + place.sequence, 1);
    const float scale = __fdiv_rn(127.0f, fmaxf(__uint_as_float(largest), 1e-30f));
    struct alignas(kOwn) {
      signed char of[kOwn];
    } rounded;
    int sum = 0, squares = 0;
#pragma unroll
    for (int e = 0; e < kOwn; ++e) {
      rounded.of[e] = Quantise(x[e], scale);
      sum += rounded.of[e];
      squares += rounded.of[e] * rounded.of[e];
    }
    if (d < padded) memcpy(data + r * (padded + kGapBytes) + d, &rounded, sizeof rounded);
    sum = over_row(sum, add);
    if (d == 0) sums[r] = sum;
    if (!node.lifted()) continue;
    squares = over_row(squares, add);
    if (d == 0) half_lifts[r] = HalfLift(node, scale, squares);
  }
}

// Writes the codes cut(row, hash - first) of hashes [first, first + count), counted within the job,
// for the place's rows. Where codes lie by row, the hashes that pad a row get code 0; where they
// lie by hash, the rows that pad a hash get the code of a row of zeros.
template <class Cut>
__device__ inline void WriteCodes(const Node& node, const Job& job, const HashPlace& place,
                                  int first, int count, bool by_row, const Cut& cut) {
  const bool wide = node.code_bytes() == 2;
  const int begin = max(first, 0);
  // Neighbouring threads write neighbouring codes: hashes of a row, or rows of a hash.
  if (by_row) {
    const int end = min(first + count, static_cast<int>(place.row_pitch));
    const int mine = threadIdx.x % cuda::kWarp, warps = blockDim.x / cuda::kWarp;
    for (int r = threadIdx.x / cuda::kWarp; r < place.rows; r += warps) {
      for (int t = begin + mine; t < end; t += cuda::kWarp) {
        const std::uint32_t code = t < job.num_hashes ? cut(r, t - first) : 0;
        const std::int64_t i = (place.first_row + r) * place.row_pitch + t;
        if (wide) {
          reinterpret_cast<std::uint16_t*>(place.codes)[i] = static_cast<std::uint16_t>(code);
        } else {
          place.codes[i] = static_cast<unsigned char>(code);
        }
      }
    }
    return;
  }
  constexpr int kTogether = 4;  // rows, whose codes are one store
  constexpr int kSide = kCudaRowTile / kTogether;
  const int row = threadIdx.x % kSide * kTogether, groups = blockDim.x / kSide;
  if (place.first_row + row >= place.row_pitch) return;
  const int end = min(first + count, job.num_hashes);
  for (int t = begin + threadIdx.x / kSide; t < end; t += groups) {
    std::uint32_t code[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) code[k] = cut(row + k, t - first);
    unsigned char* target =
        place.codes + (t * place.row_pitch + place.first_row + row) * node.code_bytes();
    if (wide) {
      *reinterpret_cast<uint2*>(target) =
          make_uint2(code[0] | code[1] << 16, code[2] | code[3] << 16);
    } else {
      *reinterpret_cast<std::uint32_t*>(target) =
          code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24;
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

// Codes by Hadamard hashes (hadamard.cu), on behalf of LaunchHash.
void LaunchHadamard(ElementType data, const Node& node, const Jobs& jobs, dim3 grid, bool by_row,
                    cuda::Stream stream);

}  // namespace attenuator::yoso
