// The table path of one head: values packed in blocks of 16 columns, hash tables of one block
// filled by the keys and read by the queries. Every step is cut into pieces that any worker may
// run.
//
// Layout: values and sums are [block of 16 columns][row][16], so that a key's part of a block is
// one register. Codes are [group of kGroup hashes][row][kGroup]. A table is [2^hash_bits][16]; a
// pass fills per_pass_ of them, as many as the first-level cache holds beside the values that
// stream by, and then reads them for every query. Rounded values (table_precision = int16) go in
// pairs of blocks: 32 columns of int8, summed in int16 where the occupancy of a pass, or of a run
// of them, proves that no sum overflows, else in int32.
//
// Who owns what: a piece of hashing or packing owns kPieceRows rows; a piece of tables owns a block
// of columns for all hashes of a chunk, and so all sums of its columns. Nothing is shared, and the
// order of hashes is fixed: the bits do not depend on the number of workers.
//
// Memory traffic: each pass streams the values and sums of its block once, from the second-level
// cache for up to kWholeFloats of them; codes are read once for every block. Beyond kWholeFloats a
// piece packs its own 16 columns anew for each chunk, so that memory stays bounded.
//
// Numerics: float32 sums in the order of hashes, and of keys within a bucket; whole numbers where
// values are rounded. The division by the number of hashes comes last.
#include <algorithm>
#include <array>
#include <atomic>

#include "ops/yoso/cpu/occupancy.h"
#include "ops/yoso/cpu/paths.h"

