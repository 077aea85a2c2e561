// SequencePool on CUDA.
#pragma once

#include <cstdint>

#include "ops/common/cuda/batch.h"
#include "ops/common/cuda/context.h"

namespace attenuator::pool {

// One sequence: its first row, its number of rows, the row of the output.
struct PoolItem {
  std::int32_t begin;
  std::int32_t length;
  std::int32_t row;
};

// hidden [T, channels] and output [B, channels] of element type `data`. Queues one launch.
void LaunchPool(ElementType data, spec::SequencePool::Mode mode, const cuda::Batch<PoolItem>& batch,
                const void* hidden, std::int64_t channels, void* output, cuda::Stream stream);

}  // namespace attenuator::pool
