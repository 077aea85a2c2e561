// AMX: eight tiles of up to 16 rows of 64 bytes, and products of int8 tiles.
//
// A thread configures its tiles for as long as it uses them (Tiles), and leaves the configuration
// it found: ONNX Runtime configures a thread's tiles once, for all of its int8 products, and those
// would end the process on tiles that are shaped otherwise or released. Instructions are written
// out instead of called as intrinsics: GCC's do not tell the compiler that they read memory, and
// take no template parameter for a tile's number.
#pragma once

#include <cstdint>

namespace attenuator {

// Whether tiles and their int8 products work here. Asks the system for them, for all threads of the
// process, so call it only to use them: Linux refuses where a signal stack is too small to hold the
// tiles as well, and afterwards refuses such stacks. In a process that has imported ONNX Runtime
// this changes nothing, since it asks for them at import.
bool EnableAmx();

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 64;  // of a row

// What LDTILECFG reads.
struct TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};  // those of tiles 0 to 7 count; the others must be 0
  std::uint8_t rows[16] = {};

  constexpr void Set(int tile, int tile_rows, int bytes) {
    rows[tile] = static_cast<std::uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

namespace {

// Configures the calling thread's tiles for the length of a scope. They begin as zeros. The end
// brings back the configuration that was there before, but not what those tiles held. Where there
// was none, storing it gives zeros, and loading zeros releases the tiles.
class Tiles {
 public:
  explicit Tiles(const TileConfig& config) {
    asm volatile("sttilecfg %0" : "=m"(before_));
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~Tiles() { asm volatile("ldtilecfg %0" ::"m"(before_)); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  TileConfig before_;
};

// Rows lie `stride` bytes apart.
template <int kTile>
inline void LoadTile(const void* base, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void StoreTile(void* base, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// sums[m][n] += sum over k of signed_bytes[m][k] * unsigned_bytes[k / 4][n][k % 4], in int32.
template <int kSums, int kSignedBytes, int kUnsignedBytes>
inline void DotTiles() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kSignedBytes),
               "i"(kUnsignedBytes));
}
// sums[m][n] += sum over k of unsigned_bytes[m][k] * signed_bytes[k / 4][n][k % 4].
template <int kSums, int kUnsignedBytes, int kSignedBytes>
inline void DotTilesUnsignedFirst() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kUnsignedBytes),
               "i"(kSignedBytes));
}

}  // namespace
}  // namespace attenuator
