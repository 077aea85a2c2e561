// A 64-byte aligned buffer of plain values: a cache line, an AVX-512 register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace attenuator {

struct AlignedDelete {
  void operator()(void* pointer) const { ::operator delete[](pointer, std::align_val_t{64}); }
};

template <class T>
using AlignedArray = std::unique_ptr<T[], AlignedDelete>;

// Uninitialised; throws std::bad_alloc.
template <class T>
AlignedArray<T> MakeAligned(std::int64_t count) {
  const std::size_t bytes = static_cast<std::size_t>(count > 0 ? count : 1) * sizeof(T);
  return AlignedArray<T>(static_cast<T*>(::operator new[](bytes, std::align_val_t{64})));
}

}  // namespace attenuator
