// The work that is quadratic in length: collision counts, expected collisions, weights times
// values. Included inside the anonymous namespace of a kernel_*.cc file.

// output = (or +=) sum of values[i] * row places[i] of b, over kBlocks blocks of columns.
template <int kBlocks>
inline void SumSome(const float* values, const std::int32_t* places, int size, const float* b,
                    std::int64_t b_block_stride, int columns, float* output, bool accumulate) {
  Floats sums[kBlocks];
  for (auto& sum : sums) sum = Zero();
  for (int i = 0; i < size; ++i) {
    const Floats weight = Set(values[i]);
    const float* row = b + places[i] * std::int64_t{kBlock};
    for (int c = 0; c < kBlocks; ++c)
      sums[c] = Fma(weight, Load(row + c * b_block_stride), sums[c]);
  }
  for (int c = 0; c < kBlocks; ++c) {
    float* target = output + c * kBlock;
    const int remaining = columns - c * kBlock;
    const Floats sum = accumulate ? Add(LoadColumns(target, remaining), sums[c]) : sums[c];
    if (remaining >= kBlock) {
      Store(target, sum);
    } else {
      StoreFirst(target, sum, remaining);
    }
  }
}

// The keys that collide with a query in any hash: in how many, and which. They are few unless
// hash_bits is small; the others would add exact zeros.
struct Collisions {
  alignas(64) float counts[kKeyBlock + kBlock];
  alignas(64) std::int32_t keys[kKeyBlock + kBlock];
  int size;
};

