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
    if (!Quantise(rows, first, count, spec.head_dim, 127.0f, quantised, sums)) return false;
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
        AddBits(work, size, low % size, high - low, i, bits + (low - first_hash));
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
