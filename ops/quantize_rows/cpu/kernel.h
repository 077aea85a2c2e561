// Rows rounded to 8 bits on the CPU, one scale a row.
#pragma once

#include <cstdint>

namespace attenuator::quantize_rows {

// Rounds `count` rows of `columns` floats, side by side, and gives the scale of each.
using Kernel = void (*)(const float* rows, std::int64_t count, std::int64_t columns,
                        std::uint8_t* quantized, float* scale);

Kernel KernelAvx2();
Kernel KernelAvx512();

}  // namespace attenuator::quantize_rows
