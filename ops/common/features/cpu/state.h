// Attention by features on the CPU: out_i = phi(q_i) S / phi(q_i) . z with S = sum_j phi(k_j) v_j^T
// and z = sum_j phi(k_j), over one head of a sequence. What its kernels share.
//
// The state of a head is sum over rows j of phi(k_j) v'_j^T, [features, StateColumns], where v'_j
// is the value with a 1 behind it: the last column in use is the sum of the features, so that one
// product gives a query's numerators and its denominator. Columns behind it are 0.
#pragma once

#include <cstdint>

#include "ops/common/rows.h"

namespace attenuator::features {

// Rows that go through the kernel together: their features and values stay in the first caches.
inline constexpr std::int64_t kBlock = 64;

// Floats from one row of a matrix of so many columns to the next: no multiple of a page's part, so
// that rows under each other do not fall into the same set of the cache.
constexpr std::int64_t Pitch(std::int64_t columns) {
  return PaddedToVectors(columns) + kWidestVector;
}

// Floats in a row of the state.
constexpr std::int64_t StateColumns(std::int64_t value_dim) {
  return PaddedToVectors(value_dim + 1);
}

}  // namespace attenuator::features
