// What a kernel needs to know of the sequences of a batch, passed by value as a kernel parameter.
//
// A copy to the device would need memory that outlives the call, and from pageable memory it may
// wait for the stream; parameters are captured at launch. They are limited to 32,764 bytes, all of
// which a launch copies however few items there are, so a large batch takes several launches.
#pragma once

#include <cstddef>
#include <vector>

namespace attenuator::cuda {

// Items of one launch. An operator whose items are large may say more (a specialisation).
template <class Item>
inline constexpr int kBatchItems = static_cast<int>(3584 / sizeof(Item));

template <class Item>
struct Batch {
  static constexpr int kCapacity = kBatchItems<Item>;
  static_assert(kCapacity * sizeof(Item) <= 24 * 1024,
                "parameters have room for more than a batch");
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
