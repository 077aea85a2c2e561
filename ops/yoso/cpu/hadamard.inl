// The structured hash: H D3 H D2 U D1 in int32, for sixteen rows side by side. The D are diagonals
// of random signs and H is the Walsh-Hadamard transform. U has the same structure with steps
// (2a + b, a - 2b): under H alone a row with few nonzeros would take few distinct values, which
// would bias its collisions. Included inside the anonymous namespace of a kernel_*.cc file, after
// hash.inl.
//
// Interleaved layout: with d = head_dim rounded up to a power of two, bit i of hash t is coordinate
// t mod d of block (t / d) * hash_bits + i, and each block has signs of its own.
//
// Range: H stretches a row by sqrt(d), U by sqrt(5)^log2(d), which is 625 at d = 256. So values
// stay below 127 sqrt(d) d 625 < 2^28.3, and four times as much, as AddBits needs, fits int32.
//
// Ties: one-hot rows sometimes have a coordinate of exactly 0. The signs of the next two
// coordinates then decide: if 0 always counted as negative, query and key would agree too often.

// A norm lift adds a term of its own to each coordinate, by a Gaussian plane scaled to the entries
// of H D3 H D2 U D1. It is compared as a float: the transform's integers fill their range.

using Coordinate = std::int32_t[kBlock];  // of sixteen rows

// In place, over `size` (a power of two) coordinates. Not inlined, like Flip: inlined, GCC 12's
// code is a third slower.
[[gnu::noinline]] void WalshHadamard(Coordinate* x, int size) {
  int half = 1;
  if (__builtin_ctz(static_cast<unsigned>(size)) % 2 == 1) {
    for (int i = 0; i < size; i += 2) {
      const Ints a = Load(x[i]);
      const Ints b = Load(x[i + 1]);
      Store(x[i], Add(a, b));
      Store(x[i + 1], Sub(a, b));
    }
    half = 2;
  }
  for (; half < size; half *= 4) {  // two levels at once
    for (int start = 0; start < size; start += 4 * half) {
      for (int i = start; i < start + half; ++i) {
        const Ints a = Load(x[i]);
        const Ints b = Load(x[i + half]);
        const Ints c = Load(x[i + 2 * half]);
        const Ints d = Load(x[i + 3 * half]);
        const Ints ab = Add(a, b);
        const Ints a_b = Sub(a, b);
        const Ints cd = Add(c, d);
        const Ints c_d = Sub(c, d);
        Store(x[i], Add(ab, cd));
        Store(x[i + half], Add(a_b, c_d));
        Store(x[i + 2 * half], Sub(ab, cd));
        Store(x[i + 3 * half], Sub(a_b, c_d));
      }
    }
  }
}

// U, in place: the structure of WalshHadamard with steps (2a + b, a - 2b).
[[gnu::noinline]] void Uneven(Coordinate* x, int size) {
  for (int half = 1; half < size; half *= 2) {
    for (int start = 0; start < size; start += 2 * half) {
      for (int i = start; i < start + half; ++i) {
        const Ints a = Load(x[i]);
        const Ints b = Load(x[i + half]);
        Store(x[i], Add(Add(a, a), b));
        Store(x[i + half], Sub(a, Add(b, b)));
      }
    }
  }
}

// target = source with the signs of bits [bit, bit + size) of `signs`; a set bit is a minus.
[[gnu::noinline]] void Flip(const Coordinate* source, int size, const std::uint32_t* signs, int bit,
                            Coordinate* target) {
  for (int i = 0; i < size; ++i, ++bit) {
    const Ints minus = Set(-static_cast<std::int32_t>(signs[bit >> 5] >> (bit & 31) & 1u));
    Store(target[i], Sub(Xor(Load(source[i]), minus), minus));
  }
}

inline Ints Sign(Ints x) {  // -1, 0 or 1
  return Sub(SignBit(Sub(Set(std::int32_t{0}), x)), SignBit(x));
}

// The root mean square of the entries of H D3 H D2 U D1, 10^(log2(size) / 2), over 8: planes are
// in 1/64 of a standard deviation, lifts in halves, and coordinates are taken four times.
inline float LiftScale(int size) {
  switch (size) {
    case 32:
      return 39.528470752104745f;
    case 64:
      return 125.0f;
    case 128:
      return 395.28470752104744f;
    default:
      return 1250.0f;
  }
}

