// McaAttention on CUDA: checks, scratch memory, and the list of launches. The host decides what it
// can know without the data (which sequences may be approximated at all), the device the rest.
#include <utility>
#include <vector>

#include "ops/common/attention/attention.h"
#include "ops/common/attention/cuda/attention.h"
#include "ops/common/attention/importance.h"
#include "ops/mca/cpu/sequence.h"
#include "ops/mca/cuda/kept.h"
#include "ops/mca/cuda/kernel.h"
#include "ops/mca/inputs.h"

namespace attenuator::cuda {
namespace {

using Spec = spec::McaAttention;
using mca::DeviceCall;
using mca::DeviceEstimator;
using mca::DeviceFacts;
using mca::DevicePlan;
using mca::DeviceWeights;
using mca::SequenceItem;
using mca::Way;

class McaAttentionDeviceKernel final : public DeviceKernel {
 public:
  McaAttentionDeviceKernel(const NodeReader& reader, ElementType data)
      : attributes_(Spec::Read(reader)),
        data_(data),
        constant_(reader.ConstantInput(Spec::kValueWeightInput).has_value()) {
    mca::CheckAttributes(attributes_);
  }

  void Run(DeviceContext& context) const override {
    const mca::Inputs inputs = mca::CheckInputs(context, attributes_);
    float* const importance =
        attention::ImportanceOutput<Spec>(context, attributes_, inputs.sequences.total);
    const bool row_0 = inputs.first || attributes_.importance == Spec::Importance::kFirst;
    const Sequences& sequences = inputs.sequences;
    const std::int64_t batch = sequences.batch, heads = attributes_.num_heads;
    const DeviceCall call{
        .query = inputs.query.data,
        .key = inputs.key.data,
        .hidden = inputs.hidden.data,
        .weight = inputs.weight.data,
        .bias = inputs.bias.data,
        .output = context.Output(Spec::kOutputOutput, {inputs.query.rows(), inputs.width()}),
        .value_flops = static_cast<float*>(context.Output(Spec::kValueFlopsOutput, {batch})),
        .importance = importance,
        .ranges = attention::RangesOf(context, inputs.positions, sequences, attributes_.window),
        .tokens = sequences.total,
        .heads = static_cast<int>(heads),
        .head_dim = static_cast<int>(inputs.head_dim),
        .channels = static_cast<int>(inputs.channels()),
        .scale = attention::ScoreScale(attributes_.scale, inputs.head_dim) * attention::kLog2E,
        .layer = static_cast<std::uint32_t>(attributes_.layer),
        .estimator = attributes_.estimator,
        .first = inputs.first,
        .global_token = attributes_.global_tokens == 1,
    };
    const Stream stream = context.stream();

    bool approximates = false, probes = false, mixes = false;
    std::vector<attention::Item> attended;
    const std::vector<attention::Item> all =
        attention::ItemsOf(sequences, inputs.unmerged, inputs.first);
    const std::vector<SequenceItem> items = MakeItems(inputs, all);
    for (std::size_t b = 0; b < items.size(); ++b) {
      approximates |= items[b].way == Way::kApproximate;
      probes |= items[b].probe.rows > 0;
      mixes |= items[b].way == Way::kMixed ||
               (items[b].way == Way::kApproximate &&
                (items[b].global != 0 || (items[b].window_if_narrow > 0 && call.global_token)));
      if (items[b].way != Way::kMixed) attended.push_back(all[b]);
    }
    const DeviceFacts facts = AllocateFacts(context, call, batch, approximates);
    const DevicePlan plan = AllocatePlan(context, call, batch, approximates, probes, mixes);

    const DeviceWeights weights = approximates ? WeightsOf(call, context) : DeviceWeights{};
    if (mca::IsDense(data_)) ProjectDense(items, call, plan, stream);
    ForBatches(items, [&](const mca::Items& some) {
      mca::LaunchFacts(data_, some, call, facts, stream);
      mca::LaunchPlan(data_, some, call, weights, facts, plan, stream);
      mca::LaunchProject(data_, some, call, weights, facts, plan, stream);
    });
    const attention::Call core{
        .query = call.query,
        .key = call.key,
        .value = plan.values,
        .output = call.output,
        .query_stride = inputs.width(),
        .value_stride = inputs.width(),
        .heads = call.heads,
        .head_dim = call.head_dim,
        .value_dim = call.head_dim,
        .scale = call.scale,
        .window = static_cast<int>(attributes_.window),
        .global_token = call.global_token,
        .ranges = call.ranges,
    };
    attention::Attend(data_, core, std::move(attended), inputs.first, stream);
    if (importance != nullptr) {
      float* const head_weights = context.ScratchArray<float>(call.tokens * heads);
      attention::Importance(data_, core, all, row_0, call.tokens, head_weights, importance, stream);
    }
    ForBatches(items, [&](const mca::Items& some) {
      if (mixes) mca::LaunchMixedRows(data_, some, call, plan, stream);
      mca::LaunchFinish(data_, some, call, facts, plan, stream);
    });
  }

