// SequencePool on CUDA: checks and launches.
#include <vector>

#include "ops/common/check.h"
#include "ops/pool/cuda/kernel.h"

namespace attenuator::cuda {
namespace {

using Spec = spec::SequencePool;

class SequencePoolDeviceKernel final : public DeviceKernel {
 public:
  SequencePoolDeviceKernel(const NodeReader& reader, ElementType data)
      : attributes_(Spec::Read(reader)), data_(data) {}

  void Run(DeviceContext& context) const override {
    const TensorView hidden = context.Input(Spec::kHiddenInput);
    const Sequences sequences =
        CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), hidden.rows());
    void* output = context.Output(Spec::kOutputOutput, {sequences.batch, hidden.columns()});
    std::vector<pool::PoolItem> items;
    for (std::int64_t b = 0; b < sequences.batch; ++b) {
      items.push_back({sequences.offsets[b], static_cast<std::int32_t>(sequences.length(b)),
                       static_cast<std::int32_t>(b)});
    }
    ForBatches(items, [&](const auto& batch) {
      pool::LaunchPool(data_, attributes_.mode, batch, hidden.data, hidden.columns(), output,
                       context.stream());
    });
  }

 private:
  Spec::Attributes attributes_;
  ElementType data_;
};

}  // namespace

template <>
std::unique_ptr<DeviceKernel> MakeDeviceKernel<Spec>(const NodeReader& reader, ElementType data) {
  return std::make_unique<SequencePoolDeviceKernel>(reader, data);
}

}  // namespace attenuator::cuda
