// Exact softmax attention for any Simd: included by attention_avx2.cc and attention_avx512.cc.
#pragma once

#include "ops/common/attention/cpu/block.inl"

namespace attenuator::attention {
namespace {

// Up to 64 rows from `begin` on, and their running maxima, sums and outputs.
struct RowBlock {
  std::int64_t begin;
  std::int64_t count;
  Scratch scratch;
};

// Prefetches keys and values [first, last): rows far apart, which hardware prefetchers miss.
inline void Prefetch(const Head& head, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kLine = 16;
  for (std::int64_t j = first; j < last; ++j) {
    const float* key = head.key + j * head.key_stride;
    const float* value = head.value + j * head.value_stride;
    for (std::int64_t c = 0; c < head.head_dim; c += kLine) __builtin_prefetch(key + c, 0, 2);
    for (std::int64_t c = 0; c < head.value_dim; c += kLine) __builtin_prefetch(value + c, 0, 2);
  }
}

// Rows of consecutive blocks; several only where all see the same keys.
inline void AttendBlocks(const Head& head, const RowBlock* blocks, std::int64_t num_blocks,
                         float* row_0, std::int64_t output_stride) {
  for (std::int64_t i = 0; i < num_blocks; ++i) {
    PackQueries(head, blocks[i].begin, blocks[i].count, blocks[i].scratch.query,
                Padded(blocks[i].count));
    Reset(blocks[i].count, blocks[i].scratch);
  }
  bool any = false;
  const RowBlock& end = blocks[num_blocks - 1];
  ForKeys(head, blocks[0].begin, end.begin + end.count,
          [&](std::int64_t first, std::int64_t last, bool masked, bool final) {
            const Values values = PackValues(head, first, last, num_blocks > 1, end.scratch.value);
            for (std::int64_t i = 0; i < num_blocks; ++i) {
              const auto& [begin, count, scratch] = blocks[i];
              const std::int64_t pitch = Padded(count);
              if (!final) {
                Prefetch(head, Smaller(last + i * kKeyBlock / num_blocks, head.length),
                         Smaller(last + (i + 1) * kKeyBlock / num_blocks, head.length));
              }
              Score(head, scratch.query, count, first, last, scratch.scores, pitch);
              if (masked) Mask(head, begin, count, first, last, scratch.scores, pitch);
              Normalize<true>(head, count, last - first, scratch.scores, pitch, scratch);
              if (final) Invert(count, scratch.sum);
              const Sink sink{.kept = scratch.kept,
                              .kept_stride = Padded(head.value_dim),
                              .old_factor = any ? scratch.old_factor : nullptr,
                              .new_factor = final ? scratch.sum : nullptr,
                              .output = row_0 + begin * output_stride,
                              .output_stride = output_stride,
                              .output_columns = head.value_dim};
              AddValues(head, scratch.scores, pitch, count, values, last - first, sink);
            }
            any = true;
          });
}

// Row 0 in whole vectors.
inline void PackRow(const Head& head, float* query) {
  const Exponent exponent(head);
  for (std::int64_t k = 0; k < Padded(head.head_dim); ++k) {
    query[k] = k < head.head_dim ? head.query[k] * exponent.query : 0.0f;
  }
}

// How many keys row 0 sees.
inline std::int64_t RowKeys(const Head& head) {
  return head.window == 0 || head.global_token ? head.length
                                               : Smaller(SeenEnd(head, 0), head.length);
}

// Scores of row 0 and keys [first, first + keys), dimensions across the lanes; -inf up to a whole
// vector.
inline void ScoreRow(const Head& head, std::int64_t first, std::int64_t keys, const float* query,
                     float* scores) {
  for (std::int64_t j = 0; j < keys; ++j) {
    const float* key = head.key + (first + j) * head.key_stride;
    Vector dot = Simd::Zero();
    std::int64_t k = 0;
    for (; k + kWidth <= head.head_dim; k += kWidth) {
      dot = Simd::Fma(Simd::Load(key + k), Simd::Load(query + k), dot);
    }
    if (k < head.head_dim) {
      dot = Simd::Fma(Simd::LoadFirst(key + k, head.head_dim - k), Simd::Load(query + k), dot);
    }
    scores[j] = Simd::Sum(dot);
  }
  if (first + keys == head.length && head.last_key_rows != 1) {
    scores[keys - 1] += LastKeyTerm(head, Exponent(head));
  }
  for (std::int64_t j = keys; j < Padded(keys); ++j) scores[j] = -__builtin_inff();
}

// Turns the row's scores into weights relative to its largest score so far. Leaves in old_factor[0]
// what earlier weights are multiplied by, and in sum[0] one over the sum of all.
inline void NormalizeRow(const Exponent& exponent, std::int64_t keys, float& maximum, float& sum,
                         const Scratch& scratch) {
  const Vector factor = Simd::Set(exponent.factor), least = Simd::Set(exponent.least);
  Vector largest = Simd::Set(maximum);
  for (std::int64_t j = 0; j < keys; j += kWidth) {
    largest = Simd::Max(Simd::Load(scratch.scores + j), largest);
  }
  const float old = maximum;
  maximum = Simd::Largest(largest);
  Vector sums = Simd::Zero();
  for (std::int64_t j = 0; j < keys; j += kWidth) {
    const Vector score = Simd::Sub(Simd::Load(scratch.scores + j), Simd::Set(maximum));
    const Vector p = Simd::Exp2(score, factor, least);
    Simd::Store(scratch.scores + j, p);
    sums = Simd::Add(sums, p);
  }
  Simd::Store(scratch.old_factor, Simd::Exp2(Simd::Set(old - maximum), factor, least));
  sum = sum * scratch.old_factor[0] + Simd::Sum(sums);
  scratch.sum[0] = 1.0f / sum;
}

// Output of row 0, kRowKeys keys at a time.
void FirstRow(const Head& unchecked, float* output, float* memory) {
  const Head head = Normalized(unchecked);
  const Scratch scratch(head, memory);
  const Exponent exponent(head);
  PackRow(head, scratch.query);
  const std::int64_t high = RowKeys(head);
  float maximum = kLowest;
  float sum = 0;
  for (std::int64_t first = 0; first < high; first += kRowKeys) {
    const std::int64_t keys = Smaller(high - first, kRowKeys);
    ScoreRow(head, first, keys, scratch.query, scratch.scores);
    NormalizeRow(exponent, keys, maximum, sum, scratch);
    const bool final = first + keys == high;
    for (std::int64_t j = 0; j < keys; j += kKeyBlock) {
      const std::int64_t some = Smaller(keys - j, kKeyBlock);
      if (j > 0) Simd::Store(scratch.old_factor, Simd::Set(1.0f));
      const Sink sink{.kept = scratch.kept,
                      .kept_stride = Padded(head.value_dim),
                      .old_factor = first + j > 0 ? scratch.old_factor : nullptr,
                      .new_factor = final && j + some == keys ? scratch.sum : nullptr,
                      .output = output,
                      .output_stride = 0,
                      .output_columns = head.value_dim};
      AddValues(head, scratch.scores + j, 1, 1,
                PackValues(head, first + j, first + j + some, false, scratch.value), some, sink);
    }
  }
}

// Weights of row 0.
void FirstRowWeights(const Head& unchecked, float* weights, float* memory) {
  const Head head = Normalized(unchecked);
  const Scratch scratch(head, memory);
  const Exponent exponent(head);
  const Vector factor = Simd::Set(exponent.factor), least = Simd::Set(exponent.least);
  PackRow(head, scratch.query);
  const std::int64_t keys = RowKeys(head);
  ScoreRow(head, 0, keys, scratch.query, weights);
  Vector largest = Simd::Set(kLowest);
  for (std::int64_t j = 0; j < keys; j += kWidth) {
    largest = Simd::Max(Simd::Load(weights + j), largest);
  }
  const Vector maximum = Simd::Set(Simd::Largest(largest));
  Vector sums = Simd::Zero();
  for (std::int64_t j = 0; j < keys; j += kWidth) {
    const Vector p = Simd::Exp2(Simd::Sub(Simd::Load(weights + j), maximum), factor, least);
    Simd::Store(weights + j, p);
    sums = Simd::Add(sums, p);
  }
  const Vector inverse = Simd::Set(1.0f / Simd::Sum(sums));
  for (std::int64_t j = 0; j < keys; j += kWidth) {
    Simd::Store(weights + j, Simd::Mul(Simd::Load(weights + j), inverse));
  }
  for (std::int64_t j = keys; j < head.length; ++j) weights[j] = 0.0f;
}

// Calls visit(begin, count) for blocks of at most 64 rows of whole vectors and nearly equal size.
template <class Visit>
inline void ForBlocks(std::int64_t begin, std::int64_t end, const Visit& visit) {
  while (begin < end) {
    const std::int64_t blocks = (end - begin + kQueryBlock - 1) / kQueryBlock;
    const std::int64_t count = Smaller(Padded((end - begin + blocks - 1) / blocks), end - begin);
    visit(begin, count);
    begin += count;
  }
}

void Attention(const Head& unchecked, std::int64_t begin, std::int64_t end, float* output,
               std::int64_t output_stride, float* memory) {
  const Head head = Normalized(unchecked);
  const std::int64_t slots = Slots(unchecked, end - begin);
  float* const row_0 = output - begin * output_stride;
  if (begin == 0 && end > 0 && head.window > 0 && head.global_token) {
    FirstRow(head, row_0, memory);
    begin = 1;
  }
  RowBlock blocks[kGroupBlocks];
  std::int64_t num_blocks = 0;
  ForBlocks(begin, end, [&](std::int64_t first, std::int64_t count) {
    blocks[num_blocks] = {
        .begin = first, .count = count, .scratch = Scratch(head, memory, num_blocks)};
    if (++num_blocks < slots && first + count < end) return;
    AttendBlocks(head, blocks, num_blocks, row_0, output_stride);
    num_blocks = 0;
  });
}

// maxima[j] = max(maxima[j], weight of max over lanes of score - offset) for keys [first, last).
inline void TakeMaxima(const Exponent& exponent, std::int64_t count, std::int64_t first,
                       std::int64_t last, const float* scores, const float* offsets,
                       float* maxima) {
  float largest[kKeyBlock + 16];
  const std::int64_t keys = last - first;
  for (std::int64_t j = 0; j < keys; ++j) {
    Vector most = Simd::Set(-__builtin_inff());
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      const Vector score = Simd::Load(scores + j * kQueryBlock + lane);
      most = Simd::Max(Simd::Sub(score, Simd::Load(offsets + lane)), most);
    }
    largest[j] = Simd::Largest(most);
  }
  for (std::int64_t j = keys; j < Padded(keys); ++j) largest[j] = -__builtin_inff();
  for (std::int64_t j = 0; j < keys; j += kWidth) {
    const Vector p =
        Simd::Exp2(Simd::Load(largest + j), Simd::Set(exponent.factor), Simd::Set(exponent.least));
    Simd::Store(largest + j, Simd::Min(p, Simd::Set(1.0f)));
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    maxima[first + j] = largest[j] > maxima[first + j] ? largest[j] : maxima[first + j];
  }
}

// offsets[lane] = the score whose probability is 1, +inf in lanes without a row.
inline void Offsets(const Exponent& exponent, std::int64_t count, const float* maximum,
                    const float* sum, float* offsets) {
  for (std::int64_t lane = 0; lane < kQueryBlock; ++lane) {
    offsets[lane] = lane < count ? maximum[lane] + __builtin_log2f(sum[lane]) / exponent.factor
                                 : __builtin_inff();
  }
}

// to[lane] = times[lane] * the factor that turns weights relative to the score `from` into weights
// relative to `now`.
inline void Rescale(const Exponent& exponent, std::int64_t count, const float* from,
                    const float* now, const float* times, float* to) {
  const Vector factor = Simd::Set(exponent.factor), least = Simd::Set(exponent.least);
  for (std::int64_t lane = 0; lane < count; lane += kWidth) {
    const Vector less = Simd::Sub(Simd::Load(from + lane), Simd::Load(now + lane));
    Simd::Store(to + lane, Simd::Mul(Simd::Exp2(less, factor, least), Simd::Load(times + lane)));
  }
}

// Column maxima of rows [begin, begin + count), count <= 64.
inline void MaximaBlock(const Head& head, std::int64_t begin, std::int64_t count, float* maxima,
                        const Scratch& scratch) {
  const Exponent exponent(head);
  PackQueries(head, begin, count, scratch.query, kQueryBlock);
  Reset(count, scratch);
  const auto score = [&](std::int64_t first, std::int64_t last) {
    Score(head, scratch.query, count, first, last, scratch.scores, kQueryBlock);
  };
  ForKeys(head, begin, begin + count, [&](std::int64_t first, std::int64_t last, bool, bool) {
    score(first, last);
    Normalize<false>(head, count, last - first, scratch.scores, kQueryBlock, scratch);
  });
  Offsets(exponent, count, scratch.maximum, scratch.sum, scratch.old_factor);
  ForKeys(head, begin, begin + count, [&](std::int64_t first, std::int64_t last, bool, bool) {
    score(first, last);
    TakeMaxima(exponent, count, first, last, scratch.scores, scratch.old_factor, maxima);
  });
}

void Maxima(const Head& head, std::int64_t begin, std::int64_t end, float* maxima, float* memory) {
  const Scratch scratch(head, memory);
  ForBlocks(begin, end, [&](std::int64_t first, std::int64_t count) {
    MaximaBlock(head, first, count, maxima, scratch);
  });
}

// Exact attention up to the product with the values. The weights of a key block are relative to
// the largest scores so far, which `factors` holds.
void Probabilities(const Head& unchecked, std::int64_t begin, std::int64_t end,
                   float* probabilities, float* factors, float* maxima, float* memory) {
  const Head head = Normalized(unchecked);
  const std::int64_t count = end - begin;
  const Scratch scratch(head, memory);
  PackQueries(head, begin, count, scratch.query, kQueryBlock);
  Reset(count, scratch);
  float* const inverse_sums = factors;
  float* p = probabilities;
  ForKeys(head, begin, end, [&](std::int64_t first, std::int64_t last, bool masked, bool) {
    Score(head, scratch.query, count, first, last, p, kQueryBlock);
    if (masked) Mask(head, begin, count, first, last, p, kQueryBlock);
    Normalize<true>(head, count, last - first, p, kQueryBlock, scratch);
    factors += kQueryBlock;
    for (std::int64_t lane = 0; lane < count; lane += kWidth) {
      Simd::Store(factors + lane, Simd::Load(scratch.maximum + lane));
    }
    p += (last - first) * kQueryBlock;
  });
  Invert(count, scratch.sum);
  // Lanes beyond the last row are excluded, whatever they hold.
  for (std::int64_t lane = count; lane < kQueryBlock; ++lane) scratch.sum[lane] = 0.0f;
  for (std::int64_t lane = 0; lane < kQueryBlock; ++lane) inverse_sums[lane] = scratch.sum[lane];
  const Exponent exponent(head);
  factors = inverse_sums;
  p = probabilities;
  ForKeys(head, begin, end, [&](std::int64_t first, std::int64_t last, bool, bool) {
    factors += kQueryBlock;
    Rescale(exponent, count, factors, scratch.maximum, scratch.sum, scratch.old_factor);
    for (std::int64_t j = first; j < last; ++j, p += kQueryBlock) {
      Vector most = Simd::Zero();
      for (std::int64_t lane = 0; lane < count; lane += kWidth) {
        const Vector weight =
            Simd::Mul(Simd::Load(p + lane), Simd::Load(scratch.old_factor + lane));
        most = Simd::Max(weight, most);
      }
      const float largest = Simd::Largest(most);
      maxima[j] = largest > maxima[j] ? largest : maxima[j];
    }
  });
}

void ProbabilityValues(const Head& unchecked, std::int64_t begin, std::int64_t end,
                       const float* probabilities, const float* factors, float* output,
                       std::int64_t output_stride, float* memory) {
  const Head head = Normalized(unchecked);
  const std::int64_t count = end - begin;
  const Scratch scratch(head, memory);
  const Exponent exponent(head);
  const float* const inverse_sums = factors;
  const float* before = nullptr;
  for (std::int64_t lane = 0; lane < kQueryBlock; ++lane) scratch.sum[lane] = 1.0f;
  ForKeys(head, begin, end, [&](std::int64_t first, std::int64_t last, bool, bool final) {
    factors += kQueryBlock;
    if (before != nullptr) {
      Rescale(exponent, count, before, factors, scratch.sum, scratch.old_factor);
    }
    const Sink sink{.kept = scratch.kept,
                    .kept_stride = Padded(head.value_dim),
                    .old_factor = before != nullptr ? scratch.old_factor : nullptr,
                    .new_factor = final ? inverse_sums : nullptr,
                    .output = output,
                    .output_stride = output_stride,
                    .output_columns = head.value_dim};
    AddValues(head, probabilities, kQueryBlock, count,
              PackValues(head, first, last, false, scratch.value), last - first, sink);
    probabilities += (last - first) * kQueryBlock;
    before = factors;
  });
}

void AttentionMaxima(const Head& unchecked, std::int64_t begin, std::int64_t end, float* output,
                     std::int64_t output_stride, float* maxima, float* kept, float* memory) {
  const Head head = Normalized(unchecked);
  float* const row_0 = output - begin * output_stride;
  if (begin == 0 && end > 0 && head.window > 0 && head.global_token) {
    FirstRow(head, row_0, memory);
    FirstRowWeights(head, kept, memory);
    for (std::int64_t j = 0; j < head.length; ++j) {
      maxima[j] = kept[j] > maxima[j] ? kept[j] : maxima[j];
    }
    begin = 1;
  }
  float* const factors = kept + kQueryBlock * BlockKeys(head);
  ForBlocks(begin, end, [&](std::int64_t first, std::int64_t count) {
    Probabilities(head, first, first + count, kept, factors, maxima, memory);
    ProbabilityValues(head, first, first + count, kept, factors, row_0 + first * output_stride,
                      output_stride, memory);
  });
}

constexpr Kernels kKernels{
    .attention = Attention,
    .attention_maxima = AttentionMaxima,
    .first_row = FirstRow,
    .first_row_weights = FirstRowWeights,
    .column_maxima = Maxima,
    .probabilities = Probabilities,
    .values = ProbabilityValues,
};

}  // namespace
}  // namespace attenuator::attention
