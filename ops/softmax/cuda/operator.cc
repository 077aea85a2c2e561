// SoftmaxAttention on CUDA: checks, and the launches of the shared attention core.
#include "ops/common/attention/cuda/attention.h"
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
    if (inputs.positions.present() || attributes_.importance != Spec::Importance::kNone) {
      Fail(Spec::kName,
           "importance and positions are computed on the CPU only: load the model on the CPU");
    }
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
    };
    attention::Attend(data_, call, attention::ItemsOf(inputs.sequences, inputs.first), inputs.first,
                      context.stream());
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
