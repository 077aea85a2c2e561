// Softmax attention of one head of one sequence with both of its products in int8: keys and values
// are rounded once, then shared by all rows. ops/softmax/README.md has the mathematics.
//
// A row's result depends on that row, its sequence's keys and values and the fields of Head alone,
// as in attention.h. All functions are safe to call from many threads at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/attention/attention.h"

namespace attenuator::softmax {

// Whether this machine multiplies bytes four at a time (VNNI). Nobody calls the rest elsewhere.
bool HasInt8();

// Whether int8 is worth its rounding for a sequence: its length alone decides.
constexpr bool LongEnoughForInt8(std::int64_t length) { return length >= 48; }

// Memory that rounded keys and values of a head take, a multiple of 64.
std::int64_t RoundedBytes(const attention::Head& head);

// Rounds keys and values of a head into `rounded`: 64-byte aligned, RoundedBytes(head) long.
void RoundKeysAndValues(const attention::Head& head, std::byte* rounded);

// AttendRows with rounded keys and values, which this call rounds itself where `rounded` is null.
// Where no int8 stands for keys or values, such as NaN, the result is that of AttendRows. Not for
// heads with a prefix. `maxima` may be null.
void AttendRowsInt8(const attention::Head& head, const std::byte* rounded, std::int64_t begin,
                    std::int64_t end, float* output, std::int64_t output_stride, float* maxima);

}  // namespace attenuator::softmax
