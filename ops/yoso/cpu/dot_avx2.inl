// What hash.inl asks of an instruction set, for AVX2. Included inside the anonymous namespace of a
// kernel_*.cc file.

// 16-bit planes times 16-bit data, two products a lane, exact in 32 bits: vpmaddwd. (Products of
// bytes through vpmaddubsw would saturate at 255 * 127 * 2.)
using Datum = std::int16_t;
using PlaneDatum = std::int16_t;
inline constexpr int kStepDims = 2;

inline void StoreData(Datum* p, Ints a) { StoreInt16(p, a); }
inline void StoreData(Datum* p, const Ints (&a)[4]) {
  for (int i = 0; i < 4; ++i) StoreInt16(p + i * kBlock, a[i]);
}

// Of hash.inl's template. In one piece of assembly: from intrinsics GCC 12 keeps so many products
// in flight that an accumulator goes to memory, and around smaller pieces it copies accumulators,
// which costs a quarter. 13 of the 16 registers are in use.
inline void DotTile(Ints (&sums)[kTile][1], const Ints (&planes)[1], const Datum* data) {
  constexpr int kRow = kHeadDimHigh * sizeof(Datum);
  __m256i low, high, spread;  // products with either half of the planes, and a row's two numbers
  asm("vpbroadcastd (%[data]), %[spread]\n\t"
      "vpmaddwd %[p], %[spread], %[low]\n\t"
      "vpmaddwd %[q], %[spread], %[high]\n\t"
      "vpbroadcastd %c[row](%[data]), %[spread]\n\t"
      "vpaddd %[low], %[a], %[a]\n\t"
      "vpaddd %[high], %[b], %[b]\n\t"
      "vpmaddwd %[p], %[spread], %[low]\n\t"
      "vpmaddwd %[q], %[spread], %[high]\n\t"
      "vpbroadcastd 2*%c[row](%[data]), %[spread]\n\t"
      "vpaddd %[low], %[c], %[c]\n\t"
      "vpaddd %[high], %[d], %[d]\n\t"
      "vpmaddwd %[p], %[spread], %[low]\n\t"
      "vpmaddwd %[q], %[spread], %[high]\n\t"
      "vpbroadcastd 3*%c[row](%[data]), %[spread]\n\t"
      "vpaddd %[low], %[e], %[e]\n\t"
      "vpaddd %[high], %[f], %[f]\n\t"
      "vpmaddwd %[p], %[spread], %[low]\n\t"
      "vpmaddwd %[q], %[spread], %[high]\n\t"
      "vpaddd %[low], %[g], %[g]\n\t"
      "vpaddd %[high], %[h], %[h]"
      : [a] "+x"(sums[0][0].part[0]), [b] "+x"(sums[0][0].part[1]), [c] "+x"(sums[1][0].part[0]),
        [d] "+x"(sums[1][0].part[1]), [e] "+x"(sums[2][0].part[0]), [f] "+x"(sums[2][0].part[1]),
        [g] "+x"(sums[3][0].part[0]), [h] "+x"(sums[3][0].part[1]), [low] "=&x"(low),
        [high] "=&x"(high), [spread] "=&x"(spread)
      : [p] "x"(planes[0].part[0]), [q] "x"(planes[0].part[1]), [data] "r"(data), [row] "i"(kRow),
        "m"(*reinterpret_cast<const Datum(*)[kTile][kHeadDimHigh]>(data)));
  static_assert(kTile == 4);
}
