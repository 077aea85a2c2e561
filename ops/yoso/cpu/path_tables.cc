// The table path of one head: values packed in blocks of 16 columns, hash tables of one block
// filled by the keys and read by the queries. Every step is cut into pieces that any worker may
// run.
#include <algorithm>
#include <atomic>

#include "ops/yoso/cpu/paths.h"

namespace attenuator::yoso {
namespace {

// Rows of one piece of packing, hashing and finishing: a multiple of what the kernels take at once,
// and enough to pay for fetching the hyperplanes.
constexpr std::int64_t kPieceRows = 512;
// Values and sums of all columns are packed at once up to this size, which reads and writes each
// page of the tensors once; beyond it 16 columns at a time bound the memory.
constexpr std::int64_t kWholeFloats = 1 << 18;

// As many as fit the first-level cache beside the values that stream by.
int TablesPerPass(int hash_bits) { return hash_bits <= 8 ? 4 : hash_bits == 9 ? 2 : 1; }

std::int64_t Pieces(std::int64_t rows) { return (rows + kPieceRows - 1) / kPieceRows; }

class TablePath {
 public:
  TablePath(const Kernels& kernels, const HeadJob& job, Crew& crew, Scratch& scratch)
      : kernels_(kernels), job_(job), crew_(crew), scratch_(scratch) {
    const std::int64_t code_rows = std::min(ChunkSize(job), job.num_hashes);
    key_codes_ = scratch.Get<std::uint8_t>(Scratch::kKeyCodes, CodeBytes(job, code_rows, keys_));
    query_codes_ =
        scratch.Get<std::uint8_t>(Scratch::kQueryCodes, CodeBytes(job, code_rows, queries_));
    if (divides_) {
      totals_ = scratch.Get<std::int64_t>(Scratch::kTotals, queries_);
      std::fill_n(totals_, queries_, 0);
    }
    if (!whole_) return;
    values_ = scratch.Get<float>(Scratch::kValues, blocks_ * value_stride_);
    sums_ = scratch.Get<float>(Scratch::kSums, blocks_ * sum_stride_);
  }

  bool Run() {
    if (whole_) PackValues();
    const int step = ChunkSize(job_);
    for (int first = 0; first < job_.num_hashes && finite_; first += step) {
      const Chunk chunk(job_, first, std::min(step, job_.num_hashes - first));
      Hash(chunk);
      if (!finite_) break;
      AddFirstCollisions(job_, key_codes_, keys_, query_codes_, queries_, chunk.spec.num_hashes, 0,
                         keys_);
      // Where rows are divided by their totals, counting is one more piece beside the blocks.
      crew_.Share(blocks_ + divides_, scratch_, [&](std::int64_t piece, Scratch& own) {
        if (piece < blocks_) {
          RunBlock(chunk, piece, first > 0, own);
        } else if (chunk.spec.wide()) {
          CountKeys<std::uint16_t>(chunk, own);
        } else {
          CountKeys<std::uint8_t>(chunk, own);
        }
      });
    }
    if (finite_) Finish();
    return finite_;
  }

 private:
  void PackValues() {
    crew_.Share(Pieces(keys_), scratch_, [&](std::int64_t piece, Scratch&) {
      const std::int64_t first = piece * kPieceRows;
      const Rows rows = job_.value.slice(first, std::min(kPieceRows, keys_ - first));
      Check(kernels_.pack_values(rows, job_.value_dim, values_ + first * kBlock, value_stride_));
    });
  }

  void Hash(const Chunk& chunk) {
    const std::int64_t of_keys = Pieces(keys_);
    const std::int64_t row_bytes = kGroup * chunk.spec.code_bytes();
    crew_.Share(of_keys + Pieces(queries_), scratch_, [&](std::int64_t piece, Scratch&) {
      const bool key = piece < of_keys;
      const Rows& all = key ? job_.key : job_.query;
      const std::int64_t first = (key ? piece : piece - of_keys) * kPieceRows;
      const Rows rows = all.slice(first, std::min(kPieceRows, all.count - first));
      std::uint8_t* codes = (key ? key_codes_ : query_codes_) + first * row_bytes;
      Check(chunk.Hash(kernels_, key ? Side::kKey : Side::kQuery, rows, codes, all.count));
    });
  }

