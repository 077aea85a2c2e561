// The inputs that operators with random features share, checked, and the directions of a batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "ops/common/attention/inputs.h"
#include "ops/common/check.h"
#include "ops/common/context.h"
#include "ops/common/features/directions.h"
#include "ops/common/thread_pool.h"

namespace attenuator::features {

struct Inputs : attention::PackedInputs {
  const std::int32_t* num_features;  // [B]
  const std::int64_t* seed;          // [B]

  bool approximate(std::int64_t b) const { return sequences.length(b) > 0 && num_features[b] > 0; }
  bool exact(std::int64_t b) const { return sequences.length(b) > 0 && num_features[b] == 0; }
};

// Throws std::invalid_argument where an input is wrong or does not fit the others.
template <class Spec>
Inputs CheckInputs(const TensorContext& context, const typename Spec::Attributes& attributes) {
  const auto packed = attention::CheckPackedInputs<Spec>(context, attributes);
  const std::int64_t batch = packed.sequences.batch;
  return {packed,
          CheckKnob(Spec::kName, Spec::kNumFeatures, context.Input(Spec::kNumFeaturesInput), batch),
          CheckSeeds(Spec::kName, context.Input(Spec::kSeedInput), batch)};
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