// Those of neighbouring queries from `query` on, for which a key's codes are loaded once.
template <int kQueries, class Code, class Counter>
inline void FindCollisions(const CountPass& pass, std::int64_t query, Collisions* found) {
  static_assert(kKeyTile % (kCounters * kBlock) == 0);
  const int groups = pass.spec.num_hashes / kGroup;
  const int rest = pass.spec.num_hashes % kGroup;
  const std::int64_t key_stride = pass.key_code_rows * kGroup;
  const std::int64_t query_stride = pass.query_code_rows * kGroup;
  const int num_keys = static_cast<int>(pass.num_keys);
  int sizes[kQueries] = {};
  for (int first = 0; first < num_keys; first += kCounters * kBlock) {
    Counter counters[kQueries][kCounters];
    const Code* keys = static_cast<const Code*>(pass.key_codes) + first * kGroup;
    const Code* codes = static_cast<const Code*>(pass.query_codes) + query * kGroup;
    for (int g = 0; g < groups; ++g) {
#pragma GCC unroll 8
      for (int c = 0; c < kCounters; ++c) {
#pragma GCC unroll 2
        for (int q = 0; q < kQueries; ++q) {
          counters[q][c].Add(keys + c * kBlock * kGroup, Counter::Query(codes + q * kGroup));
        }
      }
      keys += key_stride;
      codes += query_stride;
    }
    for (int q = 0; rest != 0 && q < kQueries; ++q) {
      const auto of_query = Counter::Query(codes + q * kGroup);
      for (int c = 0; c < kCounters; ++c) {
        counters[q][c].Add(keys + c * kBlock * kGroup, of_query, (1u << rest) - 1);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int c = 0; c < kCounters; ++c) {
        const int place = first + c * kBlock;
        const int remaining = num_keys - place < kBlock ? num_keys - place : kBlock;
        if (remaining <= 0) break;
        sizes[q] += AppendNonzero(counters[q][c].Sums(), remaining, place,
                                  found[q].counts + sizes[q], found[q].keys + sizes[q]);
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) found[q].size = sizes[q];
}

inline void SumCollisions(const CountPass& pass, std::int64_t query, Collisions& found) {
  constexpr int kBlocksAtOnce = 4;
  if (pass.totals != nullptr) {
    Store(found.counts + found.size, Zero());
    Floats total = Zero();
    for (int j = 0; j < found.size; j += kBlock) total = Add(total, Load(found.counts + j));
    // Whole numbers, exact in float, at most 512 for each of kKeyBlock keys.
    pass.totals[query] =
        (pass.accumulate ? pass.totals[query] : 0) + static_cast<std::int32_t>(Sum(total));
  }
  float* output = pass.output + query * pass.stride;
  const auto values = [&](int column) {
    return pass.values + column / kBlock * pass.value_block_stride;
  };
  int column = 0;
  for (; column + kBlocksAtOnce * kBlock <= pass.columns; column += kBlocksAtOnce * kBlock) {
    SumSome<kBlocksAtOnce>(found.counts, found.keys, found.size, values(column),
                           pass.value_block_stride, kBlocksAtOnce * kBlock, output + column,
                           pass.accumulate);
  }
  for (; column < pass.columns; column += kBlock) {
    SumSome<1>(found.counts, found.keys, found.size, values(column), pass.value_block_stride,
               pass.columns - column, output + column, pass.accumulate);
  }
}

// How many keys a query meets is not foreseen, and a mispredicted end of its sum would discard the
// comparisons of the next ones: so those of a few queries come first, then their sums.
template <class Code, class Counter>
void CountAndSumAs(const CountPass& pass) {
  constexpr int kQueryBlock = 4;
  Collisions found[kQueryBlock];
  for (std::int64_t first = 0; first < pass.num_queries; first += kQueryBlock) {
    const std::int64_t remaining = pass.num_queries - first;
    const int count = remaining < kQueryBlock ? static_cast<int>(remaining) : kQueryBlock;
    int q = 0;
    for (; q + kComparedQueries <= count; q += kComparedQueries) {
      FindCollisions<kComparedQueries, Code, Counter>(pass, first + q, found + q);
    }
    for (; q < count; ++q) FindCollisions<1, Code, Counter>(pass, first + q, found + q);
    for (q = 0; q < count; ++q) SumCollisions(pass, first + q, found[q]);
  }
}

void CountAndSum(const CountPass& pass) {
  if (pass.spec.wide()) {
    CountAndSumAs<std::uint16_t, WordCounter>(pass);
  } else {
    CountAndSumAs<std::uint8_t, ByteCounter>(pass);
  }
}

// kRows x kBlocks * 16 outputs in registers; every output sums over k in order, whatever the tile.
template <int kRows, int kBlocks>
inline void MultiplyTile(const float* a, std::int64_t a_stride, std::int64_t depth, const float* b,
                         std::int64_t b_block_stride, int columns, float* output,
                         std::int64_t stride, bool accumulate) {
  Floats sums[kRows][kBlocks];
  for (auto& row : sums) {
    for (auto& sum : row) sum = Zero();
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Floats right[kBlocks];
    for (int c = 0; c < kBlocks; ++c) right[c] = Load(b + c * b_block_stride + k * kBlock);
    for (int r = 0; r < kRows; ++r) {
      const Floats factor = Set(a[r * a_stride + k]);
      for (int c = 0; c < kBlocks; ++c) sums[r][c] = Fma(factor, right[c], sums[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kBlocks; ++c) {
      float* target = output + r * stride + c * kBlock;
      const int remaining = columns - c * kBlock;
      const Floats sum = accumulate ? Add(LoadColumns(target, remaining), sums[r][c]) : sums[r][c];
      if (remaining >= kBlock) {
        Store(target, sum);
      } else {
        StoreFirst(target, sum, remaining);
      }
    }
  }
}

template <int kBlocks>
void MultiplyColumns(const float* a, std::int64_t a_stride, std::int64_t rows, std::int64_t depth,
                     const float* b, std::int64_t b_block_stride, int columns, float* output,
                     std::int64_t stride, bool accumulate) {
  std::int64_t r = 0;
  for (; r + kRowTile <= rows; r += kRowTile) {
    MultiplyTile<kRowTile, kBlocks>(a + r * a_stride, a_stride, depth, b, b_block_stride, columns,
                                    output + r * stride, stride, accumulate);
  }
  for (; r + 2 <= rows; r += 2) {
    MultiplyTile<2, kBlocks>(a + r * a_stride, a_stride, depth, b, b_block_stride, columns,
                             output + r * stride, stride, accumulate);
  }
  for (; r < rows; ++r) {
    MultiplyTile<1, kBlocks>(a + r * a_stride, a_stride, depth, b, b_block_stride, columns,
                             output + r * stride, stride, accumulate);
  }
}

void Multiply(const float* a, std::int64_t a_stride, std::int64_t rows, std::int64_t depth,
              const float* b, std::int64_t b_block_stride, std::int64_t columns, float* output,
              std::int64_t stride, bool accumulate) {
  constexpr int kWide = kColumnTile * kBlock;
  std::int64_t c = 0;
  if constexpr (kColumnTile > 1) {
    for (; c + kWide <= columns; c += kWide) {
      MultiplyColumns<kColumnTile>(a, a_stride, rows, depth, b + c / kBlock * b_block_stride,
                                   b_block_stride, kWide, output + c, stride, accumulate);
    }
  }
  for (; c < columns; c += kBlock) {
    const int remaining = columns - c < kBlock ? static_cast<int>(columns - c) : kBlock;
    MultiplyColumns<1>(a, a_stride, rows, depth, b + c / kBlock * b_block_stride, b_block_stride,
                       remaining, output + c, stride, accumulate);
  }
}

// Writes a row over max(its norm, the lift's, 1e-12) to every step-th place, then its added
// coordinates. False where the row is not finite. float64, since the inverse of the norm of huge or
// tiny values is no float.
inline bool UnitRow(const float* row, int head_dim, const Lift& lift, float* unit,
                    std::int64_t step) {
  SquareSum squares;
  for (int d = 0; d < head_dim; d += kBlock) squares.Add(LoadColumns(row + d, head_dim - d));
  const double total = squares.Total();
  if (!(total < 1e300)) return false;
  const double norm = __builtin_sqrt(total);
  const double floor = lift.root > 1e-12f ? static_cast<double>(lift.root) : 1e-12;
  const double inverse = 1.0 / (norm > floor ? norm : floor);
  for (int d = 0; d < head_dim; ++d) unit[d * step] = static_cast<float>(row[d] * inverse);
  if (!lift.any()) return true;
  const double share = norm * inverse;  // of the length
  const float added =
      norm < floor ? static_cast<float>(__builtin_sqrt((1.0 - share) * (1.0 + share))) : 0.0f;
  unit[head_dim * step] = lift.side == Side::kQuery ? added : 0.0f;
  unit[(head_dim + 1) * step] = lift.side == Side::kKey ? added : 0.0f;
  return true;
}

bool UnitRows(const Rows& rows, int head_dim, const Lift& lift, float* units, std::int64_t stride) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    if (!UnitRow(rows.row(i), head_dim, lift, units + i * stride, 1)) return false;
  }
  return true;
}

bool UnitRowsTransposed(const Rows& rows, int head_dim, const Lift& lift, float* units) {
  for (std::int64_t first = 0; first < rows.count; first += kBlock) {
    float* block = units + first * lift.Dims(head_dim);
    const int count = rows.count - first < kBlock ? static_cast<int>(rows.count - first) : kBlock;
    for (int lane = 0; lane < kBlock; ++lane) {
      const float* row = rows.row(first + (lane < count ? lane : 0));
      if (!UnitRow(row, head_dim, lift, block + lane, kBlock)) return false;
    }
  }
  return true;
}

void ExpectedCollisions(const float* query, const float* keys_transposed, int head_dim,
                        int hash_bits, std::int64_t num_keys, float* scores) {
  for (std::int64_t j = 0; j < num_keys; j += kBlock) {
    const Floats x = Max(Min(Load(scores + j), Set(1.0f)), Set(-1.0f));
    const Floats magnitude = Abs(x);
    Floats rest = Sub(Set(1.0f), magnitude);
    if (AnyGreater(magnitude, Set(0.99f))) {
      // Near 1 rounding dominates 1 - |x|. |q - k|^2 / 2 equals it and keeps its digits; where q
      // and k are opposite, |q + k|^2 / 2.
      const Floats sign = WhereNegative(x, Set(-1.0f), Set(1.0f));
      Floats squares = Zero();
      const float* keys = keys_transposed + j * head_dim;
      for (int d = 0; d < head_dim; ++d) {
        const Floats difference = Sub(Set(query[d]), Mul(sign, Load(keys + d * kBlock)));
        squares = Fma(difference, difference, squares);
      }
      rest = WhereGreater(magnitude, Set(0.99f), Mul(squares, Set(0.5f)), rest);
    }
    Store(scores + j, Power(CollisionShare(x, rest), hash_bits));
  }
}

// scale / max(scale * |row|, 1e-12) in float64, whose squares neither overflow nor vanish.
inline float ExactFactor(const float* source, std::int64_t block_stride, int columns, float scale) {
  SquareSum squares;
  for (int c = 0; c < columns; c += kBlock) {
    squares.Add(LoadColumns(source + c / kBlock * block_stride, columns - c));
  }
  const double norm = __builtin_sqrt(squares.Total()) * scale;
  return static_cast<float>(scale / (norm > 1e-12 ? norm : 1e-12));
}

void Finish(const float* source, std::int64_t source_stride, std::int64_t block_stride,
            std::int64_t rows, int columns, float scale, const float* scales, bool normalize,
            float* output, std::int64_t stride) {
  // Sums of squares that float32 holds to full precision, and whose root is above 1e-12 whatever
  // `scale` is.
  constexpr float kLowest = 1e-12f, kHighest = 1e36f;
  alignas(64) float factors[kBlock];
  for (std::int64_t first = 0; first < rows; first += kBlock) {
    const int count = rows - first < kBlock ? static_cast<int>(rows - first) : kBlock;
    const float* from = source + first * source_stride;
    float* to = output + first * stride;
    Store(factors, Set(scale));
    if (scales != nullptr) {
      for (int i = 0; i < count; ++i) factors[i] = scales[first + i];
    }
    if (normalize) {
      alignas(64) float totals[kBlock];
      Store(totals, Set(1.0f));
      for (int i = 0; i < count; ++i) {
        const float* row = from + i * source_stride;
        Floats squares = Zero();
        for (int c = 0; c < columns; c += kBlock) {
          __builtin_prefetch(to + (i + kBlock) * stride + c, 1);
          const Floats x = LoadColumns(row + c / kBlock * block_stride, columns - c);
          squares = Fma(x, x, squares);
        }
        totals[i] = Sum(squares);
      }
      Store(factors, Div(Set(1.0f), Sqrt(Load(totals))));
      for (int i = 0; i < count; ++i) {
        if (totals[i] > kLowest && totals[i] < kHighest) continue;
        factors[i] = ExactFactor(from + i * source_stride, block_stride, columns, scale);
      }
    }
    for (int i = 0; i < count; ++i) {
      const Floats factor = Set(factors[i]);
      for (int c = 0; c < columns; c += kBlock) {
        const int remaining = columns - c;
        const float* block = from + i * source_stride + c / kBlock * block_stride;
        const Floats x = Mul(LoadColumns(block, remaining), factor);
        if (remaining >= kBlock) {
          Store(to + i * stride + c, x);
        } else {
          StoreFirst(to + i * stride + c, x, remaining);
        }
      }
    }
  }
}

void Convolve(const Rows& values, int columns, const float* weights, std::int64_t taps,
              std::int64_t first, std::int64_t rows, float* output, std::int64_t stride) {
  attention::AddConvolution({.values = values.data,
                             .stride = values.stride,
                             .count = values.count,
                             .columns = columns,
                             .weights = weights,
                             .taps = taps},
                            first, rows, output, stride);
}
