// What one bucket adds to the gradients. Included inside the anonymous namespace of a
// gradient_*.cc file, which defines kRowTile and kColumnTile for its instruction set.
//
// A bucket's rows are gathered from where they lie into tiles of kBucketTile rows: gradients and
// values row by row, queries and keys as unit rows in blocks of 16 columns, [block][row][16], which
// is how a product takes its right side. Sums go straight to the rows of the output. Which of two
// ways a bucket goes depends on its numbers of rows alone.

inline constexpr std::int64_t kBucketTile = 64;   // rows of a bucket multiplied together
inline constexpr std::int64_t kGatherAhead = 12;  // rows fetched before their turn
// Buckets of at most so many pairs are added pair by pair: no product fills a tile.
inline constexpr std::int64_t kFewPairs = 6;

class BucketGradient {
 public:
  BucketGradient(const GradientHead& head, const EarlierHashes& earlier, const BucketSide& queries,
                 const BucketSide& keys, float* workspace)
      : head_(head), earlier_(earlier), queries_(queries), keys_(keys) {
    const auto take = [&](std::int64_t floats) {
      float* const part = workspace;
      workspace += floats;
      return part;
    };
    unit_queries_ = take(kBucketTile * dims_);
    unit_keys_ = take(kBucketTile * dims_);
    grads_ = take(kBucketTile * columns_);
    values_ = take(kBucketTile * columns_);
    values_across_ = take(kBucketTile * columns_);
    scores_ = take(kBucketTile * kBucketTile);
    cosines_ = take(kBucketTile * kBucketTile);
    keys_across_ = take(kBucketTile * dims_);
    of_keys_ = take(columns_ * dims_);
    of_queries_ = take(columns_ * dims_);
    grad_sum_ = take(columns_);
  }

  void Run() {
    const std::int64_t pairs = queries_.count * keys_.count;
    if (pairs <= kFewPairs) {
      RunFew();
    } else if (head_.collided || 3 * pairs <= 2 * (queries_.count + keys_.count) * columns_) {
      RunPairs();
    } else {
      RunMatrices();
    }
  }

 private:
  struct Tile {
    std::int64_t first, count;
  };

  template <class Body>
  static void ForTiles(std::int64_t rows, const Body& body) {
    for (std::int64_t first = 0; first < rows; first += kBucketTile) {
      body(Tile{first, rows - first < kBucketTile ? rows - first : kBucketTile});
    }
  }

  void RunFew() {
    for (std::int64_t i = 0; i < queries_.count; ++i) {
      for (std::int64_t j = 0; j < keys_.count; ++j) AddPair(queries_.order[i], keys_.order[j]);
    }
  }

  void AddPair(std::int64_t i, std::int64_t j) {
    const float* grad = head_.grad.row(i);
    const float* value = head_.value.row(j);
    float* by_value = head_.by_value.row(j);
    Floats products = Zero();
    for (int c = 0; c < head_.value_dim; c += kBlock) {
      const int remaining = head_.value_dim - c;
      const Floats x = LoadColumns(grad + c, remaining);
      products = Fma(x, LoadColumns(value + c, remaining), products);
      StoreColumns(by_value + c, Add(LoadColumns(by_value + c, remaining), x), remaining);
    }
    float score = Sum(products);
    if (head_.collided) {
      if (MetBefore(earlier_, i, j)) return;
      score *= SlopeOfPair(i, j);
    }
    const Floats of_key = Set(score * head_.key_inverses[j]);
    const Floats of_query = Set(score * head_.query_inverses[i]);
    const float* query = head_.query.row(i);
    const float* key = head_.key.row(j);
    float* by_query = head_.by_query.row(i);
    float* by_key = head_.by_key.row(j);
    for (int c = 0; c < head_.head_dim; c += kBlock) {
      const int remaining = head_.head_dim - c;
      const Floats to_query = LoadColumns(by_query + c, remaining);
      const Floats to_key = LoadColumns(by_key + c, remaining);
      StoreColumns(by_query + c, Fma(of_key, LoadColumns(key + c, remaining), to_query), remaining);
      StoreColumns(by_key + c, Fma(of_query, LoadColumns(query + c, remaining), to_key), remaining);
    }
  }

