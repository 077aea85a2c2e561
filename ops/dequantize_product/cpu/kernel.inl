// DequantizeProduct for any Simd.
//
// A thread owns whole rows and passes once over each: four bytes an element are read of the sums,
// four of the residual where there is one, four are written. Scales of channels and biases (24 KiB
// at 3,072 columns) stay in the cache from row to row. Each element is computed for itself, in
// this order and without fused roundings: ((sum * row scale) * channel scale) + bias, activation,
// + residual; so a row's bits depend on that row alone, and without gelu they are those of the
// standard nodes DequantizeLinear, Mul, Add, Relu, Add on every instruction set.
//
// LayerNormalization, where it follows, passes three times over a row that lies in the first cache
// by then: for its mean, for the deviations from it and their squares, and to scale them. Sums
// are 64 partial ones, element c in number c mod 64, added up as a tree: the same bits on every
// instruction set. Where a row's mean is far from 0 its rounding is not small beside the
// deviations; so their own mean is taken off once more, from them and from their variance.
//
// gelu(x) = x Phi(x) = max(x, 0) - |x| Q(|x|), Q(t) = Phi(-t) = 2^-P(t). P is a polynomial of
// degree 8, fitted on [0, 6] so that t Q(t) is off by at most 2.8e-8 there, and falls off without
// end beyond: Q(6) is 1e-9. With float32 arithmetic the result is off by at most 6e-8, and by half
// a unit of its last place from the last subtraction. Unlike x / 2 * (1 + erf(x / sqrt(2))), whose
// error for negative x grows with |x|, it keeps the small values that large negative numbers give.
// Its approximation by tanh has e / (1 + e) in the place of Q(t), e = exp(-2 sqrt(2 / pi) (t +
// 0.044715 t^3)), and the same bound.
#include <cmath>

#include "ops/dequantize_product/cpu/kernel.h"

namespace attenuator::dequantize_product {
namespace {

using Vector = Simd::Vector;

constexpr std::int64_t kWidth = Simd::kWidth;
// Factors of t^8 to 1 of -P(t).
constexpr float kLog2Tail[9] = {
    -5.856583698005124e-07f, 9.772059456736315e-06f, -2.9612752769025974e-05f,
    -0.0005663154879584908f, 0.00772093003615737f,   -0.05305962637066841f,
    -0.4589523673057556f,    -1.1511588096618652f,   -0.9999963641166687f};
// -2 sqrt(2 / pi) log2(e), and 0.044715 of that.
constexpr float kTanhLinear = -2.302208198144325f;
constexpr float kTanhCubic = -0.1029432395800235f;
constexpr float kLeastPower = -126.0f;  // of 2, below which Q is 0

struct None {
  static Vector Of(Vector x) { return x; }
};

struct Relu {
  static Vector Of(Vector x) { return Simd::Max(Simd::Zero(), x); }
};

struct Gelu {
  static Vector Of(Vector x) {
    const Vector t = Simd::Abs(x);
    Vector power = Simd::Set(kLog2Tail[0]);
    for (int i = 1; i < 9; ++i) power = Simd::Fma(power, t, Simd::Set(kLog2Tail[i]));
    const Vector tail = Simd::Exp2(power, Simd::Set(1.0f), Simd::Set(kLeastPower));
    return Simd::Sub(Simd::Max(Simd::Zero(), x), Simd::Mul(t, tail));
  }
};

struct GeluTanh {
  static Vector Of(Vector x) {
    const Vector t = Simd::Abs(x);
    const Vector factor = Simd::Fma(Simd::Mul(t, t), Simd::Set(kTanhCubic), Simd::Set(kTanhLinear));
    const Vector e = Simd::Exp2(Simd::Mul(t, factor), Simd::Set(1.0f), Simd::Set(kLeastPower));
    const Vector tail = Simd::Div(e, Simd::Add(e, Simd::Set(1.0f)));
    return Simd::Sub(Simd::Max(Simd::Zero(), x), Simd::Mul(t, tail));
  }
};

// A row's vectors of `count` elements from column c on; all of them where `whole`.
template <bool whole>
struct Lanes {
  std::int64_t count;

  Vector Load(const float* p) const { return whole ? Simd::Load(p) : Simd::LoadFirst(p, count); }
  Vector Load(const std::int32_t* p) const {
    if constexpr (whole) return Simd::FloatOf(Simd::Load(p));
    // The bits of integers pass through a register of floats as they are.
    const Vector bits = Simd::LoadFirst(reinterpret_cast<const float*>(p), count);
    return Simd::FloatOf(reinterpret_cast<const Simd::Integers&>(bits));
  }
  void Store(float* p, Vector x) const {
    if constexpr (whole) {
      Simd::Store(p, x);
    } else {
      Simd::StoreFirst(p, x, count);
    }
  }
};

// Partial sums of a row's elements or their squares.
struct RowSum {
  static constexpr std::int64_t kLanes = 64;
  static constexpr std::int64_t kVectors = kLanes / kWidth;

  Vector partial[kVectors];

