// How likely two rows at an angle share a bit and a code. Included inside the anonymous namespace
// of the files of one instruction set.

constexpr float kInversePi = 0.318309886183790672f;

// 1 - arccos(x) / pi, where `rest` is 1 - |x|.
inline Floats CollisionShare(const Floats& x, const Floats& rest) {
  // arccos(x) = sqrt(1 - x) p(x) on [0, 1], error below 2e-8 (Abramowitz and Stegun 4.4.46); here
  // divided by pi.
  constexpr float kCoefficients[] = {-0.0012624911f, 0.0066700901f, -0.0170881256f, 0.0308918810f,
                                     -0.0501743046f, 0.0889789874f, -0.2145988016f, 1.5707963050f};
  const Floats magnitude = Abs(x);
  Floats polynomial = Set(kCoefficients[0]);
  for (int k = 1; k < 8; ++k) polynomial = Fma(polynomial, magnitude, Set(kCoefficients[k]));
  const Floats turn = Mul(Mul(Sqrt(rest), polynomial), Set(kInversePi));  // angle / pi of |x|
  return WhereNegative(x, turn, Sub(Set(1.0f), turn));
}

// base^exponent; exponent is not negative.
inline Floats Power(Floats base, int exponent) {
  Floats power = Set(1.0f);
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) power = Mul(power, base);
    base = Mul(base, base);
  }
  return power;
}
