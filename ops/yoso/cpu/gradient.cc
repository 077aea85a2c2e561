// The gradient of one head of one sequence: rows are hashed, and then, hash by hash, both sides
// sorted by their codes and the buckets that have rows of both added up. Buckets of one hash write
// to different rows, so that any worker may take them; hashes follow one another, so that every sum
// has one order.
//
// Layout: codes as the forward pass has them, [group][row][kGroup]; with the gradient of equation 4
// once more row by row, so that a bucket can tell whether a pair has met in an earlier hash. Rows
// are sorted by a stable counting sort of one or two digits of 8 bits, which yields their order and
// moves no row: a bucket gathers its rows through it.
//
// Pieces are runs of neighbouring buckets with about kBucketRows rows, so that few large buckets
// and many small ones share alike. Memory is linear in rows: codes, orders, and one workspace a
// worker. Sums are float32, added bucket by bucket into the rows' gradients; lengths and scales are
// applied in one last pass over the rows.
#include "ops/yoso/cpu/gradient.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace attenuator::yoso {
namespace {

constexpr std::int64_t kBucketRows = 1024;  // of the buckets of one piece, about

constexpr int kDigitBits = 8;

// Rows in the order of their codes, equal ones in their own order.
class SortedCodes {
 public:
  SortedCodes(std::int64_t rows, int hash_bits)
      : hash_bits_(hash_bits),
        order_(rows),
        codes_(rows),
        spare_(hash_bits > kDigitBits ? rows : 0) {}

  // `codes` lie kGroup apart.
  template <class Code>
  void Sort(const Code* codes) {
    const auto in_order = [](std::int32_t i) { return i; };
    if (hash_bits_ <= kDigitBits) {
      SortDigit(codes, 0, in_order, order_.data());
    } else {
      SortDigit(codes, 0, in_order, spare_.data());
      SortDigit(codes, kDigitBits, [&](std::int32_t i) { return spare_[Place(i)]; }, order_.data());
    }
    for (std::size_t i = 0; i < order_.size(); ++i) codes_[i] = codes[order_[i] * kGroup];
  }

  std::int64_t size() const { return static_cast<std::int64_t>(order_.size()); }
  // The run of equal codes from `first` on.
  std::int64_t RunEnd(std::int64_t first) const {
    std::int64_t end = first + 1;
    while (end < size() && codes_[Place(end)] == codes_[Place(first)]) ++end;
    return end;
  }
  std::uint16_t code(std::int64_t place) const { return codes_[Place(place)]; }
  BucketSide Side(std::int64_t first, std::int64_t count) const {
    return {order_.data() + first, order_.data() + size(), count};
  }

 private:
  static std::size_t Place(std::int64_t i) { return static_cast<std::size_t>(i); }

  // A stable pass over the rows source(0), source(1) ... by one digit of their codes.
  template <class Code, class Source>
  void SortDigit(const Code* codes, int shift, const Source& source, std::int32_t* sorted) const {
    const auto count = static_cast<std::int32_t>(order_.size());
    const auto digit = [&](std::int32_t row) {
      return codes[std::int64_t{row} * kGroup] >> shift & ((1 << kDigitBits) - 1);
    };
    std::int32_t places[1 << kDigitBits] = {};
    for (std::int32_t i = 0; i < count; ++i) ++places[digit(i)];
    std::int32_t before = 0;
    for (std::int32_t& place : places) {
      const std::int32_t size = place;
      place = before;
      before += size;
    }
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t row = source(i);
      sorted[places[digit(row)]++] = row;
    }
  }

  int hash_bits_;
  std::vector<std::int32_t> order_;
  std::vector<std::uint16_t> codes_;
  std::vector<std::int32_t> spare_;
};

struct Bucket {
  BucketSide queries, keys;
};

