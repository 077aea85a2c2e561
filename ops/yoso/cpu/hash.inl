// Rows to int8, int8 planes, hash codes: exact integer arithmetic, hence the same codes everywhere.
// Included inside the anonymous namespace of a kernel_*.cc file, which defines Datum,
// kStepDims, StoreData and either Dot or DotTile for its instruction set.

inline constexpr int kBatch = 16;            // rows quantised together, which hides its latencies
inline constexpr int kPrefetchRows = 32;     // ahead, a few at a time: hashing leaves memory idle
inline constexpr int kMaxBitWords = 64 + 4;  // 16-bit words of hash bits of one row, with slack
inline constexpr std::int32_t kInfinityBits = 0x7F800000;
inline constexpr float kTiniest =
    1e-30f;  // smaller rows hash like rows near zero: 127 / x is finite

inline Floats LoadColumns(const float* p, int columns) {
  return columns >= kBlock ? Load(p) : LoadFirst(p, columns);
}

// Rows [first, first + count), at most kBatch: data[i] = round(x * unit / max|x|), zero-padded to
// blocks of 16, where `unit` is 127 or -127; sums[i] is the sum of data[i], scales[i] its factor of
// x. Rows beyond `count` repeat the first. False where a row is not finite.
//
// What is reduced over a row's lanes is reduced for all rows at once, a third of the work.
inline bool Quantise(const Rows& rows, std::int64_t first, int count, int head_dim, float unit,
                     Datum (*data)[kHeadDimHigh], Ints& sums, float* scales) {
  const auto row = [&](int i) { return rows.row(first + (i < count ? i : 0)); };
  Ints of_rows[kBatch];
  for (int i = 0; i < kBatch; ++i) {
    const float* x = row(i);
    Ints largest = AbsBits(LoadColumns(x, head_dim));
    for (int d = kBlock; d < head_dim; d += kBlock) {
      largest = Max(largest, AbsBits(LoadColumns(x + d, head_dim - d)));
    }
    of_rows[i] = largest;
  }
  const Ints maxima = MaxOfEach(of_rows);
  if (Largest(maxima) >= kInfinityBits) return false;
  Store(scales, Div(Set(unit), Max(FloatOfBits(maxima), Set(kTiniest))));
  for (int i = 0; i < kBatch; ++i) {
    const float* x = row(i);
    const Floats scale = Set(scales[i]);
    Ints total = Set(std::int32_t{0});
    int d = 0;
    for (; d + 4 * kBlock <= head_dim; d += 4 * kBlock) {
      Ints rounded[4];
#pragma GCC unroll 4
      for (int b = 0; b < 4; ++b) {
        rounded[b] = Round(Mul(Load(x + d + b * kBlock), scale));
        total = Add(total, rounded[b]);
      }
      StoreData(data[i] + d, rounded);
    }
    for (; d < head_dim; d += kBlock) {
      const Ints rounded = Round(Mul(LoadColumns(x + d, head_dim - d), scale));
      total = Add(total, rounded);
      StoreData(data[i] + d, rounded);
    }
    of_rows[i] = total;
  }
  sums = SumOfEach(of_rows);
  return true;
}

// Half the coordinate that the norm lift adds to each of kBatch quantised rows, in steps of the
// rounding: up to 2^21, so that 255 of them and the rest of a product stay below 2^31. The norm is
// that of the rounded row, whose whole squares add up in any order.
inline Ints HalfLifts(const Datum (*data)[kHeadDimHigh], const float* scales, int head_dim,
                      float root) {
  alignas(64) std::int32_t squares[kBatch];
  for (int i = 0; i < kBatch; ++i) {
    squares[i] = 0;
    for (int d = 0; d < head_dim; ++d) squares[i] += data[i][d] * data[i][d];
  }
  const Floats bound = Min(Mul(Set(root), Abs(Load(scales))), Set(4194304.0f));
  const Floats rest = Fma(bound, bound, FloatOf(Sub(Set(std::int32_t{0}), Load(squares))));
  return Round(Mul(Sqrt(Max(rest, Zero())), Set(0.5f)));
}

// As above for hashing by planes, with the thresholds of the rows' bits.
//
// A plane is p + 1/2 and stored as u = p + 128: sum (p + 1/2) x > 0 where sum u x > 127.5 sum x,
// that is floor(127.5 sum x) + sum u (-x) < 0. A lift adds its plane's p + 1/2 times an even
// number, twice half_lifts, to the sum: 2 p + 1 times half_lifts leaves on the other side.
inline bool Quantise(const Rows& rows, std::int64_t first, int count, int head_dim,
                     Datum (*data)[kHeadDimHigh], std::int32_t* thresholds, const Lift& lift,
                     std::int32_t* half_lifts) {
  Ints negative;
  alignas(64) float scales[kBatch];
  if (!Quantise(rows, first, count, head_dim, -127.0f, data, negative, scales)) return false;
  if (lift.any()) Store(half_lifts, HalfLifts(data, scales, head_dim, lift.root));
  Store(thresholds, Half(Sub(negative, ShiftLeft(negative, 8))));  // -255 / 2 times
  return true;
}

