// Tables of rounded values: rounding, and the scatter and gather of 32 columns. All sums are of
// integers, exact, so that no width and no order of additions changes a bit. Included inside the
// anonymous namespace of a kernel_*.cc file.

// Values in steps of their column's largest magnitude / kRoundedHigh, columns beyond `blocks` 0.
void RoundValues(const float* packed, std::int64_t block_stride, int blocks, std::int64_t rows,
                 std::int8_t* rounded, float* steps) {
  for (int b = 0; b < kPairColumns / kBlock; ++b) {
    const float* values = packed + b * block_stride;
    std::int8_t* target = rounded + b * kBlock;
    if (b >= blocks) {
      Store(steps + b * kBlock, Zero());
      for (std::int64_t i = 0; i < rows; ++i) {
        StoreInt8(target + i * kPairColumns, Set(std::int32_t{0}));
      }
      continue;
    }
    Ints largest = Set(std::int32_t{0});
    for (std::int64_t i = 0; i < rows; ++i) {
      largest = Max(largest, AbsBits(Load(values + i * kBlock)));
    }
    const Floats column = Max(FloatOfBits(largest), Set(static_cast<float>(kSmallestColumn)));
    const Floats high = Set(static_cast<float>(kRoundedHigh));
    const Floats inverse = Div(high, column);
    Store(steps + b * kBlock, Div(column, high));
    for (std::int64_t i = 0; i < rows; ++i) {
      StoreInt8(target + i * kPairColumns, Round(Mul(Load(values + i * kBlock), inverse)));
    }
  }
}

// Sixteen sums on their way to memory: integers or, where `steps` is not null, after the last
// table, the floats that they stand for.
inline void StoreSums(std::int32_t* sums, const Ints& x, const float* steps) {
  if (steps == nullptr) {
    Store(sums, x);
  } else {
    Store(reinterpret_cast<float*>(sums), Mul(FloatOf(x), Load(steps)));
  }
}

template <int kTables, class Code>
inline void ScatterShorts(const std::int8_t* __restrict values, const Code* __restrict codes,
                          std::int64_t count, std::int16_t* __restrict tables,
                          std::int64_t table_size) {
  for (std::int64_t j = 0; j < count; ++j) {
    const ShortHalves value = WidenHalves(values + j * kPairColumns);
    for (int t = 0; t < kTables; ++t) {
      AddTo(tables + t * table_size + codes[j * kGroup + t] * std::int64_t{kPairColumns}, value);
    }
  }
}

// `kFit`: the sums of all tables of a run fit 16 bits; otherwise those of each do, in a run of one.
template <int kTables, bool kFit, class Code>
inline void GatherShorts(const RoundedPass& pass, const Code* __restrict codes,
                         std::int64_t table_size) {
  const std::int16_t* __restrict tables = static_cast<const std::int16_t*>(pass.tables);
  std::int16_t* __restrict short_sums = pass.short_sums;
  std::int32_t* __restrict sums = pass.sums;
  std::int32_t* __restrict high_sums = pass.sums + pass.sum_stride;
  for (std::int64_t i = 0; i < pass.num_queries; ++i) {
    const auto bucket = [&](int t) {
      return LoadShorts(tables + t * table_size +
                        codes[i * kGroup + t] * std::int64_t{kPairColumns});
    };
    Shorts sum =
        kFit && !pass.begins_run ? LoadShorts(short_sums + i * kPairColumns) : ZeroShorts();
    for (int t = 0; kFit && t < kTables; ++t) sum = Add(sum, bucket(t));
    if (kFit && !pass.ends_run) {
      Store(short_sums + i * kPairColumns, sum);
      continue;
    }
    Ints low = pass.accumulate ? Load(sums + i * kBlock) : Set(std::int32_t{0});
    Ints high = pass.accumulate ? Load(high_sums + i * kBlock) : Set(std::int32_t{0});
    for (int t = 0; t < (kFit ? 1 : kTables); ++t) {
      if (!kFit) sum = bucket(t);
      low = Add(low, LowHalf(sum));
      high = Add(high, HighHalf(sum));
    }
    StoreSums(sums + i * kBlock, low, pass.steps);
    StoreSums(high_sums + i * kBlock, high, pass.steps == nullptr ? nullptr : pass.steps + kBlock);
  }
}

