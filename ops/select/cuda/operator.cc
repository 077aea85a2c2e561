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
      if (inputs.sequences.length(b) > 0) items.push_back(ItemOf(inputs, b));
    }
    ForBatches(items, [&](const auto& batch) {
      select::LaunchChoose(batch, inputs.importance.floats(), places, context.stream());
    });
    select::LaunchCopy(data_, inputs.rows.data, places, total, columns, kept, context.stream());
    std::erase_if(items, [](const select::SelectItem& item) { return item.merged == 0; });
    ForBatches(items, [&](const auto& batch) {
      select::LaunchMerge(data_, batch, inputs.rows.data, places, columns, kept, context.stream());
    });
  }

 private:
  static select::SelectItem ItemOf(const select::Inputs& inputs, std::int64_t b) {
    select::SelectItem item{.begin = inputs.sequences.offsets[b],
                            .length = static_cast<std::int32_t>(inputs.sequences.length(b)),
                            .kept = inputs.kept.offsets[b],
                            .count = static_cast<std::int32_t>(inputs.kept.length(b)),
                            .merged = 0,
                            .rows_of_last = 1};
    if (inputs.Merges(b)) {
      item.merged = static_cast<std::int32_t>(RowsOfLast(inputs.unmerged, inputs.kept, b));
      item.rows_of_last =
          static_cast<std::int32_t>(RowsOfLast(inputs.unmerged, inputs.sequences, b));
    }
    return item;
  }

  ElementType data_;
};

}  // namespace

template <>
std::unique_ptr<DeviceKernel> MakeDeviceKernel<Spec>(const NodeReader&, ElementType data) {
  return std::make_unique<TokenSelectDeviceKernel>(data);
}

}  // namespace attenuator::cuda
