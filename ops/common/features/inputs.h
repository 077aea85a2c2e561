// The inputs that operators with random features share, checked, and the directions of a batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ops/common/attention/attention.h"
#include "ops/common/check.h"
#include "ops/common/context.h"
#include "ops/common/features/cpu/state.h"
#include "ops/common/features/directions.h"
#include "ops/common/thread_pool.h"

namespace attenuator::features {

struct Inputs {
  TensorView query;  // [T, H * D]; [B, H * D] where `first`
  TensorView key;    // [T, H * D]
  TensorView value;  // [T, H * Dv]
  Sequences sequences;
  const std::int32_t* num_features;  // [B]
  const std::int64_t* seed;          // [B]
  std::int64_t head_dim;             // D
  std::int64_t value_dim;            // Dv
  bool first;                        // row b of query is the first row of sequence b

  bool approximate(std::int64_t b) const { return sequences.length(b) > 0 && num_features[b] > 0; }
  bool exact(std::int64_t b) const { return sequences.length(b) > 0 && num_features[b] == 0; }
  // The first row of sequence b in query and output.
  std::int64_t query_row(std::int64_t b) const { return first ? b : sequences.begin(b); }
  // Row `row` of sequence b, and those behind it, of head h.
  HeadRows Queries(std::int64_t b, std::int64_t h, std::int64_t row = 0) const {
    return Rows(query, head_dim, query_row(b) + row, h);
  }
  HeadRows Keys(std::int64_t b, std::int64_t h, std::int64_t row = 0) const {
    return Rows(key, head_dim, sequences.begin(b) + row, h);
  }
  HeadRows Values(std::int64_t b, std::int64_t h, std::int64_t row = 0) const {
    return Rows(value, value_dim, sequences.begin(b) + row, h);
  }
  // Exact attention of a head; the caller sets the scale.
  attention::Head Head(std::int64_t b, std::int64_t h) const {
    const HeadRows queries = Queries(b, h), keys = Keys(b, h), values = Values(b, h);
    return {.query = queries.data,
            .query_stride = queries.stride,
            .key = keys.data,
            .key_stride = keys.stride,
            .value = values.data,
            .value_stride = values.stride,
            .length = sequences.length(b),
            .head_dim = head_dim,
            .value_dim = value_dim};
  }

 private:
  static HeadRows Rows(const TensorView& view, std::int64_t dim, std::int64_t row, std::int64_t h) {
    return {view.floats() + row * view.columns() + h * dim, view.columns()};
  }
};

// Throws std::invalid_argument where an input is wrong or does not fit the others.
template <class Spec>
Inputs CheckInputs(const TensorContext& context, const typename Spec::Attributes& attributes) {
  Inputs inputs{};
  inputs.query = context.Input(Spec::kQueryInput);
  inputs.key = context.Input(Spec::kKeyInput);
  inputs.value = context.Input(Spec::kValueInput);
  inputs.first = attributes.queries == Spec::Queries::kFirst;
  const std::int64_t rows = inputs.key.rows(), heads = attributes.num_heads;
  inputs.sequences = CheckSequences(Spec::kName, context.Input(Spec::kCuSeqlensInput), rows);
  const std::int64_t batch = inputs.sequences.batch;
  CheckQuery(Spec::kName, inputs.query, inputs.key, batch, inputs.first);
  CheckAxis(Spec::kName, "value", inputs.value, 0, rows, "the number of rows of key");
  inputs.head_dim = CheckHeadDim(Spec::kName, "key", inputs.key, heads);
  inputs.value_dim = CheckHeadDim(Spec::kName, "value", inputs.value, heads);
  inputs.num_features =
      CheckKnob(Spec::kName, Spec::kNumFeatures, context.Input(Spec::kNumFeaturesInput), batch);
  inputs.seed = CheckSeeds(Spec::kName, context.Input(Spec::kSeedInput), batch);
  return inputs;
}

// The directions of every head of the sequences that are approximated: one draw for each seed, of
// as many as any of its sequences takes.
class BatchDirections {
 public:
  BatchDirections(ThreadPool& threads, const Inputs& inputs, std::int64_t heads,
                  DirectionFamily family)
      : heads_(heads), place_(inputs.sequences.batch) {
    std::map<std::int64_t, std::int64_t> places;
    std::vector<std::int64_t> seeds;
    std::vector<int> counts;
    for (std::int64_t b = 0; b < inputs.sequences.batch; ++b) {
      if (!inputs.approximate(b)) continue;
      const auto [entry, made] =
          places.try_emplace(inputs.seed[b], static_cast<std::int64_t>(seeds.size()));
      if (made) {
        seeds.push_back(inputs.seed[b]);
        counts.push_back(0);
      }
      place_[b] = entry->second;
      counts[entry->second] = std::max(counts[entry->second], inputs.num_features[b]);
    }
    drawn_.resize(seeds.size() * heads);
    threads.For(static_cast<std::int64_t>(drawn_.size()), [&](std::int64_t task) {
      DirectionFamily own = family;
      own.seed = seeds[task / heads];
      drawn_[task] =
          GetDirections(own, static_cast<std::int32_t>(task % heads), counts[task / heads]);
    });
  }

  const Directions& Of(std::int64_t b, std::int64_t h) const {
    return *drawn_[place_[b] * heads_ + h];
  }

 private:
  std::int64_t heads_;
  std::vector<std::int64_t> place_;
  std::vector<std::shared_ptr<const Directions>> drawn_;
};

}  // namespace attenuator::features
