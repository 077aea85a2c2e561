// Hash codes by products of AMX tiles. Included after hash.inl, whose layout of rows, planes and
// codes it keeps: int8 rows are a first factor as they lie in memory, and a register of 16 planes,
// [steps][16][4], is a second one.
//
// 32 rows are quantised, then multiplied by 32 planes at a time: four tiles of sums, 16 rows by 16
// planes, two of rows and two of planes. Sums start at their rows' thresholds, so that the bits are
// their signs, and pass through a buffer that the first-level cache holds: tiles have no other way
// out. It is double, so that the signs of 64 planes are taken while the next 64 are multiplied.
// Beyond 64 coordinates a product takes several tiles of equal depth. The last may then reach past
// the coordinates, by fewer steps than there are tiles: zero in the rows, and in the planes
// whatever follows them.

inline constexpr int kTileBatch = 32;              // rows
inline constexpr int kQuad = 4;                    // registers of planes whose signs leave together
inline constexpr int kFewestTiledRows = 8;         // fewer would leave most of a tile's rows unused
inline constexpr int kStepBytes = 16 * kStepDims;  // of a register of planes
inline constexpr int kMostTiles = kHeadDimHigh / (kTileRows * kStepDims);  // of one product
inline constexpr int kPlaneSlack = (kMostTiles - 1) * kStepBytes;
static_assert(kTileBatch == kPrefetchRows && kTileBatch == 2 * kTileRows);
static_assert(kHeadDimHigh % (kTileRows * kStepDims) == 0);

struct TileBuffers {
  alignas(64) Datum data[kTileBatch][kHeadDimHigh];
  alignas(64) std::int32_t thresholds[kTileBatch][16];
  alignas(64) std::int32_t sums[2][kTileBatch][16 * kQuad];
  std::uint16_t bits[kTileBatch][kMaxBitWords];
  alignas(64) std::int32_t half_lifts[kTileBatch];
};

// How a product over `steps` is cut into tiles.
struct TileDepth {
  int tiles;
  int steps;  // of each tile

  explicit TileDepth(int all_steps)
      : tiles((all_steps + kTileRows - 1) / kTileRows), steps((all_steps + tiles - 1) / tiles) {}
};

// Tiles 0 to 3 are sums (16 rows of data, a register of planes): (0, 0), (0, 1), (1, 0), (1, 1).
// 4 and 5 are rows of data, 6 and 7 planes.
inline TileConfig Configure(const TileDepth& depth) {
  TileConfig config;
  for (int tile = 0; tile < 4; ++tile) config.Set(tile, kTileRows, kTileBytes);
  for (int tile = 4; tile < 6; ++tile) config.Set(tile, kTileRows, depth.steps * kStepDims);
  for (int tile = 6; tile < 8; ++tile) config.Set(tile, depth.steps, kTileBytes);
  return config;
}

// Sums of kRowTiles times 16 rows and kRegisters registers of planes, from `planes` on.
template <int kRowTiles, int kRegisters>
inline void MultiplyTiles(const TileBuffers& buffers, const TileDepth& depth,
                          const std::uint8_t* planes, std::int64_t register_stride, bool load_data,
                          std::int32_t* sums) {
  LoadTile<0>(buffers.thresholds, kTileBytes);
  if constexpr (kRegisters == 2) LoadTile<1>(buffers.thresholds, kTileBytes);
  if constexpr (kRowTiles == 2) LoadTile<2>(buffers.thresholds[kTileRows], kTileBytes);
  if constexpr (kRowTiles * kRegisters == 4) LoadTile<3>(buffers.thresholds[kTileRows], kTileBytes);
  for (int k = 0; k < depth.tiles; ++k) {
    const Datum* data = buffers.data[0] + k * depth.steps * kStepDims;
    const std::uint8_t* tile = planes + k * depth.steps * kStepBytes;
    if (load_data) LoadTile<4>(data, kHeadDimHigh);
    LoadTile<6>(tile, kStepBytes);
    DotTiles<0, 4, 6>();
    if constexpr (kRegisters == 2) {
      LoadTile<7>(tile + register_stride, kStepBytes);
      DotTiles<1, 4, 7>();
    }
    if constexpr (kRowTiles == 2) {
      if (load_data) LoadTile<5>(data + kTileRows * kHeadDimHigh, kHeadDimHigh);
      DotTiles<2, 5, 6>();
      if constexpr (kRegisters == 2) DotTiles<3, 5, 7>();
    }
  }
  constexpr int kWidth = 16 * kQuad;
  constexpr std::int64_t kStride = kWidth * sizeof(std::int32_t);
  StoreTile<0>(sums, kStride);
  if constexpr (kRegisters == 2) StoreTile<1>(sums + 16, kStride);
  if constexpr (kRowTiles == 2) StoreTile<2>(sums + kTileRows * kWidth, kStride);
  if constexpr (kRowTiles * kRegisters == 4) StoreTile<3>(sums + kTileRows * kWidth + 16, kStride);
}

