#include "ops/c_api.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ops/common/c_call.h"
#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/own_threads.h"
#include "ops/common/registry.h"
#ifdef ATTENUATOR_CUDA
#include "ops/common/cuda/context.h"
#endif

namespace attenuator {
namespace {

#define ATTENUATOR_NAME(Op) spec::Op::kName,
constexpr std::array kOperatorNames{ATTENUATOR_OPERATORS(ATTENUATOR_NAME)};
#undef ATTENUATOR_NAME

std::string UnknownOperator(const char* name) {
  std::string allowed;
  for (const char* known : kOperatorNames)
    allowed += (allowed.empty() ? "" : ", ") + std::string(known);
  return std::string("operator is '") + name + "', must be one of: " + allowed;
}

// Threads of its own for each run; serving has ONNX Runtime's pool.
class CRunContext final : public RunContext {
 public:
  CRunContext(CTensors tensors, std::int32_t num_threads)
      : tensors_(std::move(tensors)), threads_(num_threads) {}

  TensorView Input(std::size_t index) const override { return tensors_.Input(index); }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override {
    return tensors_.Output(index, shape);
  }
  ThreadPool& threads() override { return threads_; }

 private:
  CTensors tensors_;
  OwnThreads threads_;
};

#ifdef ATTENUATOR_CUDA
class CDeviceContext final : public cuda::DeviceContext {
 public:
  CDeviceContext(const char* op, CTensors tensors, void* stream, attenuator_allocate allocate,
                 void* state)
      : op_(op),
        tensors_(std::move(tensors)),
        stream_(static_cast<cuda::Stream>(stream)),
        allocate_(allocate),
        state_(state) {}

  TensorView Input(std::size_t index) const override { return tensors_.Input(index); }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override {
    return tensors_.Output(index, shape);
  }
  cuda::Stream stream() override { return stream_; }
  void* Scratch(std::size_t bytes) override {
    void* memory = allocate_(state_, static_cast<std::int64_t>(bytes));
    if (memory == nullptr) {
      throw std::runtime_error(std::string(op_) + ": " + std::to_string(bytes) +
                               " bytes of scratch memory could not be allocated");
    }
    return memory;
  }

 private:
  const char* op_;
  CTensors tensors_;
  cuda::Stream stream_;
  attenuator_allocate allocate_;
  void* state_;
};
#endif

// What a caller passes for one run.
struct Call {
  const char* name;
  const attenuator_tensor* inputs;
  std::int32_t num_inputs;
  const attenuator_tensor* outputs;
  std::int32_t num_outputs;
  const attenuator_attribute* attributes;
  std::int32_t num_attributes;

  CNodeReader reader() const { return {name, attributes, num_attributes}; }

  template <class Spec>
  CTensors tensors(ElementType data) const {
    return {name,
            Spec::kInputs.data(),
            Spec::kInputs.size(),
            Spec::kOutputs.data(),
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            data};
  }
};

template <class Spec>
void RunOnCpu(const Call& call, std::int32_t num_threads) {
  const auto kernel = MakeKernel<Spec>(call.reader());
  CRunContext context(call.tensors<Spec>(ElementType::kFloat), num_threads);
  kernel->Run(context);
}

#ifdef ATTENUATOR_CUDA
template <class Spec>
void RunOnDevice(const Call& call, void* stream, attenuator_allocate allocate, void* state) {
  if constexpr (Spec::kHost) {
    RunOnCpu<Spec>(call, 1);
  } else {
    // The first input is a data tensor, with which the others must agree, or there is none.
    const bool any = call.num_inputs > 0;
    const auto data = static_cast<ElementType>(any ? call.inputs[0].dtype : -1);
    if (Spec::kInputs[0].data && data != ElementType::kFloat && data != ElementType::kFloat16 &&
        data != ElementType::kBfloat16) {
      Fail(call.name, std::string("the first input is ") +
                          (any ? TypeName(call.inputs[0].dtype) : "missing") +
                          ", must be float, float16 or bfloat16");
    }
    const auto kernel = cuda::MakeDeviceKernel<Spec>(call.reader(), data);
    CDeviceContext context(call.name, call.tensors<Spec>(data), stream, allocate, state);
    cuda::CheckDeviceInputs(call.name, Spec::kInputs.data(), Spec::kInputs.size(), context);
    kernel->Run(context);
  }
}
#endif

}  // namespace
}  // namespace attenuator

extern "C" {

__attribute__((visibility("default"))) int32_t attenuator_run(
    const char* name, const attenuator_tensor* inputs, int32_t num_inputs,
    const attenuator_tensor* outputs, int32_t num_outputs, const attenuator_attribute* attributes,
    int32_t num_attributes, int32_t num_threads) {
  using namespace attenuator;
  return Guard([&] {
    const Call call{name, inputs, num_inputs, outputs, num_outputs, attributes, num_attributes};
#define ATTENUATOR_RUN(Op)                       \
  if (std::strcmp(name, spec::Op::kName) == 0) { \
    RunOnCpu<spec::Op>(call, num_threads);       \
    return true;                                 \
  }
    ATTENUATOR_OPERATORS(ATTENUATOR_RUN)
#undef ATTENUATOR_RUN
    LastError() = UnknownOperator(name);
    return false;
  });
}

__attribute__((visibility("default"))) int32_t attenuator_run_cuda(
    [[maybe_unused]] const char* name, [[maybe_unused]] const attenuator_tensor* inputs,
    [[maybe_unused]] int32_t num_inputs, [[maybe_unused]] const attenuator_tensor* outputs,
    [[maybe_unused]] int32_t num_outputs, [[maybe_unused]] const attenuator_attribute* attributes,
    [[maybe_unused]] int32_t num_attributes, [[maybe_unused]] void* stream,
    [[maybe_unused]] attenuator_allocate allocate, [[maybe_unused]] void* state) {
  using namespace attenuator;
  return Guard([&] {
#ifdef ATTENUATOR_CUDA
    const Call call{name, inputs, num_inputs, outputs, num_outputs, attributes, num_attributes};
#define ATTENUATOR_RUN(Op)                                \
  if (std::strcmp(name, spec::Op::kName) == 0) {          \
    RunOnDevice<spec::Op>(call, stream, allocate, state); \
    return true;                                          \
  }
    ATTENUATOR_OPERATORS(ATTENUATOR_RUN)
#undef ATTENUATOR_RUN
    LastError() = UnknownOperator(name);
#else
    LastError() = "the operator library was built without CUDA: `make cuda` builds one with it";
#endif
    return false;
  });
}

__attribute__((visibility("default"))) const char* attenuator_device(void) {
#if defined(ATTENUATOR_CUDA_ON_HOST)
  return "cuda_on_host";
#elif defined(ATTENUATOR_CUDA)
  return "cuda";
#else
  return nullptr;
#endif
}

__attribute__((visibility("default"))) const char* attenuator_last_error(void) {
  return attenuator::LastError().c_str();
}

__attribute__((visibility("default"))) const char* attenuator_isa(const char* name) {
  using namespace attenuator;
  try {
#define ATTENUATOR_ISA(Op) \
  if (std::strcmp(name, spec::Op::kName) == 0) return IsaName(BestIsa<spec::Op>());
    ATTENUATOR_OPERATORS(ATTENUATOR_ISA)
#undef ATTENUATOR_ISA
    return IsaName(CpuIsa());
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // extern "C"