namespace attenuator::yoso {
namespace {

// Values and sums of all columns are packed at once up to this size, which reads and writes each
// page of the tensors once; beyond it 16 columns at a time bound the memory.
constexpr std::int64_t kWholeFloats = 1 << 18;
constexpr std::int64_t kPairBlocks = kPairColumns / kBlock;

// As many as fit the first-level cache beside the values that stream by.
int TablesPerPass(int hash_bits) { return hash_bits <= 8 ? 4 : hash_bits == 9 ? 2 : 1; }

std::int64_t Pieces(std::int64_t rows) { return (rows + kPieceRows - 1) / kPieceRows; }

class TablePath {
 public:
  TablePath(const Kernels& kernels, const HeadJob& job, const HeadCodes& codes, Crew& crew,
            Scratch& scratch)
      : kernels_(kernels), job_(job), codes_(codes), crew_(crew), scratch_(scratch) {
    if (codes_.key == nullptr) {
      const std::int64_t code_rows = std::min(ChunkSize(job), job.num_hashes);
      key_codes_ = scratch.Get<std::uint8_t>(Scratch::kKeyCodes, CodeBytes(job, code_rows, keys_));
      query_codes_ =
          scratch.Get<std::uint8_t>(Scratch::kQueryCodes, CodeBytes(job, code_rows, queries_));
    }
    if (divides_) {
      totals_ = scratch.Get<std::int64_t>(Scratch::kTotals, queries_);
      std::fill_n(totals_, queries_, 0);
    }
    if (!whole_) return;
    sums_ = scratch.Get<float>(Scratch::kSums, blocks_ * sum_stride_);
    if (job.rounded) {
      values_ = sums_;  // only until they are rounded
      rounded_ = scratch.Get<std::int8_t>(Scratch::kRounded, keys_ * blocks_ * kBlock);
    } else {
      values_ = scratch.Get<float>(Scratch::kValues, blocks_ * value_stride_);
    }
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
      if (job_.rounded) ChooseWidths(chunk);
      const std::int64_t columns = job_.rounded ? blocks_ / kPairBlocks : blocks_;
      // Where rows are divided by their totals, counting is one more piece beside the columns.
      crew_.Share(columns + divides_, scratch_, [&](std::int64_t piece, Scratch& own) {
        if (piece < columns) {
          if (job_.rounded) {
            RunPair(chunk, piece, own);
          } else {
            RunBlock(chunk, piece, first > 0, own);
          }
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
      Check(kernels_.pack_values(rows, job_.value_dim, values_ + first * kBlock,
                                 job_.rounded ? sum_stride_ : value_stride_));
    });
  }

  void Hash(const Chunk& chunk) {
    if (codes_.key != nullptr) {
      const std::int64_t group = chunk.first_hash / kGroup;
      key_codes_ = codes_.key + group * chunk.GroupBytes(keys_);
      query_codes_ = codes_.query + group * chunk.GroupBytes(queries_);
      return;
    }
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

  // The hashes [first, first + count) of a chunk that one pass takes, and where their codes lie.
  struct Pass {
    int first, count;
    const std::uint8_t* key_codes;
    const std::uint8_t* query_codes;
  };

  template <class Body>
  void ForEachPass(const Chunk& chunk, const Body& body) const {
    int count = 0;
    for (int t = 0; t < chunk.spec.num_hashes; t += count) {
      count = per_pass_;
      while (t + count > chunk.spec.num_hashes) count /= 2;
      const std::int64_t group = t / kGroup;
      const std::int64_t offset = t % kGroup * chunk.spec.code_bytes();
      body(Pass{.first = t,
                .count = count,
                .key_codes = key_codes_ + group * chunk.GroupBytes(keys_) + offset,
                .query_codes = query_codes_ + group * chunk.GroupBytes(queries_) + offset});
    }
  }

  // Fills addends_ for the passes of a chunk. As long as the fullest buckets of neighbouring passes
  // make few keys together, these are a run, added up in 16 bits.
  void ChooseWidths(const Chunk& chunk) {
    std::array<Pass, kMaxHadamardChunk> passes;
    std::array<Occupancy, kMaxHadamardChunk> occupancies;
    std::int64_t size = 0;
    ForEachPass(chunk, [&](const Pass& pass) {
      occupancies[size] = {.total = keys_ * pass.count, .largest = keys_};
      passes[size++] = pass;
    });
    if (keys_ * per_pass_ > kShortKeys) CountPasses(chunk, passes.data(), size, occupancies.data());
    std::int64_t total = 0;
    for (std::int64_t p = 0; p < size; ++p) {
      Addend& own = addends_[passes[p].first];
      own = {.width = WidthFor(occupancies[p]), .begins_run = true, .ends_run = true};
      total += occupancies[p].total;
      if (p > 0 && total <= kShortKeys) {
        own.begins_run = addends_[passes[p - 1].first].ends_run = false;
      } else {
        total = occupancies[p].total;
      }
    }
  }

  void CountPasses(const Chunk& chunk, const Pass* passes, std::int64_t size,
                   Occupancy* occupancies) {
    crew_.Share(size, scratch_, [&](std::int64_t piece, Scratch& own) {
      const Pass& pass = passes[piece];
      std::int32_t* counts = own.Get<std::int32_t>(
          Scratch::kPieceCounts, static_cast<std::int64_t>(pass.count) << hash_bits_);
      const auto count = [&]<class Code>(const Code* codes) {
        return CountOccupancy(codes, keys_, pass.count, hash_bits_, counts);
      };
      occupancies[piece] = chunk.spec.wide()
                               ? count(reinterpret_cast<const std::uint16_t*>(pass.key_codes))
                               : count(pass.key_codes);
    });
  }

  // All passes of a chunk over 32 columns of rounded values.
  void RunPair(const Chunk& chunk, std::int64_t pair, Scratch& own) {
    static_assert(std::int64_t{kMaxHadamardChunk} * kRoundedKeys * kRoundedHigh < 1ll << 31);
    const std::int64_t column = pair * kPairColumns;
    const int columns =
        static_cast<int>(std::min<std::int64_t>(kPairColumns, job_.value_dim - column));
    const bool last = chunk.first_hash + chunk.spec.num_hashes == job_.num_hashes;
    float* sums = nullptr;
    std::int8_t* rounded = nullptr;
    float* steps = steps_.data() + column;
    if (whole_) {
      sums = sums_ + pair * kPairBlocks * sum_stride_;
      rounded = rounded_ + pair * kPairColumns * keys_;
    } else {
      rounded = own.Get<std::int8_t>(Scratch::kPieceRounded, kPairColumns * keys_);
      sums = own.Get<float>(Scratch::kPieceSums, kPairBlocks * sum_stride_);
      const Rows rows{
          .data = job_.value.data + column, .stride = job_.value.stride, .count = keys_};
      if (!Check(kernels_.pack_values(rows, columns, sums, sum_stride_))) return;
    }
    if (!whole_ || chunk.first_hash == 0) {
      kernels_.round_values(sums, sum_stride_, static_cast<int>(Blocks(columns)), keys_, rounded,
                            steps);
    }
    const bool sparse = keys_ < (std::int64_t{1} << hash_bits_);
    float* tables =
        own.Tables((static_cast<std::int64_t>(kBlock) << hash_bits_) * per_pass_, sparse);
    std::int16_t* short_sums =
        own.Get<std::int16_t>(Scratch::kPieceShortSums, kPairColumns * queries_);
    bool accumulate = whole_ && chunk.first_hash > 0;
    ForEachPass(chunk, [&](const Pass& pass) {
      const bool ends = pass.first + pass.count == chunk.spec.num_hashes && (!whole_ || last);
      const Addend& addend = addends_[pass.first];
      kernels_.run_rounded({.key_codes = pass.key_codes,
                            .query_codes = pass.query_codes,
                            .values = rounded,
                            .sums = reinterpret_cast<std::int32_t*>(sums),
                            .sum_stride = sum_stride_,
                            .short_sums = short_sums,
                            .steps = ends ? steps : nullptr,
                            .tables = tables,
                            .num_keys = keys_,
                            .num_queries = queries_,
                            .hash_bits = hash_bits_,
                            .num_tables = pass.count,
                            .width = addend.width,
                            .begins_run = addend.begins_run,
                            .ends_run = addend.ends_run,
                            .accumulate = accumulate,
                            .sparse = sparse});
      accumulate |= addend.ends_run;
    });
    if (whole_) return;
    kernels_.unpack_sums(sums, sum_stride_, queries_, columns, job_.output + column,
                         job_.output_stride, chunk.first_hash > 0);
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
    const bool sparse = keys_ < (std::int64_t{1} << hash_bits_);
    float* tables =
        own.Tables((static_cast<std::int64_t>(kBlock) << hash_bits_) * per_pass_, sparse);
    ForEachPass(chunk, [&](const Pass& pass) {
      kernels_.run_tables({.key_codes = pass.key_codes,
                           .query_codes = pass.query_codes,
                           .values = values,
                           .sums = sums,
                           .tables = tables,
                           .num_keys = keys_,
                           .num_queries = queries_,
                           .hash_bits = hash_bits_,
                           .num_tables = pass.count,
                           .accumulate = pass.first > 0 || (whole_ && accumulate),
                           .sparse = sparse});
    });
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
  const HeadCodes codes_;
  Crew& crew_;
  Scratch& scratch_;
  const int hash_bits_ = job_.family.hash_bits;
  const std::int64_t keys_ = job_.key.count;
  const std::int64_t queries_ = job_.query.count;
  const int per_pass_ = TablesPerPass(hash_bits_);
  // Of columns; a whole number of pairs where values are rounded.
  const std::int64_t blocks_ = job_.rounded
                                   ? Blocks(job_.value_dim + kBlock) / kPairBlocks * kPairBlocks
                                   : Blocks(job_.value_dim);
  const std::int64_t value_stride_ = keys_ * kBlock;                    // of packed blocks
  const std::int64_t sum_stride_ = std::max(queries_, keys_) * kBlock;  // room for values to round
  const bool whole_ = blocks_ * sum_stride_ <= kWholeFloats;
  const bool divides_ = job_.normalize == Normalize::kSum;
  std::uint8_t* key_codes_ = nullptr;
  std::uint8_t* query_codes_ = nullptr;
  float* values_ = nullptr;
  float* sums_ = nullptr;
  std::int8_t* rounded_ = nullptr;         // [pair of blocks][keys][32]
  std::array<float, kHeadDimHigh> steps_;  // of each column's rounded values
  // How the rounded sums of the pass that begins with this hash are added to those of others.
  struct Addend {
    SumWidth width;
    bool begins_run, ends_run;
  };
  std::array<Addend, kMaxHadamardChunk> addends_;
  std::int64_t* totals_ = nullptr;  // of each query's collisions with any key
  std::atomic<bool> finite_{true};
};

}  // namespace

bool RunTablePath(const Kernels& kernels, const HeadJob& job, const HeadCodes& codes, Crew& crew,
                  Scratch& scratch) {
  return TablePath(kernels, job, codes, crew, scratch).Run();
}

}  // namespace attenuator::yoso
