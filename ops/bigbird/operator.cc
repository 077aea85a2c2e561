// BigBirdAttention: checks, then tasks for rows that see every key and for blocks of rows that do
// not.
//
// A block of queries attends over a copy of the keys and values that it sees, in the order first
// block, last block, neighbours, random blocks: so exact attention (common/attention) runs on one
// piece, whatever the block size, and reads rows that lie side by side. The copy is (R + 5) blocks
// a thread; the two global blocks are copied once for all query blocks of a task. Copying takes as
// many reads and writes as each of the block's rows does in registers, so that it hardly counts
// from blocks of 32 rows on. Rows of the first and the last block, every row of sequences that are
// short or exact, and the one row of `queries = first`, which stands in the first block, are exact
// attention over the sequence's own rows: the same bits as SoftmaxAttention's. A row's bits depend
// on its own block's list alone, so not on tasks or threads.
#include <algorithm>
#include <cstring>
#include <vector>

#include "operators.gen.h"
#include "ops/bigbird/blocks.h"
#include "ops/common/aligned.h"
#include "ops/common/attention/attention.h"
#include "ops/common/attention/tasks.h"
#include "ops/common/check.h"
#include "ops/common/registry.h"

namespace attenuator::bigbird {
namespace {

using Spec = spec::BigBirdAttention;
using attention::Head;
using attention::RowTask;

// Tasks that are enough for the threads of any machine, and query blocks that share global blocks.
constexpr std::int64_t kEnoughTasks = 64;
constexpr std::int64_t kMostTaskBlocks = 16;

struct Inputs : attention::PackedInputs {
  const std::int32_t* random_blocks;  // [B]
  const std::int64_t* seeds;          // [B]
};

Inputs CheckInputs(const TensorContext& context, const Spec::Attributes& attributes) {
  const auto packed = attention::CheckPackedInputs<Spec>(context, attributes);
  const std::int64_t batch = packed.sequences.batch;
  return {packed,
          CheckKnob(Spec::kName, Spec::kNumRandomBlocks, context.Input(Spec::kNumRandomBlocksInput),
                    batch),
          CheckSeeds(Spec::kName, context.Input(Spec::kSeedInput), batch)};
}

// The keys and values that a query block sees, one below the other. `room` rows at most.
class Seen {
 public:
  Seen(const Head& head, std::int64_t room)
      : head_(head),
        keys_(MakeAligned<float>(room * head.head_dim)),
        values_(MakeAligned<float>(room * head.value_dim)) {}

  std::int64_t rows() const { return rows_; }

  // Leaves `rows` of those that are there.
  void Cut(std::int64_t rows) { rows_ = rows; }

  void Add(std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row, ++rows_) {
      std::memcpy(keys_.get() + rows_ * head_.head_dim, head_.key + row * head_.key_stride,
                  sizeof(float) * head_.head_dim);
      std::memcpy(values_.get() + rows_ * head_.value_dim, head_.value + row * head_.value_stride,
                  sizeof(float) * head_.value_dim);
    }
  }

  // The head with these in place of its own, and its queries from row `begin` on.
  Head From(std::int64_t begin) const {
    Head head = head_;
    head.query += begin * head.query_stride;
    head.key = keys_.get();
    head.key_stride = head.head_dim;
    head.value = values_.get();
    head.value_stride = head.value_dim;
    head.length = rows_;
    return head;
  }

 private:
  Head head_;
  AlignedArray<float> keys_;
  AlignedArray<float> values_;
  std::int64_t rows_ = 0;
};

// Query blocks of one head of one sequence, none of them the first or the last.
struct BlockTask {
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t begin;
  std::int64_t end;
};

// One run: its inputs and output, and how a task's part of it is computed.
class Batch {
 public:
  Batch(const Spec::Attributes& attributes, const Inputs& inputs, float* output)
      : attributes_(attributes), in_(inputs), output_(output) {}

  void Run(ThreadPool& threads) {
    for (std::int64_t b = 0; b < in_.sequences.batch; ++b) AddTasks(b);
    const std::int64_t rows = static_cast<std::int64_t>(row_tasks_.size());
    const std::int64_t blocks = static_cast<std::int64_t>(block_tasks_.size());
    threads.For(rows + blocks, [&](std::int64_t index) {
      if (index < rows) {
        AttendRows(row_tasks_[index]);
      } else {
        AttendBlocks(block_tasks_[index - rows]);
      }
    });
  }

 private:
  Blocks BlocksOf(std::int64_t b) const {
    return {.length = in_.sequences.length(b), .size = attributes_.block_size};
  }

