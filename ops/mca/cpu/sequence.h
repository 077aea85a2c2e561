// What McaAttention computes for each sequence before any head.
#pragma once

#include <cstdint>
#include <vector>

#include "mca_rule.gen.h"
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

  // Whether some row does not see all keys.
  bool narrow() const { return radius > 0 && length - 1 > radius; }
  // n in the formula for r: the most keys a row sees, row 0 of a global window aside (README.md).
  std::int64_t keys() const {
    if (!narrow()) return length;
    const std::int64_t seen = 2 * radius + 1 + (global ? 1 : 0);
    return seen < length ? seen : length;
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
