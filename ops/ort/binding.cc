#include "ops/ort/binding.h"

#include <array>
#include <atomic>
#include <map>

namespace attenuator::ort {
namespace {

const OrtApi& Api() { return Ort::GetApi(); }

// Whether a read failed because there is nothing to read.
bool Absent(OrtStatus* status) {
  if (status == nullptr) return false;
  Api().ReleaseStatus(status);
  return true;
}

std::vector<std::int64_t> ShapeOf(const OrtValue* value) {
  return Ort::ConstValue(value).GetTensorTypeAndShapeInfo().GetShape();
}

}  // namespace

TensorView ViewOf(const char* op, const InputSpec& input, const void* data,
                  const std::vector<std::int64_t>& shape) {
  if (static_cast<int>(shape.size()) != input.rank) {
    Fail(op, std::string(input.name) + " has rank " + std::to_string(shape.size()) +
                 ", must have rank " + std::to_string(input.rank));
  }
  TensorView view;
  view.data = data;
  view.rank = input.rank;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) view.shape[axis] = shape[axis];
  return view;
}

std::int64_t OrtNodeReader::Int(const char* name, std::int64_t low, std::int64_t high,
                                std::optional<std::int64_t> standard) const {
  std::optional<std::int64_t> value = 0;
  if (!Has(name, "int", Api().KernelInfoGetAttribute_int64(info_, name, &*value))) value.reset();
  return CheckInt(op_, name, value, low, high, standard);
}

float OrtNodeReader::Float(const char* name, float standard) const {
  float value = 0;
  return Has(name, "float", Api().KernelInfoGetAttribute_float(info_, name, &value)) ? value
                                                                                     : standard;
}

int OrtNodeReader::Choice(const char* name, std::initializer_list<const char*> choices,
                          int standard) const {
  std::size_t size = 0;
  if (!Has(name, "string", Api().KernelInfoGetAttribute_string(info_, name, nullptr, &size))) {
    return standard;
  }
  std::string value(size, '\0');
  Ort::ThrowOnError(Api().KernelInfoGetAttribute_string(info_, name, value.data(), &size));
  return CheckChoice(op_, name, value.c_str(), choices, standard);
}

bool OrtNodeReader::Has(const char* name, const char* type, OrtStatus* read) const {
  if (read == nullptr) return true;
  const std::string why = Api().GetErrorMessage(read);
  Api().ReleaseStatus(read);
  std::int64_t integer = 0;
  float number = 0;
  std::size_t size = 0;
  const char* other = nullptr;
  if (!Absent(Api().KernelInfoGetAttribute_int64(info_, name, &integer))) {
    other = "int";
  } else if (!Absent(Api().KernelInfoGetAttribute_float(info_, name, &number))) {
    other = "float";
  } else if (!Absent(Api().KernelInfoGetAttribute_string(info_, name, nullptr, &size))) {
    other = "string";
  } else if (why.find("type") != std::string::npos) {
    other = "list or tensor";
  }
  if (other != nullptr) {
    Fail(op_,
         std::string("attribute ") + name + " is of type " + other + ", must be of type " + type);
  }
  return false;
}

std::optional<TensorView> OrtNodeReader::ConstantInput(std::size_t index) const {
  int constant = 0;
  const OrtValue* value = nullptr;
  if (Absent(Api().KernelInfoGetConstantInput_tensor(info_, index, &constant, &value)) ||
      constant == 0 || value == nullptr) {
    return std::nullopt;
  }
  return ViewOf(op_, inputs_[index], Ort::ConstValue(value).GetTensorRawData(), ShapeOf(value));
}

NodeTensors::NodeTensors(const char* op, OrtKernelContext* context, const InputSpec* inputs,
                         std::size_t num_inputs, const OutputSpec* outputs)
    : op_(op), outputs_(outputs), context_(context), views_(num_inputs) {
  std::size_t count = 0;
  Ort::ThrowOnError(Api().KernelContext_GetInputCount(context, &count));
  for (std::size_t i = 0; i < num_inputs; ++i) {
    const OrtValue* value = nullptr;
    if (i < count) Ort::ThrowOnError(Api().KernelContext_GetInput(context, i, &value));
    if (value == nullptr) {
      if (!inputs[i].optional) Fail(op, std::string("input ") + inputs[i].name + " is missing");
      continue;
    }
    views_[i] = ViewOf(op, inputs[i], Ort::ConstValue(value).GetTensorRawData(), ShapeOf(value));
  }
}

