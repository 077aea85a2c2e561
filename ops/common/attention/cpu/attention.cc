#include <cmath>

#include "ops/common/aligned.h"
#include "ops/common/attention/cpu/paths.h"
#include "ops/common/cpu.h"

namespace attenuator::attention {
namespace {

const Kernels& BestKernels() {
  static const Kernels& kernels = CpuIsa() >= Isa::kAvx512 ? KernelsAvx512() : KernelsAvx2();
  return kernels;
}

// The thread's scratch memory for such a head: kept between calls, since short sequences take less
// time than an allocation is worth.
float* ScratchFor(const Head& head, std::int64_t slots = 1) {
  struct Memory {
    AlignedArray<float> floats;
    std::int64_t size = 0;
  };
  thread_local Memory memory;
  const std::int64_t size = ScratchFloats(head, slots);
  if (memory.size < size) {
    memory.size = 0;
    memory.floats = MakeAligned<float>(size);
    memory.size = size;
  }
  return memory.floats.get();
}

}  // namespace

float ScoreScale(float scale, std::int64_t head_dim) {
  if (scale != 0.0f) return scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

void AttendRows(const Head& head, std::int64_t begin, std::int64_t end, float* output,
                std::int64_t output_stride) {
  BestKernels().attention(head, begin, end, output, output_stride,
                          ScratchFor(head, Slots(head, end - begin)));
}

void AttendFirstRow(const Head& head, float* output) {
  BestKernels().first_row(head, output, ScratchFor(head));
}

void ColumnMaxima(const Head& head, std::int64_t begin, std::int64_t end, float* maxima) {
  BestKernels().column_maxima(head, begin, end, maxima, ScratchFor(head));
}

void ProbabilityBlock(const Head& head, std::int64_t begin, std::int64_t end, float* probabilities,
                      float* factors, float* maxima) {
  BestKernels().probabilities(head, begin, end, probabilities, factors, maxima, ScratchFor(head));
}

void ValueBlock(const Head& head, std::int64_t begin, std::int64_t end, const float* probabilities,
                const float* factors, float* output, std::int64_t output_stride) {
  BestKernels().values(head, begin, end, probabilities, factors, output, output_stride,
                       ScratchFor(head));
}

}  // namespace attenuator::attention
