// How kernels use threads: a loop over tasks, on threads that the host owns.
//
// ONNX Runtime's pool must not be unwound by an exception (its workers go on using the caller's
// stack: SIGSEGV), so every task's exception is caught where it happens and the first one is
// rethrown by the caller after the loop. A task may run on any thread and at any time: results must
// not depend on the number of threads, so each task writes its own output and sums within itself in
// a fixed order.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace attenuator {

class ThreadPool {
 public:
  virtual ~ThreadPool() = default;

  // Runs body(task) for task in [0, tasks), each once, and returns when all have ended.
  template <class Body>
  void For(std::int64_t tasks, const Body& body) {
    State<Body> state{body, {}, {}};
    if (tasks == 1) {
      Invoke<Body>(&state, 0);
    } else if (tasks > 1) {
      Run(tasks, &Invoke<Body>, &state);
    }
    if (state.error) std::rethrow_exception(state.error);
  }

 protected:
  using Task = void (*)(void* state, std::size_t index);
  virtual void Run(std::int64_t tasks, Task task, void* state) = 0;

 private:
  template <class Body>
  struct State {
    const Body& body;
    std::atomic_flag failed = ATOMIC_FLAG_INIT;
    std::exception_ptr error;
  };

  template <class Body>
  static void Invoke(void* opaque, std::size_t index) {
    auto* state = static_cast<State<Body>*>(opaque);
    try {
      state->body(static_cast<std::int64_t>(index));
    } catch (...) {
      if (!state->failed.test_and_set()) state->error = std::current_exception();
    }
  }
};

}  // namespace attenuator