  RowSum() {
    for (Vector& each : partial) each = Simd::Zero();
  }
  float Total() const {
    Vector sums[kVectors];
    for (std::int64_t i = 0; i < kVectors; ++i) sums[i] = partial[i];
    for (std::int64_t half = kVectors / 2; half > 0; half /= 2) {
      for (std::int64_t i = 0; i < half; ++i) sums[i] = Simd::Add(sums[i], sums[i + half]);
    }
    alignas(64) float lanes[kWidth];
    Simd::Store(lanes, sums[0]);
    for (std::int64_t half = kWidth / 2; half > 0; half /= 2) {
      for (std::int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }
};

// Calls run(c, number of its partial sum, lanes) for each vector of a row.
template <class Run>
void ForVectors(std::int64_t columns, const Run& run) {
  std::int64_t c = 0;
  for (; c + RowSum::kLanes <= columns; c += RowSum::kLanes) {
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < RowSum::kVectors; ++i) {
      run(c + i * kWidth, i, Lanes<true>{kWidth});
    }
  }
  for (std::int64_t i = 0; c < columns; ++i, c += kWidth) {
    if (columns - c >= kWidth) {
      run(c, i, Lanes<true>{kWidth});
    } else {
      run(c, i, Lanes<false>{columns - c});
    }
  }
}

// 0 where rounding made a variance negative; NaN for NaN.
float NotNegative(float variance) { return variance < 0.0f ? 0.0f : variance; }

// LayerNormalization of a row in its place.
void Normalize(const Product& product, float* row) {
  const std::int64_t columns = product.columns;
  RowSum sum;
  ForVectors(columns, [&](std::int64_t c, std::int64_t i, auto lanes) {
    sum.partial[i] = Simd::Add(sum.partial[i], lanes.Load(row + c));
  });
  const Vector mean = Simd::Set(sum.Total() / static_cast<float>(columns));
  RowSum deviations, squares;
  ForVectors(columns, [&](std::int64_t c, std::int64_t i, auto lanes) {
    lanes.Store(row + c, Simd::Sub(lanes.Load(row + c), mean));
    const Vector deviation = lanes.Load(row + c);  // 0 behind the row's end
    deviations.partial[i] = Simd::Add(deviations.partial[i], deviation);
    squares.partial[i] = Simd::Fma(deviation, deviation, squares.partial[i]);
  });
  const float rest = deviations.Total() / static_cast<float>(columns);
  const float variance = NotNegative(squares.Total() / static_cast<float>(columns) - rest * rest);
  const Vector correction = Simd::Set(rest);
  const Vector inverse = Simd::Set(1.0f / std::sqrt(variance + product.epsilon));
  ForVectors(columns, [&](std::int64_t c, std::int64_t, auto lanes) {
    const Vector unit = Simd::Mul(Simd::Sub(lanes.Load(row + c), correction), inverse);
    lanes.Store(row + c, Simd::Fma(unit, lanes.Load(product.norm_weight + c),
                                   lanes.Load(product.norm_bias + c)));
  });
}

template <class Function, bool bias, bool residual>
struct Rows {
  // Elements from column c on of the row whose first element is `first`.
  template <bool whole>
  static void Some(const Product& product, Vector scale, std::int64_t first, std::int64_t c,
                   Lanes<whole> lanes, float* output) {
    Vector x = Simd::Mul(lanes.Load(product.sums + first + c), scale);
    x = Simd::Mul(x, lanes.Load(product.channel_scale + c));
    if constexpr (bias) x = Simd::Add(x, lanes.Load(product.bias + c));
    x = Function::Of(x);
    if constexpr (residual) x = Simd::Add(x, lanes.Load(product.residual + first + c));
    lanes.Store(output + c, x);
  }

  static void Run(const Product& product, std::int64_t begin, std::int64_t end, float* output) {
    const std::int64_t columns = product.columns;
    for (std::int64_t row = begin; row < end; ++row, output += columns) {
      const Vector scale = Simd::Set(product.row_scale[row]);
      const std::int64_t first = row * columns;
      std::int64_t c = 0;
      for (; c + kWidth <= columns; c += kWidth) {
        Some(product, scale, first, c, Lanes<true>{kWidth}, output);
      }
      if (c < columns) Some(product, scale, first, c, Lanes<false>{columns - c}, output);
      if (product.norm_weight != nullptr) Normalize(product, output);
    }
  }
};

template <class Function>
void Dequantize(const Product& product, std::int64_t begin, std::int64_t end, float* output) {
  if (product.bias != nullptr) {
    (product.residual != nullptr ? &Rows<Function, true, true>::Run
                                 : &Rows<Function, true, false>::Run)(product, begin, end, output);
  } else {
    (product.residual != nullptr ? &Rows<Function, false, true>::Run
                                 : &Rows<Function, false, false>::Run)(product, begin, end, output);
  }
}

Kernel KernelOf(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return &Dequantize<Gelu>;
    case Activation::kGeluTanh:
      return &Dequantize<GeluTanh>;
    case Activation::kRelu:
      return &Dequantize<Relu>;
    default:
      return &Dequantize<None>;
  }
}

}  // namespace
}  // namespace attenuator::dequantize_product
