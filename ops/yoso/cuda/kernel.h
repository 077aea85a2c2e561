// YosoAttention on CUDA: what the host (operator.cc) and the kernels (*.cu) share.
//
// The unit of work is a Job: some neighbouring heads of one sequence and a run of its hashes. Each
// kernel is launched over a batch of jobs, a job owning the blocks from its first_block on.
#pragma once

#include <cstdint>

#include "ops/common/cuda/batch.h"
#include "ops/common/cuda/context.h"
#include "ops/common/philox.h"
#include "ops/yoso/inputs.h"

namespace attenuator::yoso {

struct Job;
struct PlaneJob;
struct Span;

}  // namespace attenuator::yoso

namespace attenuator::cuda {

// 64 sequences a launch, of three tensors each where they are scanned: up to 10 KiB of parameters.
template <>
inline constexpr int kBatchItems<yoso::Job> = 64;
template <>
inline constexpr int kBatchItems<yoso::PlaneJob> = 64;
template <>
inline constexpr int kBatchItems<yoso::Span> = 3 * 64;

}  // namespace attenuator::cuda

namespace attenuator::yoso {

inline constexpr int kCudaHashChunk = 32;  // hashes that are computed, or gathered, at a time
inline constexpr int kCudaRowTile = 64;    // rows hashed by one block, queries of one pair tile
inline constexpr int kCodePad = 16;        // count path: hashes of a row are a multiple of this
inline constexpr int kUnitPad = 16;        // expectation: coordinates of a unit row likewise
inline constexpr int kFirstKeys = 256;     // one query: keys of one block
inline constexpr int kSharedKeys = 4096;   // a block sorts; longer sequences take several
inline constexpr int kPieceKeys = 512;     // sorted keys of these that one warp adds
inline constexpr int kDigitBits = 8;       // of a code, that keys are sorted by at a time
inline constexpr int kSortedRuns = 8;      // of sorted keys, whose sums are added in order

// One node's tensors and attributes.
struct Node {
  const void *query, *key, *value, *conv_weight;  // conv_weight null where it is left out
  void* output;
  float* importance;       // [T], or null where nobody asks
  int* broken;             // [B]: not 0 where a row of the sequence is not finite
  unsigned char* scratch;  // what a Job's offsets count from
  std::int32_t num_heads, head_dim, value_dim, hash_bits, layer, taps;
  bool hadamard;
  bool half;  // the data are float16 or bfloat16
  Normalize normalize;
  float lift_root;  // of the norm lift's bound; 0: none

  ATTENUATOR_HOST_DEVICE bool lifted() const { return lift_root > 0; }
  // Coordinates of a unit row: a lift gives queries and keys one each.
  ATTENUATOR_HOST_DEVICE int unit_dim() const { return lifted() ? head_dim + 2 : head_dim; }
  ATTENUATOR_HOST_DEVICE bool divides() const { return normalize == Normalize::kSum; }

