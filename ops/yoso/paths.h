// The three ways to compute one head of one sequence. Portable: they call the kernels in blocks.
#pragma once

#include <cstdint>

#include "ops/common/aligned.h"
#include "ops/yoso/kernel.h"
#include "ops/yoso/planes.h"

namespace attenuator::yoso {

// Memory that grows and is kept between the tasks of one worker.
class Scratch {
 public:
  // At least `count` floats' room for each purpose, uninitialised.
  template <class T>
  T* Get(int purpose, std::int64_t count) {
    Slot& slot = slots_[purpose];
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    if (slot.bytes < bytes) {
      slot.data.reset();
      slot.data = MakeAligned<std::uint8_t>(bytes);
      slot.bytes = bytes;
    }
    return reinterpret_cast<T*>(slot.data.get());
  }
  // Tables, all zero where `zeroed`; the caller says what it leaves.
  float* Tables(std::int64_t count, bool zeroed);

 private:
  struct Slot {
    AlignedArray<std::uint8_t> data;
    std::int64_t bytes = 0;
  };
  Slot slots_[6];
  std::int64_t zero_floats_ = 0;  // so many floats at the start of the tables are zero
};

// One head of one sequence.
struct HeadJob {
  PlaneFamily family;
  std::int32_t head;
  int num_hashes;
  Rows query;
  Rows key;
  Rows value;
  int value_dim;
  float* output;
  std::int64_t output_stride;
  bool normalize;
  const float* conv_weight;  // this head's taps, or null
  std::int64_t conv_taps;
};

enum class Path { kTables, kCounts, kExpectation };

// From the sequence's length, its knobs, the node's attributes and the instruction set alone, so
// that a sequence's result does not depend on its neighbours.
Path ChoosePath(const Kernels& kernels, std::int64_t num_queries, std::int64_t num_keys,
                int num_hashes, int hash_bits, int value_dim);

// Queries [first, first + count) of the job; the table and count paths take all of them at once.
// False where a row of the sequence is not finite: the output is then not defined.
bool RunTablePath(const Kernels& kernels, const HeadJob& job, Scratch& scratch);
bool RunCountPath(const Kernels& kernels, const HeadJob& job, Scratch& scratch);
bool RunExpectationPath(const Kernels& kernels, const HeadJob& job, std::int64_t first,
                        std::int64_t count, Scratch& scratch);

}  // namespace attenuator::yoso
