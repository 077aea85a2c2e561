// The workers of one run. Each takes the next task. When no task is waiting, it helps those that
// still run, so that a batch with fewer heads than threads keeps all threads busy.
//
// An operator does not know how many threads its host has, so nothing is split in advance. A task
// offers the pieces of its current step and works on them itself; idle workers join in. Pieces
// write to separate places and each sums on its own, so results do not depend on who runs them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "ops/yoso/cpu/scratch.h"

namespace attenuator::yoso {

// Marks a waiting loop for the processor.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Rows of one piece of packing, hashing and finishing: a multiple of what the kernels take at once,
// and enough to pay for fetching the hyperplanes.
inline constexpr std::int64_t kPieceRows = 512;

// What a step is cut into. A head offers pieces of its own steps.
enum class Grain { kHeads, kPieces };

class Crew {
 public:
  // `shares`: whether any task is long enough for helpers to pay.
  Crew(std::int64_t tasks, bool shares) : tasks_(tasks), shares_(shares), running_(tasks) {}

  // Runs body(task, scratch) for the tasks that this worker gets, then helps other workers until
  // the last task has ended. An exception ends its task and is rethrown.
  template <class Body>
  void Work(const Body& body) {
    Scratch scratch;
    for (std::int64_t i = next_++; i < tasks_; i = next_++) {
      const Running running{*this};
      body(i, scratch);
    }
    if (shares_) Help(scratch);
  }

  // Called by a task or a head: runs body(piece, scratch) once for each piece, on this worker and
  // on idle ones, each with its own scratch; returns when all have ended. Throws the first
  // exception.
  template <class Body>
  void Share(std::int64_t pieces, Scratch& scratch, const Body& body,
             Grain grain = Grain::kPieces) {
    Step step{pieces, grain, &body, [](const void* b, std::int64_t piece, Scratch& own) {
                (*static_cast<const Body*>(b))(piece, own);
              }};
    if (shares_ && pieces > 1) {
      Offer(step);
      step.Run(scratch);
      Withdraw(step, scratch);
    } else {
      step.Run(scratch);
    }
    if (step.error) std::rethrow_exception(step.error);
  }

 private:
  struct Step {
    const std::int64_t pieces;
    const Grain grain;
    const void* const body;
    void (*const invoke)(const void* body, std::int64_t piece, Scratch& scratch);
    std::atomic<std::int64_t> next{0};
    std::atomic_flag failed = ATOMIC_FLAG_INIT;
    std::exception_ptr error = nullptr;
    int helpers = 0;  // under mutex_

    void Run(Scratch& scratch) noexcept {
      try {
        for (std::int64_t i = next++; i < pieces; i = next++) invoke(body, i, scratch);
      } catch (...) {
        next = pieces;
        if (!failed.test_and_set()) error = std::current_exception();
      }
    }
  };

  struct Running {
    ~Running() {
      const std::lock_guard<std::mutex> lock(crew.mutex_);
      if (--crew.running_ == 0) crew.Announce();
    }
    Crew& crew;
  };

  void Offer(Step& step) {
    const std::lock_guard<std::mutex> lock(mutex_);
    steps_.push_back(&step);
    Announce();
  }

  // Waits for a step's helpers, where they run heads by helping these: pieces use other places of
  // the scratch than whoever shares heads.
  void Withdraw(Step& step, Scratch& scratch) {
    std::unique_lock<std::mutex> lock(mutex_);
    std::erase(steps_, &step);
    if (step.grain == Grain::kPieces) {
      helpers_gone_.wait(lock, [&] { return step.helpers == 0; });
      return;
    }
    while (step.helpers > 0) HelpOnce(scratch, Grain::kPieces, lock);
  }

  void Help(Scratch& scratch) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (running_ > 0) HelpOnce(scratch, Grain::kHeads, lock);
  }

  // Helps a step of that grain or a finer one, or waits for an announcement. This and the following
  // functions are called with mutex_ held.
  void HelpOnce(Scratch& scratch, Grain coarsest, std::unique_lock<std::mutex>& lock) {
    Step* const step = Open(coarsest);
    if (step == nullptr) {
      Await(lock);
      return;
    }
    ++step->helpers;
    lock.unlock();
    step->Run(scratch);
    lock.lock();
    if (--step->helpers > 0) return;
    helpers_gone_.notify_all();
    if (step->grain == Grain::kHeads) Announce();
  }

  // Of the steps with pieces to run, the one with the fewest helpers.
  Step* Open(Grain coarsest) const {
    Step* best = nullptr;
    for (Step* step : steps_) {
      if (step->grain >= coarsest && step->next < step->pieces &&
          (best == nullptr || step->helpers < best->helpers)) {
        best = step;
      }
    }
    return best;
  }

  // Wakes sleeping workers: a step has pieces on offer, or the last helper of one or the last task
  // has ended.
  void Announce() {
    ++version_;
    if (asleep_ > 0) changed_.notify_all();
  }

  // Waits for the next announcement. Steps follow each other within microseconds and waking a
  // thread takes tens of them, so a worker polls for about that long before it sleeps.
  void Await(std::unique_lock<std::mutex>& lock) {
    constexpr int kPolls = 1000;
    const std::int64_t version = version_;
    lock.unlock();
    for (int i = 0; i < kPolls && version_ == version; ++i) Pause();
    lock.lock();
    ++asleep_;
    changed_.wait(lock, [&] { return version_ != version; });
    --asleep_;
  }

  const std::int64_t tasks_;
  const bool shares_;
  std::atomic<std::int64_t> next_{0};
  std::atomic<std::int64_t> version_{0};  // of what is on offer
  std::mutex mutex_;
  std::condition_variable changed_, helpers_gone_;
  std::vector<Step*> steps_;
  std::int64_t running_;
  int asleep_ = 0;
};

}  // namespace attenuator::yoso