  float SlopeOfPair(std::int64_t i, std::int64_t j) const {
    const float* query = head_.query.row(i);
    const float* key = head_.key.row(j);
    const Floats of_query = Set(head_.query_inverses[i]), of_key = Set(head_.key_inverses[j]);
    Floats products = Zero();
    for (int c = 0; c < head_.head_dim; c += kBlock) {
      const int remaining = head_.head_dim - c;
      products = Fma(Mul(LoadColumns(query + c, remaining), of_query),
                     Mul(LoadColumns(key + c, remaining), of_key), products);
    }
    alignas(64) float slope[kBlock];
    Store(slope, TrueSlope(Set(Sum(products)), head_.hash_bits, head_.softening));
    return slope[0];
  }

  // Scores of all pairs of a tile, then both gradients from them.
  void RunPairs() {
    ForTiles(keys_.count, [&](Tile keys) {
      GatherUnits(head_.key, head_.key_inverses, head_.by_key, keys_, keys, unit_keys_);
      GatherRows(head_.value, head_.by_value, keys_, keys, values_);
      Transpose(
          keys.count, columns_,
          [&](std::int64_t row, std::int64_t c) { return values_ + row * columns_ + c; },
          values_across_);
      if (head_.collided) {
        Transpose(
            keys.count, dims_,
            [&](std::int64_t row, std::int64_t c) {
              return unit_keys_ + c / kBlock * kTileBlock + row * kBlock + c % kBlock;
            },
            keys_across_);
      }
      ForTiles(queries_.count, [&](Tile queries) {
        GatherUnits(head_.query, head_.query_inverses, head_.by_query, queries_, queries,
                    unit_queries_);
        GatherRows(head_.grad, {}, queries_, queries, grads_);
        SumGrads(queries, false);
        Product({grads_, columns_, 1}, queries.count, head_.value_dim, values_across_,
                columns_ * kBlock, BlocksOf(keys.count),
                Packed{scores_, kBucketTile, kBlock, false});
        if (head_.collided) MultiplyBySlopes(queries, keys);
        Product({scores_, kBucketTile, 1}, queries.count, keys.count, unit_keys_, kTileBlock,
                BlocksOf(head_.head_dim), ToQueries(queries));
        Product({scores_, 1, kBucketTile}, keys.count, queries.count, unit_queries_, kTileBlock,
                BlocksOf(head_.head_dim), ToKeys(keys));
        AddGrads(keys);
      });
    });
  }

  // sum_j <grad_i, value_j> key_j = grad_i (sum_j value_j key_j^T): linear in the rows.
  void RunMatrices() {
    ForTiles(keys_.count, [&](Tile keys) {
      GatherUnits(head_.key, head_.key_inverses, head_.by_key, keys_, keys, unit_keys_);
      GatherRows(head_.value, head_.by_value, keys_, keys, values_);
      Product({values_, 1, columns_}, head_.value_dim, keys.count, unit_keys_, kTileBlock,
              BlocksOf(head_.head_dim), Matrix(of_keys_, keys));
    });
    ForTiles(queries_.count, [&](Tile queries) {
      GatherUnits(head_.query, head_.query_inverses, head_.by_query, queries_, queries,
                  unit_queries_);
      GatherRows(head_.grad, {}, queries_, queries, grads_);
      SumGrads(queries, queries.first > 0);
      Product({grads_, 1, columns_}, head_.value_dim, queries.count, unit_queries_, kTileBlock,
              BlocksOf(head_.head_dim), Matrix(of_queries_, queries));
      Product({grads_, columns_, 1}, queries.count, head_.value_dim, of_keys_, columns_ * kBlock,
              BlocksOf(head_.head_dim), ToQueries(queries));
    });
    ForTiles(keys_.count, [&](Tile keys) {
      if (keys_.count > kBucketTile) GatherRows(head_.value, {}, keys_, keys, values_);
      Product({values_, columns_, 1}, keys.count, head_.value_dim, of_queries_, columns_ * kBlock,
              BlocksOf(head_.head_dim), ToKeys(keys));
      AddGrads(keys);
    });
  }

  static constexpr std::int64_t kTileBlock = kBucketTile * kBlock;

