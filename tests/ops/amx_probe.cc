// What tests/ops/test_amx.py asks of tiles and of hashing by tiles, beside the operators. Linked
// into the library in which AMX is emulated where the processor has none; where it has it, all of
// this runs on the processor.
#include <cstdint>
#include <vector>

#include "ops/common/amx.h"
#include "ops/common/cpu.h"
#include "ops/yoso/cpu/kernel.h"
#include "tests/ops/amx_emulator.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace attenuator;

struct Step {
  std::int32_t kind;  // see attenuator_amx_run
  std::int32_t tile;
  void* memory;
  std::int64_t stride;
};

template <int kTile>
void LoadOrStore(const Step& step) {
  if (step.tile != kTile) return;
  step.kind == 0 ? LoadTile<kTile>(step.memory, step.stride)
                 : StoreTile<kTile>(step.memory, step.stride);
}

template <int... kTile>
void AnyTile(const Step& step) {
  (LoadOrStore<kTile>(step), ...);
}

void Multiply(int which) {
  if (which == 0) DotTiles<0, 1, 2>();
  if (which == 1) DotTiles<7, 6, 5>();
  if (which == 2) DotTilesUnsignedFirst<3, 4, 2>();
}

}  // namespace

// 1 where tiles can be used.
EXPORT std::int32_t attenuator_amx_enable(void) { return EnableAmx(); }

EXPORT std::int64_t attenuator_amx_instructions(void) { return AmxInstructionsEmulated(); }

// Steps of kind 0: load `tile`; 1: store it; 2: products, of the tiles that Multiply lists at
// `tile`; 3: load the configuration; 4: release; 5: store the configuration.
EXPORT void attenuator_amx_run(const Step* steps, std::int32_t count) {
  for (const Step* step = steps; step < steps + count; ++step) {
    if (step->kind <= 1) AnyTile<0, 1, 2, 3, 4, 5, 6, 7>(*step);
    if (step->kind == 2) Multiply(step->tile);
    if (step->kind == 3) asm volatile("ldtilecfg (%0)" ::"r"(step->memory) : "memory");
    if (step->kind == 4) asm volatile("tilerelease");
    if (step->kind == 5) asm volatile("sttilecfg (%0)" ::"r"(step->memory) : "memory");
  }
}

// Hashes `rows` rows by AMX or by VNNI. `planes`: p + 128 of [num_hashes * hash_bits][head_dim];
// num_hashes at most kHashChunk. Returns 0 where a row is not finite.
EXPORT std::int32_t attenuator_amx_codes(std::int32_t by_tiles, std::int32_t head_dim,
                                         std::int32_t hash_bits, std::int32_t num_hashes,
                                         const float* data, std::int64_t stride, std::int64_t rows,
                                         const std::uint8_t* planes, void* codes,
                                         std::int64_t code_rows) {
  const yoso::Kernels& vnni = yoso::avx512_vnni::kKernels;
  const yoso::TileHashing hashing =
      by_tiles ? yoso::avx512_amx::kHashing
               : yoso::TileHashing{vnni.plane_bytes, vnni.pack_planes, vnni.hash_gaussian};
  const int num_planes = num_hashes * hash_bits;
  std::vector<std::uint8_t> packed(
      static_cast<std::size_t>(hashing.plane_bytes(num_planes, head_dim)));
  hashing.pack_planes(planes, num_planes, head_dim, packed.data());
  const yoso::HashSpec spec{head_dim, hash_bits, num_hashes, packed.data(), nullptr, {}};
  return hashing.hash_gaussian(&spec, 1, {data, stride, rows}, codes, code_rows, 0);
}
