// What McaAttention computes for each sequence before any head.
#pragma once

#include <cstdint>
#include <vector>

#include "mca_rule.gen.h"
#include "ops/common/attention/attention.h"
#include "ops/mca/cpu/projection.h"

namespace attenuator::mca {

struct SequenceFacts {
  bool finite = true;            // of an approximated sequence: no NaN or infinity in hidden rows
  bool centred = false;          // the mean row is taken off before sampling
  std::vector<float> centre;     // [C]
  std::vector<float> distances;  // [length], at least |x_j - centre|; `deterministic`
  double beta = 0;               // see SequenceRows
};

// Keys that row i of a sequence sees, [first, last], and key 0 if `global`.
struct Window {
  std::int64_t length;
  std::int64_t radius;  // 0 = all
  bool global;
  const attention::KeyRange* ranges = nullptr;  // as in attention::Head

  // Whether some row does not see all keys.
  bool narrow() const {
    return radius > 0 && (ranges == nullptr ? length - 1 > radius : ranges[0].end < length);
  }
  attention::KeyRange seen(std::int64_t i) const {
    if (ranges != nullptr) return ranges[i];
    const std::int64_t low = i - radius, high = i + radius + 1;
    return {static_cast<std::int32_t>(low > 0 ? low : 0),
            static_cast<std::int32_t>(high < length ? high : length)};
  }
  // n in the formula for r: the most keys a row can see, row 0 of a global window aside
  // (README.md).
  std::int64_t keys() const {
    if (!narrow()) return length;
    const std::int64_t most = 2 * radius + 1 + (global ? 1 : 0);
    return most < length ? most : length;
  }
  // Row 0 sees all keys though others do not.
  bool wide_first() const { return narrow() && global; }
  // Whether a head that is approximated keeps its attention weights until the values are known.
  bool stored() const { return length <= kStoredLength || narrow(); }
};

// The rows of a head whose maxima predict whether approximating pays (README.md, section 2). No
// rows where the sequence has none beyond them.
Probe ProbeOf(const Window& window);

// Extra cost for a head of finding its column maxima, in columns, on top of exact attention.
// `padded` as in PackedHead.
double MaximaCost(const Window& window, std::int64_t padded);

// Whether any token may be approximated, judged from shapes and alpha only. False at alpha 0, where
// rows see so many keys that finding maxima costs more than the value projection could save, and
// for `sampled` where the mean of r is at least C: as sum_j max_i A_ij >= 1, it is at least 1 /
// alpha^2.
bool WorthApproximating(const Window& window, std::int64_t channels, float alpha,
                        Estimator estimator);

// For a sequence that may be approximated: chooses the centre, checks that the rows are finite and,
// for `deterministic`, computes distances and beta.
// `hidden` is [length, channels].
void Measure(const float* hidden, std::int64_t channels, const Window& window, Estimator estimator,
             SequenceFacts* facts);

}  // namespace attenuator::mca