  Packed Matrix(float* data, const Tile& tile) const {
    return {data, kBlock, columns_ * kBlock, tile.first > 0};
  }
  Scattered ToQueries(const Tile& tile) const {
    return {head_.by_query, queries_.order + tile.first, head_.head_dim};
  }
  Scattered ToKeys(const Tile& tile) const {
    return {head_.by_key, keys_.order + tile.first, head_.head_dim};
  }

  // Rows follow no pattern that a prefetcher knows. `sums`: the rows that will be added to, which
  // lie where these do; null where none are.
  static void Prefetch(const Rows& rows, const MutableRows& sums, int columns,
                       const std::int32_t* next, const std::int32_t* end) {
    if (next >= end) return;
    for (int c = 0; c < columns; c += kBlock) {
      __builtin_prefetch(rows.row(*next) + c);
      if (sums.data != nullptr) __builtin_prefetch(sums.row(*next) + c, 1);
    }
  }

  void GatherUnits(const Rows& rows, const float* inverses, const MutableRows& sums,
                   const BucketSide& side, const Tile& tile, float* packed) const {
    for (std::int64_t i = 0; i < tile.count; ++i) {
      const std::int32_t* place = side.order + tile.first + i;
      Prefetch(rows, sums, head_.head_dim, place + kGatherAhead, side.end);
      const float* row = rows.row(*place);
      const Floats inverse = Set(inverses[*place]);
      float* target = packed + i * kBlock;
      for (int c = 0; c < head_.head_dim; c += kBlock, target += kTileBlock) {
        Store(target, Mul(LoadColumns(row + c, head_.head_dim - c), inverse));
      }
    }
  }

  void GatherRows(const Rows& rows, const MutableRows& sums, const BucketSide& side,
                  const Tile& tile, float* gathered) const {
    for (std::int64_t i = 0; i < tile.count; ++i) {
      const std::int32_t* place = side.order + tile.first + i;
      Prefetch(rows, sums, head_.value_dim, place + kGatherAhead, side.end);
      const float* row = rows.row(*place);
      for (int c = 0; c < head_.value_dim; c += kBlock) {
        Store(gathered + i * columns_ + c, LoadColumns(row + c, head_.value_dim - c));
      }
    }
  }

  // Four numbers from at(row, column) on, to [row / 16][column][16]; lanes beyond the last row hold
  // what is there, and no one reads what follows from them.
  template <class At>
  static void Transpose(std::int64_t rows, std::int64_t columns, const At& at, float* across) {
    for (std::int64_t first = 0; first < rows; first += kBlock) {
      float* block = across + first * columns;
      for (std::int64_t c = 0; c < columns; c += 4) {
        for (int lane = 0; lane < kBlock; lane += static_cast<int>(Simd::kWidth)) {
          Simd::Vector four[4];
          Simd::Transpose4([&](int i) { return at(first + lane + i, c); }, four);
          for (int k = 0; k < 4; ++k) Simd::Store(block + (c + k) * kBlock + lane, four[k]);
        }
      }
    }
  }

  // Scores times the true derivative; 0 where the pair has met before.
  void MultiplyBySlopes(const Tile& queries, const Tile& keys) {
    for (int b = 0; b < BlocksOf(head_.head_dim); ++b) {
      Product({unit_queries_ + b * kTileBlock, kBlock, 1}, queries.count, kBlock,
              keys_across_ + b * kBlock * kBlock, dims_ * kBlock, BlocksOf(keys.count),
              Packed{cosines_, kBucketTile, kBlock, b > 0});
    }
    for (std::int64_t i = 0; i < queries.count; ++i) {
      float* scores = scores_ + i * kBucketTile;
      const float* cosines = cosines_ + i * kBucketTile;
      for (std::int64_t j = 0; j < keys.count; j += kBlock) {
        const Floats slope = TrueSlope(Load(cosines + j), head_.hash_bits, head_.softening);
        Store(scores + j, Mul(Load(scores + j), slope));
      }
      const std::int32_t query = queries_.order[queries.first + i];
      for (std::int64_t j = 0; j < keys.count; ++j) {
        if (MetBefore(earlier_, query, keys_.order[keys.first + j])) scores[j] = 0.0f;
      }
    }
  }

  void SumGrads(const Tile& queries, bool accumulate) {
    for (std::int64_t c = 0; c < columns_; c += kBlock) {
      Floats sum = accumulate ? Load(grad_sum_ + c) : Zero();
      for (std::int64_t i = 0; i < queries.count; ++i) {
        sum = Add(sum, Load(grads_ + i * columns_ + c));
      }
      Store(grad_sum_ + c, sum);
    }
  }

