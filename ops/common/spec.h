// The vocabulary of operators.gen.h: plain data about inputs, outputs and knobs, without ORT.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace attenuator {

// Bounds of head_dim and value_dim for every attention operator; kernels size arrays on the stack
// by the upper one.
inline constexpr int kHeadDimLow = 8;
inline constexpr int kHeadDimHigh = 256;

// Those of 16 bits exist on CUDA alone: an operator's data tensors are all of one of the three
// floating types there.
enum class ElementType { kFloat, kInt32, kInt64, kFloat16, kBfloat16, kUint8 };

struct InputSpec {
  const char* name;
  ElementType type;
  int rank;
  bool host;      // lives in host memory on every device
  bool optional;  // trailing, may be left out
  bool data;      // kFloat here, on CUDA of the operator's data type
};

// Where shape inference finds one axis of an output: axis `axis` of input `input`, or unknown (-1).
// An axis of kLastValue is the last value of that input, in host memory, known at run time alone.
inline constexpr int kLastValue = -1;
struct AxisRule {
  int input = -1;
  int axis = 0;
};

struct OutputSpec {
  const char* name;
  ElementType type;
  int rank;
  bool optional;  // trailing, may be left out
  bool data;      // as of inputs
  std::array<AxisRule, 2> axes;
};

template <class T>
struct Knob {
  const char* name;
  T low;
  T high;
  T standard;  // the default
  T exact;
};

}  // namespace attenuator
