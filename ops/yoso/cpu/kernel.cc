// Chooses the kernels once; portable, so that it also runs where AVX-512 does not exist.
#include "ops/yoso/cpu/kernel.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ops/common/registry.h"

namespace attenuator::yoso {
namespace {

#ifdef ATTENUATOR_AMX

// Codes of pseudo-random rows and planes: any numbers do.
std::vector<std::uint16_t> SomeCodes(const Kernels& kernels, int head_dim, int hash_bits,
                                     float lift_root) {
  constexpr int kHashes = kHashChunk - 1, kRows = 45;
  std::uint32_t state = 1;
  const auto draw = [&] { return (state = state * 1664525u + 1013904223u) >> 24; };
  const int num_planes = kHashes * hash_bits;
  std::vector<std::uint8_t> planes(static_cast<std::size_t>(num_planes) * head_dim);
  for (std::uint8_t& plane : planes) plane = static_cast<std::uint8_t>(draw());
  std::vector<float> rows(static_cast<std::size_t>(kRows) * head_dim);
  for (float& x : rows) x = static_cast<float>(draw()) - 127.5f;
  std::vector<std::uint8_t> packed(
      static_cast<std::size_t>(kernels.plane_bytes(num_planes, head_dim)));
  kernels.pack_planes(planes.data(), num_planes, head_dim, packed.data());
  std::vector<std::int32_t> lift_planes(static_cast<std::size_t>(num_planes) + kBlock);
  for (std::int32_t& plane : lift_planes) plane = 2 * static_cast<std::int32_t>(draw()) - 255;
  std::vector<std::uint16_t> codes(kRows * kHashChunk);  // room for codes of two bytes
  const HashSpec spec{.head_dim = head_dim,
                      .hash_bits = hash_bits,
                      .num_hashes = kHashes,
                      .planes = packed.data(),
                      .lift_planes = lift_planes.data(),
                      .lift = {.root = lift_root, .side = Side::kQuery}};
  kernels.hash_gaussian(&spec, 1, {rows.data(), head_dim, kRows}, codes.data(), kRows, 0);
  return codes;
}

// VNNI's kernels with AMX's hashing, if that gives the same codes on this very machine: it has been
// rarely run on hardware, and codes that differ would change results without an error.
std::optional<Kernels> AmxKernels() {
  if (!CpuHasAmx()) return std::nullopt;
  Kernels kernels = avx512_vnni::kKernels;
  kernels.plane_bytes = avx512_amx::kHashing.plane_bytes;
  kernels.pack_planes = avx512_amx::kHashing.pack_planes;
  kernels.hash_gaussian = avx512_amx::kHashing.hash_gaussian;
  for (const auto& [head_dim, hash_bits] : {std::pair{64, 8}, {20, 5}, {168, 11}}) {
    for (const float lift_root : {0.0f, 2000.0f}) {
      if (SomeCodes(kernels, head_dim, hash_bits, lift_root) !=
          SomeCodes(avx512_vnni::kKernels, head_dim, hash_bits, lift_root)) {
        return std::nullopt;
      }
    }
  }
  return kernels;
}

#else

std::optional<Kernels> AmxKernels() { return std::nullopt; }

#endif

struct Choice {
  Kernels kernels;
  Isa isa;
};

Choice Choose() {
  const Isa isa = CpuIsa();
  if (isa == Isa::kAvx2) return {avx2::kKernels, isa};
  if (isa == Isa::kAvx512) return {avx512::kKernels, isa};
  if (const std::optional<Kernels> amx = AmxKernels()) return {*amx, Isa::kAvx512Amx};
  return {avx512_vnni::kKernels, isa};
}

const Choice& Chosen() {
  static const Choice choice = Choose();
  return choice;
}

}  // namespace

const Kernels& CpuKernels() { return Chosen().kernels; }

}  // namespace attenuator::yoso

namespace attenuator {

template <>
Isa OwnIsa<spec::YosoAttention>() {
  return yoso::Chosen().isa;
}

}  // namespace attenuator