  // The sum of gradients to each key of a tile.
  void AddGrads(const Tile& keys) {
    const Scattered target{head_.by_value, keys_.order + keys.first, head_.value_dim};
    for (std::int64_t j = 0; j < keys.count; ++j) {
      for (int b = 0; b < BlocksOf(head_.value_dim); ++b) {
        target.Put(j, b, Load(grad_sum_ + b * kBlock));
      }
    }
  }

  const GradientHead& head_;
  const EarlierHashes& earlier_;
  const BucketSide& queries_;
  const BucketSide& keys_;
  const std::int64_t dims_ = BlocksOf(head_.head_dim) * kBlock;
  const std::int64_t columns_ = BlocksOf(head_.value_dim) * kBlock;
  float* unit_queries_;   // packed
  float* unit_keys_;      // packed
  float* grads_;          // [row][columns_]
  float* values_;         // [row][columns_]
  float* values_across_;  // [row / 16][columns_][16]
  float* scores_;         // [query][kBucketTile]
  float* cosines_;        // [query][kBucketTile]
  float* keys_across_;    // [key / 16][dims_][16]
  float* of_keys_;        // sum of value_j key_j^T, packed
  float* of_queries_;     // sum of grad_i query_i^T, packed
  float* grad_sum_;
};

// Two tiles of each side, those of the keys in two layouts, scores, cosines, two matrices, a row.
std::int64_t WorkspaceFloats(int head_dim, int value_dim) {
  const std::int64_t dims = std::int64_t{BlocksOf(head_dim)} * kBlock;
  const std::int64_t columns = std::int64_t{BlocksOf(value_dim)} * kBlock;
  return kBucketTile * (3 * dims + 3 * columns + 2 * kBucketTile) + 2 * columns * dims + columns;
}

void AddBucket(const GradientHead& head, const EarlierHashes& earlier, const BucketSide& queries,
               const BucketSide& keys, float* workspace) {
  BucketGradient(head, earlier, queries, keys, workspace).Run();
}

// 1 / max(length, lift_root, 1e-12).
inline float InverseLength(double length, float lift_root) {
  const double least = lift_root > 1e-12 ? static_cast<double>(lift_root) : 1e-12;
  return static_cast<float>(1.0 / (length > least ? length : least));
}

void InverseLengths(const Rows& rows, int columns, float lift_root, float* inverses) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* row = rows.row(i);
    SquareSum squares;
    for (int c = 0; c < columns; c += kBlock) squares.Add(LoadColumns(row + c, columns - c));
    inverses[i] = InverseLength(__builtin_sqrt(squares.Total()), lift_root);
  }
}

void FinishUnit(const Rows& rows, const float* inverses, int columns, float lift_root, float factor,
                const MutableRows& sums) {
  const float of_lifted = lift_root > 0 ? InverseLength(0.0, lift_root) : 0.0f;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* row = rows.row(i);
    float* target = sums.row(i);
    Floats products = Zero();
    for (int c = 0; c < columns; c += kBlock) {
      const Floats unit = Mul(LoadColumns(row + c, columns - c), Set(inverses[i]));
      products = Fma(unit, LoadColumns(target + c, columns - c), products);
    }
    // (sum - unit <unit, sum>) / length; a row without a direction has no gradient.
    const float scale = inverses[i] < 1e12f ? factor * inverses[i] : 0.0f;
    const Floats along = Set(inverses[i] == of_lifted ? 0.0f : -Sum(products));
    for (int c = 0; c < columns; c += kBlock) {
      const int remaining = columns - c;
      const Floats unit = Mul(LoadColumns(row + c, remaining), Set(inverses[i]));
      const Floats across = Fma(unit, along, LoadColumns(target + c, remaining));
      StoreColumns(target + c, Mul(across, Set(scale)), remaining);
    }
  }
}

void Scale(std::int64_t rows, int columns, float factor, const MutableRows& sums) {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* target = sums.row(i);
    for (int c = 0; c < columns; c += kBlock) {
      const int remaining = columns - c;
      StoreColumns(target + c, Mul(LoadColumns(target + c, remaining), Set(factor)), remaining);
    }
  }
}
