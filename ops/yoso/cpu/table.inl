// Values in blocks of 16 columns, and the scatter and gather of the table path. Included inside the
// anonymous namespace of a kernel_*.cc file.

// Rows lie a whole hidden state apart, each on a page of its own, where no hardware prefetcher
// follows; so many rows ahead hide a miss of every cache. (Prefetching past the end is harmless.)
inline constexpr int kAhead = 16;

bool PackValues(const Rows& rows, int columns, float* packed, std::int64_t block_stride) {
  Ints largest = Set(std::int32_t{0});
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* row = rows.row(i);
    float* target = packed + i * kBlock;
    for (int c = 0; c < columns; c += kBlock) {
      __builtin_prefetch(row + kAhead * rows.stride + c);
      const Floats x = LoadColumns(row + c, columns - c);
      largest = Max(largest, AbsBits(x));
      Store(target, x);
      target += block_stride;
    }
  }
  return Largest(largest) < kInfinityBits;
}

void UnpackSums(const float* sums, std::int64_t block_stride, std::int64_t rows, int columns,
                float* output, std::int64_t stride, bool accumulate) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* source = sums + i * kBlock;
    float* target = output + i * stride;
    for (int c = 0; c < columns; c += kBlock) {
      __builtin_prefetch(target + kAhead * stride + c, 1);
      const int remaining = columns - c;
      Floats x = Load(source);
      if (accumulate) x = Add(x, LoadColumns(target + c, remaining));
      if (remaining >= kBlock) {
        Store(target + c, x);
      } else {
        StoreFirst(target + c, x, remaining);
      }
      source += block_stride;
    }
  }
}

template <int kTables, class Code>
inline void Scatter(const float* __restrict values, const Code* __restrict codes,
                    std::int64_t count, float* __restrict tables, std::int64_t table_floats) {
  for (std::int64_t j = 0; j < count; ++j) {
    const FloatHalves value = LoadHalves(values + j * kBlock);
    for (int t = 0; t < kTables; ++t) {
      AddTo(tables + t * table_floats + codes[j * kGroup + t] * std::int64_t{kBlock}, value);
    }
  }
}

template <int kTables, bool kAccumulate, class Code>
inline void Gather(const float* __restrict tables, std::int64_t table_floats,
                   const Code* __restrict codes, std::int64_t count, float* __restrict sums) {
  for (std::int64_t i = 0; i < count; ++i) {
    Floats sum = kAccumulate ? Load(sums + i * kBlock) : Zero();
    for (int t = 0; t < kTables; ++t) {
      sum =
          Add(sum, Load(tables + t * table_floats + codes[i * kGroup + t] * std::int64_t{kBlock}));
    }
    Store(sums + i * kBlock, sum);
  }
}

template <int kTables, class Code>
inline void Clear(const Code* __restrict codes, std::int64_t count, float* __restrict tables,
                  std::int64_t table_floats) {
  for (std::int64_t j = 0; j < count; ++j) {
    for (int t = 0; t < kTables; ++t) {
      Store(tables + t * table_floats + codes[j * kGroup + t] * std::int64_t{kBlock}, Zero());
    }
  }
}

// Clears tables, unless they are clear, and adds the keys.
template <int kTables, class Code>
inline void Fill(const TablePass& pass, const Code* keys, float* tables,
                 std::int64_t table_floats) {
  if (!pass.sparse) {
    for (std::int64_t i = 0; i < table_floats * kTables; i += kBlock) Store(tables + i, Zero());
  }
  Scatter<kTables>(pass.values, keys, pass.num_keys, tables, table_floats);
}

template <int kTables, class Code>
void RunTablesOf(const TablePass& pass) {
  const std::int64_t table_floats = static_cast<std::int64_t>(kBlock) << pass.hash_bits;
  const Code* keys = static_cast<const Code*>(pass.key_codes);
  const Code* queries = static_cast<const Code*>(pass.query_codes);
  // Four tables of 16 KiB do not fit the first-level cache: where clearing counts, two at a time.
  if (kTables == 4 && !pass.sparse && pass.num_keys <= kPairedKeys) {
    Fill<2>(pass, keys, pass.tables, table_floats);
    Fill<2>(pass, keys + 2, pass.tables + 2 * table_floats, table_floats);
  } else {
    Fill<kTables>(pass, keys, pass.tables, table_floats);
  }
  if (pass.accumulate) {
    Gather<kTables, true>(pass.tables, table_floats, queries, pass.num_queries, pass.sums);
  } else {
    Gather<kTables, false>(pass.tables, table_floats, queries, pass.num_queries, pass.sums);
  }
  if (pass.sparse) Clear<kTables>(keys, pass.num_keys, pass.tables, table_floats);
}

template <class Code>
void RunTablesAs(const TablePass& pass) {
  if (pass.num_tables == 4) {
    RunTablesOf<4, Code>(pass);
  } else if (pass.num_tables == 2) {
    RunTablesOf<2, Code>(pass);
  } else {
    RunTablesOf<1, Code>(pass);
  }
}

void RunTables(const TablePass& pass) {
  if (pass.hash_bits > 8) {
    RunTablesAs<std::uint16_t>(pass);
  } else {
    RunTablesAs<std::uint8_t>(pass);
  }
}
