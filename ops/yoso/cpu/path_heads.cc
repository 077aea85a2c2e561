// The table path of the heads of one sequence. A row of queries or keys holds all heads side by
// side, so all are hashed while their part of it is near; beyond that each head is on its own.
#include <algorithm>
#include <atomic>
#include <vector>

#include "ops/yoso/cpu/paths.h"

namespace attenuator::yoso {
namespace {

// Rows of all heads in one piece of hashing.
constexpr std::int64_t kHashedRows = 128;
// Codes of so many bytes exist at one time, and so many heads are hashed together.
constexpr std::int64_t kCodeBytes = 3 << 20;
// The transforms of hash = hadamard take so many rows of one head at a time.
constexpr std::int64_t kTransformedRows = 32;

// Hashes [first, first + count) of neighbouring heads, planes included.
struct Chunks {
  std::vector<Chunk> heads;
  std::vector<HashSpec> specs[2];  // of queries and of keys

  Chunks(std::span<const HeadJob> jobs, int first, int count) {
    for (const HeadJob& job : jobs) {
      heads.emplace_back(job, first, count);
      for (const Side side : {Side::kQuery, Side::kKey}) {
        specs[static_cast<int>(side)].push_back(heads.back().SpecOf(side));
      }
    }
  }
};

class HeadHashing {
 public:
  HeadHashing(const Kernels& kernels, std::span<const HeadJob> jobs, Scratch& scratch)
      : kernels_(kernels), jobs_(jobs) {
    const HeadJob& job = jobs[0];
    const int step = ChunkSize(job);
    for (int first = 0; first < job.num_hashes; first += step) {
      chunks_.emplace_back(jobs, first, std::min(step, job.num_hashes - first));
    }
    const auto heads = static_cast<std::int64_t>(jobs.size());
    codes_ = {.key = scratch.Get<std::uint8_t>(Scratch::kKeyCodes, heads * key_bytes_),
              .query = scratch.Get<std::uint8_t>(Scratch::kQueryCodes, heads * query_bytes_)};
  }

  // False where a row is not finite.
  bool Run(Crew& crew, Scratch& scratch) {
    // Keys and queries in turns: two workers then walk through one of them each, and the rows that
    // a piece fetches ahead are those of their next.
    const std::int64_t of_each =
        (std::max(keys_.count, queries_.count) + kHashedRows - 1) / kHashedRows;
    std::atomic<bool> finite{true};
    crew.Share(2 * of_each, scratch, [&](std::int64_t piece, Scratch&) {
      const std::int64_t first = piece / 2 * kHashedRows;
      const bool done = piece % 2 == 0
                            ? Hash(Side::kKey, keys_, first, codes_.key, key_bytes_)
                            : Hash(Side::kQuery, queries_, first, codes_.query, query_bytes_);
      if (!done) finite = false;
    });
    return finite;
  }

  HeadCodes Codes(std::int64_t head) const {
    return {.key = codes_.key + head * key_bytes_, .query = codes_.query + head * query_bytes_};
  }

 private:
  bool Hash(Side side, const Rows& all, std::int64_t first, std::uint8_t* codes,
            std::int64_t head_bytes) const {
    if (first >= all.count) return true;
    const Rows rows = all.slice(first, std::min(kHashedRows, all.count - first));
    return std::all_of(chunks_.begin(), chunks_.end(), [&](const Chunks& chunks) {
      const Chunk& chunk = chunks.heads[0];
      const std::int64_t row_bytes = kGroup * chunk.spec.code_bytes();
      std::uint8_t* const own =
          codes + chunk.first_hash / kGroup * chunk.GroupBytes(all.count) + first * row_bytes;
      if (chunk.hadamard) return Transform(chunks, side, rows, own, all.count, head_bytes);
      return kernels_.hash_gaussian(chunks.specs[static_cast<int>(side)].data(),
                                    static_cast<int>(jobs_.size()), rows, own, all.count,
                                    head_bytes / chunk.spec.code_bytes());
    });
  }

  bool Transform(const Chunks& chunks, Side side, const Rows& rows, std::uint8_t* codes,
                 std::int64_t code_rows, std::int64_t head_bytes) const {
    const HashSpec& spec = chunks.heads[0].spec;
    for (std::int64_t first = 0; first < rows.count; first += kTransformedRows) {
      const Rows some = rows.slice(first, std::min(kTransformedRows, rows.count - first));
      for (std::size_t h = 0; h < chunks.heads.size(); ++h) {
        const int head = static_cast<int>(h);
        if (!chunks.heads[h].Hash(kernels_, side, some.head(head, spec.head_dim),
                                  codes + head * head_bytes + first * kGroup * spec.code_bytes(),
                                  code_rows)) {
          return false;
        }
      }
    }
    return true;
  }

  const Kernels& kernels_;
  const std::span<const HeadJob> jobs_;
  const Rows& keys_ = jobs_[0].key;  // of the first head; the others' columns follow
  const Rows& queries_ = jobs_[0].query;
  // Of a head's codes.
  const std::int64_t key_bytes_ = CodeBytes(jobs_[0], jobs_[0].num_hashes, keys_.count);
  const std::int64_t query_bytes_ = CodeBytes(jobs_[0], jobs_[0].num_hashes, queries_.count);
  std::vector<Chunks> chunks_;
  HeadCodes codes_;
};

// How many heads are hashed together: groups of about equal size.
std::size_t HeadsTogether(std::span<const HeadJob> heads) {
  const HeadJob& job = heads[0];
  const std::int64_t bytes = CodeBytes(job, job.num_hashes, job.key.count) +
                             CodeBytes(job, job.num_hashes, job.query.count);
  const std::size_t most = std::max<std::int64_t>(1, kCodeBytes / bytes);
  const std::size_t groups = (heads.size() + most - 1) / most;
  return (heads.size() + groups - 1) / groups;
}

}  // namespace

bool RunTablePaths(const Kernels& kernels, std::span<const HeadJob> heads, Crew& crew,
                   Scratch& scratch) {
  const std::size_t together = HeadsTogether(heads);
  if (together == 1) {
    // A head that is hashed alone keeps the codes of a chunk of its hashes, not of all.
    return std::all_of(heads.begin(), heads.end(), [&](const HeadJob& job) {
      return RunTablePath(kernels, job, {}, crew, scratch);
    });
  }
  for (std::size_t first = 0; first < heads.size(); first += together) {
    const auto group = heads.subspan(first, std::min(together, heads.size() - first));
    HeadHashing hashing(kernels, group, scratch);
    if (!hashing.Run(crew, scratch)) return false;
    std::atomic<bool> finite{true};
    crew.Share(
        static_cast<std::int64_t>(group.size()), scratch,
        [&](std::int64_t h, Scratch& own) {
          if (!RunTablePath(kernels, group[h], hashing.Codes(h), crew, own)) finite = false;
        },
        Grain::kHeads);
    if (!finite) return false;
  }
  return true;
}

}  // namespace attenuator::yoso
