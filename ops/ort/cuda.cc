#include "ops/ort/cuda.h"

namespace attenuator::ort {
namespace {

const OrtApi& Api() { return Ort::GetApi(); }

}  // namespace

OrtDeviceContext::OrtDeviceContext(const char* op, OrtKernelContext* context,
                                   const InputSpec* inputs, std::size_t num_inputs,
                                   const OutputSpec* outputs)
    : op_(op), context_(context), tensors_(op, context, inputs, num_inputs, outputs) {
  const OrtValue* first = nullptr;  // NodeTensors has checked that it exists
  Ort::ThrowOnError(Api().KernelContext_GetInput(context, 0, &first));
  Ort::ThrowOnError(Api().GetTensorMemoryInfo(first, &memory_));
}

OrtDeviceContext::~OrtDeviceContext() {
  for (void* memory : scratch_) allocator_->Free(allocator_, memory);
  if (allocator_ != nullptr) Api().ReleaseAllocator(allocator_);
}

cuda::Stream OrtDeviceContext::stream() {
  void* stream = nullptr;
  Ort::ThrowOnError(Api().KernelContext_GetGPUComputeStream(context_, &stream));
  return static_cast<cuda::Stream>(stream);
}

void* OrtDeviceContext::Scratch(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (allocator_ == nullptr) {
    Ort::ThrowOnError(Api().KernelContext_GetAllocator(context_, memory_, &allocator_));
  }
  scratch_.reserve(scratch_.size() + 1);  // nothing may throw between allocation and record
  void* memory = nullptr;
  Ort::ThrowOnError(Api().KernelContext_GetScratchBuffer(context_, memory_, bytes, &memory));
  if (memory == nullptr) {
    throw std::runtime_error(std::string(op_) + ": " + std::to_string(bytes) +
                             " bytes of scratch memory could not be allocated");
  }
  scratch_.push_back(memory);
  return memory;
}

}  // namespace attenuator::ort
