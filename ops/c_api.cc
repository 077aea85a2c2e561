#include "ops/c_api.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ops/common/check.h"
#include "ops/common/cpu.h"
#include "ops/common/own_threads.h"
#include "ops/common/registry.h"
#include "ops/yoso/cpu/kernel.h"
#include "ops/yoso/gradient.h"
#ifdef ATTENUATOR_CUDA
#include "ops/common/cuda/context.h"
#endif

namespace attenuator {
namespace {

thread_local std::string last_error;

// Names of the C ABI's enumerations, by value, as messages say them.
constexpr std::array kKindNames{"int", "float", "string"};
constexpr std::array kTypeNames{"float", "int32", "int64", "float16", "bfloat16"};

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

#define ATTENUATOR_NAME(Op) spec::Op::kName,
constexpr std::array kOperatorNames{ATTENUATOR_OPERATORS(ATTENUATOR_NAME)};
#undef ATTENUATOR_NAME

std::string UnknownOperator(const char* name) {
  std::string allowed;
  for (const char* known : kOperatorNames)
    allowed += (allowed.empty() ? "" : ", ") + std::string(known);
  return std::string("operator is '") + name + "', must be one of: " + allowed;
}

class CNodeReader final : public NodeReader {
 public:
  CNodeReader(const char* op, const attenuator_attribute* attributes, std::int32_t count)
      : op_(op), attributes_(attributes), count_(count) {}

  std::int64_t Int(const char* name, std::int64_t low, std::int64_t high,
                   std::optional<std::int64_t> standard) const override {
    std::optional<std::int64_t> value;
    if (const attenuator_attribute* attribute = Find(name, 0)) value = attribute->int_value;
    return CheckInt(op_, name, value, low, high, standard);
  }

  float Float(const char* name, float standard) const override {
    const attenuator_attribute* attribute = Find(name, 1);
    return attribute == nullptr ? standard : attribute->float_value;
  }

  int Choice(const char* name, std::initializer_list<const char*> choices,
             int standard) const override {
    const attenuator_attribute* attribute = Find(name, 2);
    return CheckChoice(op_, name, attribute == nullptr ? nullptr : attribute->string_value, choices,
                       standard);
  }

  std::optional<TensorView> ConstantInput(std::size_t) const override { return std::nullopt; }

 private:
  const attenuator_attribute* Find(const char* name, std::int32_t kind) const {
    for (std::int32_t i = 0; i < count_; ++i) {
      if (std::strcmp(attributes_[i].name, name) != 0) continue;
      if (attributes_[i].kind != kind) {
        Fail(op_, std::string("attribute ") + name + " is of kind " +
                      Named(kKindNames, attributes_[i].kind) + ", must be of kind " +
                      Named(kKindNames, kind));
      }
      return &attributes_[i];
    }
    return nullptr;
  }

  const char* op_;
  const attenuator_attribute* attributes_;
  std::int32_t count_;
};

// The tensors of one call, checked. `data` is what the operator's data tensors must be.
class CTensors {
 public:
  CTensors(const char* op, const InputSpec* specs, std::size_t num_specs,
           const OutputSpec* output_specs, const attenuator_tensor* inputs, std::int32_t num_inputs,
           const attenuator_tensor* outputs, std::int32_t num_outputs, ElementType data)
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
      for (int axis = 0; axis < inputs[i].rank; ++axis)
        views_[i].shape[axis] = inputs[i].shape[axis];
    }
  }

  TensorView Input(std::size_t index) const { return views_[index]; }

  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) const {
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

 private:
  const char* op_;
  const OutputSpec* output_specs_;
  const attenuator_tensor* outputs_;
  std::int32_t num_outputs_;
  std::vector<TensorView> views_;
};

// Threads of its own for each run; serving has ONNX Runtime's pool.
class CRunContext final : public RunContext {
 public:
  CRunContext(CTensors tensors, std::int32_t num_threads)
      : tensors_(std::move(tensors)), threads_(num_threads) {}

  TensorView Input(std::size_t index) const override { return tensors_.Input(index); }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override {
    return tensors_.Output(index, shape);
  }
  ThreadPool& threads() override { return threads_; }

