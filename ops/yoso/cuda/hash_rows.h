// What YosoAttention's hash kernels share: which rows a block owns, their int8 form in shared
// memory, and how codes are written: along rows (table path) or along hashes (count path), both
// coalesced.
#pragma once

#include "ops/yoso/cuda/common.h"

namespace attenuator::yoso {

inline constexpr int kMaxBits = 16;
// Between rows in shared memory, so that eight neighbouring rows lie in different banks.
inline constexpr int kGapBytes = 16;

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

// Codes by Hadamard hashes (hadamard.cu), on behalf of LaunchHash.
void LaunchHadamard(ElementType data, const Node& node, const Jobs& jobs, dim3 grid, bool by_row,
                    cuda::Stream stream);

}  // namespace attenuator::yoso
