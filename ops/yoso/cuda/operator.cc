// YosoAttention on CUDA: checks, scratch, launches of the waves of the plan (plan.h), each of which
// uses the same scratch again.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/common/attention/importance.h"
#include "ops/common/check.h"
#include "ops/yoso/cuda/kernel.h"
#include "ops/yoso/cuda/plan.h"
#include "ops/yoso/inputs.h"

namespace attenuator::cuda {
namespace {

using Spec = spec::YosoAttention;
using yoso::Inputs;
using yoso::Job;
using yoso::Node;
using yoso::Path;
using yoso::Planner;
using yoso::Wave;

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

// The same over jobs, whose blocks depend on the node too.
using JobBlocks = int (*)(const Node&, const Job&);
template <class Body>
void OverJobs(const Node& node, const std::vector<Job>& jobs, JobBlocks blocks,
              const Body& launch) {
  ForBlocks(jobs, [&](const Job& job) { return blocks(node, job); }, launch);
}

class YosoAttentionDeviceKernel final : public DeviceKernel {
 public:
  YosoAttentionDeviceKernel(const NodeReader& reader, ElementType data)
      : attributes_(Spec::Read(reader)), data_(data) {
    yoso::CheckAttributes(attributes_);
    if (attributes_.normalize == static_cast<int>(yoso::Normalize::kSum) &&
        attributes_.importance != Spec::Importance::kNone) {
      Fail(Spec::kName,
           "attribute importance is 'first' beside a normalize of 2, which the CPU alone computes; "
           "on CUDA it must be 'none'");
    }
  }

  void Run(DeviceContext& context) const override {
    const Inputs in = yoso::CheckInputs(context, attributes_);
    const std::int64_t columns = attributes_.num_heads * in.value_dim;
    void* output = context.Output(Spec::kOutputOutput, {in.query.rows(), columns});
    float* importance = attention::ImportanceOutput<Spec>(context, attributes_, in.key.rows());
    const std::int64_t batch = in.sequences.batch;
    if (in.query.rows() == 0) return;
    Node node{
        .query = in.query.data,
        .key = in.key.data,
        .value = in.value.data,
        .conv_weight = in.conv_weight.data,
        .output = output,
        .importance = importance,
        .broken = context.ScratchArray<int>(batch),
        .scratch = nullptr,
        .num_heads = static_cast<std::int32_t>(attributes_.num_heads),
        .head_dim = static_cast<std::int32_t>(in.head_dim),
        .value_dim = static_cast<std::int32_t>(in.value_dim),
        .hash_bits = static_cast<std::int32_t>(attributes_.hash_bits),
        .layer = static_cast<std::int32_t>(attributes_.layer),
        .taps = in.conv_weight.present() ? static_cast<std::int32_t>(in.conv_weight.columns()) : 0,
        .hadamard = attributes_.hash == Spec::Hash::kHadamard,
        .half = data_ != ElementType::kFloat,
        .normalize = static_cast<yoso::Normalize>(attributes_.normalize),
        .lift_root = std::sqrt(attributes_.norm_lift)};
    yoso::Clear(node.broken, batch * static_cast<std::int64_t>(sizeof(int)), context.stream());
    ClearEmpty(in, output, columns, context.stream());
    if (importance != nullptr) yoso::Clear(importance, in.key.rows() * 4, context.stream());
    std::vector<Job> sequences = Sequences(in), tables;
    Planner planner(node, yoso::Multiprocessors());
    for (const Job& job : sequences) {
      planner.Add(job);
      if (yoso::ChoosePath(job, node.value_dim) == Path::kTables) tables.push_back(job);
    }
    Scan(in, node, sequences, context.stream());
    const std::vector<Wave>& waves = planner.Finish();
    std::int64_t most = 0;
    for (const Wave& wave : waves) most = std::max(most, wave.bytes);
    node.scratch = context.ScratchArray<unsigned char>(most);
    for (const Wave& wave : waves) RunWave(node, wave, context.stream());
    OverJobs(node, tables, yoso::BreakBlocks, [&](const yoso::Jobs& jobs, int count) {
      yoso::LaunchBreak(data_, node, jobs, count, context.stream());
    });
    if (importance == nullptr) return;
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

  // Those that have rows, each whole.
  std::vector<Job> Sequences(const Inputs& in) const {
    std::vector<Job> sequences;
    for (std::int64_t b = 0; b < in.sequences.batch; ++b) {
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
      sequences.push_back(job);
    }
    return sequences;
  }

  // Of sequences that take tables, hashing and adding see every row.
  void Scan(const Inputs& in, const Node& node, const std::vector<Job>& sequences,
            Stream stream) const {
    std::vector<yoso::Span> spans;
    for (const Job& job : sequences) {
      if (yoso::ChoosePath(job, node.value_dim) == Path::kTables) continue;
      const auto add = [&](std::int32_t tensor, std::int64_t first, std::int64_t rows,
                           std::int64_t columns) {
        spans.push_back({.first_block = 0,
                         .sequence = job.sequence,
                         .tensor = tensor,
                         .begin = first * columns,
                         .count = rows * columns});
      };
      add(0, job.query_row, job.num_queries, in.query.columns());
      add(1, job.key_row, job.num_keys, in.key.columns());
      add(2, job.key_row, job.num_keys, in.value.columns());
    }
    ForBlocks(spans, yoso::SpanBlocks, [&](const yoso::Spans& batch, int blocks) {
      yoso::LaunchScan(data_, node, batch, blocks, stream);
    });
  }

  // Tables of sequences of more than kSharedKeys keys.
  void RunLongTables(const Node& node, const std::vector<Job>& jobs, Stream stream) const {
    const int passes = node.hash_bits > yoso::kDigitBits ? 2 : 1;
    for (int pass = 0; pass < passes; ++pass) {
      OverJobs(node, jobs, yoso::PartBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchCountDigits(node, batch, blocks, pass, stream);
      });
      OverJobs(node, jobs, yoso::TableBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchOffsets(node, batch, blocks, stream);
      });
      OverJobs(node, jobs, yoso::PartBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchScatter(node, batch, blocks, pass, stream);
      });
    }
    if (node.hash_bits > yoso::kDigitBits) {
      OverJobs(node, jobs, yoso::PieceBlocks, [&](const yoso::Jobs& batch, int blocks) {
        yoso::LaunchMark(node, batch, blocks, stream);
      });
    }
    OverJobs(node, jobs, yoso::PieceBlocks, [&](const yoso::Jobs& batch, int blocks) {
      yoso::LaunchAddPieces(data_, node, batch, blocks, stream);
    });
    OverJobs(node, jobs, yoso::TableBlocks, [&](const yoso::Jobs& batch, int blocks) {
      yoso::LaunchJoinRuns(node, batch, blocks, stream);
    });
  }

