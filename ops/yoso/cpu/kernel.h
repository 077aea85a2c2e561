// YosoAttention's inner loops, one set of functions for each instruction set, chosen once.
//
// A row is one head's part of one token. Hash codes of a run of rows are stored in groups of four
// hashes, [group][row][4], one byte each where hash_bits <= 8 and two bytes otherwise: a pass of
// the table path reads one group, and the count path compares four hashes of a key at once. Blocks
// of 16 floats (one cache line) are the unit of everything dense: packed values are [value
// block][row][16], zero-padded.
#pragma once

#include <cstdint>

#include "ops/common/cpu.h"
#include "ops/common/philox.h"
#include "ops/common/spec.h"
#include "yoso_rule.gen.h"

namespace attenuator::yoso {

inline constexpr int kBlock = 16;                // floats in a block
inline constexpr int kPairColumns = 2 * kBlock;  // rounded values of a row in a table's bucket
inline constexpr int kGroup = 4;                 // hashes in a group of codes
inline constexpr int kTile = 4;                  // rows hashed together
inline constexpr int kHashChunk = 32;            // hashes whose codes exist at one time
// The same for hash = hadamard, one block of which gives many hashes.
inline constexpr int kMaxHadamardChunk = 64;
inline constexpr int kKeyTile = 128;      // keys counted together
inline constexpr int kKeyBlock = 256;     // keys of one count pass
inline constexpr int kStreamBlocks = 32;  // Philox blocks drawn at once
// Smaller blocks have too few sign patterns: three rounds over 8 coordinates are measurably biased.
inline constexpr int kMinHadamardSize = 32;

// Rows `stride` floats apart.
struct Rows {
  const float* data;
  std::int64_t stride;
  std::int64_t count;

  const float* row(std::int64_t i) const { return data + i * stride; }
  Rows slice(std::int64_t begin, std::int64_t size) const { return {row(begin), stride, size}; }
  Rows head(int number, int head_dim) const { return {data + number * head_dim, stride, count}; }
};

// Which rows are hashed: the norm lift gives queries one coordinate and keys another.
enum class Side { kQuery = 0, kKey = 1 };

// The norm lift of appendix 1.1: a row x becomes [x, sqrt(root^2 - |x|^2)], of norm `root` or its
// own where that is more. 0: none.
struct Lift {
  float root;
  Side side;

  bool any() const { return root > 0; }
  // Of unit rows: both added coordinates have a place, so that products need not know of them.
  int Dims(int head_dim) const { return any() ? head_dim + 2 : head_dim; }
};

// A run of num_hashes hashes of one (seed, layer, head). `planes` holds the packed planes or the
// signs (planes.cc) of all hashes of their chunk.
struct HashSpec {
  int head_dim;
  int hash_bits;
  int num_hashes;
  const void* planes;
  // Twice the planes' values for the added coordinate, odd integers: those of the planes that
  // `planes` begins with, in registers of 16 for Gaussian ones.
  const std::int32_t* lift_planes;
  Lift lift;

  bool wide() const { return hash_bits > 8; }
  std::int64_t code_bytes() const { return wide() ? 2 : 1; }
};

// One pass over 16 value columns with the tables of `num_tables` (1, 2 or 4) neighbouring hashes.
struct TablePass {
  const void* key_codes;    // of the pass's first hash: rows of kGroup codes
  const void* query_codes;  // likewise
  const float* values;      // [num_keys][16]
  float* sums;              // [num_queries][16]
  float* tables;            // [num_tables][2^hash_bits][16]
  std::int64_t num_keys;
  std::int64_t num_queries;
  int hash_bits;
  int num_tables;
  bool accumulate;  // add to `sums`; otherwise overwrite
  bool sparse;      // tables are all zero before and after: only touched buckets are cleared
};

// How wide the sums of rounded values are; which it is depends on how full buckets are.
enum class SumWidth {
  kAllFit,    // tables of 16 bits, added up in 16 bits, as those of neighbouring passes may be
  kEachFits,  // tables of 16 bits, added up in 32
  kInts,      // tables of 32 bits
};

// One pass over 32 value columns, rounded, with the tables of 1, 2 or 4 neighbouring hashes.
struct RoundedPass {
  const void* key_codes;      // as of TablePass
  const void* query_codes;    // likewise
  const std::int8_t* values;  // [num_keys][32]
  std::int32_t* sums;  // of 16 columns [num_queries][16], and of the others sum_stride behind
  std::int64_t sum_stride;
  // [num_queries][32], what the passes of a run have added up in 16 bits: all but the first begin
  // with it, and all but the last leave it in place of sums.
  std::int16_t* short_sums;
  // Null, or after the last table what a step of each column is worth: the sums become floats.
  const float* steps;
  void* tables;  // [num_tables][2^hash_bits] cache lines
  std::int64_t num_keys;
  std::int64_t num_queries;
  int hash_bits;
  int num_tables;
  SumWidth width;
  bool begins_run;  // of passes in 16 bits; others are runs of one
  bool ends_run;
  bool accumulate;  // add to `sums`; otherwise overwrite
  bool sparse;      // as of TablePass
};

// The count path: some queries against at most kKeyBlock keys.
struct CountPass {
  HashSpec spec;          // all hashes; planes are not used
  const void* key_codes;  // readable up to num_keys rounded up to kKeyTile
  std::int64_t num_keys;
  std::int64_t key_code_rows;
  const void* query_codes;
  std::int64_t num_queries;
  std::int64_t query_code_rows;
  const float* values;  // packed
  std::int64_t value_block_stride;
  int columns;
  float* output;
  std::int64_t stride;
  std::int32_t* totals;  // of each query's collisions with any key; null where nobody asks
  bool accumulate;
};

struct Kernels {
  // Longest sequence for which counting beats tables, in percent of that of AVX-512.
  int count_percent;

