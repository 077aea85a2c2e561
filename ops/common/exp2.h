// The numbers of Simd::Exp2, the same for every width of vector: 2^x = 2^(i / 8) * 2^f, eighths
// from a table, 2^f for |f| <= 1/16 by a minimax polynomial of degree 3.
#pragma once

#include <cstdint>

namespace attenuator {

// Added to x and taken off again, leaves a multiple of 1/8: a float this large has no finer digits.
inline constexpr float kToEighths = 0x1.8p20f;
// Factors of f^3, f^2, f and 1.
inline constexpr float kExp2[4] = {0.0554962232708931f, 0.2402576357126236f, 0.6931472420692444f,
                                   1.0f};
// Bits of 2^(i / 8), less those of i that shifting the sum's last bits to the exponent brings into
// the mantissa.
inline constexpr std::int32_t kExp2Eighths[8] = {0x3F800000, 0x3F7B95C2, 0x3F7837F0, 0x3F75FED7,
                                                 0x3F7504F3, 0x3F75672A, 0x3F7744FD, 0x3F7AC0C7};

}  // namespace attenuator
