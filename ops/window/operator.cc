// WindowAttention: checks, then exact attention (common/attention) by one task for each (sequence,
// heads, query rows), under the window that the sequence's knob leaves. At the trained window a row
// has the bits that SoftmaxAttention gives it under a window of that width.
#include <algorithm>

#include "operators.gen.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/check.h"
#include "ops/common/registry.h"

namespace attenuator::window {
namespace {

using Spec = spec::WindowAttention;

class WindowAttentionKernel final : public Kernel {
 public:
  explicit WindowAttentionKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {
    CheckFinite(Spec::kName, "scale", attributes_.scale);
  }

  void Run(RunContext& context) const override {
    const auto inputs = attention::CheckPackedInputs<Spec>(context, attributes_);
    const std::int32_t* windows = CheckKnob(
        Spec::kName, Spec::kWindow, context.Input(Spec::kWindowInput), inputs.sequences.batch);
    attention::AttendSequences(
        context.threads(), inputs, attributes_.num_heads, [](std::int64_t) { return true; },
        [&](std::int64_t b, std::int64_t h) {
          attention::Head head = inputs.Head(b, h);
          head.window = Narrowed(windows[b]);
          head.global_token = attributes_.global_tokens == 1;
          return head;
        },
        attention::PackedOutput<Spec>(context, inputs));
  }

 private:
  // The window that a sequence's knob leaves of the trained one.
  std::int64_t Narrowed(std::int64_t window) const {
    const std::int64_t trained = attributes_.trained_window;
    return window == Spec::kWindow.exact ? trained : std::min(trained, window);
  }

  Spec::Attributes attributes_;
};

}  // namespace
}  // namespace attenuator::window

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::WindowAttention>(const NodeReader& reader) {
  return std::make_unique<window::WindowAttentionKernel>(reader);
}

}  // namespace attenuator
