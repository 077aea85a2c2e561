// The plan of a run of YosoAttention on CUDA: the path of each sequence, and waves of heads whose
// scratch fits the limit together. How work is cut changes no bit of the result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ops/yoso/cuda/kernel.h"

namespace attenuator::yoso {

// A wave closes at kWaveBytes, about what a second-level cache holds, if each of its large kernels
// has kWaveBlocks blocks for every multiprocessor (LeastBlocks); otherwise it grows up to the most,
// which follows the card: 528 MiB on 132 multiprocessors. One hash of one head may need more.
inline constexpr std::int64_t kWaveBytes = 64 << 20;
inline constexpr std::int64_t kMostBytesEach = 4 << 20;  // of a multiprocessor
inline constexpr std::int64_t kWaveBlocks = 2;
// Blocks of a hash kernel for every multiprocessor, below which blocks share the hashes of rows.
inline constexpr std::int64_t kHashBlocks = 8;
inline constexpr std::int64_t kAlign = 256;

enum class Path { kTables, kCounts, kExpectation };

inline std::int64_t RoundUp(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size * size;
}

// From a sequence's own length and knobs and the attributes alone. By the kernels' cost models: a
// pair takes 5/4 instructions a hash and one a column, a token and hash of the table path about as
// long as 32 instructions a column.
inline Path ChoosePath(const Job& job, int value_dim) {
  if (job.total_hashes == 0) return Path::kExpectation;
  if (job.num_queries == 1 || job.num_keys <= 256) return Path::kCounts;
  const std::int64_t m = job.total_hashes;
  return job.num_keys * (5 * m / 4 + value_dim) <= 32 * m * value_dim ? Path::kCounts
                                                                      : Path::kTables;
}

// Bytes of one head's arrays, in the order of Job's offsets.
struct HeadSizes {
  std::int64_t query_codes = 0, key_codes = 0, maps = 0, tables = 0, begins = 0, orders = 0,
               sums = 0;
  std::int64_t totals = 0;

  std::int64_t total() const {
    return query_codes + key_codes + maps + tables + begins + orders + sums + totals;
  }
};

inline HeadSizes Sizes(const Node& node, const Job& job, Path path) {
  const std::int64_t code = node.code_bytes(), m = job.num_hashes;
  HeadSizes sizes;
  const auto rows = [&](std::int64_t row_bytes) {
    sizes.query_codes = job.num_queries * row_bytes;
    sizes.key_codes = job.num_keys * row_bytes;
  };
  const std::int64_t sum_bytes = static_cast<std::int64_t>(node.table_columns()) * 4;
  if (path != Path::kTables && job.num_queries == 1) {
    sizes.sums = RoundUp(job.num_keys, kFirstKeys) / kFirstKeys * sum_bytes;
    sizes.totals = sizes.sums / sum_bytes * 4;
  }
  switch (path) {
    case Path::kExpectation:
      // UnitSide: floats, and in half types halves and a float.
      rows(RoundUp(node.unit_dim(), kUnitPad) * (node.half ? 6 : 4) + (node.half ? 4 : 0));
      break;
    case Path::kCounts:
      rows(RoundUp(m, kCodePad) * code);
      break;
    case Path::kTables:
      sizes.query_codes = m * RoundUp(job.num_queries, kCodePad) * code;
      sizes.key_codes = m * RoundUp(job.num_keys, kCodePad) * code;
      sizes.maps = m * 4 << node.hash_bits;
      sizes.tables = m * job.table_rows * sum_bytes;
      if (node.divides()) sizes.begins = m * (job.table_rows + 1) * 4;
      if (job.num_keys > kSharedKeys) sizes.orders = m * 4 * LongSizesOf(node, job).words;
      if (m < job.total_hashes) {
        sizes.sums = job.num_queries * sum_bytes;
        sizes.totals = job.num_queries * 4;
      }
  }
  return sizes;
}

// Blocks of the smaller of the job's large kernels. Gathering counts as if rows were read one by
// one: from shared memory it has fewer and larger blocks.
inline std::int64_t LeastBlocks(const Node& node, const Job& job, Path path) {
  if (path == Path::kTables) {
    const bool is_short = job.num_keys <= kSharedKeys;
    return std::min(is_short ? TableBlocks(node, job) : PieceBlocks(node, job),
                    GatherBlocks(node, job));
  }
  return job.num_queries == 1 ? FirstBlocks(node, job) : PairBlocks(node, job);
}

struct Wave {
  std::vector<Job> jobs[3];  // by path
  std::vector<PlaneJob> planes;
  std::int64_t bytes = 0;

  bool empty() const { return jobs[0].empty() && jobs[1].empty() && jobs[2].empty(); }
};

// Fills waves, one after another.
class Planner {
 public:
  Planner(const Node& node, int multiprocessors)
      : node_(node),
        most_bytes_(multiprocessors * kMostBytesEach),
        enough_blocks_(multiprocessors * kWaveBlocks),
        enough_hash_blocks_(multiprocessors * kHashBlocks) {}

  void Add(const Job& sequence) {
    const Path path = ChoosePath(sequence, node_.value_dim);
    for (std::int32_t head = 0; head < node_.num_heads; ++head) {
      Job job = sequence;
      job.head = head;
      job.num_heads = 1;
      const std::int64_t bytes = Bytes(job, path);
      if (bytes > most_bytes_ && path == Path::kTables) {
        AddPasses(job);
        continue;
      }
      const std::int64_t limit =
          wave_blocks_ < enough_blocks_ ? most_bytes_ : std::min(most_bytes_, kWaveBytes);
      if (wave_bytes_ + bytes > limit) Close();
      wave_bytes_ += bytes;
      wave_blocks_ += LeastBlocks(node_, job, path);
      auto& jobs = wave_.jobs[static_cast<int>(path)];
      if (!jobs.empty() && jobs.back().sequence == job.sequence) {
        ++jobs.back().num_heads;
      } else {
        jobs.push_back(job);
      }
    }
  }