  void AddTasks(std::int64_t b) {
    const std::int64_t length = in_.sequences.length(b), heads = attributes_.num_heads;
    if (length == 0) return;
    const Head head = in_.Head(b, 0);
    const std::int64_t task_rows = attention::TaskRows(in_.sequences.total * heads);
    const Blocks blocks = BlocksOf(b);
    if (in_.first || IsFull(length, in_.random_blocks[b], blocks.size)) {
      attention::AddRowTasks(head, b, heads, in_.query_rows(b), task_rows, row_tasks_);
      return;
    }
    const std::int64_t last = blocks.count() - 1;
    for (const std::int64_t block : {std::int64_t{0}, last}) {
      const std::size_t before = row_tasks_.size();
      attention::AddRowTasks(head, b, heads, blocks.end(block) - blocks.begin(block), task_rows,
                             row_tasks_);
      for (std::size_t i = before; i < row_tasks_.size(); ++i) {
        row_tasks_[i].row_begin += blocks.begin(block);
        row_tasks_[i].row_end += blocks.begin(block);
      }
    }
    const std::int64_t together = BlocksTogether(head, in_.random_blocks[b], last - 1);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t block = 1; block < last; block += together) {
        block_tasks_.push_back({b, h, block, std::min(block + together, last)});
      }
    }
  }

  // Query blocks of a task: enough work for one, and not so many that threads have none.
  std::int64_t BlocksTogether(const Head& head, std::int64_t random_blocks,
                              std::int64_t count) const {
    const double rows = static_cast<double>(attributes_.block_size);
    const double work = rows * rows * static_cast<double>(kFixedBlocks + random_blocks) *
                        static_cast<double>(head.head_dim + head.value_dim);
    const std::int64_t fewest = HeadsTogether(work, count);
    const std::int64_t share = count * attributes_.num_heads / kEnoughTasks;
    return std::max(fewest, std::min(share, kMostTaskBlocks));
  }

  void AttendRows(const RowTask& task) const {
    const std::int64_t b = task.sequence;
    for (std::int64_t h = task.head_begin; h < task.head_end; ++h) {
      float* rows = in_.Output(output_, b, h, task.row_begin);
      if (in_.first) {
        attention::AttendFirstRow(in_.Head(b, h), rows);
      } else {
        attention::AttendRows(in_.Head(b, h), task.row_begin, task.row_end, rows,
                              in_.value.columns());
      }
    }
  }

  void AttendBlocks(const BlockTask& task) const {
    const std::int64_t b = task.sequence, random_blocks = in_.random_blocks[b];
    const Blocks blocks = BlocksOf(b);
    const std::int64_t last = blocks.count() - 1;
    const Draws draws{.seed = in_.seeds[b],
                      .layer = static_cast<std::uint32_t>(attributes_.layer),
                      .head = static_cast<std::uint32_t>(task.head),
                      .first = attributes_.random_blocks == Spec::RandomBlocks::kFirst};
    Seen seen(in_.Head(b, task.head), (kFixedBlocks + random_blocks) * blocks.size);
    seen.Add(blocks.begin(0), blocks.end(0));
    seen.Add(blocks.begin(last), blocks.end(last));
    const std::int64_t global_rows = seen.rows();
    std::vector<std::int64_t> others;
    for (std::int64_t block = task.begin; block < task.end; ++block) {
      OtherBlocks(block, blocks.count(), random_blocks, draws, others);
      seen.Cut(global_rows);
      for (const std::int64_t other : others) seen.Add(blocks.begin(other), blocks.end(other));
      const std::int64_t begin = blocks.begin(block);
      attention::AttendRows(seen.From(begin), 0, blocks.end(block) - begin,
                            in_.Output(output_, b, task.head, begin), in_.value.columns());
    }
  }

  const Spec::Attributes& attributes_;
  const Inputs& in_;
  float* output_;
  std::vector<RowTask> row_tasks_;
  std::vector<BlockTask> block_tasks_;
};

class BigBirdAttentionKernel final : public Kernel {
 public:
  explicit BigBirdAttentionKernel(const NodeReader& reader) : attributes_(Spec::Read(reader)) {
    CheckFinite(Spec::kName, "scale", attributes_.scale);
  }

  void Run(RunContext& context) const override {
    const Inputs inputs = CheckInputs(context, attributes_);
    float* const output = attention::PackedOutput<Spec>(context, inputs);
    Batch(attributes_, inputs, output).Run(context.threads());
  }

 private:
  Spec::Attributes attributes_;
};

}  // namespace
}  // namespace attenuator::bigbird

namespace attenuator {

template <>
std::unique_ptr<Kernel> MakeKernel<spec::BigBirdAttention>(const NodeReader& reader) {
  return std::make_unique<bigbird::BigBirdAttentionKernel>(reader);
}

}  // namespace attenuator