// As AddBits, with lifts: of sixteen rows, and of planes `step` apart.
inline void AddLiftedBits(const Coordinate* x, int size, int first, int count, int place,
                          Floats half_lifts, const std::int32_t* planes, int step,
                          Coordinate* bits) {
  const int last = size - 1;
  const float scale = LiftScale(size);
  for (int t = 0; t < count; ++t) {
    const Ints next = Sign(Load(x[(first + t + 1) & last]));
    const Ints after = Sign(Load(x[(first + t + 2) & last]));
    const Ints value = Add(ShiftLeft(Load(x[first + t]), 2), Add(Add(next, next), after));
    const Floats against = Mul(Set(-(scale * static_cast<float>(planes[t * step]))), half_lifts);
    const Ints positive = Round(WhereGreater(FloatOf(value), against, Set(1.0f), Set(0.0f)));
    Store(bits[t], Add(Load(bits[t]), ShiftLeft(positive, place)));
  }
}

// bits[t] += 2^place where coordinate first + t is positive.
inline void AddBits(const Coordinate* x, int size, int first, int count, int place,
                    Coordinate* bits) {
  const int last = size - 1;
  Ints next = Sign(Load(x[(first + 1) & last]));
  for (int t = 0; t < count; ++t) {
    const Ints after = Sign(Load(x[(first + t + 2) & last]));
    const Ints ties = Add(Add(next, next), after);
    const Ints value = Add(ShiftLeft(Load(x[first + t]), 2), ties);
    next = after;
    const Ints positive = SignBit(Sub(Set(std::int32_t{0}), value));  // x > 0 where -x is negative
    Store(bits[t], Add(Load(bits[t]), ShiftLeft(positive, place)));
  }
}

template <class Code>
bool HashHadamardAs(const HashSpec& spec, int first_hash, const Rows& rows, Code* codes,
                    std::int64_t code_rows) {
  int size = kMinHadamardSize;
  while (size < spec.head_dim) size *= 2;
  const std::uint32_t* signs = static_cast<const std::uint32_t*>(spec.planes);
  alignas(64) Coordinate data[kHeadDimHigh];
  alignas(64) Coordinate work[kHeadDimHigh];
  alignas(64) Coordinate bits[kMaxHadamardChunk];
  alignas(64) Datum quantised[kBatch][kHeadDimHigh];
  static_assert(kBatch == kBlock);
  const int end_hash = first_hash + spec.num_hashes;
  for (std::int64_t first = 0; first < rows.count; first += kBlock) {
    const int count = rows.count - first < kBlock ? static_cast<int>(rows.count - first) : kBlock;
    __builtin_memset(data, 0, sizeof(Coordinate) * size);
    __builtin_memset(bits, 0, sizeof(Coordinate) * spec.num_hashes);
    Ints sums;
    alignas(64) float scales[kBatch];
    if (!Quantise(rows, first, count, spec.head_dim, 127.0f, quantised, sums, scales)) return false;
    const bool lifted = spec.lift.any();
    const Floats half_lifts =
        lifted ? FloatOf(HalfLifts(quantised, scales, spec.head_dim, spec.lift.root)) : Zero();
    for (int lane = 0; lane < count; ++lane) {
      for (int d = 0; d < spec.head_dim; ++d) data[d][lane] = quantised[lane][d];
    }
    for (int part = first_hash / size; part * size < end_hash; ++part) {
      const int low = part * size > first_hash ? part * size : first_hash;
      const int high = (part + 1) * size < end_hash ? (part + 1) * size : end_hash;
      for (int i = 0; i < spec.hash_bits; ++i) {
        const int bit = (part * spec.hash_bits + i) * 3 * size;
        Flip(data, size, signs, bit, work);
        Uneven(work, size);
        Flip(work, size, signs, bit + size, work);
        WalshHadamard(work, size);
        Flip(work, size, signs, bit + 2 * size, work);
        WalshHadamard(work, size);
        if (lifted) {
          AddLiftedBits(work, size, low % size, high - low, i, half_lifts,
                        spec.lift_planes + low * spec.hash_bits + i, spec.hash_bits,
                        bits + (low - first_hash));
        } else {
          AddBits(work, size, low % size, high - low, i, bits + (low - first_hash));
        }
      }
    }
    for (int t = 0; t < spec.num_hashes; ++t) {
      Code* target = codes + (t / kGroup * code_rows + first) * kGroup + t % kGroup;
      for (int lane = 0; lane < count; ++lane) {
        target[lane * kGroup] = static_cast<Code>(bits[t][lane]);
      }
    }
  }
  return true;
}

bool HashHadamard(const HashSpec& spec, int first_hash, const Rows& rows, void* codes,
                  std::int64_t code_rows) {
  return spec.wide()
             ? HashHadamardAs(spec, first_hash, rows, static_cast<std::uint16_t*>(codes), code_rows)
             : HashHadamardAs(spec, first_hash, rows, static_cast<std::uint8_t*>(codes), code_rows);
}
