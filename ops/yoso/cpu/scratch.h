// Memory of one worker that grows and is kept between its tasks.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/common/aligned.h"

namespace attenuator::yoso {

class Scratch {
 public:
  // One slot each. A task's own hold while it runs; those of a piece of its work may be another
  // worker's and are free again when the piece ends.
  enum Purpose {
    kKeyCodes,
    kQueryCodes,
    kValues,
    kRounded,
    kSums,
    kWeights,
    kPieceValues,
    kPieceRounded,
    kPieceSums,
    kPieceShortSums,
    kTables,
    kTotals,
    kInverses,
    kPieceCounts,
    kQueryCodeRows,
    kKeyCodeRows,
    kPurposes
  };

  // At least `count` elements' room, uninitialised.
  template <class T>
  T* Get(Purpose purpose, std::int64_t count) {
    Slot& slot = slots_[purpose];
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    if (slot.bytes < bytes) {
      slot.bytes = 0;  // first: a worker that runs out of memory here goes on with other pieces
      slot.data.reset();
      slot.data = MakeAligned<std::uint8_t>(bytes);
      slot.bytes = bytes;
    }
    return reinterpret_cast<T*>(slot.data.get());
  }

  // Tables, all zero where `zeroed`; the caller leaves them so.
  float* Tables(std::int64_t count, bool zeroed) {
    const float* before = reinterpret_cast<float*>(slots_[kTables].data.get());
    float* tables = Get<float>(kTables, count);
    if (tables != before) zero_floats_ = 0;
    if (!zeroed) {
      zero_floats_ = 0;
    } else if (zero_floats_ < count) {
      std::memset(tables, 0, static_cast<std::size_t>(count) * sizeof(float));
      zero_floats_ = count;
    }
    return tables;
  }

 private:
  struct Slot {
    AlignedArray<std::uint8_t> data;
    std::int64_t bytes = 0;
  };
  Slot slots_[kPurposes];
  std::int64_t zero_floats_ = 0;  // so many floats at the start of the tables are zero
};

}  // namespace attenuator::yoso
