// SoftmaxAttention on CUDA: checks, and the launches of the shared attention core.
#include "ops/common/attention/cuda/attention.h"
#include "ops/common/attention/importance.h"
#include "ops/softmax/inputs.h"

namespace attenuator {
namespace cuda {
namespace {

using Spec = spec::SoftmaxAttention;

class SoftmaxAttentionDeviceKernel final : public DeviceKernel {
 public:
  SoftmaxAttentionDeviceKernel(const NodeReader& reader, ElementType data)
      : attributes_(Spec::Read(reader)), data_(data) {
    softmax::CheckAttributes(attributes_);
  }

  void Run(DeviceContext& context) const override {
    const softmax::Inputs inputs = softmax::CheckInputs(context, attributes_);
    float* const importance =
        attention::ImportanceOutput<Spec>(context, attributes_, inputs.sequences.total);
    const bool row_0 = inputs.first || attributes_.importance == Spec::Importance::kFirst;
    const attention::Call call{
        .query = inputs.query.data,
        .key = inputs.key.data,
        .value = inputs.value.data,
        .output =
            context.Output(Spec::kOutputOutput, {inputs.query.rows(), inputs.value.columns()}),
        .query_stride = inputs.key.columns(),
        .value_stride = inputs.value.columns(),
        .heads = static_cast<int>(attributes_.num_heads),
        .head_dim = static_cast<int>(inputs.head_dim),
        .value_dim = static_cast<int>(inputs.value_dim),
        .scale = inputs.scale * attention::kLog2E,
        .window = static_cast<int>(attributes_.window),
        .global_token = attributes_.global_tokens == 1,
        .ranges =
            attention::RangesOf(context, inputs.positions, inputs.sequences, attributes_.window),
    };
    const std::vector<attention::Item> items =
        attention::ItemsOf(inputs.sequences, inputs.unmerged, inputs.first);
    attention::Attend(data_, call, items, inputs.first, context.stream());
    if (importance == nullptr) return;
    const std::int64_t tokens = inputs.sequences.total;
    float* const weights = context.ScratchArray<float>(tokens * attributes_.num_heads);
    attention::Importance(data_, call, items, row_0, tokens, weights, importance, context.stream());
  }

 private:
  Spec::Attributes attributes_;
  ElementType data_;
};

}  // namespace

template <>
std::unique_ptr<DeviceKernel> MakeDeviceKernel<Spec>(const NodeReader& reader, ElementType data) {
  return std::make_unique<SoftmaxAttentionDeviceKernel>(reader, data);
}

}  // namespace cuda
}  // namespace attenuator
