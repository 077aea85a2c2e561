// How full the buckets of hash tables are, from the codes of the keys alone: what decides how wide
// sums of rounded values have to be. Portable.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/yoso/cpu/kernel.h"

namespace attenuator::yoso {

// Over `num_tables` neighbouring hashes, the sum and the largest of each one's fullest bucket.
struct Occupancy {
  std::int64_t total = 0;
  std::int64_t largest = 0;
};

// `codes`: of the first of kTables hashes, rows of kGroup codes. `counts`: room for
// kTables << hash_bits, numbers that hold `rows`.
template <int kTables, class Count, class Code>
Occupancy CountOccupancy(const Code* codes, std::int64_t rows, int hash_bits, Count* counts) {
  const std::int64_t buckets = std::int64_t{1} << hash_bits;
  const auto bucket = [&](std::int64_t row, int t) -> Count& {
    return counts[t * buckets + codes[row * kGroup + t]];
  };
  Count largest[kTables] = {};
  if (rows < buckets) {  // touches no bucket without a key
    for (std::int64_t i = 0; i < rows; ++i) {
      for (int t = 0; t < kTables; ++t) bucket(i, t) = 0;
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      for (int t = 0; t < kTables; ++t) largest[t] = std::max(largest[t], ++bucket(i, t));
    }
  } else {
    std::fill_n(counts, kTables * buckets, Count{0});
    for (std::int64_t i = 0; i < rows; ++i) {
      for (int t = 0; t < kTables; ++t) ++bucket(i, t);
    }
    for (int t = 0; t < kTables; ++t) {
      for (std::int64_t b = 0; b < buckets; ++b) {
        largest[t] = std::max(largest[t], counts[t * buckets + b]);
      }
    }
  }
  Occupancy result;
  for (const Count of_table : largest) {
    result.total += of_table;
    result.largest = std::max<std::int64_t>(result.largest, of_table);
  }
  return result;
}

// The same for 1, 2 or 4 tables; counts of 16 bits, which are faster, where they hold `rows`.
template <class Code>
Occupancy CountOccupancy(const Code* codes, std::int64_t rows, int num_tables, int hash_bits,
                         std::int32_t* room) {
  const auto count = [&]<class Count>(Count* counts) {
    if (num_tables == 4) return CountOccupancy<4>(codes, rows, hash_bits, counts);
    if (num_tables == 2) return CountOccupancy<2>(codes, rows, hash_bits, counts);
    return CountOccupancy<1>(codes, rows, hash_bits, counts);
  };
  return rows < 1 << 15 ? count(reinterpret_cast<std::int16_t*>(room)) : count(room);
}

// The narrowest sums that no sequence of values of at most kRoundedHigh steps can overflow.
inline SumWidth WidthFor(const Occupancy& occupancy) {
  static_assert(kShortKeys * kRoundedHigh < 1 << 15);
  if (occupancy.total <= kShortKeys) return SumWidth::kAllFit;
  return occupancy.largest <= kShortKeys ? SumWidth::kEachFits : SumWidth::kInts;
}

}  // namespace attenuator::yoso
