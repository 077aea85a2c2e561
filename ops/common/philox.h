// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3" (SC 2011). No state: a block of four words is a pure function of key and counter, hence
// the same stream on every device, in any order. The key is the caller's seed; the counter says
// what the words are for: (block, head, layer, purpose).
#pragma once

#include <array>
#include <cstdint>

#include "ops/common/host_device.h"

namespace attenuator {

// What a stream of words is used for, so that no two uses share words. New uses are added at the
// end.
enum class Stream : std::uint32_t {
  kYosoPlanes = 0,
  kYosoSigns = 1,
  kMcaSamples = 2,
  kMcaPaper = 3,
  kYosoLift = 4,
  kReformerRotations = 5,
  kBigBirdBlocks = 6,
  kPerformerDirections = 7,
  kRfaDirections = 8
};

struct PhiloxWords {
  std::uint32_t word[4];
};

ATTENUATOR_HOST_DEVICE inline PhiloxWords Philox4x32(std::uint64_t key, std::uint32_t c0,
                                                     std::uint32_t c1, std::uint32_t c2,
                                                     std::uint32_t c3) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c0;
    const std::uint64_t p1 = 0xCD9E8D57ull * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Words 4 * block .. 4 * block + 3 of the stream (seed, layer, head, purpose).
ATTENUATOR_HOST_DEVICE inline PhiloxWords StreamBlock(std::int64_t seed, std::uint32_t layer,
                                                      std::uint32_t head, Stream stream,
                                                      std::uint64_t block) {
  return Philox4x32(
      static_cast<std::uint64_t>(seed), static_cast<std::uint32_t>(block),
      static_cast<std::uint32_t>(block >> 32) | (static_cast<std::uint32_t>(stream) << 24), head,
      layer);
}

}  // namespace attenuator