  // Floats of a row of a table, of a sum: 16 bytes at a time.
  ATTENUATOR_HOST_DEVICE int table_columns() const { return (value_dim + 3) / 4 * 4; }
  ATTENUATOR_HOST_DEVICE int code_bytes() const { return hash_bits > 8 ? 2 : 1; }
};

struct Job {
  std::int32_t first_block;
  std::int32_t sequence, query_row, key_row, num_queries, num_keys;
  std::int32_t head, num_heads;                       // a run of heads
  std::int32_t first_hash, num_hashes, total_hashes;  // a run of hashes; 0 of 0 is the expectation
  std::int32_t table_rows;                            // min(num_keys, 2^hash_bits)
  std::int32_t hash_blocks;  // that share the hashes of 64 rows, at most HashParts
  std::int64_t seed;
  // Offsets in scratch, in bytes, of the run's first head; planes are of head `plane_head`.
  std::int64_t planes;
  std::int64_t plane_stride;  // bytes from head to head
  std::int64_t plane_head;
  std::int64_t lift_planes, lift_stride;  // likewise, of the norm lift
  // Table path: [head][hash][row], rows rounded up to 16. Count path: [head][row][hash], hashes
  // rounded up to kCodePad. Expectation: unit rows, float [head][row][head_dim up to kUnitPad], and
  // in half types what UnitSide (weights.h) says.
  std::int64_t query_codes, key_codes;
  std::int64_t maps;    // int32 [head][hash][2^hash_bits]: code -> row of the table, or -1
  std::int64_t tables;  // float [head][hash][table_rows][table_columns]
  // int32 [head][hash][table_rows + 1], where rows are divided by their totals: the first sorted
  // place of each row of the table, then num_keys, so that differences count its keys.
  std::int64_t begins;
  std::int64_t orders;  // [head][hash] of LongSizes, where num_keys > kSharedKeys
  // float [head][query][table_columns], where hashes take several passes; [head][run of kFirstKeys
  // keys][table_columns], where a sequence has one query and no tables.
  std::int64_t sums;
  // Of the same rows as sums, the total of the weights: int32 where there are tables, else float.
  std::int64_t totals;
};
using Jobs = cuda::Batch<Job>;

// Sorted keys of a run.
ATTENUATOR_HOST_DEVICE inline int RunSize(int count) {
  constexpr int kStep = 32;  // a warp's
  const int share = (count + kSortedRuns - 1) / kSortedRuns;
  return (share + kStep - 1) / kStep * kStep;
}

// How a sequence of more than kSharedKeys keys is sorted and added, and the scratch of a (head,
// hash) for it, in words of 4 bytes: orders of num_keys each, one or (hash_bits > kDigitBits) two,
// first; then counters, starts and edges.
struct LongSizes {
  std::int32_t parts;     // of kSharedKeys keys, which blocks sort
  std::int32_t pieces;    // of kPieceKeys sorted keys, which warps add: equally many in each run
  std::int64_t counters;  // int32 [part][digit]
  std::int64_t starts;    // int32 [piece]: buckets that begin there, where hash_bits > kDigitBits
  std::int64_t edges;     // float [run][table_columns]
  std::int64_t words;     // in all
};
ATTENUATOR_HOST_DEVICE inline LongSizes LongSizesOf(const Node& node, const Job& job) {
  const auto whole = [](std::int64_t words) { return (words + 3) / 4 * 4; };
  LongSizes sizes{};
  sizes.parts = (job.num_keys + kSharedKeys - 1) / kSharedKeys;
  sizes.pieces = kSortedRuns * ((RunSize(job.num_keys) + kPieceKeys - 1) / kPieceKeys);
  sizes.counters =
      whole(std::int64_t{node.hash_bits > kDigitBits ? 2 : 1} * std::int64_t{job.num_keys});
  sizes.starts = sizes.counters + (std::int64_t{sizes.parts} << kDigitBits);
  sizes.edges = whole(sizes.starts + sizes.pieces);
  sizes.words = sizes.edges + std::int64_t{kSortedRuns} * node.table_columns();
  return sizes;
}

// The planes of one seed: heads [head, head + num_heads), hashes [first_hash, + num_hashes).
struct PlaneJob {
  std::int32_t first_block, head, num_heads, first_hash, num_hashes;
  std::int64_t seed, offset, stride, lift_offset, lift_stride;
};
using PlaneJobs = cuda::Batch<PlaneJob>;

// `count` elements of a tensor, neighbours in memory, of one sequence.
struct Span {
  std::int32_t first_block, sequence, tensor;  // 0 query, 1 key, 2 value
  std::int64_t begin, count;
};
using Spans = cuda::Batch<Span>;

// Multiprocessors of the calling thread's current device.
int Multiprocessors();

void Clear(void* memory, std::int64_t bytes, cuda::Stream stream);

// Blocks that a job takes of each kernel, then the launches: one each, over all jobs of the batch,
// whose first_block is set. `blocks` is their number.
int SpanBlocks(const Span& span);
void LaunchScan(ElementType data, const Node& node, const Spans& spans, int blocks,
                cuda::Stream stream);
// Makes the output of sequences that are flagged NaN, of which some heads may be written already.
int BreakBlocks(const Node& node, const Job& job);
void LaunchBreak(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                 cuda::Stream stream);

std::int64_t PlaneBytes(const Node& node, int first_hash, int num_hashes);  // of one head
// Of one head: twice the planes' coordinate that a norm lift adds, int32, those of queries in the
// first half and those of keys in the second. Hadamard ones begin with the first hash of all.
std::int64_t LiftBytes(const Node& node, int first_hash, int num_hashes);
int LiftBlocks(const Node& node, const PlaneJob& job);
void LaunchLift(const Node& node, const PlaneJobs& jobs, int blocks, cuda::Stream stream);
int PlaneBlocks(const Node& node, const PlaneJob& job);
void LaunchPlanes(const Node& node, const PlaneJobs& jobs, int blocks, cuda::Stream stream);

// Parts that a job's hashes are computed in, and the blocks that do it.
int HashParts(const Node& node, const Job& job);
int HashBlocks(const Node& node, const Job& job);
// Codes by row for the count path, by hash for the table path.
void LaunchHash(ElementType data, const Node& node, const Jobs& jobs, int blocks, bool by_row,
                cuda::Stream stream);

// Tables of jobs of at most most_keys keys, not more than kSharedKeys.
int TableBlocks(const Node& node, const Job& job);
void LaunchTables(ElementType data, const Node& node, const Jobs& jobs, int blocks, int most_keys,
                  cuda::Stream stream);
// Those of more keys: for each pass of the sort CountDigits and Scatter, over blocks of parts, and
// Offsets between them, over those of tables; then, where hash_bits > kDigitBits, Mark, and in any
// case AddPieces, over those of pieces, and JoinRuns, over those of tables.
int PartBlocks(const Node& node, const Job& job);
int PieceBlocks(const Node& node, const Job& job);
void LaunchCountDigits(const Node& node, const Jobs& jobs, int blocks, int pass,
                       cuda::Stream stream);
void LaunchOffsets(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream);
void LaunchScatter(const Node& node, const Jobs& jobs, int blocks, int pass, cuda::Stream stream);
void LaunchMark(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream);
void LaunchAddPieces(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                     cuda::Stream stream);
void LaunchJoinRuns(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream);
int GatherBlocks(const Node& node, const Job& job);
void LaunchGather(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                  cuda::Stream stream);
// The same for jobs whose tables can be read through shared memory, which pays where there are
// blocks for half of the multiprocessors.
bool GathersStaged(const Node& node, const Job& job);
int GatherStagedBlocks(const Node& node, const Job& job);
void LaunchGatherStaged(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                        cuda::Stream stream);

int UnitBlocks(const Node& node, const Job& job);
void LaunchUnits(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                 cuda::Stream stream);
int PairBlocks(const Node& node, const Job& job);
// By counts of collisions, or by expected ones of unit rows.
void LaunchPairs(ElementType data, const Node& node, const Jobs& jobs, int blocks, bool expectation,
                 cuda::Stream stream);
// On behalf of LaunchPairs: expected collisions in half types.
void LaunchHalfPairs(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                     cuda::Stream stream);
// The same for jobs of one query: sums of runs of keys, then their sum.
int FirstBlocks(const Node& node, const Job& job);
int FinishFirstBlocks(const Node& node, const Job& job);
void LaunchFirst(ElementType data, const Node& node, const Jobs& jobs, int blocks, bool expectation,
                 cuda::Stream stream);
void LaunchFinishFirst(ElementType data, const Node& node, const Jobs& jobs, int blocks,
                       cuda::Stream stream);

// Adds the first query's weights of the jobs' heads to node.importance, from codes by hash where
// `tables`; after all of them Finish makes shares of them.
int ImportanceBlocks(const Node& node, const Job& job);
void LaunchImportance(const Node& node, const Jobs& jobs, int blocks, bool tables, bool expectation,
                      cuda::Stream stream);
int FinishImportanceBlocks(const Node& node, const Job& job);
void LaunchFinishImportance(const Node& node, const Jobs& jobs, int blocks, cuda::Stream stream);

}  // namespace attenuator::yoso
