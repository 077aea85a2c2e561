#include "ops/yoso/c_api.h"

#include "ops/common/c_call.h"
#include "ops/common/own_threads.h"
#include "ops/yoso/gradient.h"

namespace attenuator::yoso {
namespace {

using Spec = spec::YosoAttention;

void Gradient(const attenuator_rows* rows, std::int64_t num_rows, const attenuator_tensor* hashing,
              const CNodeReader& reader, const GradientKind& kind, std::int32_t num_threads) {
  const auto all = [&](int i) {
    return HeadRows{rows[i].data, rows[i].row_stride, rows[i].head_stride, rows[i].channels};
  };
  const CTensors knobs(Spec::kName, &Spec::kInputs[Spec::kCuSeqlensInput], 3, nullptr, hashing, 3,
                       nullptr, 0, ElementType::kFloat);
  OwnThreads threads(num_threads);
  RunGradient(Spec::Read(reader), kind,
              {.query = all(0),
               .key = all(1),
               .value = all(2),
               .grad = all(3),
               .by_query = all(4),
               .by_key = all(5),
               .by_value = all(6),
               .rows = num_rows,
               .cu_seqlens = knobs.Input(0),
               .num_hashes = knobs.Input(1),
               .seed = knobs.Input(2)},
              threads);
}

}  // namespace
}  // namespace attenuator::yoso

extern "C" __attribute__((visibility("default"))) int32_t attenuator_yoso_gradient(
    const attenuator_rows* rows, int64_t num_rows, const attenuator_tensor* hashing,
    const attenuator_attribute* attributes, int32_t num_attributes, int32_t collided,
    float softening, int32_t num_threads) {
  using namespace attenuator;
  return Guard([&] {
    const CNodeReader reader(spec::YosoAttention::kName, attributes, num_attributes);
    yoso::Gradient(rows, num_rows, hashing, reader, {collided != 0, softening}, num_threads);
    return true;
  });
}
