// Exact softmax attention on CUDA, for SoftmaxAttention and for operators that attend over values
// of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/common/attention/attention.h"
#include "ops/common/check.h"
#include "ops/common/cuda/batch.h"
#include "ops/common/cuda/context.h"

namespace attenuator::attention {

inline constexpr float kLog2E = 1.44269504088896341f;

// What scores have beside q_i . k_j where they depend on how far apart query i and key j stand:
// with r = buckets[distance of i and j], q_i . pos_key[r] + k_j . pos_query[r], to which the scale
// applies, and bias[r], to which it does not. Each table may be absent (null).
struct Terms {
  const void* pos_key = nullptr;    // [rows, heads * head_dim], of the data's type
  const void* pos_query = nullptr;  // the same
  const void* bias = nullptr;       // [rows, heads], of the data's type
  // [2 * reach + 1]: row of the tables, in [0, rows), for the distances -reach to reach; those
  // beyond count as reach.
  const std::int32_t* buckets = nullptr;
  const std::int64_t* positions = nullptr;  // [T], of queries and keys; null: row numbers
  int rows = 0;                             // 0: there are no terms
  int reach = 0;
};

// What all sequences of a batch share. Tensors of one element type; rows lie `*_stride` elements
// apart, head h starts h * head_dim (h * value_dim) elements into a row.
struct Call {
  const void* query;
  const void* key;
  const void* value;
  void* output;
  std::int64_t query_stride;  // of query and key
  std::int64_t value_stride;  // of value and output
  int heads;
  int head_dim;
  int value_dim;
  float scale;        // factor on the scores, times log2(e)
  int window;         // keys with |i - j| <= window; 0 = all
  bool global_token;  // key 0 is seen by every row and row 0 sees all keys
  // [T] on the device: the keys inside each row's window; null: |i - j| <= window.
  const KeyRange* ranges = nullptr;
  bool vector = false;  // 16 bytes at a time may be read: set by Attend
  bool first = false;   // only the first row of each sequence is computed: set by Attend
  Terms terms = {};     // only without a window
};

// One sequence: `begin` is its first row among keys and values, `query_row` among queries and
// output rows. `first_tile` counts the tiles of the sequences before it, over all launches.
// `last_key_log2` is added to the scores of the last key, log2 of the rows that it stands for, as
// their mean: its weight counts that often.
struct Item {
  std::int32_t begin;
  std::int32_t length;
  std::int32_t query_row;
  std::int32_t first_tile;
  float last_key_log2;
};

// An item for each sequence: rows of query and output are one a token or, where `first`, one a
// sequence. `unmerged` are the sequences before rows were merged, or `sequences`.
std::vector<Item> ItemsOf(const Sequences& sequences, const Sequences& unmerged, bool first);

// Queues the keys inside each row's window by `positions` [T], by number in the row's sequence: [T]
// in scratch memory of the run. Null where there are no positions or no window. Positions lie on
// the device, where it is not checked that they ascend: where they do not, a row's range is some
// run of rows around it, at most `window` on each side.
const KeyRange* RangesOf(cuda::DeviceContext& context, const TensorView& positions,
                         const Sequences& sequences, std::int64_t window);

// Queues the attention of every row of every item; where `first`, of the first row alone, as
// `queries = first` has it.
void Attend(ElementType data, Call call, std::vector<Item> items, bool first, cuda::Stream stream);

// Queues importance[j] = sum over heads of row 0's weight for key j or, where not `row_0`, of its
// largest weight for any row: [tokens], both float32. `weights` is scratch memory [heads, tokens].
void Importance(ElementType data, const Call& call, const std::vector<Item>& items, bool row_0,
                std::int64_t tokens, float* weights, float* importance, cuda::Stream stream);

// Rows of query that one block computes.
int TileRows(ElementType data, const Call& call);

// The launch on behalf of RangesOf.
void LaunchRanges(const cuda::Batch<Item>& batch, const std::int64_t* positions, int window,
                  KeyRange* ranges, cuda::Stream stream);
// Launches on behalf of Attend. `tiles` are those of all items of the batch. Row 0 of a global
// window is left out.
void LaunchTiles(ElementType data, const cuda::Batch<Item>& batch, int tiles, const Call& call,
                 cuda::Stream stream);
void LaunchFloatTiles(const cuda::Batch<Item>& batch, int tiles, const Call& call,
                      cuda::Stream stream);
// The first row of each item; of an empty one, zeros. Unless `call.first`, only where it sees keys
// that its window leaves out.
void LaunchFirstRows(ElementType data, const cuda::Batch<Item>& batch, const Call& call,
                     cuda::Stream stream);

}  // namespace attenuator::attention