 private:
  std::vector<SequenceItem> MakeItems(const mca::Inputs& inputs,
                                      const std::vector<attention::Item>& attended) const {
    const Sequences& sequences = inputs.sequences;
    std::vector<SequenceItem> items;
    for (std::int64_t b = 0; b < sequences.batch; ++b) {
      const std::int64_t length = sequences.length(b);
      // Positions lie further apart than row numbers: they may make a short sequence narrow too.
      const bool unknown =
          inputs.positions.present() && length > 1 && length <= attributes_.window + 1;
      const mca::Window window{length, unknown ? 0 : attributes_.window,
                               attributes_.global_tokens == 1};
      SequenceItem item{};
      item.begin = attended[b].begin;
      item.length = attended[b].length;
      item.query_row = attended[b].query_row;
      item.last_key_log2 = attended[b].last_key_log2;
      item.index = static_cast<std::int32_t>(b);
      item.window = window.narrow() ? static_cast<std::int32_t>(attributes_.window) : 0;
      item.global = window.wide_first() ? 1 : 0;
      item.keys = static_cast<std::int32_t>(window.keys());
      item.window_if_narrow = unknown ? static_cast<std::int32_t>(attributes_.window) : 0;
      item.alpha = inputs.alpha[b];
      item.seed = inputs.seed[b];
      item.way = Way::kExact;
      if (inputs.first) {
        // One token needs no mixing: projecting it is all there is to do.
        if (item.alpha > 0 && length > 1) item.way = Way::kMixed;
        item.keys = item.window > 0 && item.global == 0 ? item.window + 1 : item.length;
      } else if (length > 0 && MayApproximate() &&
                 mca::WorthApproximating(window, inputs.channels(), item.alpha,
                                         attributes_.estimator)) {
        item.way = Way::kApproximate;
        // `paper` does not ask.
        if (attributes_.estimator != DeviceEstimator::kPaper) item.probe = mca::ProbeOf(window);
        item.maxima_cost = mca::MaximaCost(window, mca::PaddedColumns(inputs.head_dim));
      }
      items.push_back(item);
    }
    return items;
  }

  // In half types tensor cores project all columns of a token sooner than its maximum is found, so
  // only `paper`, which is there for comparison, approximates (README.md, section 6).
  bool MayApproximate() const {
    return !mca::IsDense(data_) || attributes_.estimator == DeviceEstimator::kPaper;
  }

