// Vectors of MB_LANES floats, written with compiler vector types so that one source serves AVX-512, AVX2 and
// plain (SSE2, NEON) builds. Included once per variant, inside that variant's namespace.
//
// Every operation is rounded by itself, multiply-adds only where `fma` says so, and what is summed over a row is summed
// in kSumLanes lanes whatever the vectors are: all variants give the same bits, but that of plain x86, which has no
// multiply-add.

constexpr int kLanes = MB_LANES;
typedef float Vec __attribute__((vector_size(MB_LANES * 4), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(MB_LANES * 4), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

// a * b + c where vectors are those of NEON or SSE2: of the latter rounded twice, unless another processor is emulated.
template <class V>
inline V narrow_fma(V a, V b, V c) {
#if defined(__aarch64__)
  return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(MB_EMULATED)
  for (unsigned l = 0; l < sizeof c / sizeof(float); l++) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
  return c;
#else
  return a * b + c;
#endif
}

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// Vectors as template arguments: as such, a vector type would lose its attributes, the alignment among them.
// Numbers of bfloat16 are loaded as floats, whose upper bits they are.
struct AllLanes {
  static constexpr int kCount = kLanes;
  typedef Vec Type;
  typedef uint16_t Halves __attribute__((vector_size(MB_LANES * 2), aligned(2), may_alias));
  typedef uint32_t Words __attribute__((vector_size(MB_LANES * 4)));
  static Type load(const float* p) { return *reinterpret_cast<const Type*>(p); }
  static Type load(const uint16_t* p) {
#if defined(__AVX512F__)  // GCC 12 widens half a vector at a time
    return (Type)((Words)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))) << 16);
#else
    return (Type)(__builtin_convertvector(*reinterpret_cast<const Halves*>(p), Words) << 16);
#endif
  }
  static void store(float* p, Type v) { *reinterpret_cast<Type*>(p) = v; }
  static Type splat(float x) { return x - Type{}; }  // x - 0 is x for every x, so this folds to a broadcast
  // a * b + c, rounded once.
  static Type fma(Type a, Type b, Type c) {
#if defined(__AVX512F__)
    return (Type)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Type)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return narrow_fma(a, b, c);
#endif
  }
  // Of numbers that bfloat16 has.
  static void store(uint16_t* p, Type v) {
    *reinterpret_cast<Halves*>(p) = __builtin_convertvector((Words)v >> 16, Halves);
  }
};
// Eight lanes, or fewer where vectors are shorter: what the smallest cache block holds.
struct FewLanes {
  static constexpr int kCount = kLanes < 8 ? kLanes : 8;
  typedef float Type __attribute__((vector_size(kCount * 4), aligned(4), may_alias));
  typedef uint16_t Halves __attribute__((vector_size(kCount * 2), aligned(2), may_alias));
  typedef uint32_t Words __attribute__((vector_size(kCount * 4)));
  static Type load(const float* p) { return *reinterpret_cast<const Type*>(p); }
  static Type load(const uint16_t* p) {
    return (Type)(__builtin_convertvector(*reinterpret_cast<const Halves*>(p), Words) << 16);
  }
  static void store(float* p, Type v) { *reinterpret_cast<Type*>(p) = v; }
  static Type splat(float x) { return x - Type{}; }
  static Type fma(Type a, Type b, Type c) {
#if defined(__FMA__)
    return (Type)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return narrow_fma(a, b, c);
#endif
  }
};

inline IntVec load_ints(const void* p) { return *static_cast<const IntVec*>(p); }

inline Vec fma(Vec a, Vec b, Vec c) { return AllLanes::fma(a, b, c); }
inline IntVec splat_int(int32_t x) { return x - IntVec{}; }
inline Vec splat(float x) { return AllLanes::splat(x); }
inline Vec select(IntVec mask, Vec yes, Vec no) {
  return (Vec)((mask & (IntVec)yes) | (~mask & (IntVec)no));
}
inline Vec vmin(Vec a, Vec b) { return a < b ? a : b; }
inline Vec vmax(Vec a, Vec b) { return a > b ? a : b; }