  // All passes of a chunk over 16 columns.
  void RunBlock(const Chunk& chunk, std::int64_t block, bool accumulate, Scratch& own) {
    const std::int64_t column = block * kBlock;
    const int columns = static_cast<int>(std::min<std::int64_t>(kBlock, job_.value_dim - column));
    float* values = values_ + block * value_stride_;
    float* sums = sums_ + block * sum_stride_;
    if (!whole_) {
      values = own.Get<float>(Scratch::kPieceValues, value_stride_);
      sums = own.Get<float>(Scratch::kPieceSums, sum_stride_);
      const Rows rows{
          .data = job_.value.data + column, .stride = job_.value.stride, .count = keys_};
      if (!Check(kernels_.pack_values(rows, columns, values, 0))) return;
    }
    const int per_pass = TablesPerPass(hash_bits_);
    const bool sparse = keys_ < (std::int64_t{1} << hash_bits_);
    float* tables =
        own.Tables((static_cast<std::int64_t>(kBlock) << hash_bits_) * per_pass, sparse);
    int now = 0;
    for (int t = 0; t < chunk.spec.num_hashes; t += now) {
      now = per_pass;
      while (t + now > chunk.spec.num_hashes) now /= 2;
      const std::int64_t group = t / kGroup;
      const std::int64_t offset = t % kGroup * chunk.spec.code_bytes();
      kernels_.run_tables(
          {.key_codes = key_codes_ + group * chunk.GroupBytes(keys_) + offset,
           .query_codes = query_codes_ + group * chunk.GroupBytes(queries_) + offset,
           .values = values,
           .sums = sums,
           .tables = tables,
           .num_keys = keys_,
           .num_queries = queries_,
           .hash_bits = hash_bits_,
           .num_tables = now,
           .accumulate = t > 0 || (whole_ && accumulate),
           .sparse = sparse});
    }
    if (whole_) return;
    kernels_.unpack_sums(sums, 0, queries_, columns, job_.output + column, job_.output_stride,
                         accumulate);
  }

  // Adds to each query's total how many keys share its bucket, hash by hash: a counter for each
  // bucket, beside the tables of values. Whole numbers, so that no order matters.
  template <class Code>
  void CountKeys(const Chunk& chunk, Scratch& own) {
    const std::int64_t buckets = std::int64_t{1} << hash_bits_;
    std::int32_t* counts = own.Get<std::int32_t>(Scratch::kPieceCounts, buckets);
    const auto codes = [&](const std::uint8_t* all, std::int64_t rows, int t) {
      return reinterpret_cast<const Code*>(all) + (t / kGroup * rows * kGroup + t % kGroup);
    };
    std::fill_n(counts, buckets, 0);
    for (int t = 0; t < chunk.spec.num_hashes; ++t) {
      const Code* of_keys = codes(key_codes_, keys_, t);
      const Code* of_queries = codes(query_codes_, queries_, t);
      for (std::int64_t j = 0; j < keys_; ++j) ++counts[of_keys[j * kGroup]];
      for (std::int64_t i = 0; i < queries_; ++i) totals_[i] += counts[of_queries[i * kGroup]];
      for (std::int64_t j = 0; j < keys_; ++j) counts[of_keys[j * kGroup]] = 0;
    }
  }

  void Finish() {
    const float scale = 1.0f / static_cast<float>(job_.num_hashes);
    crew_.Share(Pieces(queries_), scratch_, [&](std::int64_t piece, Scratch&) {
      const std::int64_t first = piece * kPieceRows;
      const std::int64_t count = std::min(kPieceRows, queries_ - first);
      float inverses[kPieceRows];
      for (std::int64_t i = 0; divides_ && i < count; ++i) {
        inverses[i] = InverseTotal(static_cast<float>(totals_[first + i]));
      }
      const float* divisors = divides_ ? inverses : nullptr;
      if (whole_) {
        FinishRows(kernels_, job_, first, count, scale, divisors, sums_ + first * kBlock, kBlock,
                   sum_stride_);
      } else {
        FinishInPlace(kernels_, job_, first, count, scale, divisors);
      }
    });
  }

  bool Check(bool finite) {
    if (!finite) finite_ = false;
    return finite;
  }

  const Kernels& kernels_;
  const HeadJob& job_;
  Crew& crew_;
  Scratch& scratch_;
  const int hash_bits_ = job_.family.hash_bits;
  const std::int64_t keys_ = job_.key.count;
  const std::int64_t queries_ = job_.query.count;
  const std::int64_t blocks_ = Blocks(job_.value_dim);
  const std::int64_t value_stride_ = keys_ * kBlock;  // of packed blocks
  const std::int64_t sum_stride_ = queries_ * kBlock;
  const bool whole_ = blocks_ * std::max(value_stride_, sum_stride_) <= kWholeFloats;
  const bool divides_ = job_.normalize == Normalize::kSum;
  std::uint8_t* key_codes_ = nullptr;
  std::uint8_t* query_codes_ = nullptr;
  float* values_ = nullptr;
  float* sums_ = nullptr;
  std::int64_t* totals_ = nullptr;  // of each query's collisions with any key
  std::atomic<bool> finite_{true};
};

}  // namespace

bool RunTablePath(const Kernels& kernels, const HeadJob& job, Crew& crew, Scratch& scratch) {
  return TablePath(kernels, job, crew, scratch).Run();
}

}  // namespace attenuator::yoso
