// YosoAttention on CUDA: checks, the path of each sequence, scratch, launches.
//
// Work is cut into waves: as many heads of as many sequences as fit the scratch limit, which the
// next wave uses again. How it is cut changes no bit of the result.
#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "ops/common/attention/importance.h"
#include "ops/yoso/cuda/kernel.h"
#include "ops/yoso/inputs.h"

namespace attenuator::cuda {
namespace {

using Spec = spec::YosoAttention;
using yoso::Inputs;
using yoso::Job;
using yoso::Node;

constexpr std::int64_t kScratchBytes = 64 << 20;  // of a wave; one hash of one head may need more
constexpr std::int64_t kAlign = 256;

enum class Path { kTables, kCounts, kExpectation };

std::int64_t RoundUp(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size * size;
}

// From a sequence's own length and knobs and the attributes alone. By the kernels' cost models: a
// pair takes 5/4 instructions a hash and one a column, a token and hash of the table path about as
// long as 32 instructions a column.
Path ChoosePath(const Job& job, int value_dim) {
  if (job.total_hashes == 0) return Path::kExpectation;
  if (job.num_queries == 1 || job.num_keys <= 256) return Path::kCounts;
  const std::int64_t m = job.total_hashes;
  return job.num_keys * (5 * m / 4 + value_dim) <= 32 * m * value_dim ? Path::kCounts
                                                                      : Path::kTables;
}

// Bytes of one head's arrays, in the order of Job's offsets.
struct HeadSizes {
  std::int64_t query_codes = 0, key_codes = 0, maps = 0, tables = 0, orders = 0, sums = 0;

  std::int64_t total() const { return query_codes + key_codes + maps + tables + orders + sums; }
};

HeadSizes Sizes(const Node& node, const Job& job, Path path) {
  const std::int64_t code = node.code_bytes(), m = job.num_hashes;
  HeadSizes sizes;
  const auto rows = [&](std::int64_t row_bytes) {
    sizes.query_codes = job.num_queries * row_bytes;
    sizes.key_codes = job.num_keys * row_bytes;
  };
  const std::int64_t sum_bytes = static_cast<std::int64_t>(node.table_columns()) * 4;
  if (path != Path::kTables && job.num_queries == 1) {
    sizes.sums = RoundUp(job.num_keys, yoso::kFirstKeys) / yoso::kFirstKeys * sum_bytes;
  }
  switch (path) {
    case Path::kExpectation:
      rows(RoundUp(node.head_dim, yoso::kUnitPad) * 4);
      break;
    case Path::kCounts:
      rows(RoundUp(m, yoso::kCodePad) * code);
      break;
    case Path::kTables:
      sizes.query_codes = m * RoundUp(job.num_queries, yoso::kCodePad) * code;
      sizes.key_codes = m * RoundUp(job.num_keys, yoso::kCodePad) * code;
      sizes.maps = m * 4 << node.hash_bits;
      sizes.tables = m * job.table_rows * sum_bytes;
      if (job.num_keys > yoso::kSharedKeys) sizes.orders = m * job.num_keys * 8;
      if (m < job.total_hashes) sizes.sums = job.num_queries * sum_bytes;
  }
  return sizes;
}

struct Wave {
  std::vector<Job> jobs[3];  // by path
  std::vector<yoso::PlaneJob> planes;
  std::int64_t bytes = 0;

  bool empty() const { return jobs[0].empty() && jobs[1].empty() && jobs[2].empty(); }
};

// Fills waves, one after another.
class Planner {
 public:
  explicit Planner(const Node& node) : node_(node) {}

