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

// A thread's memory, kept between calls, since short sequences take less time than an allocation
// is worth.
struct Memory {
  AlignedArray<float> floats;
  std::int64_t size = 0;

  float* Take(std::int64_t count) {
    if (size < count) {
      size = 0;
      floats = MakeAligned<float>(count);
      size = count;
    }
    return floats.get();
  }
};

float* ScratchFor(const Head& head, std::int64_t slots = 1) {
  thread_local Memory memory;
  return memory.Take(ScratchFloats(head, slots));
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

void AttendRows(const Head& head, std::int64_t begin, std::int64_t end, float* output,
                std::int64_t output_stride, float* maxima) {
  thread_local Memory kept;
  BestKernels().attention_maxima(head, begin, end, output, output_stride, maxima,
                                 kept.Take(KeptFloats(head)), ScratchFor(head));
}

void FirstRowWeights(const Head& head, float* weights) {
  BestKernels().first_row_weights(head, weights, ScratchFor(head));
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
