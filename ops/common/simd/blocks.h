// Sixteen floats or sixteen 32-bit integers at a time, in one register of AVX-512 or two of AVX2:
// the same code for both, in the words of Simd. Included by blocks_avx2.h and blocks_avx512.h,
// which include their Simd first and add what the two instruction sets do differently.
#pragma once

#include <concepts>
#include <cstdint>

namespace attenuator {
namespace {

constexpr int kParts = 16 / Simd::kWidth;

struct Floats {
  Simd::Vector part[kParts];
};
struct Ints {
  Simd::Integers part[kParts];
};
template <class X>
concept Sixteen = std::same_as<X, Floats> || std::same_as<X, Ints>;

// function(first lane) for each register.
template <Sixteen Result, class Function>
[[gnu::always_inline]] inline Result FromLane(const Function& function) {
  if constexpr (kParts == 1) {
    return {{function(0)}};
  } else {
    return {{function(0), function(static_cast<int>(Simd::kWidth))}};
  }
}
// function(registers) of each register of the operands.
template <Sixteen Result, class Function, Sixteen... X>
[[gnu::always_inline]] inline Result Each(const Function& function, const X&... x) {
  if constexpr (kParts == 1) {
    return {{function(x.part[0]...)}};
  } else {
    return {{function(x.part[0]...), function(x.part[1]...)}};
  }
}

inline Floats Zero() { return Each<Floats>(Simd::Zero); }
inline Floats Set(float x) {
  return Each<Floats>([=] { return Simd::Set(x); });
}
inline Ints Set(std::int32_t x) {
  return Each<Ints>([=] { return Simd::Set(x); });
}
inline Floats Load(const float* p) {
  return FromLane<Floats>([=](int lane) { return Simd::Load(p + lane); });
}
inline Ints Load(const std::int32_t* p) {
  return FromLane<Ints>([=](int lane) { return Simd::Load(p + lane); });
}
template <Sixteen X, class Number>
inline void Store(Number* p, const X& x) {
  Simd::Store(p, x.part[0]);
  if constexpr (kParts == 2) Simd::Store(p + Simd::kWidth, x.part[1]);
}
// The first `count` lanes, 1 to 16; the others are 0 or not written. Simd of AVX2 takes a count
// below 1 as 0 and one above its width as its width.
inline Floats LoadFirst(const float* p, int count) {
  return FromLane<Floats>([=](int lane) { return Simd::LoadFirst(p + lane, count - lane); });
}
inline void StoreFirst(float* p, const Floats& x, int count) {
  Simd::StoreFirst(p, x.part[0], count);
  if constexpr (kParts == 2) {
    Simd::StoreFirst(p + Simd::kWidth, x.part[1], count - Simd::kWidth);
  }
}

template <Sixteen X>
inline X Add(const X& x, const X& y) {
  return Each<X>([](auto a, auto b) { return Simd::Add(a, b); }, x, y);
}
template <Sixteen X>
inline X Sub(const X& x, const X& y) {
  return Each<X>([](auto a, auto b) { return Simd::Sub(a, b); }, x, y);
}
template <Sixteen X>
inline X Max(const X& x, const X& y) {
  return Each<X>([](auto a, auto b) { return Simd::Max(a, b); }, x, y);
}
template <Sixteen X>
inline X Min(const X& x, const X& y) {
  return Each<X>([](auto a, auto b) { return Simd::Min(a, b); }, x, y);
}
template <Sixteen X>
inline X Mul(const X& x, const X& y) {
  return Each<X>([](auto a, auto b) { return Simd::Mul(a, b); }, x, y);
}
inline Floats Div(const Floats& x, const Floats& y) { return Each<Floats>(Simd::Div, x, y); }
inline Floats Fma(const Floats& x, const Floats& y, const Floats& z) {
  return Each<Floats>(Simd::Fma, x, y, z);
}
inline Floats Sqrt(const Floats& x) { return Each<Floats>(Simd::Sqrt, x); }
inline Floats Abs(const Floats& x) { return Each<Floats>(Simd::Abs, x); }
// s < 0 ? x : y, lane by lane.
inline Floats WhereNegative(const Floats& s, const Floats& x, const Floats& y) {
  return Each<Floats>(Simd::WhereNegative, s, x, y);
}
// s > t ? x : y, lane by lane.
inline Floats WhereGreater(const Floats& s, const Floats& t, const Floats& x, const Floats& y) {
  return Each<Floats>(Simd::WhereGreater, s, t, x, y);
}

inline Ints Xor(const Ints& x, const Ints& y) { return Each<Ints>(Simd::Xor, x, y); }
// 1 in the lanes where x is negative, else 0.
inline Ints SignBit(const Ints& x) { return Each<Ints>(Simd::SignBit, x); }
inline Ints ShiftLeft(const Ints& x, int bits) {
  return Each<Ints>([=](auto a) { return Simd::ShiftLeft(a, bits); }, x);
}
// floor(x / 2).
inline Ints Half(const Ints& x) { return Each<Ints>(Simd::Half, x); }
// The nearest integer, ties to even, whatever the rounding mode of the thread.
inline Ints Round(const Floats& x) { return Each<Ints>(Simd::Round, x); }
// The nearest floats.
inline Floats FloatOf(const Ints& x) { return Each<Floats>(Simd::FloatOf, x); }
// The bits of |x|: they are ordered as the floats are, infinities and NaNs above the rest.
inline Ints AbsBits(const Floats& x) { return Each<Ints>(Simd::AbsBits, x); }
inline Floats FloatOfBits(const Ints& x) { return Each<Floats>(Simd::FloatOfBits, x); }

// Over all lanes.
template <Sixteen X>
inline auto Sum(const X& x) {
  if constexpr (kParts == 1) {
    return Simd::Sum(x.part[0]);
  } else {
    return Simd::Sum(Simd::Add(x.part[0], x.part[1]));
  }
}
template <Sixteen X>
inline auto Largest(const X& x) {
  if constexpr (kParts == 1) {
    return Simd::Largest(x.part[0]);
  } else {
    return Simd::Largest(Simd::Max(x.part[0], x.part[1]));
  }
}

}  // namespace
}  // namespace attenuator
