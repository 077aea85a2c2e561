// A block of rows over all the keys that they see: which keys come together, and what happens to
// scores, weights and sums between the products, which the unit that includes this defines.
// Included inside the anonymous namespace of int8_avx512_vnni.cc and int8_avx512_amx.cc.

// Whether the last key is a key block of its own: the bytes of other weights would be next to
// nothing beside one that counts often.
inline bool LastApart(const Head& head) { return head.last_key_rows != 1; }

// Calls visit(keys, masked) for each range of keys that the rows see, in order. A key that all see
// comes apart from the others, as in ForKeys of block.inl, and so does one that stands for several.
template <class Visit>
inline void ForKeyBlocks(const Head& head, const Rows& rows, const Visit& visit) {
  const std::int64_t end = rows.begin + rows.count;
  std::int64_t low = 0, high = head.length;
  if (head.window > 0) {
    low = Larger(SeenBegin(head, rows.begin), head.global_token ? 1 : 0);
    high = Smaller(SeenEnd(head, end - 1), head.length);
    if (head.global_token) visit(Keys(0, 1), false);
  }
  for (std::int64_t first = low, last; first < high; first = last) {
    last = Smaller((first / kInt8KeyBlock + 1) * kInt8KeyBlock, high);
    if (LastApart(head) && last == head.length && first < last - 1) --last;
    const bool masked =
        head.window > 0 && (first < SeenBegin(head, end - 1) || last > SeenEnd(head, rows.begin));
    visit(Keys(first, last), masked);
  }
}

// Hides what rows do not see, and finds the largest scores again.
inline void Adjust(const Head& head, const Rows& rows, const Keys& keys, bool masked,
                   const Int8Scratch& scratch) {
  const std::int64_t pitch = rows.pitch;
  std::int32_t* const scores = scratch.scores - keys.low * pitch;
  if (masked) {
    Mask(head, rows.begin, rows.count, keys.first, keys.last,
         reinterpret_cast<float*>(scores + keys.first * pitch), pitch);
  }
  const Integers unseen = _mm512_castps_si512(Simd::Set(-__builtin_inff()));
  for (std::int64_t lane = 0; lane < pitch; lane += kWidth) {
    Integers most = unseen;
    for (std::int64_t j = keys.low; j < keys.low + keys.count; ++j) {
      std::int32_t* const at = scores + j * pitch + lane;
      if (j < keys.first || j >= keys.last) Simd::Store(at, unseen);
      most = Simd::Max(most, Simd::Load(at));
    }
    Simd::Store(scratch.most + lane, most);
  }
}

// Weights of a key block from its scores.
template <bool kSome>
inline void Weigh(const Rows& rows, const Keys& keys, std::uint8_t* weights,
                  const Int8Scratch& scratch) {
  std::int64_t lane = 0;
  for (; lane + 2 * kWidth <= rows.pitch; lane += 2 * kWidth) {
    WeighLanes<kSome, 2>(lane, keys.count, rows.pitch, scratch.scores, weights, scratch);
  }
  if (lane < rows.pitch) {
    WeighLanes<kSome, 1>(lane, keys.count, rows.pitch, scratch.scores, weights, scratch);
  }
}

inline void Write(const Head& head, const Rounded& rounded, const Rows& rows, float* output,
                  std::int64_t output_stride, const Int8Scratch& scratch) {
  const std::int64_t columns = Padded(head.value_dim);
  for (std::int64_t c = 0; c < head.value_dim; c += kWidth) {
    const Vector scale = Simd::Load(rounded.value_scale + c);
    const Vector mean = Simd::Load(rounded.value_mean + c);
    for (std::int64_t i = 0; i < rows.count; i += 4) {
      Vector kept[4];
      LoadKept(rows, columns, i, c, scratch, kept);
      for (std::int64_t r = 0; r < 4 && i + r < rows.count; ++r) {
        const Vector inverse = Simd::Set(scratch.poison[i + r] / scratch.sum[i + r]);
        Simd::StoreFirst(output + (i + r) * output_stride + c,
                         Simd::Fma(Simd::Mul(kept[r], inverse), scale, mean),
                         Smaller(head.value_dim - c, kWidth));
      }
    }
  }
}

