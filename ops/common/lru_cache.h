// A cache of what was drawn at random, least recently used first out, for many threads at once.
// Draws are streams: an entry of more of them than are asked for holds these as its first.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>

namespace attenuator {

// Value has `bytes`, and how many draws it holds in its member kCount.
template <class Key, class Value, auto kCount>
class LruCache {
 public:
  explicit LruCache(std::int64_t most_bytes) : most_bytes_(most_bytes) {}

  // An entry of at least so many draws, or null. What is returned stays valid while it is held.
  std::shared_ptr<const Value> Find(const Key& key, int count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = entries_.find(key);
    if (entry == entries_.end() || (*entry->second.value).*kCount < count) return nullptr;
    order_.splice(order_.begin(), order_, entry->second.place);
    return entry->second.value;
  }

  void Insert(const Key& key, const std::shared_ptr<const Value>& value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = entries_.find(key);
    if (entry != entries_.end()) {
      // Either another thread made them meanwhile, or these are more draws of the same stream.
      if ((*entry->second.value).*kCount >= (*value).*kCount) return;
      Erase(entry);
    }
    order_.push_front(key);
    entries_[key] = {value, order_.begin()};
    bytes_ += Cost(*value);
    while (bytes_ > most_bytes_ && entries_.size() > 1) Erase(entries_.find(order_.back()));
  }

 private:
  struct Entry {
    std::shared_ptr<const Value> value;
    typename std::list<Key>::iterator place;
  };

  static std::int64_t Cost(const Value& value) {
    return value.bytes + 256;
  }  // 256: its list and map nodes

  void Erase(typename std::map<Key, Entry>::iterator entry) {
    bytes_ -= Cost(*entry->second.value);
    order_.erase(entry->second.place);
    entries_.erase(entry);
  }

  const std::int64_t most_bytes_;
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
  std::list<Key> order_;  // most recently used first
  std::int64_t bytes_ = 0;
};

}  // namespace attenuator
