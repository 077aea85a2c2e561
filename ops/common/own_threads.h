// Threads of one call's own: enough for export, training and tests, which call through the C ABI.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "ops/common/thread_pool.h"

namespace attenuator {

class OwnThreads final : public ThreadPool {
 public:
  explicit OwnThreads(std::int32_t num_threads) : num_threads_(num_threads) {}

 protected:
  void Run(std::int64_t tasks, Task task, void* state) override {
    std::atomic<std::int64_t> next{0};
    const auto work = [&] {
      for (std::int64_t i = next++; i < tasks; i = next++) task(state, static_cast<std::size_t>(i));
    };
    std::vector<std::thread> others;
    for (std::int64_t t = 1; t < std::min<std::int64_t>(num_threads_, tasks); ++t)
      others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }

 private:
  std::int32_t num_threads_;
};

}  // namespace attenuator
