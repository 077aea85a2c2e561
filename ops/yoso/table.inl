// Values in blocks of 16 columns, and the scatter and gather of the table path. Included inside the
// anonymous namespace of a kernel_cpu_*.cc file.

bool PackValues(const Rows& rows, int columns, float* packed) {
  constexpr int kAhead = 16;  // rows lie a whole hidden state apart: no hardware prefetch sees them
  IntVec largest = IntZero();
  for (std::int64_t i = 0; i < rows.count; ++i) {
    if (i + kAhead < rows.count) __builtin_prefetch(rows.row(i + kAhead));
    const Vec x = LoadColumns(rows.row(i), columns);
    largest = IntMax(largest, AbsBits(x));
    Store(packed + i * kBlock, x);
  }
  return ReduceMax(largest) < kInfinityBits;
}

void UnpackSums(const float* sums, std::int64_t rows, int columns, float* output,
                std::int64_t stride, bool accumulate) {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* target = output + i * stride;
    Vec x = Load(sums + i * kBlock);
    if (accumulate) x = Add(x, LoadColumns(target, columns));
    if (columns >= kBlock) {
      Store(target, x);
    } else {
      StoreFirst(target, x, columns);
    }
  }
}

template <class Code, int kTables>
void RunTablesOf(const TablePass& pass) {
  const std::int64_t table_floats = static_cast<std::int64_t>(kBlock) << pass.hash_bits;
  const Code* keys = static_cast<const Code*>(pass.key_codes);
  const Code* queries = static_cast<const Code*>(pass.query_codes);
  float* tables = pass.tables;
  if (!pass.sparse) {
    __builtin_memset(tables, 0, static_cast<std::size_t>(table_floats) * kTables * sizeof(float));
  }
  for (std::int64_t j = 0; j < pass.num_keys; ++j) {
    const Vec value = Load(pass.values + j * kBlock);
    for (int t = 0; t < kTables; ++t) {
      float* bucket = tables + t * table_floats + keys[j * kGroup + t] * std::int64_t{kBlock};
      Store(bucket, Add(Load(bucket), value));
    }
  }
  for (std::int64_t i = 0; i < pass.num_queries; ++i) {
    Vec sum = pass.accumulate ? Load(pass.sums + i * kBlock) : Zero();
    for (int t = 0; t < kTables; ++t) {
      sum = Add(sum,
                Load(tables + t * table_floats + queries[i * kGroup + t] * std::int64_t{kBlock}));
    }
    Store(pass.sums + i * kBlock, sum);
  }
  if (!pass.sparse) return;
  for (std::int64_t j = 0; j < pass.num_keys; ++j) {
    for (int t = 0; t < kTables; ++t) {
      Store(tables + t * table_floats + keys[j * kGroup + t] * std::int64_t{kBlock}, Zero());
    }
  }
}

template <class Code>
void RunTablesAs(const TablePass& pass) {
  if (pass.num_tables == 4) {
    RunTablesOf<Code, 4>(pass);
  } else if (pass.num_tables == 2) {
    RunTablesOf<Code, 2>(pass);
  } else {
    RunTablesOf<Code, 1>(pass);
  }
}

void RunTables(const TablePass& pass) {
  if (pass.hash_bits > 8) {
    RunTablesAs<std::uint16_t>(pass);
  } else {
    RunTablesAs<std::uint8_t>(pass);
  }
}