// maxima[j] = max(maxima[j], max over rows of the weight of key j, relative to its row's sum).
inline void TakeMaxima(const Rows& rows, const Keys& keys, const std::uint8_t* weights,
                       const float* factors, float* maxima) {
  const Integers byte = Simd::Set(0xFF);
  for (std::int64_t j = 0; j < keys.count; j += 4) {
    Vector most[4] = {Simd::Zero(), Simd::Zero(), Simd::Zero(), Simd::Zero()};
    for (std::int64_t lane = 0; lane < rows.count; lane += kWidth) {
      const Integers four = _mm512_loadu_si512(weights + j * rows.pitch + lane * 4);
      const Vector factor = Simd::Load(factors + lane);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Integers weight = _mm512_and_si512(_mm512_srli_epi32(four, 8 * i), byte);
        most[i] = Simd::Max(Simd::Mul(Simd::FloatOf(weight), factor), most[i]);
      }
    }
    for (int i = 0; i < 4; ++i) {
      const std::int64_t key = keys.low + j + i;
      if (key < keys.first || key >= keys.last) continue;
      const float largest = Simd::Largest(most[i]);
      maxima[key] = largest > maxima[key] ? largest : maxima[key];
    }
  }
}

// The same over all key blocks of rows whose weights are kept.
inline void AllMaxima(const Head& head, const Rows& rows, std::uint64_t unusable,
                      const Int8Scratch& scratch, float* maxima) {
  const Vector one = Simd::Set(1.0f), least = Simd::Set(-125.99f);
  const std::uint8_t* weights = scratch.weights;
  const float* tops = scratch.tops;
  float* const factors = scratch.new_factor;
  ForKeyBlocks(head, rows, [&](const Keys& keys, bool) {
    for (std::int64_t lane = 0; lane < rows.pitch; lane += kWidth) {
      const Vector below = Simd::Sub(Simd::Load(tops + lane), Simd::Load(scratch.maximum + lane));
      const Vector share =
          Simd::Div(Simd::Load(scratch.poison + lane), Simd::Load(scratch.sum + lane));
      Simd::Store(factors + lane, Simd::Mul(Simd::Exp2(below, one, least), share));
    }
    for (std::int64_t lane = 0; lane < rows.pitch; ++lane) {
      if (lane >= rows.count || (unusable >> lane & 1) != 0) factors[lane] = 0;
    }
    TakeMaxima(rows, keys, weights, factors, maxima);
    weights += keys.count * rows.pitch;
    tops += kQueryBlock;
  });
}

// The rows whose weights no bytes stand for: beside a large weight, a tail of small ones that all
// rounded down, or up, moved the row's sum by more than a 64th.
inline std::uint64_t Unusable(const Rows& rows, const Int8Scratch& scratch) {
  std::uint64_t bits = 0;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    if (scratch.lost[i] > 2 * scratch.sum[i]) bits |= std::uint64_t{1} << i;
  }
  return bits;
}

// One block of rows over all the keys that they see; which of them are not usable.
inline std::uint64_t AttendBlock(const Head& head, const Rounded& rounded, const Rows& rows,
                                 float* output, std::int64_t output_stride, float* maxima,
                                 const Int8Scratch& scratch) {
  RoundQueries(head, *rounded.key_factor, rows.begin, rows.count, rows.pitch, scratch);
  std::uint8_t* weights = scratch.weights;
  float* tops = maxima == nullptr ? nullptr : scratch.tops;
  bool any = false;
  ForKeyBlocks(head, rows, [&](const Keys& keys, bool masked) {
    const bool apart = LastApart(head) && keys.last == head.length;
    Score(head, rounded, rows, keys, scratch);
    if (masked || keys.count != keys.last - keys.first) {
      Adjust(head, rows, keys, masked, scratch);
      Weigh<true>(rows, keys, weights, scratch);
    } else {
      Weigh<false>(rows, keys, weights, scratch);
    }
    TakeWeights(rows.pitch, apart ? __builtin_log2f(head.last_key_rows) : 0, tops, scratch);
    AddValues(head, rounded, rows, keys, weights, any, scratch);
    any = true;
    if (maxima == nullptr) return;
    weights += keys.count * rows.pitch;
    tops += kQueryBlock;
  });
  Write(head, rounded, rows, output, output_stride, scratch);
  const std::uint64_t unusable = Unusable(rows, scratch);
  if (maxima != nullptr) AllMaxima(head, rows, unusable, scratch, maxima);
  return unusable;
}

std::uint64_t Attend(const Head& unchecked, const std::byte* memory, std::int64_t begin,
                     std::int64_t end, float* output, std::int64_t output_stride, float* maxima,
                     float* scratch_memory) {
  const Head head = Normalized(unchecked);
  const Rounded rounded(head, const_cast<std::byte*>(memory));
  if (!rounded.usable()) return ~std::uint64_t{0};
  const Int8Scratch scratch(unchecked, maxima != nullptr, scratch_memory);
  const std::int64_t count = end - begin;
  return AttendBlock(head, rounded, {.begin = begin, .count = count, .pitch = Padded(count)},
                     output, output_stride, maxima, scratch);
}
