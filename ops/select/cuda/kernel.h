// TokenSelect on CUDA.
#pragma once

#include <cstdint>

#include "ops/common/cuda/batch.h"
#include "ops/common/cuda/context.h"

namespace attenuator::select {

// One sequence that keeps rows: its first row and length, the first of its places among all kept
// ones and their number, 1 to length.
struct SelectItem {
  std::int32_t begin;
  std::int32_t length;
  std::int32_t kept;
  std::int32_t count;
  // Where the last kept row is to be the mean of those left out: how many rows it stands for, and
  // how many the sequence's last row stood for, which is one of them where that is more than 1.
  // 0: rows are dropped, or all are kept.
  std::int32_t merged;
  std::int32_t rows_of_last;
};

// importance [T], places [K]. Queues one launch.
void LaunchChoose(const cuda::Batch<SelectItem>& batch, const float* importance,
                  std::int64_t* places, cuda::Stream stream);

// rows [T, columns] and kept [count, columns] of element type `data`, places [count]. Queues one
// launch.
void LaunchCopy(ElementType data, const void* rows, const std::int64_t* places, std::int64_t count,
                std::int64_t columns, void* kept, cuda::Stream stream);

// Of the items that merge, the last kept row: rows [T, columns] and kept [K, columns] of element
// type `data`, places [K]. Queues one launch.
void LaunchMerge(ElementType data, const cuda::Batch<SelectItem>& batch, const void* rows,
                 const std::int64_t* places, std::int64_t columns, void* kept, cuda::Stream stream);

}  // namespace attenuator::select