// Writes one row's codes, `bits` being all its hash bits in order.
template <class Code>
inline void EmitCodes(const std::uint8_t* bits, const HashSpec& spec, Code* codes, std::int64_t row,
                      std::int64_t code_rows) {
  const int groups = (spec.num_hashes + kGroup - 1) / kGroup;
  Code* target = codes + row * kGroup;
  if (spec.hash_bits == 8 * static_cast<int>(sizeof(Code))) {
    for (int g = 0; g < groups; ++g) {
      __builtin_memcpy(target, bits + g * kGroup * sizeof(Code), kGroup * sizeof(Code));
      target += code_rows * kGroup;
    }
    return;
  }
  const std::uint32_t mask = (1u << spec.hash_bits) - 1;
  int bit = 0;
  for (int g = 0; g < groups; ++g) {
    for (int t = 0; t < kGroup; ++t) {
      std::uint32_t word;
      __builtin_memcpy(&word, bits + (bit >> 3), sizeof word);
      target[t] = static_cast<Code>(word >> (bit & 7) & mask);
      bit += spec.hash_bits;
    }
    target += code_rows * kGroup;
  }
}

// Adds to the sums of kTile rows, kHeadDimHigh numbers apart, the products of one step. An
// instruction set may have an overload of its own.
template <int kRegisters>
inline void DotTile(Ints (&sums)[kTile][kRegisters], const Ints (&planes)[kRegisters],
                    const Datum* data) {
#pragma GCC unroll 4
  for (int t = 0; t < kTile; ++t) {
    std::int32_t few;
    __builtin_memcpy(&few, data + t * kHeadDimHigh, sizeof few);
    const Ints spread = Set(few);
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) Dot(sums[t][r], planes[r], spread);
  }
}

// 16 hash bits for each of kTile rows and kRegisters neighbouring registers of 16 planes: the signs
// of thresholds[t] + sum of planes * data[t]. They leave in one piece, since a load of what several
// smaller stores wrote has to wait until those have reached the cache. Not inlined: GCC 12 then
// keeps thresholds in registers and planes in memory.
template <int kRegisters, bool kLifted>
[[gnu::noinline]] void HashTile(const Datum (*data)[kHeadDimHigh], const std::uint8_t* planes,
                                int steps, const std::int32_t* thresholds,
                                const std::int32_t* half_lifts, const std::int32_t* lift_planes,
                                std::uint16_t (*bits)[kMaxBitWords], int word) {
  Ints sums[kTile][kRegisters];
#pragma GCC unroll 4
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) {
      sums[t][r] = Set(thresholds[t]);
      if constexpr (kLifted) {
        sums[t][r] = Sub(sums[t][r], Mul(Load(lift_planes + 16 * r), Set(half_lifts[t])));
      }
    }
  }
  const std::int64_t register_stride = static_cast<std::int64_t>(steps) * 64;
  for (int s = 0; s < steps; ++s) {
    Ints plane[kRegisters];
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) {
      plane[r] = Load(reinterpret_cast<const std::int32_t*>(planes + r * register_stride + s * 64));
    }
    DotTile(sums, plane, data[0] + s * kStepDims);
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTile; ++t) {
    if constexpr (kRegisters == 4) {
      StoreSigns(sums[t][0], sums[t][1], sums[t][2], sums[t][3], bits[t] + word);
    } else {
      StoreSigns(sums[t][0], bits[t] + word);
    }
  }
}

inline int Steps(int head_dim) { return (head_dim + kStepDims - 1) / kStepDims; }

std::int64_t PlaneBytes(int num_planes, int head_dim) {
  return static_cast<std::int64_t>((num_planes + 15) / 16) * Steps(head_dim) * 64;
}

