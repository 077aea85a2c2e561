// SoftmaxAttention on CUDA: checks, the list of tiles, launches.
#include <algorithm>
#include <vector>

#include "ops/common/attention/cuda/attention.h"
#include "ops/softmax/inputs.h"

namespace attenuator {
namespace softmax {

std::vector<Item> ItemsOf(const Sequences& sequences, bool first) {
  std::vector<Item> items;
  for (std::int64_t b = 0; b < sequences.batch; ++b) {
    const auto begin = static_cast<std::int32_t>(sequences.begin(b));
    const auto length = static_cast<std::int32_t>(sequences.length(b));
    items.push_back({begin, length, first ? static_cast<std::int32_t>(b) : begin, 0});
  }
  return items;
}

void Attend(ElementType data, Call call, std::vector<Item> items, bool first, cuda::Stream stream) {
  const auto aligned = [](const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) % 16 == 0;
  };
  call.vector = call.head_dim % 8 == 0 && call.value_dim % 8 == 0 && aligned(call.query) &&
                aligned(call.key) && aligned(call.value) && aligned(call.output);
  std::vector<Item> first_rows;
  if (first) {
    first_rows.swap(items);
  } else {
    for (const Item& item : items) {
      const bool narrow = call.window > 0 && call.window < item.length - 1;
      if (narrow && call.global_token) first_rows.push_back(item);
    }
  }
  // Blocks start in order: with long sequences first, none of theirs is left for the end.
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.length > b.length; });
  const int rows = TileRows(data, call);
  std::int32_t tiles = 0;
  for (Item& item : items) {
    item.first_tile = tiles;
    tiles += (item.length + rows - 1) / rows;
  }
  cuda::ForBatches(items, [&](const cuda::Batch<Item>& batch) {
    const Item& last = batch.items[batch.count - 1];
    const int end = last.first_tile + (last.length + rows - 1) / rows;
    LaunchTiles(data, batch, end - batch.items[0].first_tile, call, stream);
  });
  cuda::ForBatches(first_rows, [&](const cuda::Batch<Item>& batch) {
    LaunchFirstRows(data, batch, call, stream);
  });
}

}  // namespace softmax

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
    softmax::Call call{};
    call.query = inputs.query.data;
    call.key = inputs.key.data;
    call.value = inputs.value.data;
    call.output =
        context.Output(Spec::kOutputOutput, {inputs.query.rows(), inputs.value.columns()});
    call.query_stride = inputs.key.columns();
    call.value_stride = inputs.value.columns();
    call.heads = static_cast<int>(attributes_.num_heads);
    call.head_dim = static_cast<int>(inputs.head_dim);
    call.value_dim = static_cast<int>(inputs.value_dim);
    call.scale = inputs.scale * softmax::kLog2E;
    call.window = static_cast<int>(attributes_.window);
    call.global_token = attributes_.global_tokens == 1;
    softmax::Attend(data_, call, softmax::ItemsOf(inputs.sequences, inputs.first), inputs.first,
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
