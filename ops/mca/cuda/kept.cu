// McaAttention on CUDA: where the facts of a weight lie, and those that are kept (kept.h).
//
// One piece of memory holds all facts, doubles first so that each is aligned. Memory that is kept
// is CUDA's own, not the host's, whose memory ends with the run; it is freed where nothing that
// uses it is under way, with the kernel or after a launch that failed, since freeing waits for the
// device.
#include <type_traits>
#include <utility>

#include "ops/common/cuda/device.h"
#include "ops/mca/cuda/kept.h"

namespace attenuator::mca {
namespace {

constexpr const char* kWhat = "McaAttention, kept weight facts";

// Gives each fact its place from the address `at` on; returns where they end.
std::uintptr_t Place(const DeviceCall& call, std::uintptr_t at, DeviceWeights* weights) {
  const std::int64_t heads = call.heads, rows = heads * call.channels;
  const auto take = [&at](auto*& fact, std::int64_t count) {
    fact = reinterpret_cast<std::remove_reference_t<decltype(fact)>>(at);
    at += static_cast<std::size_t>(count) * sizeof *fact;
  };
  take(weights->frobenius, heads);
  if (call.estimator == DeviceEstimator::kDeterministic) take(weights->spectral, heads);
  if (call.estimator == DeviceEstimator::kPaper) take(weights->cdf, rows);
  if (call.estimator != DeviceEstimator::kDeterministic) take(weights->inverse_p, rows);
  take(weights->approximable, heads);
  return at;
}

}  // namespace

std::size_t FactBytes(const DeviceCall& call) {
  DeviceWeights nowhere{};
  return Place(call, 0, &nowhere);
}

DeviceWeights Study(ElementType data, const DeviceCall& call, void* memory,
                    cuda::DeviceContext& context) {
  DeviceWeights weights{};
  Place(call, reinterpret_cast<std::uintptr_t>(memory), &weights);
  weights.prefix =
      context.ScratchArray<double>(static_cast<std::int64_t>(call.heads) * call.channels);
  if (call.estimator == DeviceEstimator::kDeterministic) {
    weights.gram = context.ScratchArray<double>((call.head_dim + 2) * call.width());
  }
  LaunchWeights(data, call, weights, context.stream());
  return weights;
}

DeviceWeights KeptWeights::Of(ElementType data, const DeviceCall& call,
                              cuda::DeviceContext& context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (memory_ == nullptr) {
    std::unique_ptr<void, Release> memory(cuda::Allocate(FactBytes(call), kWhat));
    std::unique_ptr<CUevent_st, Release> computed(cuda::MakeEvent(kWhat));
    Study(data, call, memory.get(), context);
    cuda::Record(computed.get(), context.stream(), kWhat);
    memory_ = std::move(memory);
    computed_ = std::move(computed);
  }
  cuda::Wait(context.stream(), computed_.get(), kWhat);
  DeviceWeights weights{};
  Place(call, reinterpret_cast<std::uintptr_t>(memory_.get()), &weights);
  return weights;
}

void KeptWeights::Release::operator()(void* memory) const { cuda::Free(memory); }
void KeptWeights::Release::operator()(CUevent_st* event) const { cuda::Destroy(event); }

}  // namespace attenuator::mca
