// Every operation here is one of IEEE 754 and rounded by itself (setup.py: no multiply-add is made of two), so that all
// machines give the same bits. Reduction of arguments: Cody and Waite, "Software Manual for the Elementary Functions"
// (1980); the series are Taylor's.
#include "elementary.h"

#include <cstdint>
#include <cstring>
#include <limits>

namespace mindbatch {
namespace elementary {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// ln(2) and pi / 2 in parts: products of all but the last with the whole numbers below are exact.
constexpr double kLn2[] = {0x1.62e42fefp-1, 0x1.473de6af278edp-34};
constexpr double kHalfPi[] = {0x1.921fb5p+0, 0x1.110b46p-26, 0x1.1a62633145c07p-54};
constexpr double kWhole = 0x1.8p52;  // what is added to it is rounded to a whole number

inline uint64_t bits_of(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline double from_bits(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// 2^n of a normal number.
inline double power_of_two(int64_t n) { return from_bits(static_cast<uint64_t>(n + 1023) << 52); }

// first + x * (second + x * (...))
template <int Count>
inline double polynomial(const double (&coefficients)[Count], double x) {
  double sum = coefficients[Count - 1];
  for (int i = Count - 2; i >= 0; i--) sum = sum * x + coefficients[i];
  return sum;
}

constexpr double factorial(int n) { return n < 2 ? 1.0 : n * factorial(n - 1); }

constexpr double kExp[] = {1 / factorial(2), 1 / factorial(3), 1 / factorial(4),  1 / factorial(5),  1 / factorial(6), 1 / factorial(7),
                           1 / factorial(8), 1 / factorial(9), 1 / factorial(10), 1 / factorial(11), 1 / factorial(12), 1 / factorial(13)};
constexpr double kAtanh[] = {1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15, 1. / 17, 1. / 19, 1. / 21, 1. / 23};
constexpr double kSine[] = {-1 / factorial(3), 1 / factorial(5), -1 / factorial(7), 1 / factorial(9),
                            -1 / factorial(11), 1 / factorial(13), -1 / factorial(15)};
constexpr double kCosine[] = {1 / factorial(4), -1 / factorial(6), 1 / factorial(8), -1 / factorial(10),
                              1 / factorial(12), -1 / factorial(14), 1 / factorial(16)};

}  // namespace

double exp(double x) {
  if (x != x) return x;
  if (x > 709.78) return kInfinity;
  if (x < -745.2) return 0;
  const double whole = x * 1.4426950408889634 + kWhole - kWhole;
  const double r = (x - whole * kLn2[0]) - whole * kLn2[1];
  const double value = 1 + (r + r * r * polynomial(kExp, r));
  const auto n = static_cast<int64_t>(whole), half = n / 2;  // in two steps, for numbers below the normal ones
  return value * power_of_two(half) * power_of_two(n - half);
}

double log(double x) {
  if (!(x >= 0)) return kNaN;
  if (x == 0) return -kInfinity;
  if (x == kInfinity) return x;
  double scaled = x;
  int64_t exponent = 0;
  if (x < 0x1p-1022) {
    scaled = x * 0x1p54;
    exponent = -54;
  }
  const uint64_t bits = bits_of(scaled);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  double m = from_bits((bits & 0x000fffffffffffff) | 0x3ff0000000000000);  // from 1 to 2
  if (m > 1.4142135623730951) {
    m *= 0.5;
    exponent++;
  }
  // log(m) = 2 atanh(s) = (m - 1) - s * (m - 1 - 2 s^2 (...)): what is small is added to the exact m - 1.
  const double f = m - 1, s = f / (2 + f), square = s * s, n = static_cast<double>(exponent);
  const double series = 2 * square * polynomial(kAtanh, square);
  return n * kLn2[0] + ((n * kLn2[1] - s * (f - series)) + f);
}

double log1p(double x) {
  const double whole = 1 + x;
  if (whole == 1) return x;
  if (!(whole > 0) || whole == kInfinity) return log(whole);
  return log(whole) * (x / (whole - 1));  // Kahan: the rounding of 1 + x is in both
}

Turn turn(double angle) {
  if (!(angle >= -1e8 && angle <= 1e8)) return {kNaN, kNaN};
  const double whole = angle * 0.63661977236758134 + kWhole - kWhole;
  const double r = ((angle - whole * kHalfPi[0]) - whole * kHalfPi[1]) - whole * kHalfPi[2];
  const double square = r * r;
  const double sine = r + r * square * polynomial(kSine, square);
  const double cosine = 1 - (0.5 * square - square * square * polynomial(kCosine, square));
  switch (static_cast<int64_t>(whole) & 3) {
    case 0: return {cosine, sine};
    case 1: return {-sine, cosine};
    case 2: return {-cosine, -sine};
    default: return {sine, -cosine};
  }
}

}  // namespace elementary
}  // namespace mindbatch