class HeadGradient {
 public:
  HeadGradient(const HeadJob& job, const GradientHead& head, Crew& crew, Scratch& scratch)
      : job_(job),
        head_(head),
        crew_(crew),
        scratch_(scratch),
        queries_(rows_, job.family.hash_bits),
        keys_(rows_, job.family.hash_bits) {
    const std::int64_t hashes = std::min(ChunkSize(job), job.num_hashes);
    query_codes_ = scratch.Get<std::uint8_t>(Scratch::kQueryCodes, CodeBytes(job, hashes, rows_));
    key_codes_ = scratch.Get<std::uint8_t>(Scratch::kKeyCodes, CodeBytes(job, hashes, rows_));
    query_inverses_ = scratch.Get<float>(Scratch::kInverses, 2 * rows_);
    key_inverses_ = query_inverses_ + rows_;
    if (head.collided) {
      query_rows_ = scratch.Get<std::uint8_t>(Scratch::kQueryCodeRows, rows_ * row_bytes_);
      key_rows_ = scratch.Get<std::uint8_t>(Scratch::kKeyCodeRows, rows_ * row_bytes_);
    }
    head_.query_inverses = query_inverses_;
    head_.key_inverses = key_inverses_;
  }

  bool Run() {
    ForRows([&](std::int64_t first, std::int64_t count) { Prepare(first, count); });
    const int step = ChunkSize(job_);
    for (int first = 0; first < job_.num_hashes; first += step) {
      const Chunk chunk(job_, first, std::min(step, job_.num_hashes - first));
      ForRows([&](std::int64_t begin, std::int64_t count) { Hash(chunk, begin, count); });
      if (!finite_) return false;
      for (int t = 0; t < chunk.spec.num_hashes; ++t) {
        if (chunk.spec.wide()) {
          AddHash<std::uint16_t>(chunk, t);
        } else {
          AddHash<std::uint8_t>(chunk, t);
        }
      }
    }
    ForRows([&](std::int64_t first, std::int64_t count) { Finish(first, count); });
    return true;
  }

 private:
  template <class Body>
  void ForRows(const Body& body) {
    crew_.Share((rows_ + kPieceRows - 1) / kPieceRows, scratch_, [&](std::int64_t i, Scratch&) {
      const std::int64_t first = i * kPieceRows;
      body(first, std::min(kPieceRows, rows_ - first));
    });
  }

  void Prepare(std::int64_t first, std::int64_t count) {
    const int head_dim = head_.head_dim;
    kernels_.inverse_lengths(head_.query.slice(first, count), head_dim, job_.lift_root,
                             query_inverses_ + first);
    kernels_.inverse_lengths(head_.key.slice(first, count), head_dim, job_.lift_root,
                             key_inverses_ + first);
    for (std::int64_t i = first; i < first + count; ++i) {
      std::fill_n(head_.by_query.row(i), head_dim, 0.0f);
      std::fill_n(head_.by_key.row(i), head_dim, 0.0f);
      std::fill_n(head_.by_value.row(i), head_.value_dim, 0.0f);
    }
  }

  void Hash(const Chunk& chunk, std::int64_t first, std::int64_t count) {
    const auto hash = [&](Side side, const Rows& rows, std::uint8_t* codes, std::uint8_t* by_row) {
      codes += first * kGroup * chunk.spec.code_bytes();
      if (!chunk.Hash(hashing_, side, rows.slice(first, count), codes, rows_)) finite_ = false;
      if (head_.collided) KeepByRow(chunk, codes, count, by_row + first * row_bytes_);
    };
    hash(Side::kQuery, head_.query, query_codes_, query_rows_);
    hash(Side::kKey, head_.key, key_codes_, key_rows_);
  }

  // A chunk's codes of `count` rows from their groups to their rows.
  void KeepByRow(const Chunk& chunk, const std::uint8_t* codes, std::int64_t count,
                 std::uint8_t* by_row) const {
    const std::int64_t group_bytes = kGroup * chunk.spec.code_bytes();
    const int groups = (chunk.spec.num_hashes + kGroup - 1) / kGroup;
    by_row += chunk.first_hash * chunk.spec.code_bytes();
    for (std::int64_t i = 0; i < count; ++i) {
      for (int g = 0; g < groups; ++g) {
        std::memcpy(by_row + i * row_bytes_ + g * group_bytes,
                    codes + g * chunk.GroupBytes(rows_) + i * group_bytes,
                    static_cast<std::size_t>(group_bytes));
      }
    }
  }

