// RelativeAttention on CUDA: checks, and the launches of the shared attention core with terms.
#include "ops/common/attention/cuda/attention.h"
#include "ops/common/attention/importance.h"
#include "ops/relative/cuda/kernel.h"
#include "ops/relative/inputs.h"

namespace attenuator::cuda {
namespace {

using Spec = spec::RelativeAttention;

class RelativeAttentionDeviceKernel final : public DeviceKernel {
 public:
  RelativeAttentionDeviceKernel(const NodeReader& reader, ElementType data)
      : attributes_(Spec::Read(reader)), data_(data) {
    relative::CheckAttributes(attributes_);
  }

  void Run(DeviceContext& context) const override {
    const relative::Inputs inputs = relative::CheckInputs(context, attributes_);
    const std::int64_t tokens = inputs.sequences.total;
    float* const importance = attention::ImportanceOutput<Spec>(context, attributes_, tokens);
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
        .window = 0,
        .global_token = false,
        .terms = TermsOf(inputs, context),
    };
    const std::vector<attention::Item> items =
        attention::ItemsOf(inputs.sequences, inputs.unmerged, inputs.first);
    attention::Attend(data_, call, items, inputs.first, context.stream());
    if (importance == nullptr) return;
    float* const weights = context.ScratchArray<float>(tokens * attributes_.num_heads);
    attention::Importance(data_, call, items, row_0, tokens, weights, importance, context.stream());
  }

 private:
  // Queues what makes the buckets 32-bit rows.
  static attention::Terms TermsOf(const relative::Inputs& inputs, DeviceContext& context) {
    if (!inputs.has_tables()) return {};
    const std::int64_t size = inputs.buckets.rows();
    auto* const rows = context.ScratchArray<std::int32_t>(size);
    relative::LaunchBuckets(inputs.buckets.int64s(), size, inputs.table_rows, rows,
                            context.stream());
    return {.pos_key = inputs.pos_key.data,
            .pos_query = inputs.pos_query.data,
            .bias = inputs.bias.data,
            .buckets = rows,
            .positions = inputs.positions.int64s(),
            .rows = static_cast<int>(inputs.table_rows),
            .reach = static_cast<int>(inputs.reach())};
  }

  Spec::Attributes attributes_;
  ElementType data_;
};

}  // namespace

template <>
std::unique_ptr<DeviceKernel> MakeDeviceKernel<Spec>(const NodeReader& reader, ElementType data) {
  return std::make_unique<RelativeAttentionDeviceKernel>(reader, data);
}

}  // namespace attenuator::cuda
