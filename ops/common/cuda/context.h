// What a CUDA operator sees of its host beside its tensors: a stream and memory that lives as long
// as the work queued on it. Knows no CUDA header, so that the hosts (ops/ort, ops/c_api.cc) compile
// without a toolkit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "operators.gen.h"
#include "ops/common/check.h"
#include "ops/common/context.h"

struct CUevent_st;
struct CUstream_st;

namespace attenuator::cuda {

using Stream = CUstream_st*;  // what CUDA's own headers call cudaStream_t
using Event = CUevent_st*;    // and cudaEvent_t

// One run of a node on a CUDA device. Inputs that the spec keeps in host memory are host pointers,
// all others and the outputs are device pointers. Queue work on stream() and return: nothing may
// wait for the device.
class DeviceContext : public TensorContext {
 public:
  virtual Stream stream() = 0;
  // Device memory, aligned to 256 bytes, uninitialised, valid until the work queued by this run has
  // ended.
  virtual void* Scratch(std::size_t bytes) = 0;

  template <class T>
  T* ScratchArray(std::int64_t count) {
    return static_cast<T*>(Scratch(static_cast<std::size_t>(count) * sizeof(T)));
  }
};

// Kernels load 16 bytes at once: device inputs start at such an address. Hosts allocate with more;
// a caller's own memory, or a slice of a tensor, may not.
inline constexpr std::uintptr_t kAlignment = 16;

// Throws std::invalid_argument naming the input that kernels on a device cannot take.
inline void CheckDeviceInputs(const char* op, const InputSpec* inputs, std::size_t num_inputs,
                              const TensorContext& context) {
  for (std::size_t i = 0; i < num_inputs; ++i) {
    const TensorView input = context.Input(i);
    const auto address = reinterpret_cast<std::uintptr_t>(input.data);
    if (!inputs[i].host && address % kAlignment != 0) {
      Fail(op, std::string(inputs[i].name) + " starts " + std::to_string(address % kAlignment) +
                   " bytes past a multiple of 16 bytes, must start at such a multiple");
    }
  }
}

// An operator's CUDA kernel: made once for each node, run by many threads at once, hence const.
class DeviceKernel {
 public:
  virtual ~DeviceKernel() = default;
  // Throws std::invalid_argument where an input is wrong, std::runtime_error where CUDA refuses a
  // launch.
  virtual void Run(DeviceContext& context) const = 0;
};

// Defined in ops/<operator>/cuda/operator.cc. `data` is the element type of the operator's data
// tensors (InputSpec::data): kFloat, kFloat16 or kBfloat16. ConstantInput of the reader says here
// that an input is constant, and its shape: what it points to may lie on the device, and no stream
// is at hand. This one is for operators without that folder.
template <class Spec>
std::unique_ptr<DeviceKernel> MakeDeviceKernel(const NodeReader&, ElementType) {
  Fail(Spec::kName, "runs on the CPU only: it has no CUDA kernel, so load the model on the CPU");
}

#define ATTENUATOR_DECLARE(Op)                                                       \
  template <>                                                                        \
  std::unique_ptr<DeviceKernel> MakeDeviceKernel<spec::Op>(const NodeReader& reader, \
                                                           ElementType data);
ATTENUATOR_CUDA_OPERATORS(ATTENUATOR_DECLARE)
#undef ATTENUATOR_DECLARE

}  // namespace attenuator::cuda
