#include "ops/softmax/int8.h"

#include <array>
#include <vector>

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

#ifdef ATTENUATOR_AMX

// Outputs and maxima of some pseudo-random rows: any numbers do.
std::vector<float> SomeOutputs(const Int8Kernels& kernels, std::int64_t head_dim,
                               std::int64_t value_dim, std::int64_t window) {
  constexpr std::int64_t kLength = 150;
  std::uint32_t state = 1;
  const auto draw = [&](std::int64_t columns) {
    std::vector<float> rows(static_cast<std::size_t>(kLength * columns));
    for (float& x : rows) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<float>(state >> 24) / 64 - 2;
    }
    return rows;
  };
  const std::vector<float> query = draw(head_dim), key = draw(head_dim), value = draw(value_dim);
  const Head head{.query = query.data(),
                  .query_stride = head_dim,
                  .key = key.data(),
                  .key_stride = head_dim,
                  .value = value.data(),
                  .value_stride = value_dim,
                  .length = kLength,
                  .head_dim = head_dim,
                  .value_dim = value_dim,
                  .scale = 0.125f,
                  .window = window};
  const auto rounded = MakeAligned<std::byte>(kernels.rounded_bytes(head));
  const auto scratch = MakeAligned<float>(Int8ScratchFloats(head, true));
  kernels.round(head, rounded.get());
  std::vector<float> outputs(static_cast<std::size_t>(kLength * value_dim + kLength));
  float* const maxima = outputs.data() + kLength * value_dim;
  for (std::int64_t row = 0; row < kLength; row += kQueryBlock) {
    const std::int64_t last = row + kQueryBlock < kLength ? row + kQueryBlock : kLength;
    kernels.attend(head, rounded.get(), row, last, outputs.data() + row * value_dim, value_dim,
                   maxima, scratch.get());
  }
  return outputs;
}

// Whether tiles give VNNI's numbers on this very machine: so far they have run in emulation alone,
// and numbers that differ would change results without an error.
bool TilesAreRight() {
  for (const auto& [head_dim, value_dim, window] : {std::array{64, 64, 0}, {40, 24, 9}}) {
    if (SomeOutputs(Int8KernelsAvx512Amx(), head_dim, value_dim, window) !=
        SomeOutputs(Int8KernelsAvx512Vnni(), head_dim, value_dim, window)) {
      return false;
    }
  }
  return true;
}

const Int8Kernels& Choose() {
  return CpuHasAmx() && TilesAreRight() ? Int8KernelsAvx512Amx() : Int8KernelsAvx512Vnni();
}

#else

const Int8Kernels& Choose() { return Int8KernelsAvx512Vnni(); }

#endif

const Int8Kernels& Kernels() {
  static const Int8Kernels& kernels = Choose();
  return kernels;
}

}  // namespace

bool HasInt8() {
  static const bool has = CpuIsa() >= Isa::kAvx512Vnni;
  return has;
}

std::int64_t RoundedBytes(const Head& head) { return Kernels().rounded_bytes(head); }

void RoundKeysAndValues(const Head& head, std::byte* rounded) { Kernels().round(head, rounded); }

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
    std::uint64_t unusable =
        Kernels().attend(head, rounded, row, last, rows, output_stride, maxima, memory);
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
