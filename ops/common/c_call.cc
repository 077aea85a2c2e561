#include "ops/common/c_call.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/common/check.h"

namespace attenuator {
namespace {

// Names of the C ABI's enumerations, by value, as messages say them.
constexpr std::array kKindNames{"int", "float", "string"};
constexpr std::array kTypeNames{"float", "int32", "int64", "float16", "bfloat16", "uint8"};

// A caller's value may be none of the enumeration.
template <std::size_t size>
std::string Named(const std::array<const char*, size>& names, std::int32_t value) {
  const bool known = value >= 0 && value < static_cast<std::int32_t>(size);
  return known ? names[static_cast<std::size_t>(value)] : std::to_string(value);
}

std::string ShapeText(const std::int64_t* sizes, std::int32_t rank) {
  std::string text;
  for (std::int32_t axis = 0; axis < rank; ++axis)
    text += (axis == 0 ? "" : ", ") + std::to_string(sizes[axis]);
  return "[" + text + "]";
}

}  // namespace

std::string& LastError() {
  thread_local std::string error;
  return error;
}

std::string TypeName(std::int32_t dtype) { return Named(kTypeNames, dtype); }

std::int64_t CNodeReader::Int(const char* name, std::int64_t low, std::int64_t high,
                              std::optional<std::int64_t> standard) const {
  std::optional<std::int64_t> value;
  if (const attenuator_attribute* attribute = Find(name, 0)) value = attribute->int_value;
  return CheckInt(op_, name, value, low, high, standard);
}

float CNodeReader::Float(const char* name, float standard) const {
  const attenuator_attribute* attribute = Find(name, 1);
  return attribute == nullptr ? standard : attribute->float_value;
}

int CNodeReader::Choice(const char* name, std::initializer_list<const char*> choices,
                        int standard) const {
  const attenuator_attribute* attribute = Find(name, 2);
  return CheckChoice(op_, name, attribute == nullptr ? nullptr : attribute->string_value, choices,
                     standard);
}

const attenuator_attribute* CNodeReader::Find(const char* name, std::int32_t kind) const {
  for (std::int32_t i = 0; i < count_; ++i) {
    if (std::strcmp(attributes_[i].name, name) != 0) continue;
    if (attributes_[i].kind != kind) {
      Fail(op_, std::string("attribute ") + name + " is of type " +
                    Named(kKindNames, attributes_[i].kind) + ", must be of type " +
                    Named(kKindNames, kind));
    }
    return &attributes_[i];
  }
  return nullptr;
}

CTensors::CTensors(const char* op, const InputSpec* specs, std::size_t num_specs,
                   const OutputSpec* output_specs, const attenuator_tensor* inputs,
                   std::int32_t num_inputs, const attenuator_tensor* outputs,
                   std::int32_t num_outputs, ElementType data)
    : op_(op),
      output_specs_(output_specs),
      outputs_(outputs),
      num_outputs_(num_outputs),
      views_(num_specs) {
  for (std::size_t i = 0; i < num_specs; ++i) {
    if (static_cast<std::int32_t>(i) >= num_inputs || inputs[i].rank == 0) {
      if (!specs[i].optional) Fail(op, std::string("input ") + specs[i].name + " is missing");
      continue;
    }
    const ElementType type = specs[i].data ? data : specs[i].type;
    if (inputs[i].rank != specs[i].rank || inputs[i].dtype != static_cast<int>(type)) {
      Fail(op, std::string(specs[i].name) + " is " + Named(kTypeNames, inputs[i].dtype) +
                   " of rank " + std::to_string(inputs[i].rank) + ", must be " +
                   Named(kTypeNames, static_cast<std::int32_t>(type)) + " of rank " +
                   std::to_string(specs[i].rank));
    }
    views_[i].data = inputs[i].data;
    views_[i].rank = inputs[i].rank;
    for (int axis = 0; axis < inputs[i].rank; ++axis) views_[i].shape[axis] = inputs[i].shape[axis];
  }
}

void* CTensors::Output(std::size_t index, std::initializer_list<std::int64_t> shape) const {
  if (static_cast<std::int32_t>(index) >= num_outputs_ || outputs_[index].rank == 0) {
    if (output_specs_[index].optional) return nullptr;
    Fail(op_, std::string("output ") + output_specs_[index].name + " is missing");
  }
  const attenuator_tensor& output = outputs_[index];
  if (output.rank != static_cast<std::int32_t>(shape.size()) ||
      !std::equal(shape.begin(), shape.end(), output.shape)) {
    Fail(op_, std::string("output ") + output_specs_[index].name + " has shape " +
                  ShapeText(output.shape, std::clamp(output.rank, 0, 2)) + ", must have shape " +
                  ShapeText(shape.begin(), static_cast<std::int32_t>(shape.size())));
  }
  return output.data;
}

}  // namespace attenuator
