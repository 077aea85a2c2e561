// Exact softmax attention of one head of one sequence: blocked, one pass, O(block) scratch memory.
//
// Each function picks the best instruction set of the machine. A row's result depends only on that
// row, its sequence's keys and values and the fields of Head: not on the range it is
// computed in, on threads, on alignment or on anything else in the batch. All are safe to call from
// many threads at once. README.md has the mathematics and what non-finite input gives.
#pragma once

#include <cstdint>

namespace attenuator::attention {

// Keys [begin, end) of a sequence.
struct KeyRange {
  std::int32_t begin;
  std::int32_t end;
};

// One head of one sequence. Pointers lead to the head's first float in the sequence's first row;
// rows lie `*_stride` floats apart.
struct Head {
  const float* query = nullptr;
  std::int64_t query_stride = 0;
  const float* key = nullptr;
  std::int64_t key_stride = 0;
  const float* value = nullptr;  // may be null where only probabilities are computed
  std::int64_t value_stride = 0;
  std::int64_t length = 0;     // rows of key and value
  std::int64_t head_dim = 0;   // columns of query and key, at least 1
  std::int64_t value_dim = 0;  // columns of value, at least 1
  float scale = 0;             // factor on the scores, as is: 0 is not a default here
  std::int64_t window = 0;     // keys with |i - j| <= window; 0 = all
  bool global_token = false;   // key 0 is seen by every row and row 0 sees all keys
  // Keys [0, prefix), rows of no query, that every row sees beside its window; row i is that of key
  // i, from `prefix` on. For AttendRows without maxima.
  std::int64_t prefix = 0;
  // Rows that the last key stands for, as their mean: its weight counts that often, so that its
  // score has the logarithm added.
  float last_key_rows = 1;
  // [length]: the keys inside each row's window, at most 2 * window + 1; null: |i - j| <= window.
  const KeyRange* ranges = nullptr;
};

// The `scale` attribute of an operator, or 1 / sqrt(head_dim) where it is 0.
float ScoreScale(float scale, std::int64_t head_dim);

// Rows that are computed together; ranges are best cut at multiples of it.
inline constexpr std::int64_t kQueryBlock = 64;

// Output rows [begin, end) of the sequence; `output` is where row `begin` goes.
void AttendRows(const Head& head, std::int64_t begin, std::int64_t end, float* output,
                std::int64_t output_stride);

// The same bits, and maxima[j] = max(maxima[j], max over these rows i of the softmax probability
// A_ij), for every key j; a row that is NaN gives no key a maximum. Maxima of several ranges may be
// merged in any order.
void AttendRows(const Head& head, std::int64_t begin, std::int64_t end, float* output,
                std::int64_t output_stride, float* maxima);

// weights[j] = softmax probability A_0j of row 0, 0 where it does not see key j. `weights` has
// room for `length` floats up to a multiple of kQueryBlock.
void FirstRowWeights(const Head& head, float* weights);

// Output row 0 alone, by a path that is fast for one row: what `queries = first` computes. Differs
// from AttendRows by rounding, except that the latter takes this path for row 0 where that row
// sees all keys only by `global_token`.
void AttendFirstRow(const Head& head, float* output);

// The most keys that kQueryBlock rows see, row 0 of a global window aside, and the most pieces that
// ProbabilityBlock takes them in.
constexpr std::int64_t BlockKeys(const Head& head) {
  if (head.window == 0) return head.length;
  const std::int64_t seen = kQueryBlock + 2 * head.window + (head.global_token ? 1 : 0);
  return seen < head.length ? seen : head.length;
}
constexpr std::int64_t BlockPieces(const Head& head) { return BlockKeys(head) / kQueryBlock + 3; }

// maxima[j] = max(maxima[j], max over rows i in [begin, end) of the softmax probability A_ij), for
// every key j. Without a window. Maxima of several ranges may be merged in any order.
void ColumnMaxima(const Head& head, std::int64_t begin, std::int64_t end, float* maxima);

// The two halves of AttendRows, bit for bit, for values that depend on the probabilities. At most
// kQueryBlock rows, begin < end; row 0 of a global window not among them. probabilities [BlockKeys,
// 64]: row after row, for the keys that these rows see in ascending order, exp(s_ij - m_ij) of the
// rows i from `begin` on, m the largest score up to the key's piece; factors [1 + BlockPieces, 64]:
// 1 / sum_j of all, then m of each piece. `maxima` as in ColumnMaxima, for the keys that these rows
// see. Both buffers 64-byte aligned.
void ProbabilityBlock(const Head& head, std::int64_t begin, std::int64_t end, float* probabilities,
                      float* factors, float* maxima);
void ValueBlock(const Head& head, std::int64_t begin, std::int64_t end, const float* probabilities,
                const float* factors, float* output, std::int64_t output_stride);

}  // namespace attenuator::attention
