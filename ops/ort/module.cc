// The library's entry point for ONNX Runtime: registers every operator of operators.gen.h, for the
// CPU and, where the library is built with CUDA, for CUDA.
#include <mutex>

#include "ops/ort/cpu.h"
#ifdef ATTENUATOR_CUDA
#include "ops/ort/cuda.h"
#endif

namespace {

// Static, since ONNX Runtime keeps a pointer to the operator for as long as any session lives.
template <class Operator>
void Add(const OrtApi& api, OrtCustomOpDomain* domain) {
  static const Operator op;
  Ort::ThrowOnError(api.CustomOpDomain_Add(domain, &op));
}

template <class Spec>
void AddAll(const OrtApi& api, OrtCustomOpDomain* domain) {
  using namespace attenuator;
  Add<ort::CpuOperator<Spec>>(api, domain);
#ifdef ATTENUATOR_CUDA
  // A host operator has no kernel for CUDA: ONNX Runtime then takes the CPU's in every session.
  if constexpr (!Spec::kHost) {
    Add<ort::CudaOperator<Spec, ElementType::kFloat>>(api, domain);
    Add<ort::CudaOperator<Spec, ElementType::kFloat16>>(api, domain);
    Add<ort::CudaOperator<Spec, ElementType::kBfloat16>>(api, domain);
  }
#endif
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    // No status can be made without an API; version 1 of it exists in every runtime.
    const std::string sentence =
        std::string("ONNX Runtime is of version ") + base->GetVersionString() +
        ", attenuator's operators need at least 1." + std::to_string(ORT_API_VERSION);
    return base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED, sentence.c_str());
  }
  Ort::InitApi(api);
  return attenuator::ort::Guard([&] {
    OrtCustomOpDomain* domain = nullptr;
    Ort::ThrowOnError(api->CreateCustomOpDomain("attenuator", &domain));
#define ATTENUATOR_ADD(Op) AddAll<attenuator::spec::Op>(*api, domain);
    ATTENUATOR_OPERATORS(ATTENUATOR_ADD)
#undef ATTENUATOR_ADD
    Ort::ThrowOnError(api->AddCustomOpDomain(options, domain));
    static std::vector<std::unique_ptr<OrtCustomOpDomain, void (*)(OrtCustomOpDomain*)>> domains;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    domains.emplace_back(domain, [](OrtCustomOpDomain*) {});
  });
}
