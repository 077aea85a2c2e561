// TokenSelect on CUDA: checks and launches. Lengths and offsets are the host's, so the grids follow
// from them and nothing waits for the device.
#include <vector>

#include "ops/select/cuda/kernel.h"
#include "ops/select/inputs.h"

namespace attenuator::cuda {
namespace {

using Spec = spec::TokenSelect;

class TokenSelectDeviceKernel final : public DeviceKernel {
 public:
  explicit TokenSelectDeviceKernel(ElementType data) : data_(data) {}

  void Run(DeviceContext& context) const override {
    const select::Inputs inputs = select::CheckInputs(context);
    const std::int64_t columns = inputs.rows.columns(), total = inputs.kept.total;
    void* kept = context.Output(Spec::kKeptOutput, {total, columns});
    auto* places = static_cast<std::int64_t*>(context.Output(Spec::kPlacesOutput, {total}));
    std::vector<select::SelectItem> items;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      if (inputs.sequences.length(b) == 0) continue;
      items.push_back({inputs.sequences.offsets[b],
                       static_cast<std::int32_t>(inputs.sequences.length(b)),
                       inputs.kept.offsets[b], static_cast<std::int32_t>(inputs.kept.length(b))});
    }
    ForBatches(items, [&](const auto& batch) {
      select::LaunchChoose(batch, inputs.importance.floats(), places, context.stream());
    });
    select::LaunchCopy(data_, inputs.rows.data, places, total, columns, kept, context.stream());
  }

 private:
  ElementType data_;
};

}  // namespace

template <>
std::unique_ptr<DeviceKernel> MakeDeviceKernel<Spec>(const NodeReader&, ElementType data) {
  return std::make_unique<TokenSelectDeviceKernel>(data);
}

}  // namespace attenuator::cuda