// [16 planes][steps][16][kStepDims], so that one load meets one broadcast of kStepDims coordinates.
void PackPlanes(const std::uint8_t* planes, int num_planes, int head_dim, void* packed) {
  const std::int64_t steps = Steps(head_dim);
  __builtin_memset(packed, 0, static_cast<std::size_t>(PlaneBytes(num_planes, head_dim)));
  for (int plane = 0; plane < num_planes; ++plane) {
    const std::uint8_t* source = planes + static_cast<std::int64_t>(plane) * head_dim;
    PlaneDatum* target =
        static_cast<PlaneDatum*>(packed) + (plane / 16 * steps * 16 + plane % 16) * kStepDims;
    int d = 0;
    for (; d + kStepDims <= head_dim; d += kStepDims, target += 16 * kStepDims) {
      for (int k = 0; k < kStepDims; ++k) target[k] = source[d + k];
    }
    for (int k = 0; d + k < head_dim; ++k) target[k] = source[d + k];
  }
}

// Rows [begin, end) of one head.
template <bool kLifted, class Code>
bool HashSome(const HashSpec& spec, const Rows& rows, std::int64_t begin, std::int64_t end,
              Code* codes, std::int64_t code_rows, std::uint16_t (*bits)[kMaxBitWords]) {
  const int steps = Steps(spec.head_dim);
  const int registers = (spec.num_hashes * spec.hash_bits + 15) / 16;
  const std::uint8_t* planes = static_cast<const std::uint8_t*>(spec.planes);
  alignas(64) Datum data[kBatch][kHeadDimHigh];
  alignas(64) std::int32_t thresholds[kBatch], half_lifts[kBatch];
  for (std::int64_t batch = begin; batch < end; batch += kBatch) {
    const int count = end - batch < kBatch ? static_cast<int>(end - batch) : kBatch;
    if (!Quantise(rows, batch, count, spec.head_dim, data, thresholds, spec.lift, half_lifts)) {
      return false;
    }
    for (int first = 0; first < count; first += kTile) {
      // Rows lie a hidden state apart, where no hardware prefetcher follows. Past the end is
      // harmless.
      for (int t = 0; t < kTile; ++t) {
        const float* next = rows.row(batch + kPrefetchRows + first + t);
        for (int d = 0; d < spec.head_dim; d += kBlock) __builtin_prefetch(next + d);
      }
      int word = 0;
      for (; word + kPlaneTile <= registers; word += kPlaneTile) {
        HashTile<kPlaneTile, kLifted>(data + first,
                                      planes + static_cast<std::int64_t>(word) * steps * 64, steps,
                                      thresholds + first, half_lifts + first,
                                      kLifted ? spec.lift_planes + 16 * word : nullptr, bits, word);
      }
      for (; word < registers; ++word) {
        HashTile<1, kLifted>(data + first, planes + static_cast<std::int64_t>(word) * steps * 64,
                             steps, thresholds + first, half_lifts + first,
                             kLifted ? spec.lift_planes + 16 * word : nullptr, bits, word);
      }
      for (int t = 0; t < kTile && first + t < count; ++t) {
        EmitCodes(reinterpret_cast<const std::uint8_t*>(bits[t]), spec, codes, batch + first + t,
                  code_rows);
      }
    }
  }
  return true;
}

// A few rows of all heads, then the next few: the heads' parts of a row lie side by side, on pages
// that a head of its own would have to walk through each time.
template <bool kLifted, class Code>
bool HashGaussianAs(const HashSpec* heads, int num_heads, const Rows& rows, Code* codes,
                    std::int64_t code_rows, std::int64_t head_codes) {
  std::uint16_t bits[kTile][kMaxBitWords];
  __builtin_memset(bits, 0, sizeof bits);
  for (std::int64_t begin = 0; begin < rows.count; begin += kPrefetchRows) {
    const std::int64_t end =
        rows.count - begin < kPrefetchRows ? rows.count : begin + kPrefetchRows;
    for (int h = 0; h < num_heads; ++h) {
      if (!HashSome<kLifted>(heads[h], rows.head(h, heads[h].head_dim), begin, end,
                             codes + h * head_codes, code_rows, bits)) {
        return false;
      }
    }
  }
  return true;
}

template <bool kLifted>
bool HashGaussianLifted(const HashSpec* heads, int num_heads, const Rows& rows, void* codes,
                        std::int64_t code_rows, std::int64_t head_codes) {
  return heads->wide()
             ? HashGaussianAs<kLifted>(heads, num_heads, rows, static_cast<std::uint16_t*>(codes),
                                       code_rows, head_codes)
             : HashGaussianAs<kLifted>(heads, num_heads, rows, static_cast<std::uint8_t*>(codes),
                                       code_rows, head_codes);
}

bool HashGaussian(const HashSpec* heads, int num_heads, const Rows& rows, void* codes,
                  std::int64_t code_rows, std::int64_t head_codes) {
  return heads->lift.any()
             ? HashGaussianLifted<true>(heads, num_heads, rows, codes, code_rows, head_codes)
             : HashGaussianLifted<false>(heads, num_heads, rows, codes, code_rows, head_codes);
}
