// What a kernel needs to know of the sequences of a batch, passed by value as a kernel parameter.
//
// A copy to the device would need memory that outlives the call, and from pageable memory it may
// wait for the stream; parameters are captured at launch. They are limited to 4 KiB, so a large
// batch takes several launches.
#pragma once

#include <cstddef>
#include <vector>

namespace attenuator::cuda {

template <class Item>
struct Batch {
  static constexpr int kCapacity = static_cast<int>(3584 / sizeof(Item));
  int count;
  Item items[kCapacity];
};

// Calls body(batch) for items in runs of Batch<Item>::kCapacity.
template <class Item, class Body>
void ForBatches(const std::vector<Item>& items, const Body& body) {
  Batch<Item> batch;
  for (std::size_t first = 0; first < items.size(); first += Batch<Item>::kCapacity) {
    batch.count = 0;
    for (std::size_t i = first; i < items.size() && batch.count < Batch<Item>::kCapacity; ++i) {
      batch.items[batch.count++] = items[i];
    }
    body(batch);
  }
}

}  // namespace attenuator::cuda
