// The true derivative of the pairs of a bucket, each in the first hash in which it collides.
// Included inside the anonymous namespace of a gradient_*.cc file, after angle.inl.

// tau (1 - arccos(x) / pi)^(tau - 1) / (pi sqrt(1 - x^2 + softening)): eq. 3.
inline Floats TrueSlope(const Floats& cosine, int hash_bits, float softening) {
  const Floats x = Max(Min(cosine, Set(1.0f)), Set(-1.0f));
  const Floats rest = Sub(Set(1.0f), Abs(x));
  const Floats power = Power(CollisionShare(x, rest), hash_bits - 1);
  // 1 - x^2 as a product, which keeps its digits near 1.
  const Floats square = Add(Mul(rest, Add(Set(1.0f), Abs(x))), Set(softening));
  const Floats scale = Set(static_cast<float>(hash_bits) * kInversePi);
  return Div(Mul(power, scale), Sqrt(Max(square, Set(1e-12f))));
}

// Whether two rows share a code in any of the first `count` hashes. Plain integers in whole blocks,
// of which any compiler makes vectors; codes beyond `count` are read and do not count.
template <class Code>
inline bool MetBeforeAs(const Code* one, const Code* other, int count) {
  constexpr int kCodes = kHashChunk;
  for (; count >= kCodes; count -= kCodes, one += kCodes, other += kCodes) {
    Code met = 0;
    for (int t = 0; t < kCodes; ++t) met |= static_cast<Code>(one[t] == other[t]);
    if (met != 0) return true;
  }
  Code met = 0;
  for (int t = 0; t < kCodes; ++t) {
    met |= static_cast<Code>(static_cast<int>(one[t] == other[t]) & static_cast<int>(t < count));
  }
  return met != 0;
}

inline bool MetBefore(const EarlierHashes& earlier, std::int64_t query, std::int64_t key) {
  const std::uint8_t* one = earlier.query_codes + query * earlier.row_bytes;
  const std::uint8_t* other = earlier.key_codes + key * earlier.row_bytes;
  if (!earlier.wide) return MetBeforeAs(one, other, earlier.count);
  return MetBeforeAs(reinterpret_cast<const std::uint16_t*>(one),
                     reinterpret_cast<const std::uint16_t*>(other), earlier.count);
}