// Signs of the sums of `rows` rows by up to kQuad registers, which are the bit words from `word`
// on. Here a lift is added, which no tile holds.
inline void StoreQuad(const std::int32_t (*sums)[16 * kQuad], int rows, int word, int registers,
                      const HashSpec& spec, const std::int32_t* half_lifts,
                      std::uint16_t (*bits)[kMaxBitWords]) {
  for (int t = 0; t < rows; ++t) {
    const auto sum = [&](int r) {
      const Ints plain = Load(sums[t] + 16 * r);
      if (!spec.lift.any()) return plain;
      return Sub(plain, Mul(Load(spec.lift_planes + 16 * (word + r)), Set(half_lifts[t])));
    };
    if (word + kQuad <= registers) {
      StoreSigns(sum(0), sum(1), sum(2), sum(3), bits[t] + word);
    } else {
      for (int r = 0; word + r < registers; ++r) StoreSigns(sum(r), bits[t] + word + r);
    }
  }
}

// Bits of `count` quantised rows; meanwhile fetches the `count` rows from `next` on.
template <int kRowTiles>
inline void HashBatch(TileBuffers& buffers, const HashSpec& spec, const TileDepth& depth,
                      int registers, int count, const Rows& next) {
  const std::uint8_t* planes = static_cast<const std::uint8_t*>(spec.planes);
  const std::int64_t register_stride = static_cast<std::int64_t>(Steps(spec.head_dim)) * kStepBytes;
  const int quads = (registers + kQuad - 1) / kQuad;
  for (int quad = 0, fetched = 0; quad <= quads; ++quad) {
    const int word = quad * kQuad;
    std::int32_t* sums = buffers.sums[quad % 2][0];
    for (int r = 0; r < kQuad && word + r < registers; r += 2) {
      const std::uint8_t* from = planes + (word + r) * register_stride;
      const bool load_data = depth.tiles > 1 || word + r == 0;  // else they are still there
      if (word + r + 1 < registers) {
        MultiplyTiles<kRowTiles, 2>(buffers, depth, from, register_stride, load_data,
                                    sums + 16 * r);
      } else {
        MultiplyTiles<kRowTiles, 1>(buffers, depth, from, register_stride, load_data,
                                    sums + 16 * r);
      }
    }
    for (; fetched * quads < count * (quad + 1) && fetched < count; ++fetched) {
      const float* row = next.row(fetched);
      for (int d = 0; d < spec.head_dim; d += kBlock) __builtin_prefetch(row + d);
    }
    if (quad > 0) {
      StoreQuad(buffers.sums[(quad - 1) % 2], count, word - kQuad, registers, spec,
                buffers.half_lifts, buffers.bits);
    }
  }
}

// Rows [batch, batch + count), at most kTileBatch, of one head.
template <class Code>
bool HashSomeByTiles(TileBuffers& buffers, const HashSpec& spec, const TileDepth& depth,
                     const Rows& rows, std::int64_t batch, int count, Code* codes,
                     std::int64_t code_rows) {
  const int registers = (spec.num_hashes * spec.hash_bits + 15) / 16;
  for (int i = 0; i < count; i += kBatch) {
    const int some = count - i < kBatch ? count - i : kBatch;
    std::int32_t thresholds[kBatch];
    if (!Quantise(rows, batch + i, some, spec.head_dim, buffers.data + i, thresholds, spec.lift,
                  buffers.half_lifts + i)) {
      return false;
    }
    for (int t = 0; t < kBatch; ++t) {
      Store(buffers.thresholds[i + t], Set(thresholds[t]));
    }
  }
  const Rows next = rows.slice(batch + kTileBatch, count);
  if (count > kTileRows) {
    HashBatch<2>(buffers, spec, depth, registers, count, next);
  } else {
    HashBatch<1>(buffers, spec, depth, registers, count, next);
  }
  for (int i = 0; i < count; ++i) {
    EmitCodes(reinterpret_cast<const std::uint8_t*>(buffers.bits[i]), spec, codes, batch + i,
              code_rows);
  }
  return true;
}

template <class Code>
bool HashByTilesAs(const HashSpec* heads, int num_heads, const Rows& rows, Code* codes,
                   std::int64_t code_rows, std::int64_t head_codes) {
  const int head_dim = heads->head_dim;
  const TileDepth depth(Steps(head_dim));
  TileBuffers buffers;
  __builtin_memset(buffers.bits, 0, sizeof buffers.bits);
  if (depth.tiles > 1) __builtin_memset(buffers.data, 0, sizeof buffers.data);
  const Tiles tiles(Configure(depth));
  for (std::int64_t batch = 0; batch < rows.count; batch += kTileBatch) {
    const int count =
        rows.count - batch < kTileBatch ? static_cast<int>(rows.count - batch) : kTileBatch;
    for (int h = 0; h < num_heads; ++h) {
      if (!HashSomeByTiles(buffers, heads[h], depth, rows.head(h, head_dim), batch, count,
                           codes + h * head_codes, code_rows)) {
        return false;
      }
    }
  }
  return true;
}

std::int64_t TilePlaneBytes(int num_planes, int head_dim) {
  return PlaneBytes(num_planes, head_dim) + kPlaneSlack;
}

bool HashGaussianByTiles(const HashSpec* heads, int num_heads, const Rows& rows, void* codes,
                         std::int64_t code_rows, std::int64_t head_codes) {
  if (rows.count < kFewestTiledRows) {
    return HashGaussian(heads, num_heads, rows, codes, code_rows, head_codes);
  }
  return heads->wide() ? HashByTilesAs(heads, num_heads, rows, static_cast<std::uint16_t*>(codes),
                                       code_rows, head_codes)
                       : HashByTilesAs(heads, num_heads, rows, static_cast<std::uint8_t*>(codes),
                                       code_rows, head_codes);
}
