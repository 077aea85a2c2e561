// Buckets of distances as rows of the tables, 32 bits each.
//
// A thread narrows one bucket: 12 bytes of memory traffic for each, a few KiB in all. Buckets are
// in device memory, where the host cannot check them without waiting. So that no table is read
// beyond its rows, one that is no row counts as the nearest that is.
#include "ops/common/cuda/device.h"
#include "ops/relative/cuda/kernel.h"

namespace attenuator::relative {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void NarrowBuckets(const std::int64_t* buckets,
                                                          std::int64_t size,
                                                          std::int64_t table_rows,
                                                          std::int32_t* rows) {
  const std::int64_t d = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (d >= size) return;
  const std::int64_t row = buckets[d];
  rows[d] = static_cast<std::int32_t>(row < 0 ? 0 : row < table_rows ? row : table_rows - 1);
}

}  // namespace

void LaunchBuckets(const std::int64_t* buckets, std::int64_t size, std::int64_t table_rows,
                   std::int32_t* rows, cuda::Stream stream) {
  const auto blocks = static_cast<unsigned>((size + kThreads - 1) / kThreads);
  cuda::Launch("RelativeAttention, buckets", NarrowBuckets, dim3(blocks), kThreads, 0, stream,
               buckets, size, table_rows, rows);
}

}  // namespace attenuator::relative
