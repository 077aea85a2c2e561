// Philox4x32-10 (philox.h) for several blocks at once. `Lanes` is the WideLanes of simd/avx2.h or
// simd/avx512.h: a register of 64-bit numbers, one block in each.
#pragma once

#include "ops/common/philox.h"

namespace attenuator {
namespace {

// Blocks [block, block + Lanes::kCount), all below 2^32: words[w] lane i is word w of the i-th, in
// the lane's lower half; the upper halves are not defined.
template <class Lanes>
void PhiloxLanes(std::int64_t seed, std::uint32_t layer, std::uint32_t head, Stream stream,
                 std::uint64_t block, typename Lanes::Type words[4]) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(static_cast<std::uint64_t>(seed) >> 32);
  auto c0 = Lanes::Count(block);
  auto c1 = Lanes::Set(static_cast<std::uint32_t>(stream) << 24);
  auto c2 = Lanes::Set(head), c3 = Lanes::Set(layer);
  const auto m0 = Lanes::Set(0xD2511F53u), m1 = Lanes::Set(0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    const auto p0 = Lanes::Multiply(m0, c0), p1 = Lanes::Multiply(m1, c2);
    c0 = Lanes::Xor(Lanes::Xor(Lanes::High(p1), c1), Lanes::Set(k0));
    c2 = Lanes::Xor(Lanes::Xor(Lanes::High(p0), c3), Lanes::Set(k1));
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

}  // namespace
}  // namespace attenuator