 private:
  CTensors tensors_;
  OwnThreads threads_;
};

#ifdef ATTENUATOR_CUDA
class CDeviceContext final : public cuda::DeviceContext {
 public:
  CDeviceContext(const char* op, CTensors tensors, void* stream, attenuator_allocate allocate,
                 void* state)
      : op_(op),
        tensors_(std::move(tensors)),
        stream_(static_cast<cuda::Stream>(stream)),
        allocate_(allocate),
        state_(state) {}

  TensorView Input(std::size_t index) const override { return tensors_.Input(index); }
  void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) override {
    return tensors_.Output(index, shape);
  }
  cuda::Stream stream() override { return stream_; }
  void* Scratch(std::size_t bytes) override {
    void* memory = allocate_(state_, static_cast<std::int64_t>(bytes));
    if (memory == nullptr) {
      throw std::runtime_error(std::string(op_) + ": " + std::to_string(bytes) +
                               " bytes of scratch memory could not be allocated");
    }
    return memory;
  }

 private:
  const char* op_;
  CTensors tensors_;
  cuda::Stream stream_;
  attenuator_allocate allocate_;
  void* state_;
};
#endif

// What a caller passes for one run.
struct Call {
  const char* name;
  const attenuator_tensor* inputs;
  std::int32_t num_inputs;
  const attenuator_tensor* outputs;
  std::int32_t num_outputs;
  const attenuator_attribute* attributes;
  std::int32_t num_attributes;

  CNodeReader reader() const { return {name, attributes, num_attributes}; }

  template <class Spec>
  CTensors tensors(ElementType data) const {
    return {name,
            Spec::kInputs.data(),
            Spec::kInputs.size(),
            Spec::kOutputs.data(),
            inputs,
            num_inputs,
            outputs,
            num_outputs,
            data};
  }
};

template <class Spec>
void RunOnCpu(const Call& call, std::int32_t num_threads) {
  const auto kernel = MakeKernel<Spec>(call.reader());
  CRunContext context(call.tensors<Spec>(ElementType::kFloat), num_threads);
  kernel->Run(context);
}

#ifdef ATTENUATOR_CUDA
template <class Spec>
void RunOnDevice(const Call& call, void* stream, attenuator_allocate allocate, void* state) {
  if constexpr (Spec::kHost) {
    RunOnCpu<Spec>(call, 1);
  } else {
    // The first input is a data tensor; the others must agree with it.
    const bool any = call.num_inputs > 0;
    const auto data = static_cast<ElementType>(any ? call.inputs[0].dtype : -1);
    if (data != ElementType::kFloat && data != ElementType::kFloat16 &&
        data != ElementType::kBfloat16) {
      Fail(call.name, std::string("the first input is ") +
                          (any ? Named(kTypeNames, call.inputs[0].dtype) : "missing") +
                          ", must be float, float16 or bfloat16");
    }
    const auto kernel = cuda::MakeDeviceKernel<Spec>(call.reader(), data);
    CDeviceContext context(call.name, call.tensors<Spec>(data), stream, allocate, state);
    cuda::CheckAlignment(call.name, Spec::kInputs.data(), Spec::kInputs.size(), context);
    kernel->Run(context);
  }
}
#endif

void RunYosoGradient(const attenuator_rows* rows, std::int64_t num_rows,
                     const attenuator_tensor* hashing, const CNodeReader& reader,
                     const yoso::GradientKind& kind, std::int32_t num_threads) {
  using Spec = spec::YosoAttention;
  const auto all = [&](int i) {
    return yoso::HeadRows{rows[i].data, rows[i].row_stride, rows[i].head_stride, rows[i].channels};
  };
  const CTensors knobs(Spec::kName, &Spec::kInputs[Spec::kCuSeqlensInput], 3, nullptr, hashing, 3,
                       nullptr, 0, ElementType::kFloat);
  OwnThreads threads(num_threads);
  yoso::RunGradient(Spec::Read(reader), kind,
                    {.query = all(0),
                     .key = all(1),
                     .value = all(2),
                     .grad = all(3),
                     .by_query = all(4),
                     .by_key = all(5),
                     .by_value = all(6),
                     .rows = num_rows,
                     .cu_seqlens = knobs.Input(0),
                     .num_hashes = knobs.Input(1),
                     .seed = knobs.Input(2)},
                    threads);
}