  template <class Code>
  void AddHash(const Chunk& chunk, int t) {
    const std::int64_t offset = t / kGroup * chunk.GroupBytes(rows_);
    const auto codes = [&](const std::uint8_t* all) {
      return reinterpret_cast<const Code*>(all + offset) + t % kGroup;
    };
    queries_.Sort(codes(query_codes_));
    keys_.Sort(codes(key_codes_));
    FindBuckets();
    const EarlierHashes earlier{.query_codes = query_rows_,
                                .key_codes = key_rows_,
                                .row_bytes = row_bytes_,
                                .wide = chunk.spec.wide(),
                                .count = chunk.first_hash + t};
    const std::int64_t floats = kernels_.workspace_floats(head_.head_dim, head_.value_dim);
    crew_.Share(static_cast<std::int64_t>(pieces_.size()) - 1, scratch_,
                [&](std::int64_t piece, Scratch& own) {
                  float* workspace = own.Get<float>(Scratch::kPieceSums, floats);
                  const auto at = static_cast<std::size_t>(piece);
                  for (std::size_t b = pieces_[at]; b < pieces_[at + 1]; ++b) {
                    kernels_.add_bucket(head_, earlier, buckets_[b].queries, buckets_[b].keys,
                                        workspace);
                  }
                });
  }

  // The buckets that have rows of both sides, and where each piece's begin.
  void FindBuckets() {
    buckets_.clear();
    pieces_.assign(1, 0);
    std::int64_t rows = 0;
    for (std::int64_t i = 0, j = 0; i < queries_.size() && j < keys_.size();) {
      const std::uint16_t code = queries_.code(i), other = keys_.code(j);
      const std::int64_t i_end = code <= other ? queries_.RunEnd(i) : i;
      const std::int64_t j_end = other <= code ? keys_.RunEnd(j) : j;
      if (code == other) {
        buckets_.push_back({queries_.Side(i, i_end - i), keys_.Side(j, j_end - j)});
        rows += i_end - i + j_end - j;
        if (rows >= kBucketRows) {
          pieces_.push_back(buckets_.size());
          rows = 0;
        }
      }
      i = i_end;
      j = j_end;
    }
    if (rows > 0) pieces_.push_back(buckets_.size());
  }

  void Finish(std::int64_t first, std::int64_t count) {
    const float share = 1.0f / static_cast<float>(job_.num_hashes);
    const float bound = 0.5f * static_cast<float>(job_.family.hash_bits) * share;
    const float factor = head_.collided ? 1.0f : bound;
    const auto from = [&](const MutableRows& rows) {
      return MutableRows{rows.row(first), rows.stride};
    };
    kernels_.finish_unit(head_.query.slice(first, count), query_inverses_ + first, head_.head_dim,
                         job_.lift_root, factor, from(head_.by_query));
    kernels_.finish_unit(head_.key.slice(first, count), key_inverses_ + first, head_.head_dim,
                         job_.lift_root, factor, from(head_.by_key));
    kernels_.scale(count, head_.value_dim, share, from(head_.by_value));
  }

  const Kernels& hashing_ = CpuKernels();
  const GradientKernels& kernels_ = CpuGradientKernels();
  const HeadJob& job_;
  GradientHead head_;
  Crew& crew_;
  Scratch& scratch_;
  const std::int64_t rows_ = head_.query.count;
  // Of a row's codes in all hashes.
  const std::int64_t row_bytes_ = (job_.num_hashes + kHashChunk - 1) / kHashChunk * kHashChunk *
                                  (job_.family.hash_bits > 8 ? 2 : 1);
  SortedCodes queries_, keys_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> pieces_;
  std::uint8_t* query_codes_ = nullptr;
  std::uint8_t* key_codes_ = nullptr;
  std::uint8_t* query_rows_ = nullptr;  // codes row by row, see EarlierHashes
  std::uint8_t* key_rows_ = nullptr;
  float* query_inverses_ = nullptr;
  float* key_inverses_ = nullptr;
  std::atomic<bool> finite_{true};
};

}  // namespace

const GradientKernels& CpuGradientKernels() {
  static const bool wide = CpuIsa() != Isa::kAvx2;
  return wide ? avx512::kGradientKernels : avx2::kGradientKernels;
}

bool RunHeadGradient(const HeadJob& job, const GradientHead& head, Crew& crew, Scratch& scratch) {
  return HeadGradient(job, head, crew, scratch).Run();
}

}  // namespace attenuator::yoso
