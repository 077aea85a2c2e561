// The interface between an operator and its host, an ONNX Runtime kernel (ops/ort) or the C ABI
// (ops/c_api.cc): attributes and constant inputs at construction, tensors and threads at each run.
// Operators are written against these interfaces alone, so that export, training, tests and serving
// run the very same code.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include "ops/common/thread_pool.h"

namespace attenuator {

// A borrowed, row-major tensor of rank 1 or 2; `data` is null where an optional input is omitted.
struct TensorView {
  const void* data = nullptr;
  std::array<std::int64_t, 2> shape{0, 0};
  int rank = 0;

  bool present() const { return rank != 0; }
  std::int64_t rows() const { return shape[0]; }
  std::int64_t columns() const { return rank == 2 ? shape[1] : 1; }
  const float* floats() const { return static_cast<const float*>(data); }
  const std::int32_t* int32s() const { return static_cast<const std::int32_t*>(data); }
  const std::int64_t* int64s() const { return static_cast<const std::int64_t*>(data); }
};

// Node attributes and constant inputs, read once when the kernel is made.
class NodeReader {
 public:
  virtual ~NodeReader() = default;
  // Throws std::invalid_argument naming operator and attribute where the value is missing or out of
  // bounds.
  virtual std::int64_t Int(const char* name, std::int64_t low, std::int64_t high,
                           std::optional<std::int64_t> standard) const = 0;
  virtual float Float(const char* name, float standard) const = 0;
  // Index into `choices`.
  virtual int Choice(const char* name, std::initializer_list<const char*> choices,
                     int standard) const = 0;
  // The input's value where it is a constant initializer of the graph, else nothing. Valid during
  // construction only: copy or pack what is to be kept.
  virtual std::optional<TensorView> ConstantInput(std::size_t index) const = 0;
};

// The tensors of one run of a node. Ranks, element types and the presence of required inputs are
// checked before an operator sees it.
class TensorContext {
 public:
  virtual ~TensorContext() = default;
  virtual TensorView Input(std::size_t index) const = 0;
  // Memory for an output of this shape, to be written wholly. Call once for each output, in any
  // order. Null where an optional output is left out.
  virtual void* Output(std::size_t index, std::initializer_list<std::int64_t> shape) = 0;
};

// One run on the CPU.
class RunContext : public TensorContext {
 public:
  virtual ThreadPool& threads() = 0;
};

// An operator's kernel: made once for each node, run by many threads at once, hence const.
class Kernel {
 public:
  virtual ~Kernel() = default;
  // Throws std::invalid_argument where an input is wrong.
  virtual void Run(RunContext& context) const = 0;
};

}  // namespace attenuator