template <int kTables, class Code>
void RunShorts(const RoundedPass& pass) {
  const std::int64_t table_size = static_cast<std::int64_t>(kPairColumns) << pass.hash_bits;
  const Code* keys = static_cast<const Code*>(pass.key_codes);
  const Code* queries = static_cast<const Code*>(pass.query_codes);
  std::int16_t* tables = static_cast<std::int16_t*>(pass.tables);
  for (std::int64_t i = 0; !pass.sparse && i < table_size * kTables; i += kPairColumns) {
    Store(tables + i, ZeroShorts());
  }
  ScatterShorts<kTables>(pass.values, keys, pass.num_keys, tables, table_size);
  if (pass.width == SumWidth::kAllFit) {
    GatherShorts<kTables, true>(pass, queries, table_size);
  } else {
    GatherShorts<kTables, false>(pass, queries, table_size);
  }
  if (!pass.sparse) return;
  for (std::int64_t j = 0; j < pass.num_keys; ++j) {
    for (int t = 0; t < kTables; ++t) {
      Store(tables + t * table_size + keys[j * kGroup + t] * std::int64_t{kPairColumns},
            ZeroShorts());
    }
  }
}

// Tables of 32 bits, 16 columns after 16: a bucket of them is a cache line as well.
template <int kTables, class Code>
void RunInts(const RoundedPass& pass) {
  const std::int64_t table_size = static_cast<std::int64_t>(kBlock) << pass.hash_bits;
  const Code* keys = static_cast<const Code*>(pass.key_codes);
  const Code* queries = static_cast<const Code*>(pass.query_codes);
  std::int32_t* tables = static_cast<std::int32_t*>(pass.tables);
  const auto bucket = [&](const Code* codes, std::int64_t row, int t) {
    return tables + t * table_size + codes[row * kGroup + t] * std::int64_t{kBlock};
  };
  for (int half = 0; half < kPairColumns / kBlock; ++half) {
    const std::int8_t* values = pass.values + half * kBlock;
    std::int32_t* sums = pass.sums + half * pass.sum_stride;
    const float* steps = pass.steps == nullptr ? nullptr : pass.steps + half * kBlock;
    for (std::int64_t i = 0; !pass.sparse && i < table_size * kTables; i += kBlock) {
      Store(tables + i, Set(std::int32_t{0}));
    }
    for (std::int64_t j = 0; j < pass.num_keys; ++j) {
      const Ints value = WidenSixteen(values + j * kPairColumns);
      for (int t = 0; t < kTables; ++t) {
        Store(bucket(keys, j, t), Add(Load(bucket(keys, j, t)), value));
      }
    }
    for (std::int64_t i = 0; i < pass.num_queries; ++i) {
      Ints sum = pass.accumulate ? Load(sums + i * kBlock) : Set(std::int32_t{0});
      for (int t = 0; t < kTables; ++t) sum = Add(sum, Load(bucket(queries, i, t)));
      StoreSums(sums + i * kBlock, sum, steps);
    }
    for (std::int64_t j = 0; pass.sparse && j < pass.num_keys; ++j) {
      for (int t = 0; t < kTables; ++t) Store(bucket(keys, j, t), Set(std::int32_t{0}));
    }
  }
}

template <int kTables, class Code>
void RunRoundedOf(const RoundedPass& pass) {
  if (pass.width == SumWidth::kInts) {
    RunInts<kTables, Code>(pass);
  } else {
    RunShorts<kTables, Code>(pass);
  }
}

template <class Code>
void RunRoundedAs(const RoundedPass& pass) {
  if (pass.num_tables == 4) {
    RunRoundedOf<4, Code>(pass);
  } else if (pass.num_tables == 2) {
    RunRoundedOf<2, Code>(pass);
  } else {
    RunRoundedOf<1, Code>(pass);
  }
}

void RunRounded(const RoundedPass& pass) {
  if (pass.hash_bits > 8) {
    RunRoundedAs<std::uint16_t>(pass);
  } else {
    RunRoundedAs<std::uint8_t>(pass);
  }
}
