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

// The rows of a head whose maxima tell whether to go on (README.md, section 2). None where there
// are hardly others.
Probe ProbeOf(const Window& window);

// Columns that finding the maxima costs a head beside exact attention; `padded` as in PackedHead.
double MaximaCost(const Window& window, std::int64_t padded);

// Whether anything may be approximated, by what is known without the data: not at alpha 0; not
// where rows see so many keys that their maxima cost more than the value projection could save;
// nor, by sampling, where r is C or more in the mean: sum_j max_i A_ij >= 1, so mean r >= 1 /
// alpha^2.
bool WorthApproximating(const Window& window, std::int64_t channels, float alpha,
                        Estimator estimator);

// Of a sequence that may be approximated: chooses the centre, says whether the rows are finite and,
// for `deterministic`, measures them.
// `hidden` is [length, channels].
void Measure(const float* hidden, std::int64_t channels, const Window& window, Estimator estimator,
             SequenceFacts* facts);

}  // namespace attenuator::mca
