// McaAttention's CUDA kernel as a session has it, for tests/ops/test_mca_kept_cuda.py: made once,
// run often, by many threads at once. The C ABI makes a kernel for each run and knows no constants.
// Linked into the test device's library.
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "ops/common/c_call.h"
#include "ops/common/cuda/context.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace attenuator;
using Spec = spec::McaAttention;

// The attributes of a call, and the weight a constant or not.
class Reader final : public NodeReader {
 public:
  Reader(const CNodeReader& attributes, bool constant)
      : attributes_(attributes), constant_(constant) {}
  std::int64_t Int(const char* name, std::int64_t low, std::int64_t high,
                   std::optional<std::int64_t> standard) const override {
    return attributes_.Int(name, low, high, standard);
  }
  float Float(const char* name, float standard) const override {
    return attributes_.Float(name, standard);
  }
  int Choice(const char* name, std::initializer_list<const char*> choices,
             int standard) const override {
    return attributes_.Choice(name, choices, standard);
  }
  std::optional<TensorView> ConstantInput(std::size_t index) const override {
    if (!constant_ || index != Spec::kValueWeightInput) return std::nullopt;
    return TensorView{};
  }

 private:
  const CNodeReader& attributes_;
  bool constant_;
};

class Context final : public cuda::DeviceContext {
 public:
  Context(CTensors tensors, attenuator_allocate allocate)
      : tensors_(std::move(tensors)), allocate_(allocate) {}
  TensorView Input(std::size_t index) const override { return tensors_.Input(index); }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override {
    return tensors_.Output(index, shape);
  }
  cuda::Stream stream() override { return nullptr; }
  void* Scratch(std::size_t bytes) override {
    void* memory = allocate_(nullptr, static_cast<std::int64_t>(bytes));
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }

 private:
  CTensors tensors_;
  attenuator_allocate allocate_;
};

struct Node {
  ElementType data;
  std::unique_ptr<cuda::DeviceKernel> kernel;
};

}  // namespace

// Makes a node whose data tensors are of type `data`.
EXPORT std::int32_t attenuator_node_make(const attenuator_attribute* attributes,
                                         std::int32_t num_attributes, std::int32_t data,
                                         std::int32_t constant, Node** node) {
  return Guard([&] {
    const CNodeReader reader(Spec::kName, attributes, num_attributes);
    const auto type = static_cast<ElementType>(data);
    *node = new Node{type, cuda::MakeDeviceKernel<Spec>(Reader(reader, constant != 0), type)};
    return true;
  });
}

EXPORT std::int32_t attenuator_node_run(const Node* node, const attenuator_tensor* inputs,
                                        std::int32_t num_inputs, const attenuator_tensor* outputs,
                                        std::int32_t num_outputs, attenuator_allocate allocate) {
  return Guard([&] {
    Context context({Spec::kName, Spec::kInputs.data(), Spec::kInputs.size(), Spec::kOutputs.data(),
                     inputs, num_inputs, outputs, num_outputs, node->data},
                    allocate);
    node->kernel->Run(context);
    return true;
  });
}

EXPORT void attenuator_node_free(Node* node) { delete node; }
