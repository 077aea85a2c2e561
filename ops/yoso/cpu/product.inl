// Products of small matrices, whose left side may lie across and whose result may go to scattered
// rows. Included inside the anonymous namespace of a gradient_*.cc file, which defines kRowTile and
// kColumnTile for its instruction set: an accumulator is a block of 16 floats, and that many of
// them stay in registers.

inline Floats LoadColumns(const float* p, int columns) {
  return columns >= kBlock ? Load(p) : LoadFirst(p, columns);
}
inline void StoreColumns(float* p, const Floats& x, int columns) {
  if (columns >= kBlock) {
    Store(p, x);
  } else {
    StoreFirst(p, x, columns);
  }
}

inline int BlocksOf(std::int64_t columns) {
  return static_cast<int>((columns + kBlock - 1) / kBlock);
}

// Where a product goes: a matrix in blocks of 16 columns, or in rows of full registers.
struct Packed {
  float* data;
  std::int64_t row_stride;
  std::int64_t block_stride;
  bool accumulate;

  void Put(std::int64_t row, int block, const Floats& sum) const {
    float* target = data + row * row_stride + block * block_stride;
    Store(target, accumulate ? Add(Load(target), sum) : sum);
  }
};

// Or added to rows of the output, wherever those lie.
struct Scattered {
  const MutableRows& rows;
  const std::int32_t* order;
  int columns;

  void Put(std::int64_t row, int block, const Floats& sum) const {
    float* target = rows.row(order[row]) + block * kBlock;
    const int remaining = columns - block * kBlock;
    StoreColumns(target, Add(LoadColumns(target, remaining), sum), remaining);
  }
};

// The left side of a product: element (row, k) is data[row * row_step + k * depth_step].
struct Left {
  const float* data;
  std::int64_t row_step;
  std::int64_t depth_step;
};

template <int kRows, int kBlocks, class Target>
inline void ProductTile(const Left& a, std::int64_t depth, const float* b,
                        std::int64_t b_block_stride, std::int64_t row, int block,
                        const Target& target) {
  Floats sums[kRows][kBlocks];
  for (auto& each : sums) {
    for (auto& sum : each) sum = Zero();
  }
  const float* left = a.data + row * a.row_step;
  const float* right = b + block * b_block_stride;
  for (std::int64_t k = 0; k < depth; ++k, left += a.depth_step, right += kBlock) {
    Floats columns[kBlocks];
    for (int c = 0; c < kBlocks; ++c) columns[c] = Load(right + c * b_block_stride);
    for (int r = 0; r < kRows; ++r) {
      const Floats factor = Set(left[r * a.row_step]);
      for (int c = 0; c < kBlocks; ++c) sums[r][c] = Fma(factor, columns[c], sums[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kBlocks; ++c) target.Put(row + r, block + c, sums[r][c]);
  }
}

template <int kBlocks, class Target>
inline void ProductColumns(const Left& a, std::int64_t rows, std::int64_t depth, const float* b,
                           std::int64_t b_block_stride, int block, const Target& target) {
  std::int64_t r = 0;
  for (; r + kRowTile <= rows; r += kRowTile) {
    ProductTile<kRowTile, kBlocks>(a, depth, b, b_block_stride, r, block, target);
  }
  if (rows - r >= 4) {
    ProductTile<4, kBlocks>(a, depth, b, b_block_stride, r, block, target);
    r += 4;
  }
  if (rows - r >= 2) {
    ProductTile<2, kBlocks>(a, depth, b, b_block_stride, r, block, target);
    r += 2;
  }
  if (rows > r) ProductTile<1, kBlocks>(a, depth, b, b_block_stride, r, block, target);
}

// target (+)= a b; every element sums over k in order.
template <class Target>
void Product(const Left& a, std::int64_t rows, std::int64_t depth, const float* b,
             std::int64_t b_block_stride, int blocks, const Target& target) {
  int block = 0;
  for (; block + kColumnTile <= blocks; block += kColumnTile) {
    ProductColumns<kColumnTile>(a, rows, depth, b, b_block_stride, block, target);
  }
  for (; block < blocks; ++block) {
    ProductColumns<1>(a, rows, depth, b, b_block_stride, block, target);
  }
}
