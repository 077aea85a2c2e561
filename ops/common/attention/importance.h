// What SoftmaxAttention and McaAttention have in common beside attention: windows by `positions`,
// and the output `importance`.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/common/attention/attention.h"
#include "ops/common/check.h"
#include "ops/common/context.h"

namespace attenuator::attention {

// Fails unless `positions` [T], where it is there, ascends in each sequence.
void CheckPositions(const char* op, const TensorView& positions, const Sequences& sequences);

// The keys inside each row's window, by number in its sequence: [T]. Empty where there are no
// positions or no window.
std::vector<KeyRange> RangesOf(const TensorView& positions, const Sequences& sequences,
                               std::int64_t window);

// Memory for the output `importance` [tokens], null where the node leaves it out. Fails where it is
// there but the attribute of its name says that nothing is computed.
template <class Spec>
float* ImportanceOutput(TensorContext& context, const typename Spec::Attributes& attributes,
                        std::int64_t tokens) {
  void* output = context.Output(Spec::kImportanceOutput, {tokens});
  if (output != nullptr && attributes.importance == Spec::Importance::kNone) {
    Fail(Spec::kName,
         "the node has an output importance, but its attribute importance is 'none', must be "
         "'first' or 'maximum'");
  }
  return static_cast<float*>(output);
}

// importance[j] = sum over heads of weights[h, j], in the order of heads. Rows of `weights` lie
// `stride` floats apart.
void SumHeads(const float* weights, std::int64_t stride, std::int64_t heads, std::int64_t length,
              float* importance);

}  // namespace attenuator::attention
