// ONNX Runtime's side of every operator, derived from its spec: schema, shape inference,
// attributes, one run.
//
// Facts that shape this file (onnxruntime 1.31, API 21):
// * Only CustomOpBase<..., WithStatus = true> keeps the error code: a thrown exception would
// degrade to
//   RUNTIME_EXCEPTION, a returned OrtStatus arrives in Python as InvalidArgument.
// * InferOutputShapeFn is called without a try block, so nothing here may throw across it; the C++
// wrapper of this API
//   level writes -2 for symbolic axes, which newer runtimes reject, so shapes are set through the C
//   API.
// * A kernel object is shared by concurrent runs of its session: it is immutable after
// construction.
// * KernelContext_ParallelFor uses the session's intra-op pool.
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
    return api.CreateStatus(ORT_FAIL, "attenuator: unknown error");
  }
}

TensorView ViewOf(const char* op, const InputSpec& input, const void* data,
                  const std::vector<std::int64_t>& shape);

// Reads attributes and constant inputs of one node.
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
  const char* op_;
  const OrtKernelInfo* info_;
  const InputSpec* inputs_;
};

// One run of a node; also its thread pool.
class OrtRunContext final : public RunContext, public ThreadPool {
 public:
  OrtRunContext(const char* op, OrtKernelContext* context, const InputSpec* inputs,
                std::size_t num_inputs);
  TensorView Input(std::size_t index) const override { return views_[index]; }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override;
  ThreadPool& threads() override { return *this; }

 protected:
  void Run(std::int64_t tasks, Task task, void* state) override;

 private:
  OrtKernelContext* context_;
  std::vector<TensorView> views_;
};

OrtStatusPtr InferShapes(const OutputSpec* outputs, std::size_t num_outputs,
                         OrtShapeInferContext* context) noexcept;

template <class Spec>
struct NodeKernel {
  std::unique_ptr<Kernel> kernel;

  OrtStatusPtr ComputeV2(OrtKernelContext* context) const {
    return Guard([&] {
      OrtRunContext run(Spec::kName, context, Spec::kInputs.data(), Spec::kInputs.size());
      kernel->Run(run);
    });
  }
};

inline ONNXTensorElementDataType OnnxType(ElementType type) {
  switch (type) {
    case ElementType::kInt32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case ElementType::kInt64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    default:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  }
}

template <class Spec>
struct CustomOp : Ort::CustomOpBase<CustomOp<Spec>, NodeKernel<Spec>, /*WithStatus=*/true> {
  CustomOp() {
    this->version = ORT_API_VERSION;
    this->InferOutputShapeFn = [](const OrtCustomOp*, OrtShapeInferContext* context) {
      return InferShapes(Spec::kOutputs.data(), Spec::kOutputs.size(), context);
    };
    this->GetStartVersion = [](const OrtCustomOp*) { return Spec::kVersion; };
  }

  OrtStatusPtr CreateKernelV2(const OrtApi&, const OrtKernelInfo* info, void** kernel) const {
    return Guard([&] {
      const OrtNodeReader reader(Spec::kName, info, Spec::kInputs.data());
      auto node = std::make_unique<NodeKernel<Spec>>();
      node->kernel = MakeKernel<Spec>(reader);
      *kernel = node.release();
    });
  }

  const char* GetName() const { return Spec::kName; }
  const char* GetExecutionProviderType() const { return "CPUExecutionProvider"; }
  std::size_t GetInputTypeCount() const { return Spec::kInputs.size(); }
  ONNXTensorElementDataType GetInputType(std::size_t i) const {
    return OnnxType(Spec::kInputs[i].type);
  }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(std::size_t i) const {
    return Spec::kInputs[i].optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  }
  std::size_t GetOutputTypeCount() const { return Spec::kOutputs.size(); }
  ONNXTensorElementDataType GetOutputType(std::size_t i) const {
    return OnnxType(Spec::kOutputs[i].type);
  }
  OrtCustomOpInputOutputCharacteristic GetOutputCharacteristic(std::size_t) const {
    return INPUT_OUTPUT_REQUIRED;
  }
};

}  // namespace attenuator::ort