  void Add(const Job& sequence) {
    const Path path = ChoosePath(sequence, node_.value_dim);
    for (std::int32_t head = 0; head < node_.num_heads; ++head) {
      Job job = sequence;
      job.head = head;
      job.num_heads = 1;
      const std::int64_t bytes = Bytes(job, path);
      if (bytes > kScratchBytes && path == Path::kTables) {
        AddPasses(job);
        continue;
      }
      if (wave_bytes_ + bytes > kScratchBytes) Close();
      wave_bytes_ += bytes;
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
    return Sizes(node_, job, path).total() + 8 * kAlign +
           (job.num_hashes > 0 ? yoso::PlaneBytes(node_, job.first_hash, job.num_hashes) : 0);
  }

  // One head whose hashes do not fit at once: as many of them as fit, one at least, in turn.
  void AddPasses(Job job) {
    Close();
    std::int32_t size = job.total_hashes;
    while (size > 1) {
      job.num_hashes = size;
      job.first_hash = job.total_hashes - size;  // where the most signs are needed
      if (Bytes(job, Path::kTables) <= kScratchBytes) break;
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
    wave_bytes_ = 0;
    if (wave_.empty()) return;
    for (int path = 0; path < 3; ++path) {
      for (Job& job : wave_.jobs[path]) {
        const HeadSizes sizes = Sizes(node_, job, static_cast<Path>(path));
        // First of all, where the next pass of a job that needs several finds them.
        job.sums = Take(job.num_heads * sizes.sums);
        job.query_codes = Take(job.num_heads * sizes.query_codes);
        job.key_codes = Take(job.num_heads * sizes.key_codes);
        job.maps = Take(job.num_heads * sizes.maps);
        job.tables = Take(job.num_heads * sizes.tables);
        job.orders = Take(job.num_heads * sizes.orders);
      }
    }
    SharePlanes();
    waves_.push_back(std::move(wave_));
    wave_ = Wave();
  }

  // Sequences with one seed share its planes.
  void SharePlanes() {
    std::map<std::int64_t, yoso::PlaneJob> seeds;
    const auto each = [&](const auto& body) {
      for (const Path path : {Path::kTables, Path::kCounts}) {
        for (Job& job : wave_.jobs[static_cast<int>(path)]) body(job);
      }
    };
    each([&](const Job& job) {
      const yoso::PlaneJob none{.first_block = 0,
                                .head = job.head,
                                .num_heads = 0,
                                .first_hash = job.first_hash,
                                .num_hashes = 0,
                                .seed = job.seed,
                                .offset = 0,
                                .stride = 0};
      auto& planes = seeds.try_emplace(job.seed, none).first->second;
      const std::int32_t end = std::max(planes.head + planes.num_heads, job.head + job.num_heads);
      planes.head = std::min(planes.head, job.head);
      planes.num_heads = end - planes.head;
      planes.num_hashes = std::max(planes.num_hashes, job.num_hashes);
    });
    for (auto& [seed, planes] : seeds) {
      planes.stride =
          RoundUp(yoso::PlaneBytes(node_, planes.first_hash, planes.num_hashes), kAlign);
      planes.offset = Take(planes.num_heads * planes.stride);
      wave_.planes.push_back(planes);
    }
    each([&](Job& job) {
      const yoso::PlaneJob& planes = seeds.at(job.seed);
      job.planes = planes.offset;
      job.plane_stride = planes.stride;
      job.plane_head = planes.head;
    });
  }

  const Node& node_;
  Wave wave_;
  std::int64_t wave_bytes_ = 0;  // as far as it is filled, at the most
  std::vector<Wave> waves_;
};

// Launches over batches of items, each item owning `blocks(item)` blocks.
template <class Item, class Blocks, class Body>
void ForBlocks(const std::vector<Item>& items, const Blocks& blocks, const Body& launch) {
  ForBatches(items, [&](Batch<Item>& batch) {
    int total = 0;
    for (int i = 0; i < batch.count; ++i) {
      batch.items[i].first_block = total;
      total += blocks(batch.items[i]);
    }
    launch(batch, total);
  });
}

class YosoAttentionDeviceKernel final : public DeviceKernel {
 public:
  YosoAttentionDeviceKernel(const NodeReader& reader, ElementType data)
      : attributes_(Spec::Read(reader)), data_(data) {}

  void Run(DeviceContext& context) const override {
    const Inputs in = yoso::CheckInputs(context, attributes_);
    const std::int64_t columns = attributes_.num_heads * in.value_dim;
    void* output = context.Output(Spec::kOutputOutput, {in.query.rows(), columns});
    float* importance = attention::ImportanceOutput<Spec>(context, attributes_, in.key.rows());
    const std::int64_t batch = in.sequences.batch;
    if (in.query.rows() == 0) return;
    int* broken = context.ScratchArray<int>(batch);
    Node node{
        .query = in.query.data,
        .key = in.key.data,
        .value = in.value.data,
        .conv_weight = in.conv_weight.data,
        .output = output,
        .importance = importance,
        .broken = broken,
        .scratch = nullptr,
        .num_heads = static_cast<std::int32_t>(attributes_.num_heads),
        .head_dim = static_cast<std::int32_t>(in.head_dim),
        .value_dim = static_cast<std::int32_t>(in.value_dim),
        .hash_bits = static_cast<std::int32_t>(attributes_.hash_bits),
        .layer = static_cast<std::int32_t>(attributes_.layer),
        .taps = in.conv_weight.present() ? static_cast<std::int32_t>(in.conv_weight.columns()) : 0,
        .hadamard = attributes_.hash == Spec::Hash::kHadamard,
        .normalize = attributes_.normalize != 0};
    yoso::Clear(broken, batch * static_cast<std::int64_t>(sizeof(int)), context.stream());
    ClearEmpty(in, output, columns, context.stream());
    if (importance != nullptr) yoso::Clear(importance, in.key.rows() * 4, context.stream());
    Scan(in, node, broken, context.stream());

    Planner planner(node);
    std::vector<Job> sequences;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t length = in.sequences.length(b);
      if (length == 0) continue;
      const auto [row, queries] = in.QueryRows(b);
      Job job{};
      job.sequence = static_cast<std::int32_t>(b);
      job.query_row = static_cast<std::int32_t>(row);
      job.key_row = static_cast<std::int32_t>(in.sequences.begin(b));
      job.num_queries = static_cast<std::int32_t>(queries);
      job.num_keys = static_cast<std::int32_t>(length);
      job.num_hashes = job.total_hashes = in.num_hashes[b];
      job.table_rows =
          static_cast<std::int32_t>(std::min(length, std::int64_t{1} << attributes_.hash_bits));
      job.seed = in.seed[b];
      planner.Add(job);
      if (importance != nullptr) sequences.push_back(job);
    }
    const std::vector<Wave>& waves = planner.Finish();
    std::int64_t most = 0;
    for (const Wave& wave : waves) most = std::max(most, wave.bytes);
    node.scratch = context.ScratchArray<unsigned char>(most);
    for (const Wave& wave : waves) RunWave(node, wave, context.stream());
    const auto blocks = [&](const Job& job) { return yoso::FinishImportanceBlocks(node, job); };
    ForBlocks(sequences, blocks, [&](const yoso::Jobs& jobs, int count) {
      yoso::LaunchFinishImportance(node, jobs, count, context.stream());
    });
  }

 private:
  // Rows of empty sequences, where queries is first: zeros. Neighbours together.
  void ClearEmpty(const Inputs& in, void* output, std::int64_t columns, Stream stream) const {
    if (!in.first) return;
    const std::int64_t row_bytes = columns * (data_ == ElementType::kFloat ? 4 : 2);
    for (std::int64_t b = 0; b < in.sequences.batch;) {
      std::int64_t end = b;
      while (end < in.sequences.batch && in.sequences.length(end) == 0) ++end;
      yoso::Clear(static_cast<unsigned char*>(output) + b * row_bytes, (end - b) * row_bytes,
                  stream);
      b = end + 1;
    }
  }

  void Scan(const Inputs& in, const Node& node, int* broken, Stream stream) const {
    std::vector<yoso::Span> spans;
    for (std::int64_t b = 0; b < in.sequences.batch; ++b) {
      const std::int64_t begin = in.sequences.begin(b), length = in.sequences.length(b);
      const auto [row, queries] = in.QueryRows(b);
      const auto add = [&](std::int32_t tensor, std::int64_t first, std::int64_t rows,
                           std::int64_t columns) {
        spans.push_back({.first_block = 0,
                         .sequence = static_cast<std::int32_t>(b),
                         .tensor = tensor,
                         .begin = first * columns,
                         .count = rows * columns});
      };
      if (length == 0) continue;
      add(0, row, queries, in.query.columns());
      add(1, begin, length, in.key.columns());
      add(2, begin, length, in.value.columns());
    }
    ForBlocks(spans, yoso::SpanBlocks, [&](const yoso::Spans& batch, int blocks) {
      yoso::LaunchScan(data_, node, batch, blocks, broken, stream);
    });
  }

  void RunWave(const Node& node, const Wave& wave, Stream stream) const {
    const auto over = [&](const std::vector<Job>& jobs, int (*blocks)(const Node&, const Job&),
                          const auto& launch) {
      ForBlocks(jobs, [&](const Job& job) { return blocks(node, job); }, launch);
    };
    const auto& tables = wave.jobs[static_cast<int>(Path::kTables)];
    const auto& counts = wave.jobs[static_cast<int>(Path::kCounts)];
    const auto& expectations = wave.jobs[static_cast<int>(Path::kExpectation)];
    ForBlocks(
        wave.planes, [&](const yoso::PlaneJob& job) { return yoso::PlaneBlocks(node, job); },
        [&](const yoso::PlaneJobs& batch, int blocks) {
          yoso::LaunchPlanes(node, batch, blocks, stream);
        });
    for (const bool by_row : {false, true}) {
      over(by_row ? counts : tables, yoso::HashBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchHash(data_, node, batch, blocks, by_row, stream);
      });
    }
    std::vector<Job> short_ones, long_ones;
    std::int32_t most_keys = 0;
    for (const Job& job : tables) {
      const bool is_short = job.num_keys <= yoso::kSharedKeys;
      (is_short ? short_ones : long_ones).push_back(job);
      if (is_short) most_keys = std::max(most_keys, job.num_keys);
    }
    over(short_ones, yoso::TableBlocks, [&](const yoso::Jobs& batch, int blocks) {
      yoso::LaunchTables(data_, node, batch, blocks, most_keys, stream);
    });
    over(long_ones, yoso::TableBlocks, [&](const yoso::Jobs& batch, int blocks) {
      yoso::LaunchTables(data_, node, batch, blocks, 0, stream);
    });
    over(tables, yoso::GatherBlocks, [&](const yoso::Jobs& batch, int blocks) {
      yoso::LaunchGather(data_, node, batch, blocks, stream);
    });
    over(expectations, yoso::UnitBlocks, [&](const yoso::Jobs& batch, int blocks) {
      yoso::LaunchUnits(data_, node, batch, blocks, stream);
    });
    for (int path = 0; path < 3 && node.importance != nullptr; ++path) {
      over(wave.jobs[path], yoso::ImportanceBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchImportance(node, batch, blocks, path == static_cast<int>(Path::kTables),
                               path == static_cast<int>(Path::kExpectation), stream);
      });
    }
    for (const bool expectation : {false, true}) {
      std::vector<Job> tiles, single;
      for (const Job& job : expectation ? expectations : counts) {
        (job.num_queries == 1 ? single : tiles).push_back(job);
      }
      over(tiles, yoso::PairBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchPairs(data_, node, batch, blocks, expectation, stream);
      });
      over(single, yoso::FirstBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchFirst(data_, node, batch, blocks, expectation, stream);
      });
      over(single, yoso::FinishFirstBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchFinishFirst(data_, node, batch, blocks, stream);
      });
    }
  }

  Spec::Attributes attributes_;
  ElementType data_;
};

}  // namespace

template <>
std::unique_ptr<DeviceKernel> MakeDeviceKernel<Spec>(const NodeReader& reader, ElementType data) {
  return std::make_unique<YosoAttentionDeviceKernel>(reader, data);
}

}  // namespace attenuator::cuda
