// LinformerAttention's projections for any Simd.
//
// A block of 128 tokens at a time: keys and values go to scratch side by side, padded with zeros to
// whole registers, and are multiplied from the left by 128 columns of the projections, in register
// tiles. Memory traffic is one read of keys and values and one of n columns of the projections,
// most of all of it (k a token, against head_dim + value_dim); the projected rows, 128 KiB at k =
// 256 and 64 by 64, stay in the second cache and are added to once a block. Every element is a
// chain of fused multiply-adds over a block's tokens, added to those of the blocks before: it does
// not depend on the tile that it falls into, nor on which rows of the projections come with it.
#include "ops/common/attention/cpu/product.inl"
#include "ops/linformer/cpu/kernel.h"

namespace attenuator::linformer {
namespace {

using attention::ByRow;
using attention::Product;
using attention::Smaller;

// `count` rows into the columns from `to` on, whose rows lie `pitch` floats apart, zeros behind.
void CopyRows(HeadRows rows, std::int64_t count, std::int64_t columns, float* to,
              std::int64_t pitch) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = rows.data + i * rows.stride;
    for (std::int64_t c = 0; c < PaddedToVectors(columns); c += Simd::kWidth) {
      float* at = to + i * pitch + c;
      if (c + Simd::kWidth <= columns) {
        Simd::Store(at, Simd::Load(row + c));
      } else {
        Simd::Store(at, c < columns ? Simd::LoadFirst(row + c, columns - c) : Simd::Zero());
      }
    }
  }
}

void ProjectRows(const HeadShape& shape, const Projections& projections, HeadRows key,
                 HeadRows value, std::int64_t length, float* projected, float* scratch) {
  const std::int64_t columns = shape.columns(), middle = shape.value_column();
  const bool shared = projections.key == projections.value;
  for (std::int64_t begin = 0; begin < length; begin += kBlock) {
    const std::int64_t rows = Smaller(kBlock, length - begin);
    CopyRows(key.From(begin), rows, shape.head_dim, scratch, columns);
    CopyRows(value.From(begin), rows, shape.value_dim, scratch + middle, columns);
    const auto run = begin == 0 ? &Product<ByRow, false>::Run : &Product<ByRow, true>::Run;
    const std::int64_t stride = projections.stride;
    run(projections.key + begin, stride, stride, scratch, columns, rows, projections.rows,
        shared ? columns : middle, projected, columns);
    if (shared) continue;
    run(projections.value + begin, stride, stride, scratch + middle, columns, rows,
        projections.rows, columns - middle, projected + middle, columns);
  }
}

}  // namespace
}  // namespace attenuator::linformer
