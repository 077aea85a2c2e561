// The library's entry point for ONNX Runtime: registers every operator of operators.gen.h.
#include <mutex>

#include "ops/ort/binding.h"

namespace {

// ONNX Runtime keeps pointers to both for as long as any session lives, hence static.
template <class Spec>
const OrtCustomOp* Instance() {
  static const attenuator::ort::CustomOp<Spec> op;
  return &op;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    // No status can be made without an API; version 1 of it exists in every runtime.
    return base->GetApi(1)->CreateStatus(
        ORT_NOT_IMPLEMENTED,
        "attenuator's operators need an ONNX Runtime of at least the version they were built for");
  }
  Ort::InitApi(api);
  return attenuator::ort::Guard([&] {
    OrtCustomOpDomain* domain = nullptr;
    Ort::ThrowOnError(api->CreateCustomOpDomain("attenuator", &domain));
#define ATTENUATOR_ADD(Op) \
  Ort::ThrowOnError(api->CustomOpDomain_Add(domain, Instance<attenuator::spec::Op>()));
    ATTENUATOR_OPERATORS(ATTENUATOR_ADD)
#undef ATTENUATOR_ADD
    Ort::ThrowOnError(api->AddCustomOpDomain(options, domain));
    static std::vector<std::unique_ptr<OrtCustomOpDomain, void (*)(OrtCustomOpDomain*)>> domains;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    domains.emplace_back(domain, [](OrtCustomOpDomain*) {});
  });
}