  // Values of the exact sequences, neighbours together.
  void ProjectDense(const std::vector<SequenceItem>& items, const DeviceCall& call,
                    const DevicePlan& plan, Stream stream) const {
    std::vector<mca::RowSpan> spans;
    bool adjoins = false;
    for (const SequenceItem& item : items) {
      if (item.way == Way::kExact && adjoins) {
        spans.back().rows += item.length;
      } else if (item.way == Way::kExact) {
        spans.push_back({.first_block = 0, .begin = item.begin, .rows = item.length});
      }
      adjoins = item.way == Way::kExact;
    }
    ForBatches(spans, [&](mca::RowSpans& batch) {
      int blocks = 0;
      for (int i = 0; i < batch.count; ++i) {
        batch.items[i].first_block = blocks;
        blocks += mca::DenseBlocks(call, batch.items[i].rows);
      }
      mca::LaunchDense(data_, batch, blocks, call, plan, stream);
    });
  }

  DeviceWeights WeightsOf(const DeviceCall& call, DeviceContext& context) const {
    if (constant_) return kept_.Of(data_, call, context);
    return mca::Study(data_, call, context.Scratch(mca::FactBytes(call)), context);
  }

  DeviceFacts AllocateFacts(DeviceContext& context, const DeviceCall& call, std::int64_t batch,
                            bool approximates) const {
    DeviceFacts facts{};
    facts.broken = Zeros<int>(context, 3 * batch);
    facts.overflown = facts.broken + batch;
    facts.centred = facts.overflown + batch;
    if (!approximates || call.estimator == DeviceEstimator::kPaper) return facts;
    facts.centre = context.ScratchArray<float>(batch * call.channels);
    facts.measure = context.ScratchArray<double>(call.tokens);
    facts.before = context.ScratchArray<double>(call.tokens + batch);
    if (call.estimator == DeviceEstimator::kDeterministic) {
      facts.distances = context.ScratchArray<float>(call.tokens);
      facts.beta = context.ScratchArray<double>(batch);
    }
    return facts;
  }

  DevicePlan AllocatePlan(DeviceContext& context, const DeviceCall& call, std::int64_t batch,
                          bool approximates, bool probes, bool mixes) const {
    DevicePlan plan{};
    const std::int64_t slots = batch * call.heads, places = call.heads * call.tokens;
    const std::int64_t width = call.width();
    plan.columns = Zeros<unsigned long long>(context, slots);
    plan.approximated = Zeros<int>(context, slots);
    plan.values =
        context.Scratch(static_cast<std::size_t>(call.tokens * width) *
                        (data_ == ElementType::kFloat ? sizeof(float) : sizeof(std::uint16_t)));
    if (mixes) {
      plan.row = context.ScratchArray<float>(places);
      plan.mixed = context.ScratchArray<float>(slots * call.channels);
    }
    if (!approximates) return plan;
    plan.maxima = Zeros<unsigned>(context, places);
    if (probes) plan.probed = Zeros<unsigned>(context, places);
    plan.samples = context.ScratchArray<int>(places);
    plan.order = context.ScratchArray<int>(places);
    plan.shared = context.ScratchArray<int>(places);
    plan.place = context.ScratchArray<int>(slots * (call.channels + 1));
    plan.base = context.ScratchArray<float>(slots * call.head_dim);
    if (call.estimator == DeviceEstimator::kSampled) {
      plan.reach = context.ScratchArray<float>(slots * call.channels);
    }
    return plan;
  }

  template <class T>
  static T* Zeros(DeviceContext& context, std::int64_t count) {
    T* memory = context.ScratchArray<T>(count);
    mca::Clear(memory, static_cast<std::size_t>(count) * sizeof(T), context.stream());
    return memory;
  }

  Spec::Attributes attributes_;
  ElementType data_;
  bool constant_;                  // the weight
  mutable mca::KeptWeights kept_;  // its facts, if it is constant
};

}  // namespace

template <>
std::unique_ptr<DeviceKernel> MakeDeviceKernel<Spec>(const NodeReader& reader, ElementType data) {
  return std::make_unique<McaAttentionDeviceKernel>(reader, data);
}

}  // namespace attenuator::cuda
