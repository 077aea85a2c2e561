// Launches of RelativeAttention's own kernels on CUDA; attention itself is common/attention's.
#pragma once

#include <cstdint>

#include "ops/common/cuda/context.h"

namespace attenuator::relative {

// rows[d] = buckets[d], both [size], as a row of tables that have `table_rows`: the nearest one
// where it is none.
void LaunchBuckets(const std::int64_t* buckets, std::int64_t size, std::int64_t table_rows,
                   std::int32_t* rows, cuda::Stream stream);

}  // namespace attenuator::relative
