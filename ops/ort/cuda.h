// Kernels for ONNX Runtime's CUDAExecutionProvider, one for each element type of the data tensors.
// Includes no CUDA header: a stream is a plain pointer here, and launches are in ops/<operator>.
#pragma once

#include "ops/common/cuda/context.h"
#include "ops/ort/binding.h"

namespace attenuator::ort {

// One run of a node on the session's device, which ONNX Runtime has made the thread's current one.
//
// Scratch memory comes from the arena of the device on which the first input lies. It is allocated
// for the run's stream and freed once the run has queued its work, while the device may still use
// it. That is safe because the arena remembers the stream: it gives the memory to another stream
// only after the two have been synchronised. Memory from OrtAllocator::Alloc has no stream and
// could go to a concurrent run at once. Hence KernelContext_GetScratchBuffer, whose memory the
// caller frees through the allocator.
class OrtDeviceContext final : public cuda::DeviceContext {
 public:
  OrtDeviceContext(const char* op, OrtKernelContext* context, const InputSpec* inputs,
                   std::size_t num_inputs, const OutputSpec* outputs);
  ~OrtDeviceContext() override;
  OrtDeviceContext(const OrtDeviceContext&) = delete;
  OrtDeviceContext& operator=(const OrtDeviceContext&) = delete;

  TensorView Input(std::size_t index) const override { return tensors_.Input(index); }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override {
    return tensors_.Output(index, shape);
  }
  cuda::Stream stream() override;
  void* Scratch(std::size_t bytes) override;

 private:
  const char* op_;
  OrtKernelContext* context_;
  NodeTensors tensors_;
  const OrtMemoryInfo* memory_ = nullptr;  // not owned
  OrtAllocator* allocator_ = nullptr;      // null before the first scratch memory
  std::vector<void*> scratch_;
};

template <class Spec>
struct CudaKernel {
  std::unique_ptr<cuda::DeviceKernel> kernel;

  OrtStatusPtr ComputeV2(OrtKernelContext* context) const {
    return Guard([&] {
      OrtDeviceContext run(Spec::kName, context, Spec::kInputs.data(), Spec::kInputs.size(),
                           Spec::kOutputs.data());
      cuda::CheckDeviceInputs(Spec::kName, Spec::kInputs.data(), Spec::kInputs.size(), run);
      kernel->Run(run);
    });
  }
};

template <class Spec, ElementType kData>
struct CudaOperator : OperatorBase<CudaOperator<Spec, kData>, Spec, CudaKernel<Spec>, kData> {
  static constexpr const char* kProvider = "CUDAExecutionProvider";

  static std::unique_ptr<CudaKernel<Spec>> Make(const OrtKernelInfo* info) {
    const OrtNodeReader reader(Spec::kName, info, Spec::kInputs.data());
    auto node = std::make_unique<CudaKernel<Spec>>();
    node->kernel = cuda::MakeDeviceKernel<Spec>(reader, kData);
    return node;
  }
};

}  // namespace attenuator::ort
