#include "ops/softmax/int8.h"

#include "ops/common/aligned.h"
#include "ops/common/cpu.h"
#include "ops/softmax/cpu/int8_paths.h"

namespace attenuator::softmax {
namespace {

// A thread's memory, kept between calls, since short sequences take less time than an allocation is
// worth.
template <class T>
struct Memory {
  AlignedArray<T> data;
  std::int64_t size = 0;

  T* Take(std::int64_t count) {
    if (size < count) {
      size = 0;
      data = MakeAligned<T>(count);
      size = count;
    }
    return data.get();
  }
};

}  // namespace

bool HasInt8() {
  static const bool has = CpuIsa() >= Isa::kAvx512Vnni;
  return has;
}

std::int64_t RoundedBytes(const Head& head) {
  const std::int64_t columns = PaddedToVectors(head.value_dim);
  const std::int64_t floats = kWidestVector + 2 * columns;
  const std::int64_t numbers = Fours(head.length) * (columns + Fours(head.head_dim));
  return (floats * 4 + numbers + 63) / 64 * 64;
}

void RoundKeysAndValues(const Head& head, std::byte* rounded) {
  Int8KernelsAvx512Vnni().round(head, rounded);
}

void AttendRowsInt8(const Head& head, const std::byte* rounded, std::int64_t begin,
                    std::int64_t end, float* output, std::int64_t output_stride, float* maxima) {
  thread_local Memory<std::byte> own;
  thread_local Memory<float> scratch;
  if (rounded == nullptr) {
    std::byte* const memory = own.Take(RoundedBytes(head));
    RoundKeysAndValues(head, memory);
    rounded = memory;
  }
  const auto exactly = [&](std::int64_t first, std::int64_t last) {
    float* const rows = output + (first - begin) * output_stride;
    if (maxima == nullptr) {
      attention::AttendRows(head, first, last, rows, output_stride);
    } else {
      attention::AttendRows(head, first, last, rows, output_stride, maxima);
    }
  };
  std::int64_t row = begin;
  // One row that sees other keys than its neighbours.
  if (begin == 0 && end > 0 && head.window > 0 && head.global_token) exactly(row++, 1);
  float* const memory = scratch.Take(Int8ScratchFloats(head, maxima != nullptr));
  while (row < end) {
    const std::int64_t last = row + kQueryBlock < end ? row + kQueryBlock : end;
    float* const rows = output + (row - begin) * output_stride;
    std::uint64_t unusable = Int8KernelsAvx512Vnni().attend(head, rounded, row, last, rows,
                                                            output_stride, maxima, memory);
    // Runs of rows whose weights no bytes stand for.
    while (row < last) {
      const bool again = (unusable & 1) != 0;
      const std::int64_t first = row;
      for (; row < last && ((unusable & 1) != 0) == again; ++row) unusable >>= 1;
      if (again) exactly(first, row);
    }
  }
}

}  // namespace attenuator::softmax
