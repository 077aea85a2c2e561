#include "ops/common/aligned.h"
#include "ops/common/attention/cpu/paths.h"
#include "ops/common/cpu.h"

namespace attenuator {
namespace {

const SoftmaxKernels& Kernels() {
  static const SoftmaxKernels& kernels =
      CpuIsa() >= Isa::kAvx512 ? SoftmaxKernelsAvx512() : SoftmaxKernelsAvx2();
  return kernels;
}

// The thread's scratch memory for such a head: kept between calls, since short sequences take less
// time than an allocation is worth.
float* ScratchFor(const AttentionHead& head, std::int64_t slots = 1) {
  struct Memory {
    AlignedArray<float> floats;
    std::int64_t size = 0;
  };
  thread_local Memory memory;
  const std::int64_t size = SoftmaxScratchFloats(head, slots);
  if (memory.size < size) {
    memory.size = 0;
    memory.floats = MakeAligned<float>(size);
    memory.size = size;
  }
  return memory.floats.get();
}

}  // namespace

void ExactAttention(const AttentionHead& head, std::int64_t begin, std::int64_t end, float* output,
                    std::int64_t output_stride) {
  Kernels().attention(head, begin, end, output, output_stride,
                      ScratchFor(head, SoftmaxSlots(head, end - begin)));
}

void FirstRowAttention(const AttentionHead& head, float* output) {
  Kernels().first_row(head, output, ScratchFor(head));
}

void ColumnMaxima(const AttentionHead& head, std::int64_t begin, std::int64_t end, float* maxima) {
  Kernels().column_maxima(head, begin, end, maxima, ScratchFor(head));
}

void ProbabilityBlock(const AttentionHead& head, std::int64_t begin, std::int64_t end,
                      float* probabilities, float* factors, float* maxima) {
  Kernels().probabilities(head, begin, end, probabilities, factors, maxima, ScratchFor(head));
}

void ValueBlock(const AttentionHead& head, std::int64_t begin, std::int64_t end,
                const float* probabilities, const float* factors, float* output,
                std::int64_t output_stride) {
  Kernels().values(head, begin, end, probabilities, factors, output, output_stride,
                   ScratchFor(head));
}

}  // namespace attenuator