  // Both ways give the same bits.
  void RunGather(const Node& node, const std::vector<Job>& jobs, Stream stream) const {
    std::vector<Job> staged, direct;
    int blocks_of_staged = 0;
    for (const Job& job : jobs) {
      const bool can = yoso::GathersStaged(node, job);
      (can ? staged : direct).push_back(job);
      if (can) blocks_of_staged += yoso::GatherStagedBlocks(node, job);
    }
    if (2 * blocks_of_staged < yoso::Multiprocessors()) {
      staged.clear();
      direct = jobs;
    }
    OverJobs(node, staged, yoso::GatherStagedBlocks, [&](const yoso::Jobs& batch, int blocks) {
      yoso::LaunchGatherStaged(data_, node, batch, blocks, stream);
    });
    OverJobs(node, direct, yoso::GatherBlocks, [&](const yoso::Jobs& batch, int blocks) {
      yoso::LaunchGather(data_, node, batch, blocks, stream);
    });
  }

  void RunWave(const Node& node, const Wave& wave, Stream stream) const {
    const auto over = [&](const std::vector<Job>& jobs, JobBlocks blocks, const auto& launch) {
      OverJobs(node, jobs, blocks, launch);
    };
    const auto& tables = wave.jobs[static_cast<int>(Path::kTables)];
    const auto& counts = wave.jobs[static_cast<int>(Path::kCounts)];
    const auto& expectations = wave.jobs[static_cast<int>(Path::kExpectation)];
    ForBlocks(
        wave.planes, [&](const yoso::PlaneJob& job) { return yoso::PlaneBlocks(node, job); },
        [&](const yoso::PlaneJobs& batch, int blocks) {
          yoso::LaunchPlanes(node, batch, blocks, stream);
        });
    if (node.lifted()) {
      ForBlocks(
          wave.planes, [&](const yoso::PlaneJob& job) { return yoso::LiftBlocks(node, job); },
          [&](const yoso::PlaneJobs& batch, int blocks) {
            yoso::LaunchLift(node, batch, blocks, stream);
          });
    }
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
    RunLongTables(node, long_ones, stream);
    RunGather(node, tables, stream);
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
