// The random matrices of ReformerAttention's rounds, from Philox.
#pragma once

#include <cstdint>

namespace attenuator::reformer {

// matrix [rows, head_dim]: odd whole numbers from -255 to 255, in units of 1/64 standard deviation.
// Element i comes from half-word i of the round's stream, the lower half of a word first, so that
// fewer rows are the first ones of more.
void Rotations(std::int64_t seed, std::int64_t layer, std::int64_t head, std::int64_t round,
               std::int64_t rows, std::int64_t head_dim, float* matrix);

}  // namespace attenuator::reformer
