// Kernels for ONNX Runtime's CPUExecutionProvider.
#pragma once

#include "ops/ort/binding.h"

namespace attenuator::ort {

// One run of a node; also its thread pool, which is the session's intra-op pool.
class OrtRunContext final : public RunContext, public ThreadPool {
 public:
  OrtRunContext(const char* op, OrtKernelContext* context, const InputSpec* inputs,
                std::size_t num_inputs, const OutputSpec* outputs)
      : context_(context), tensors_(op, context, inputs, num_inputs, outputs) {}
  TensorView Input(std::size_t index) const override { return tensors_.Input(index); }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override {
    return tensors_.Output(index, shape);
  }
  ThreadPool& threads() override { return *this; }

 protected:
  void Run(std::int64_t tasks, Task task, void* state) override {
    Ort::ThrowOnError(Ort::GetApi().KernelContext_ParallelFor(
        context_, task, static_cast<std::size_t>(tasks), 0, state));
  }

 private:
  OrtKernelContext* context_;
  NodeTensors tensors_;
};

template <class Spec>
struct CpuKernel {
  std::unique_ptr<Kernel> kernel;

  OrtStatusPtr ComputeV2(OrtKernelContext* context) const {
    return Guard([&] {
      OrtRunContext run(Spec::kName, context, Spec::kInputs.data(), Spec::kInputs.size(),
                        Spec::kOutputs.data());
      kernel->Run(run);
    });
  }
};

template <class Spec>
struct CpuOperator : OperatorBase<CpuOperator<Spec>, Spec, CpuKernel<Spec>, ElementType::kFloat> {
  static constexpr const char* kProvider = "CPUExecutionProvider";

  static std::unique_ptr<CpuKernel<Spec>> Make(const OrtKernelInfo* info) {
    const OrtNodeReader reader(Spec::kName, info, Spec::kInputs.data());
    auto node = std::make_unique<CpuKernel<Spec>>();
    node->kernel = MakeKernel<Spec>(reader);
    return node;
  }
};

}  // namespace attenuator::ort
