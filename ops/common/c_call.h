// What functions of the C ABI are written with, those of all operators (ops/c_api.cc) and those
// that an operator brings (ops/<operator>/c_api.cc): its attributes and tensors, checked, and its
// errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "ops/c_api.h"
#include "ops/common/context.h"
#include "ops/common/spec.h"

namespace attenuator {

// The calling thread's last error; empty where there was none.
std::string& LastError();

// An element type as messages say it; a caller's value may be none.
std::string TypeName(std::int32_t dtype);

// Runs `body`, which gives false where it has set LastError(); what it throws becomes that.
template <class Body>
std::int32_t Guard(const Body& body) {
  LastError().clear();
  try {
    if (body()) return 0;
  } catch (const std::exception& error) {
    LastError() = error.what();
  }
  return 1;
}

// The attributes of one call.
class CNodeReader final : public NodeReader {
 public:
  CNodeReader(const char* op, const attenuator_attribute* attributes, std::int32_t count)
      : op_(op), attributes_(attributes), count_(count) {}

  std::int64_t Int(const char* name, std::int64_t low, std::int64_t high,
                   std::optional<std::int64_t> standard) const override;
  float Float(const char* name, float standard) const override;
  int Choice(const char* name, std::initializer_list<const char*> choices,
             int standard) const override;
  std::optional<TensorView> ConstantInput(std::size_t) const override { return std::nullopt; }

 private:
  const attenuator_attribute* Find(const char* name, std::int32_t kind) const;

  const char* op_;
  const attenuator_attribute* attributes_;
  std::int32_t count_;
};

// The tensors of one call, checked. `data` is what the operator's data tensors must be.
class CTensors {
 public:
  CTensors(const char* op, const InputSpec* specs, std::size_t num_specs,
           const OutputSpec* output_specs, const attenuator_tensor* inputs, std::int32_t num_inputs,
           const attenuator_tensor* outputs, std::int32_t num_outputs, ElementType data);

  TensorView Input(std::size_t index) const { return views_[index]; }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) const;

 private:
  const char* op_;
  const OutputSpec* output_specs_;
  const attenuator_tensor* outputs_;
  std::int32_t num_outputs_;
  std::vector<TensorView> views_;
};

}  // namespace attenuator
