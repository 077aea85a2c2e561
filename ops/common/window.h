// The window that the knob of this word leaves of the one that a model was trained with: `narrowed`
// of ops/window/rule.py.
#pragma once

#include <algorithm>
#include <cstdint>

namespace attenuator {

// 0, the knob's exact value, stands for the trained window, which no other value exceeds; where
// that is 0, every key is seen.
inline std::int64_t NarrowedWindow(std::int64_t trained, std::int64_t asked) {
  return asked == 0 ? trained : std::min(trained, asked);
}

}  // namespace attenuator