// Runs `body`; what it throws becomes the thread's last error.
template <class Body>
std::int32_t Guard(const Body& body) {
  last_error.clear();
  try {
    if (body()) return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}

}  // namespace
}  // namespace attenuator

extern "C" {

__attribute__((visibility("default"))) int32_t attenuator_run(
    const char* name, const attenuator_tensor* inputs, int32_t num_inputs,
    const attenuator_tensor* outputs, int32_t num_outputs, const attenuator_attribute* attributes,
    int32_t num_attributes, int32_t num_threads) {
  using namespace attenuator;
  return Guard([&] {
    const Call call{name, inputs, num_inputs, outputs, num_outputs, attributes, num_attributes};
#define ATTENUATOR_RUN(Op)                       \
  if (std::strcmp(name, spec::Op::kName) == 0) { \
    RunOnCpu<spec::Op>(call, num_threads);       \
    return true;                                 \
  }
    ATTENUATOR_OPERATORS(ATTENUATOR_RUN)
#undef ATTENUATOR_RUN
    last_error = UnknownOperator(name);
    return false;
  });
}

__attribute__((visibility("default"))) int32_t attenuator_run_cuda(
    [[maybe_unused]] const char* name, [[maybe_unused]] const attenuator_tensor* inputs,
    [[maybe_unused]] int32_t num_inputs, [[maybe_unused]] const attenuator_tensor* outputs,
    [[maybe_unused]] int32_t num_outputs, [[maybe_unused]] const attenuator_attribute* attributes,
    [[maybe_unused]] int32_t num_attributes, [[maybe_unused]] void* stream,
    [[maybe_unused]] attenuator_allocate allocate, [[maybe_unused]] void* state) {
  using namespace attenuator;
  return Guard([&] {
#ifdef ATTENUATOR_CUDA
    const Call call{name, inputs, num_inputs, outputs, num_outputs, attributes, num_attributes};
#define ATTENUATOR_RUN(Op)                                \
  if (std::strcmp(name, spec::Op::kName) == 0) {          \
    RunOnDevice<spec::Op>(call, stream, allocate, state); \
    return true;                                          \
  }
    ATTENUATOR_OPERATORS(ATTENUATOR_RUN)
#undef ATTENUATOR_RUN
    last_error = UnknownOperator(name);
#else
    last_error = "the operator library was built without CUDA: `make cuda` builds one with it";
#endif
    return false;
  });
}

__attribute__((visibility("default"))) int32_t attenuator_yoso_gradient(
    const attenuator_rows* rows, int64_t num_rows, const attenuator_tensor* hashing,
    const attenuator_attribute* attributes, int32_t num_attributes, int32_t collided,
    float softening, int32_t num_threads) {
  using namespace attenuator;
  return Guard([&] {
    const CNodeReader reader(spec::YosoAttention::kName, attributes, num_attributes);
    RunYosoGradient(rows, num_rows, hashing, reader, {collided != 0, softening}, num_threads);
    return true;
  });
}

__attribute__((visibility("default"))) const char* attenuator_device(void) {
#if defined(ATTENUATOR_CUDA_ON_HOST)
  return "cuda_on_host";
#elif defined(ATTENUATOR_CUDA)
  return "cuda";
#else
  return nullptr;
#endif
}

__attribute__((visibility("default"))) const char* attenuator_last_error(void) {
  return attenuator::last_error.c_str();
}

__attribute__((visibility("default"))) const char* attenuator_isa(const char* name) {
  using namespace attenuator;
  try {
    const bool hashes = std::strcmp(name, spec::YosoAttention::kName) == 0;
    return IsaName(hashes ? yoso::CpuKernelsIsa() : CpuIsa());
  } catch (const std::exception&) {
    return nullptr;
  }
}

}  // extern "C"
