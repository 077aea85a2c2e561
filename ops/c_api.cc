#include "ops/c_api.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/registry.h"

namespace attenuator {
namespace {

thread_local std::string last_error;

class CNodeReader final : public NodeReader {
 public:
  CNodeReader(const char* op, const attenuator_attribute* attributes, std::int32_t count)
      : op_(op), attributes_(attributes), count_(count) {}

  std::int64_t Int(const char* name, std::int64_t low, std::int64_t high,
                   std::optional<std::int64_t> standard) const override {
    const attenuator_attribute* found = Find(name, 0);
    if (found == nullptr && !standard) Fail(op_, std::string("attribute ") + name + " is missing");
    if (found == nullptr) return *standard;
    if (found->int_value < low || found->int_value > high) {
      Fail(op_, std::string("attribute ") + name + " is " + std::to_string(found->int_value) +
                    ", must be in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
    }
    return found->int_value;
  }

  float Float(const char* name, float standard) const override {
    const attenuator_attribute* found = Find(name, 1);
    return found == nullptr ? standard : found->float_value;
  }

  int Choice(const char* name, std::initializer_list<const char*> choices,
             int standard) const override {
    const attenuator_attribute* found = Find(name, 2);
    if (found == nullptr) return standard;
    int index = 0;
    std::string allowed;
    for (const char* choice : choices) {
      if (std::strcmp(choice, found->string_value) == 0) return index;
      allowed += std::string(index++ == 0 ? "" : ", ") + choice;
    }
    Fail(op_, std::string("attribute ") + name + " is '" + found->string_value +
                  "', must be one of: " + allowed);
  }

  std::optional<TensorView> ConstantInput(std::size_t) const override { return std::nullopt; }

 private:
  const attenuator_attribute* Find(const char* name, std::int32_t kind) const {
    for (std::int32_t i = 0; i < count_; ++i) {
      if (std::strcmp(attributes_[i].name, name) != 0) continue;
      if (attributes_[i].kind != kind) {
        Fail(op_, std::string("attribute ") + name + " is of the wrong type");
      }
      return &attributes_[i];
    }
    return nullptr;
  }

  const char* op_;
  const attenuator_attribute* attributes_;
  std::int32_t count_;
};

// Threads of its own for one call: enough for export, training and tests; serving has ONNX
// Runtime's pool.
class CRunContext final : public RunContext, public ThreadPool {
 public:
  CRunContext(const char* op, const InputSpec* specs, std::size_t num_specs,
              const attenuator_tensor* inputs, std::int32_t num_inputs,
              const attenuator_tensor* outputs, std::int32_t num_outputs, std::int32_t num_threads)
      : op_(op), outputs_(outputs), num_outputs_(num_outputs), num_threads_(num_threads) {
    views_.resize(num_specs);
    for (std::size_t i = 0; i < num_specs; ++i) {
      if (static_cast<std::int32_t>(i) >= num_inputs || inputs[i].rank == 0) {
        if (!specs[i].optional) Fail(op, std::string(specs[i].name) + " is missing");
        continue;
      }
      if (inputs[i].rank != specs[i].rank || inputs[i].dtype != static_cast<int>(specs[i].type)) {
        Fail(op,
             std::string(specs[i].name) + " is of the wrong type or has the wrong number of axes");
      }
      views_[i].data = inputs[i].data;
      views_[i].rank = inputs[i].rank;
      for (int axis = 0; axis < inputs[i].rank; ++axis)
        views_[i].shape[axis] = inputs[i].shape[axis];
    }
  }

  TensorView Input(std::size_t index) const override { return views_[index]; }

  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override {
    if (static_cast<std::int32_t>(index) >= num_outputs_) Fail(op_, "an output is missing");
    const attenuator_tensor& output = outputs_[index];
    if (output.rank != static_cast<std::int32_t>(shape.size()) ||
        !std::equal(shape.begin(), shape.end(), output.shape)) {
      Fail(op_, "output " + std::to_string(index) + " has the wrong shape");
    }
    return output.data;
  }

  ThreadPool& threads() override { return *this; }

 protected:
  void Run(std::int64_t tasks, Task task, void* state) override {
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
      for (std::int64_t i = next++; i < tasks; i = next++) task(state, static_cast<std::size_t>(i));
    };
    std::vector<std::thread> others;
    for (std::int64_t t = 1; t < std::min<std::int64_t>(num_threads_, tasks); ++t)
      others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }

 private:
  const char* op_;
  std::vector<TensorView> views_;
  const attenuator_tensor* outputs_;
  std::int32_t num_outputs_;
  std::int32_t num_threads_;
};

}  // namespace
}  // namespace attenuator

extern "C" {

__attribute__((visibility("default"))) int32_t attenuator_run(
    const char* name, const attenuator_tensor* inputs, int32_t num_inputs,
    const attenuator_tensor* outputs, int32_t num_outputs, const attenuator_attribute* attributes,
    int32_t num_attributes, int32_t num_threads) {
  using namespace attenuator;
  last_error.clear();
  try {
#define ATTENUATOR_RUN(Op)                                                                   \
  if (std::strcmp(name, spec::Op::kName) == 0) {                                             \
    const auto kernel = MakeKernel<spec::Op>(CNodeReader(name, attributes, num_attributes)); \
    CRunContext context(name, spec::Op::kInputs.data(), spec::Op::kInputs.size(), inputs,    \
                        num_inputs, outputs, num_outputs, num_threads);                      \
    kernel->Run(context);                                                                    \
    return 0;                                                                                \
  }
    ATTENUATOR_OPERATORS(ATTENUATOR_RUN)
#undef ATTENUATOR_RUN
    last_error = std::string("there is no operator ") + name;
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}

__attribute__((visibility("default"))) const char* attenuator_last_error(void) {
  return attenuator::last_error.c_str();
}

__attribute__((visibility("default"))) const char* attenuator_isa(void) {
  try {
    return attenuator::IsaName(attenuator::CpuIsa());
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // extern "C"
