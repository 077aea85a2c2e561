// Directions in double precision, rounded to float at the end. Every operation is a single IEEE
// addition, multiplication, division or square root in a fixed order (the library's log and cos are
// not the same everywhere), so every machine draws the same bits. AVX2 is what all of them have;
// loops over lanes are the compiler's to vectorise.
#include <cmath>
#include <tuple>
#include <vector>

#include "ops/common/features/cpu/state.h"
#include "ops/common/features/directions.h"
#include "ops/common/lru_cache.h"
#include "ops/common/philox_lanes.h"
#include "ops/common/simd/avx2.h"

namespace attenuator::features {
namespace {

constexpr std::int64_t kCacheBytes = 64 << 20;
constexpr int kLanes = 8;  // of a sum

// a[0] + a[1] x + ... of degree 7.
inline double Polynomial(const double (&a)[8], double x) {
  double y = a[7];
  for (int i = 6; i >= 0; --i) y = y * x + a[i];
  return y;
}

// log(x) for normal x > 0: by log m = 2 atanh((m - 1) / (m + 1)), m within sqrt(2) of 1.
double Log(double x) {
  constexpr double kSqrtHalf = 0.70710678118654752, kLog2 = 0.69314718055994531;
  int exponent;
  double m = std::frexp(x, &exponent);
  if (m < kSqrtHalf) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int n = 23; n >= 3; n -= 2) sum = (sum + 1.0 / n) * square;
  return 2 * (s + s * sum) + exponent * kLog2;
}

// The inverse of the normal distribution: Wichura, "Algorithm AS 241", Applied Statistics 37(3),
// 1988, PPND16; relative error about 1e-16. Central region, |q| <= 0.425, and tails.
constexpr double kCentre[2][8] = {
    {3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3,
     1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
     3.3430575583588128105e+4, 2.5090809287301226727e+3},
    {1.0, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
     2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4,
     5.2264952788528545610e+3}};
constexpr double kNear[2][8] = {
    {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4},
    {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9}};
constexpr double kFar[2][8] = {
    {6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7},
    {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15}};

double Tail(double q) {
  const double r = std::sqrt(-Log(0.5 - std::fabs(q)));
  const double x = r <= 5 ? Polynomial(kNear[0], r - 1.6) / Polynomial(kNear[1], r - 1.6)
                          : Polynomial(kFar[0], r - 5) / Polynomial(kFar[1], r - 5);
  return q < 0 ? -x : x;
}

// A standard normal number from each word: the quantile at (word + 1/2) / 2^32.
void Normals(const std::uint32_t* words, int count, double* normals) {
  for (int i = 0; i < count; ++i) {
    const double q = (words[i] + 0.5) * 0x1p-32 - 0.5;
    const double r = 0.180625 - q * q;
    normals[i] = q * Polynomial(kCentre[0], r) / Polynomial(kCentre[1], r);
  }
  for (int i = 0; i < count; ++i) {
    const double q = (words[i] + 0.5) * 0x1p-32 - 0.5;
    if (std::fabs(q) > 0.425) normals[i] = Tail(q);
  }
}

// Sum of products, `dims` a multiple of kLanes.
double Dot(const double* a, const double* b, std::int64_t dims) {
  double sums[kLanes] = {};
  for (std::int64_t c = 0; c < dims; c += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[c + lane] * b[c + lane];
  }
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int lane = 0; lane < step; ++lane) sums[lane] += sums[lane + step];
  }
  return sums[0];
}

// Makes `row` orthogonal to the unit rows before it and of length 1. Twice, since what is left of
// a row may be small beside what was taken off.
void Orthogonalise(const double* units, std::int64_t before, std::int64_t dims, double* row,
                   double* products) {
  for (int pass = 0; pass < 2; ++pass) {
    for (std::int64_t j = 0; j < before; ++j) products[j] = Dot(units + j * dims, row, dims);
    for (std::int64_t j = 0; j < before; ++j) {
      const double* unit = units + j * dims;
      for (std::int64_t c = 0; c < dims; ++c) row[c] -= products[j] * unit[c];
    }
  }
  const double length = std::sqrt(Dot(row, row, dims));
  for (std::int64_t c = 0; c < dims; ++c) row[c] /= length;
}

Directions Draw(const DirectionFamily& family, std::int32_t head, int count) {
  const std::int64_t dims = family.head_dim, padded = (dims + kLanes - 1) / kLanes * kLanes;
  constexpr int kWords = 4 * WideLanes::kCount;  // drawn at once
  const std::int64_t block = family.orthogonal ? dims : 1;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(dims + 2 * kWords));
  std::vector<double> units(static_cast<std::size_t>(block * padded)), products(units.size());
  const std::int64_t pitch = Pitch(count);
  Directions result{.count = count, .pitch = pitch, .bytes = 4 * dims * pitch, .data = {}};
  result.data = MakeAligned<float>(dims * pitch);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * dims, first = begin / kWords * kWords;
    for (std::int64_t w = first; w < begin + dims; w += kWords) {
      WideLanes::Type lanes[4];
      PhiloxLanes<WideLanes>(family.seed, family.layer, static_cast<std::uint32_t>(head),
                             family.stream, static_cast<std::uint64_t>(w / 4), lanes);
      WideLanes::Store(lanes, words.data() + (w - first));
    }
    double* row = units.data() + i % block * padded;
    Normals(words.data() + (begin - first), static_cast<int>(dims), row);
    double length = 1;
    if (family.orthogonal) {
      length = std::sqrt(Dot(row, row, padded));
      Orthogonalise(units.data(), i % block, padded, row, products.data());
    }
    for (std::int64_t c = 0; c < dims; ++c) {
      result.data[c * pitch + i] = static_cast<float>(row[c] * length);
    }
  }
  return result;
}

// Ordered by seed first, so that the entries of one request are neighbours, and by head last.
using CacheKey = std::tuple<std::int64_t, std::uint32_t, Stream, int, std::int32_t>;

}  // namespace

std::shared_ptr<const Directions> GetDirections(const DirectionFamily& family, std::int32_t head,
                                                int count) {
  static LruCache<CacheKey, Directions, &Directions::count> cache(kCacheBytes);
  const CacheKey key{family.seed, family.layer, family.stream, family.head_dim, head};
  if (auto cached = cache.Find(key, count)) return cached;
  // Drawn outside the lock.
  const int whole = static_cast<int>(PaddedToVectors(count));
  const auto directions = std::make_shared<const Directions>(Draw(family, head, whole));
  cache.Insert(key, directions);
  return directions;
}

}  // namespace attenuator::features