  const std::vector<Wave>& Finish() {
    Close();
    return waves_;
  }

 private:
  // Of one head, its planes included.
  std::int64_t Bytes(const Job& job, Path path) const {
    return Sizes(node_, job, path).total() + 10 * kAlign +
           (job.num_hashes > 0 ? PlaneBytes(node_, job.first_hash, job.num_hashes) +
                                     LiftBytes(node_, job.first_hash, job.num_hashes)
                               : 0);
  }

  // One head whose hashes do not fit at once: as many of them as fit, one at least, in turn.
  void AddPasses(Job job) {
    Close();
    std::int32_t size = job.total_hashes;
    while (size > 1) {
      job.num_hashes = size;
      job.first_hash = job.total_hashes - size;  // where the most signs are needed
      if (Bytes(job, Path::kTables) <= most_bytes_) break;
      size = (size + 1) / 2;
    }
    for (std::int32_t first = 0; first < job.total_hashes; first += size) {
      job.first_hash = first;
      job.num_hashes = std::min(size, job.total_hashes - first);
      wave_.jobs[static_cast<int>(Path::kTables)].push_back(job);
      Close();
    }
  }

  std::int64_t Take(std::int64_t bytes) {
    const std::int64_t offset = wave_.bytes;
    wave_.bytes += RoundUp(bytes, kAlign);
    return offset;
  }

  // Offsets of all that the wave's jobs need.
  void Close() {
    wave_bytes_ = wave_blocks_ = 0;
    if (wave_.empty()) return;
    for (int path = 0; path < 3; ++path) {
      for (Job& job : wave_.jobs[path]) {
        const HeadSizes sizes = Sizes(node_, job, static_cast<Path>(path));
        // First of all, where the next pass of a job that needs several finds them.
        job.sums = Take(job.num_heads * sizes.sums);
        job.totals = Take(job.num_heads * sizes.totals);
        job.query_codes = Take(job.num_heads * sizes.query_codes);
        job.key_codes = Take(job.num_heads * sizes.key_codes);
        job.maps = Take(job.num_heads * sizes.maps);
        job.tables = Take(job.num_heads * sizes.tables);
        job.begins = Take(job.num_heads * sizes.begins);
        job.orders = Take(job.num_heads * sizes.orders);
      }
    }
    SharePlanes();
    for (const Path path : {Path::kTables, Path::kCounts}) {
      ShareHashes(wave_.jobs[static_cast<int>(path)]);
    }
    waves_.push_back(std::move(wave_));
    wave_ = Wave();
  }

  // A block that hashes rows by all the hashes rounds them once. Where there are too few such
  // blocks, several share the hashes.
  void ShareHashes(std::vector<Job>& jobs) const {
    std::int64_t blocks = 0;
    for (Job& job : jobs) {
      job.hash_blocks = 1;
      blocks += HashBlocks(node_, job);
    }
    for (Job& job : jobs) {
      const std::int64_t share = (enough_hash_blocks_ + blocks - 1) / blocks;
      job.hash_blocks =
          static_cast<std::int32_t>(std::min<std::int64_t>(share, HashParts(node_, job)));
    }
  }

  // Sequences with one seed share its planes.
  void SharePlanes() {
    std::map<std::int64_t, PlaneJob> seeds;
    const auto each = [&](const auto& body) {
      for (const Path path : {Path::kTables, Path::kCounts}) {
        for (Job& job : wave_.jobs[static_cast<int>(path)]) body(job);
      }
    };
    each([&](const Job& job) {
      const PlaneJob none{.first_block = 0,
                          .head = job.head,
                          .num_heads = 0,
                          .first_hash = job.first_hash,
                          .num_hashes = 0,
                          .seed = job.seed,
                          .offset = 0,
                          .stride = 0,
                          .lift_offset = 0,
                          .lift_stride = 0};
      auto& planes = seeds.try_emplace(job.seed, none).first->second;
      const std::int32_t end = std::max(planes.head + planes.num_heads, job.head + job.num_heads);
      planes.head = std::min(planes.head, job.head);
      planes.num_heads = end - planes.head;
      planes.num_hashes = std::max(planes.num_hashes, job.num_hashes);
    });
    for (auto& [seed, planes] : seeds) {
      planes.stride = RoundUp(PlaneBytes(node_, planes.first_hash, planes.num_hashes), kAlign);
      planes.offset = Take(planes.num_heads * planes.stride);
      planes.lift_stride = RoundUp(LiftBytes(node_, planes.first_hash, planes.num_hashes), kAlign);
      planes.lift_offset = Take(planes.num_heads * planes.lift_stride);
      wave_.planes.push_back(planes);
    }
    each([&](Job& job) {
      const PlaneJob& planes = seeds.at(job.seed);
      job.planes = planes.offset;
      job.plane_stride = planes.stride;
      job.plane_head = planes.head;
      job.lift_planes = planes.lift_offset;
      job.lift_stride = planes.lift_stride;
    });
  }

  const Node& node_;
  const std::int64_t most_bytes_;
  const std::int64_t enough_blocks_;
  const std::int64_t enough_hash_blocks_;
  Wave wave_;
  std::int64_t wave_bytes_ = 0;   // as far as it is filled, at the most
  std::int64_t wave_blocks_ = 0;  // of those of its large kernels
  std::vector<Wave> waves_;
};

}  // namespace attenuator::yoso
