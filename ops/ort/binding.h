// ONNX Runtime's side of every operator, derived from its spec: schema, shape inference,
// attributes. What differs between devices is in cpu.h and cuda.h.
//
// Facts that shape this file (onnxruntime 1.31, API 21):
// * Only CustomOpBase<..., WithStatus = true> keeps the error code: a returned OrtStatus arrives in
//   Python as InvalidArgument, a thrown exception as RUNTIME_EXCEPTION.
// * ONNX Runtime calls InferOutputShapeFn without a try block, so no exception may leave it. The
// C++
//   wrapper of this API level writes -2 for symbolic axes, which newer versions reject: shapes are
//   set through the C API.
// * One operator may have kernels for several devices and element types; ONNX Runtime picks one by
//   provider and types. All must have the same inputs and outputs, optional ones included. Kernels
//   of a provider that it was built without are ignored.
// * A kernel object is shared by concurrent runs of its session: it is immutable after
//   construction, but for what it locks (ops/mca/cuda/kept.h).
#pragma once

#define ORT_API_MANUAL_INIT
#include <onnxruntime_cxx_api.h>

#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/common/check.h"
#include "ops/common/context.h"
#include "ops/common/registry.h"

namespace attenuator::ort {

// Runs `body` and turns what it throws into a status, so that no exception crosses the C boundary.
template <class Body>
OrtStatusPtr Guard(const Body& body) noexcept {
  const OrtApi& api = Ort::GetApi();
  try {
    body();
    return nullptr;
  } catch (const std::invalid_argument& error) {
    return api.CreateStatus(ORT_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc&) {
    return api.CreateStatus(ORT_FAIL, "attenuator: out of memory");
  } catch (const Ort::Exception& error) {
    return api.CreateStatus(error.GetOrtErrorCode(), error.what());
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL,
                            "attenuator: an operator threw something that is no std::exception");
  }
}

TensorView ViewOf(const char* op, const InputSpec& input, const void* data,
                  const std::vector<std::int64_t>& shape);

// Reads the attributes of one node and its constant inputs, which lie where the node's inputs do.
class OrtNodeReader final : public NodeReader {
 public:
  OrtNodeReader(const char* op, const OrtKernelInfo* info, const InputSpec* inputs)
      : op_(op), info_(info), inputs_(inputs) {}
  std::int64_t Int(const char* name, std::int64_t low, std::int64_t high,
                   std::optional<std::int64_t> standard) const override;
  float Float(const char* name, float standard) const override;
  int Choice(const char* name, std::initializer_list<const char*> choices,
             int standard) const override;
  std::optional<TensorView> ConstantInput(std::size_t index) const override;

 private:
  // Whether the node has the attribute, given the status of reading it as `type`. Fails where it
  // has another type. ONNX Runtime gives both failures one code, so every other type is tried; for
  // those that this API cannot read, lists and tensors, its message speaks of the type.
  bool Has(const char* name, const char* type, OrtStatus* read) const;

  const char* op_;
  const OrtKernelInfo* info_;
  const InputSpec* inputs_;
};

// The tensors of one run of a node, in host or device memory.
class NodeTensors {
 public:
  NodeTensors(const char* op, OrtKernelContext* context, const InputSpec* inputs,
              std::size_t num_inputs, const OutputSpec* outputs);
  TensorView Input(std::size_t index) const { return views_[index]; }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape);

 private:
  const char* op_;
  const OutputSpec* outputs_;
  OrtKernelContext* context_;
  std::vector<TensorView> views_;
};

// Infers every output's shape by its rules, except of optional ones; the element type of a data
// output is that of the first input, which is a data tensor in every operator that has one.
OrtStatusPtr InferShapes(const OutputSpec* outputs, std::size_t num_outputs,
                         OrtShapeInferContext* context) noexcept;

inline ONNXTensorElementDataType OnnxType(ElementType type) {
  switch (type) {
    case ElementType::kInt32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case ElementType::kInt64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case ElementType::kUint8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    case ElementType::kFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case ElementType::kBfloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    default:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
}

// What all kernels of one operator have in common. `Op` is the class of one device's kernels, with
// a static Make(const OrtKernelInfo*) -> std::unique_ptr<NodeKernel> and kProvider; kData is the
// element type of the data tensors.
template <class Op, class Spec, class NodeKernel, ElementType kData>
struct OperatorBase : Ort::CustomOpBase<Op, NodeKernel, /*WithStatus=*/true> {
  OperatorBase() {
    this->version = ORT_API_VERSION;
    this->InferOutputShapeFn = [](const OrtCustomOp*, OrtShapeInferContext* context) {
      return InferShapes(Spec::kOutputs.data(), Spec::kOutputs.size(), context);
    };
    this->GetStartVersion = [](const OrtCustomOp*) { return Spec::kVersion; };
  }

  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    return Guard([&] { *kernel = Op::Make(info).release(); });
  }

  const char* GetName() const { return Spec::kName; }
  const char* GetExecutionProviderType() const { return Op::kProvider; }
  std::size_t GetInputTypeCount() const { return Spec::kInputs.size(); }
  ONNXTensorElementDataType GetInputType(std::size_t i) const {
    return OnnxType(Spec::kInputs[i].data ? kData : Spec::kInputs[i].type);
  }
  OrtMemType GetInputMemoryType(std::size_t i) const {
    return Spec::kInputs[i].host ? OrtMemTypeCPUInput : OrtMemTypeDefault;
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t i) const {
    return Spec::kInputs[i].optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  }
  std::size_t GetOutputTypeCount() const { return Spec::kOutputs.size(); }
  ONNXTensorElementDataType GetOutputType(std::size_t i) const {
    return OnnxType(Spec::kOutputs[i].data ? kData : Spec::kOutputs[i].type);
  }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(std::size_t i) const {
    return Spec::kOutputs[i].optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  }
};

}  // namespace attenuator::ort
