// McaAttention on CUDA: the facts of a weight that is a constant of the graph, computed by the
// first run that approximates anything and kept until the kernel is destroyed. Knows no CUDA
// header.
//
// Sessions run one kernel on many threads, each run on a stream of its own. The first to ask queues
// the computation on its stream; the others' streams wait for it on the device, by an event, and no
// thread waits for the device. A computation that could not be queued whole leaves nothing behind:
// the next run tries again.
#pragma once

#include <memory>
#include <mutex>

#include "ops/mca/cuda/kernel.h"

namespace attenuator::mca {

// Bytes of the facts, without what their computation needs besides.
std::size_t FactBytes(const DeviceCall& call);

// Queues their computation into `memory`, of FactBytes. What it needs besides is the run's.
DeviceWeights Study(ElementType data, const DeviceCall& call, void* memory,
                    cuda::DeviceContext& context);

class KeptWeights {
 public:
  // The facts, for work that the run queues from now on. Any thread may ask; all calls must be of
  // one weight.
  DeviceWeights Of(ElementType data, const DeviceCall& call, cuda::DeviceContext& context);

 private:
  struct Release {
    void operator()(void* memory) const;
    void operator()(CUevent_st* event) const;
  };

  std::mutex mutex_;
  std::unique_ptr<void, Release> memory_;  // null before the first run
  std::unique_ptr<CUevent_st, Release> computed_;
};

}  // namespace attenuator::mca