inline float largest_of(Vec v) {
  float part[kLanes];
  store(part, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) part[i] = part[i + width] > part[i] ? part[i + width] : part[i];
  return part[0];
}

// Calls step(n) for n from 0 to N - 1. What is computed of several vectors, a few operations of each at a time, does not
// wait for the result of each operation.
template <int N, class Step>
__attribute__((always_inline)) inline void for_each(Step step) {
#pragma GCC unroll 8
  for (int n = 0; n < N; n++) step(n);
}

constexpr int kAtOnce = 4;  // as many vectors as loops over long rows take together

// Lanes of a sum over a row: its number i goes to lane i % kSumLanes.
constexpr int kSumLanes = 16, kSumVecs = kSumLanes / kLanes;

struct Sums {
  Vec lanes[kSumVecs] = {};

  // Of the numbers of a row from `position` on, a multiple of kLanes: the vector of their sums.
  static int64_t vector_of(int64_t position) { return position / kLanes % kSumVecs; }
  Vec& at(int64_t position) { return lanes[vector_of(position)]; }
  void add(int64_t position, Vec numbers) { at(position) = at(position) + numbers; }

  // Halves are added up until one lane is left.
  float total() const {
    float part[kSumLanes];
    for_each<kSumVecs>([&](int v) { store(part + v * kLanes, lanes[v]); });
    for (int width = kSumLanes / 2; width > 0; width /= 2)
      for (int i = 0; i < width; i++) part[i] += part[i + width];
    return part[0];
  }
};

inline Sums operator+(const Sums& a, const Sums& b) {
  Sums sum;
  for_each<kSumVecs>([&](int v) { sum.lanes[v] = a.lanes[v] + b.lanes[v]; });
  return sum;
}

// exp by 2^n * exp(r), |r| <= ln(2)/2, with ln(2) in two parts (Cody and Waite) and the Taylor polynomial of
// degree 7: below 1.2e-7 relative error, 0 below -87.3, infinity never (the argument is clamped at 88), NaN of NaN.
template <int N>
__attribute__((always_inline)) inline void vexp(const Vec* x, Vec* y) {
  Vec shifted[N], r[N], p[N];
  for_each<N>([&](int n) {
#if defined(__AVX512F__)
    const Vec clamped = vmin(splat(88.0f), x[n]);  // what lies below -87.3 is not looked at in the end
#else
    const Vec clamped = vmin(splat(88.0f), vmax(splat(-87.3f), x[n]));
#endif
    shifted[n] = fma(clamped, splat(1.44269504f), splat(12582912.0f));  // 1.5 * 2^23: rounds to an integer in the low bits
    const Vec whole = shifted[n] - 12582912.0f;
    r[n] = fma(whole, splat(-0.693359375f), clamped);
    r[n] = fma(whole, splat(2.12194440e-4f), r[n]);
  });
  for_each<N>([&](int n) {
    p[n] = splat(1.0f / 5040.0f);
    p[n] = fma(p[n], r[n], splat(1.0f / 720.0f));
    p[n] = fma(p[n], r[n], splat(1.0f / 120.0f));
    p[n] = fma(p[n], r[n], splat(1.0f / 24.0f));
  });
  for_each<N>([&](int n) {
    p[n] = fma(p[n], r[n], splat(1.0f / 6.0f));
    p[n] = fma(p[n], r[n], splat(0.5f));
    p[n] = fma(p[n], r[n], splat(1.0f));
    p[n] = fma(p[n], r[n], splat(1.0f));
  });
  for_each<N>([&](int n) {
#if defined(__AVX512F__)
    const __mmask16 counts = _mm512_cmp_ps_mask((__m512)x[n], (__m512)splat(-87.3f), _CMP_NLT_UQ);
    y[n] = (Vec)_mm512_maskz_scalef_ps(counts, (__m512)p[n], (__m512)(shifted[n] - 12582912.0f));
#else
    const Vec scale = (Vec)(((IntVec)shifted[n] - 0x4B400000 + 127) << 23);
    y[n] = select((IntVec)(x[n] < splat(-87.3f)), Vec{}, p[n] * scale);
#endif
  });
}