  // Random words of blocks [block, block + kStreamBlocks) of a Philox stream, see StreamBlock.
  void (*stream)(std::int64_t seed, std::uint32_t layer, std::uint32_t head, Stream stream,
                 std::uint64_t block, std::uint32_t* words);

  // int8 planes p + 128 of [num_planes][head_dim] into this instruction set's order.
  std::int64_t (*plane_bytes)(int num_planes, int head_dim);
  void (*pack_planes)(const std::uint8_t* planes, int num_planes, int head_dim, void* packed);

  // Codes of all rows of `num_heads` neighbouring heads, alike but for their planes; `rows` are the
  // first head's, the others' columns follow. Group g of row i of head h starts at element
  // h * head_codes + (g * code_rows + i) * kGroup. False where a row is not finite.
  bool (*hash_gaussian)(const HashSpec* heads, int num_heads, const Rows& rows, void* codes,
                        std::int64_t code_rows, std::int64_t head_codes);
  // One head by planes = +-1 diagonals, bits of 32-bit words; hashes [first_hash, + num_hashes).
  bool (*hash_hadamard)(const HashSpec& spec, int first_hash, const Rows& rows, void* codes,
                        std::int64_t code_rows);

  // The first `columns` columns of all rows, zero-padded, to [column / 16][row][16], blocks
  // block_stride floats apart; false where one is not finite.
  bool (*pack_values)(const Rows& rows, int columns, float* packed, std::int64_t block_stride);
  void (*run_tables)(const TablePass& pass);
  // Packed values of 16 or 32 columns (`blocks` 1 or 2), finite, to [rows][32] whole steps; what a
  // step is worth, to steps[32].
  void (*round_values)(const float* packed, std::int64_t block_stride, int blocks,
                       std::int64_t rows, std::int8_t* rounded, float* steps);
  void (*run_rounded)(const RoundedPass& pass);
  // Sums packed likewise into `columns` columns of the output, added where `accumulate`.
  void (*unpack_sums)(const float* sums, std::int64_t block_stride, std::int64_t rows, int columns,
                      float* output, std::int64_t stride, bool accumulate);

  // output[i] (+)= sum over keys of their collisions with query i times their packed values, in
  // order of the keys.
  void (*count_and_sum)(const CountPass& pass);
  // output[r][c] (+)= sum over k < depth of a[r][k] * b[c / 16][k][c % 16], summed in order of k.
  void (*multiply)(const float* a, std::int64_t a_stride, std::int64_t rows, std::int64_t depth,
                   const float* b, std::int64_t b_block_stride, std::int64_t columns, float* output,
                   std::int64_t stride, bool accumulate);

  // Unit rows (norm floor 1e-12), lifted or not, of lift.Dims(head_dim) coordinates: to
  // [row][stride], or transposed to [row / 16][coordinate][16]. False where a row is not finite.
  bool (*unit_rows)(const Rows& rows, int head_dim, const Lift& lift, float* units,
                    std::int64_t stride);
  bool (*unit_rows_transposed)(const Rows& rows, int head_dim, const Lift& lift, float* units);
  // scores[j] = <query, key_j> of unit rows becomes (1 - arccos(scores[j]) / pi)^hash_bits.
  void (*expected_collisions)(const float* query, const float* keys_transposed, int head_dim,
                              int hash_bits, std::int64_t num_keys, float* scores);

  // output row = scale * source row, then, where `normalize`, divided by max(its norm, 1e-12). With
  // `scales`, one for each row, in place of `scale` where they are not null.
  // Block c of source row i lies at source + i * source_stride + c * block_stride; it may be the
  // output.
  void (*finish)(const float* source, std::int64_t source_stride, std::int64_t block_stride,
                 std::int64_t rows, int columns, float scale, const float* scales, bool normalize,
                 float* output, std::int64_t stride);
  // output[i] += sum over t of weights[t] * values[first + i + t - taps / 2] within the sequence.
  void (*convolve)(const Rows& values, int columns, const float* weights, std::int64_t taps,
                   std::int64_t first, std::int64_t rows, float* output, std::int64_t stride);
};

// The kernels of the best instruction set of this machine (ops/common/cpu.h). AMX is used where the
// system grants it and its codes equal VNNI's: the first call requests it and compares.
const Kernels& CpuKernels();

namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512_vnni {
extern const Kernels kKernels;
}

// The kernels that AMX replaces; the others are those of VNNI.
struct TileHashing {
  decltype(Kernels::plane_bytes) plane_bytes;
  decltype(Kernels::pack_planes) pack_planes;
  decltype(Kernels::hash_gaussian) hash_gaussian;
};
namespace avx512_amx {
extern const TileHashing kHashing;
}

}  // namespace attenuator::yoso
