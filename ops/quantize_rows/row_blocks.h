// Blocks of whole rows as tasks, for operators that compute row by row.
//
// A block has about 32 Ki elements: it takes some ten microseconds, which is what handing it to
// another thread is worth.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/common/registry.h"

namespace attenuator::quantize_rows {

// Calls run(begin, end) for each block of the rows, on the threads of the context.
template <typename Run>
void ForRowBlocks(RunContext& context, std::int64_t rows, std::int64_t columns, const Run& run) {
  constexpr std::int64_t kBlockElements = 1 << 15;
  const std::int64_t block =
      std::max<std::int64_t>(1, kBlockElements / std::max<std::int64_t>(1, columns));
  context.threads().For((rows + block - 1) / block, [&](std::int64_t task) {
    run(task * block, std::min(rows, (task + 1) * block));
  });
}

}  // namespace attenuator::quantize_rows