void* NodeTensors::Output(std::size_t index, std::initializer_list<std::int64_t> shape) {
  OrtValue* value = nullptr;
  Ort::ThrowOnError(
      Api().KernelContext_GetOutput(context_, index, shape.begin(), shape.size(), &value));
  if (value == nullptr) {
    if (outputs_[index].optional) return nullptr;
    Fail(op_, std::string("output ") + outputs_[index].name + " is missing");
  }
  void* data = nullptr;
  Ort::ThrowOnError(Api().GetTensorMutableData(value, &data));
  return data;
}

OrtStatusPtr InferShapes(const OutputSpec* outputs, std::size_t num_outputs,
                         OrtShapeInferContext* context) noexcept {
  return Guard([&] {
    ONNXTensorElementDataType data = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    OrtTensorTypeAndShapeInfo* first = nullptr;  // not owned, like every input's info
    if (!Absent(Api().ShapeInferContext_GetInputTypeShape(context, 0, &first)) &&
        first != nullptr) {
      Ort::ThrowOnError(Api().GetTensorElementType(first, &data));
    }
    // ONNX Runtime takes an axis of -1 without a name for a size of -1 and folds it into constants,
    // and takes two axes of one name for equal. So every unknown axis gets a new name; only axes
    // that are the last value of the same input share one.
    static std::atomic<unsigned> unknown{0};
    const auto new_symbol = [] { return "attenuator_unknown_" + std::to_string(unknown++); };
    std::map<int, std::string> last_values;
    for (std::size_t o = 0; o < num_outputs; ++o) {
      const OutputSpec& output = outputs[o];
      // The shape of an output that a node leaves out has no place, and whether it does cannot be
      // asked here.
      if (output.optional) break;
      std::array<std::int64_t, 2> sizes{-1, -1};
      std::array<std::string, 2> symbols;
      for (int axis = 0; axis < output.rank; ++axis) {
        const AxisRule rule = output.axes[axis];
        if (rule.input >= 0 && rule.axis == kLastValue) {
          std::string& symbol = last_values[rule.input];
          if (symbol.empty()) symbol = new_symbol();
          symbols[axis] = symbol;
          continue;
        }
        OrtTensorTypeAndShapeInfo* info = nullptr;  // not owned: releasing it would free it twice
        if (rule.input < 0 ||
            Absent(Api().ShapeInferContext_GetInputTypeShape(
                context, static_cast<std::size_t>(rule.input), &info)) ||
            info == nullptr) {
          continue;
        }
        std::size_t rank = 0;
        Ort::ThrowOnError(Api().GetDimensionsCount(info, &rank));
        if (rank <= static_cast<std::size_t>(rule.axis) || rank > 8) continue;
        std::array<std::int64_t, 8> dims{};
        std::array<const char*, 8> names{};
        Ort::ThrowOnError(Api().GetDimensions(info, dims.data(), rank));
        Ort::ThrowOnError(Api().GetSymbolicDimensions(info, names.data(), rank));
        sizes[axis] = dims[rule.axis] >= 0 ? dims[rule.axis] : -1;
        if (sizes[axis] < 0 && names[rule.axis] != nullptr) symbols[axis] = names[rule.axis];
      }
      OrtTensorTypeAndShapeInfo* shape = nullptr;
      Ort::ThrowOnError(Api().CreateTensorTypeAndShapeInfo(&shape));
      const auto release = [](OrtTensorTypeAndShapeInfo* p) {
        Api().ReleaseTensorTypeAndShapeInfo(p);
      };
      const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(shape, release);
      const std::size_t rank = static_cast<std::size_t>(output.rank);
      for (int axis = 0; axis < output.rank; ++axis) {
        if (sizes[axis] < 0 && symbols[axis].empty()) symbols[axis] = new_symbol();
      }
      std::array<const char*, 2> names{symbols[0].c_str(), symbols[1].c_str()};
      Ort::ThrowOnError(
          Api().SetTensorElementType(shape, output.data ? data : OnnxType(output.type)));
      Ort::ThrowOnError(Api().SetDimensions(shape, sizes.data(), rank));
      Ort::ThrowOnError(Api().SetSymbolicDimensions(shape, names.data(), rank));
      Ort::ThrowOnError(Api().ShapeInferContext_SetOutputTypeShape(context, o, shape));
    }
  });
}

}  // namespace attenuator::ort