inline Vec vexp(Vec x) {
  Vec y;
  vexp<1>(&x, &y);
  return y;
}

// 1 / x for x of 1 and above, within 0.8 units in the last place; of 2^125 and above that of 2^125. (Division of a vector of
// 16 takes as long as all of vexp, and the digits of approximate instructions are the processor's.) The bits of x taken from
// a constant are within 5.1% of it; then a step of Halley's, e^3, and one of Newton's, e^6.
inline Vec reciprocal(Vec x) {
  const Vec within = vmin(splat(0x1p125f), x), one = splat(1.0f);
  Vec near = (Vec)(0x7ef31000 - (IntVec)within);
  Vec error = fma(-within, near, one);
  near = fma(near, fma(error, error, error), near);
  error = fma(-within, near, one);
  return fma(near, error, near);
}

// first + x * (second + x * (...))
template <int Count>
inline Vec polynomial(const float (&coefficients)[Count], Vec x) {
  Vec sum = splat(coefficients[Count - 1]);
  for (int i = Count - 2; i >= 0; i--) sum = fma(sum, x, splat(coefficients[i]));
  return sum;
}

// tanh within 2.7e-7 of itself: below 0.625 an odd polynomial, fitted as those of the error function are, and above it by
// the exponential, of which small numbers would keep few digits.
constexpr float kTanh[] = {-0.3333326f, 0.1333083f, -0.05368802f, 0.020469412f, -0.0055151554f};
inline Vec vtanh(Vec x) {
  const Vec square = x * x, near = fma(x * square, polynomial(kTanh, square), x);
  const Vec far = 1.0f - 2.0f * reciprocal(vexp(x * 2.0f) + 1.0f);
  return select((IntVec)(square < splat(0.625f * 0.625f)), near, far);
}

// The error function within 1.4e-7: below 1 an odd polynomial, above it 1 - exp(-p(x)). Both were fitted to its values in
// float64 by least squares, reweighted until the largest error was least.
constexpr float kErf[] = {1.1283791f, -0.37612626f, 0.11283585f, -0.026853815f, 5.1883319e-3f, -8.0102251e-4f, 7.8539568e-5f};
constexpr float kErfc[] = {3.1246623e-4f, 1.1272023f, 0.63796496f, 0.10325622f, -0.021906484f, 2.9640081e-3f, -1.8797188e-4f};
inline Vec verf(Vec x) {
  const IntVec sign = (IntVec)x & static_cast<int32_t>(0x80000000u);
  const Vec far = (Vec)((IntVec)x & 0x7fffffff), size = vmin(splat(4.0f), far);
  const Vec near = size * polynomial(kErf, size * size), beyond = 1.0f - vexp(-polynomial(kErfc, size));
  return (Vec)((IntVec)select((IntVec)(size < splat(1.0f)), near, beyond) | sign);
}

// Calls body(offset, lanes) over `count` floats: full vectors first, then what is left of the last one.
template <class Body>
inline void each_vector(int64_t count, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, kLanes);
  if (i < count) body(i, static_cast<int>(count - i));
}

inline Vec load_part(const float* p, int lanes) {
  if (lanes == kLanes) return load(p);
  Vec v{};
  __builtin_memcpy(&v, p, static_cast<size_t>(lanes) * 4);
  return v;
}

inline void store_part(float* p, Vec v, int lanes) {
  if (lanes == kLanes) {
    store(p, v);
    return;
  }
  __builtin_memcpy(p, &v, static_cast<size_t>(lanes) * 4);
}
