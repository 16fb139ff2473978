// Vectors of MB_LANES floats, written with compiler vector types so that one source serves AVX-512, AVX2 and
// plain (SSE2, NEON) builds. Included once per variant, inside that variant's namespace.

constexpr int kLanes = MB_LANES;
typedef float Vec __attribute__((vector_size(MB_LANES * 4), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(MB_LANES * 4), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

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
};

inline IntVec load_ints(const void* p) { return *static_cast<const IntVec*>(p); }

// A product that is not joined with a sum behind it into one rounding: the same number with and without FMA.
inline Vec rounded(Vec v) {
#if defined(__FMA__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

inline IntVec splat_int(int32_t x) { return x - IntVec{}; }
inline Vec splat(float x) { return x - Vec{}; }  // x - 0 is x for every x, so this folds to a broadcast
inline Vec select(IntVec mask, Vec yes, Vec no) {
  return (Vec)((mask & (IntVec)yes) | (~mask & (IntVec)no));
}
inline Vec vmin(Vec a, Vec b) { return a < b ? a : b; }
inline Vec vmax(Vec a, Vec b) { return a > b ? a : b; }

// Adds the lanes in a fixed order, so that a row's result does not depend on where it stands.
inline float sum_lanes(Vec v) {
  float part[kLanes];
  store(part, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) part[i] += part[i + width];
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
    shifted[n] = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer in the low bits
    const Vec whole = shifted[n] - 12582912.0f;
    r[n] = clamped - whole * 0.693359375f;
    r[n] = r[n] - whole * -2.12194440e-4f;
  });
  for_each<N>([&](int n) {
    p[n] = splat(1.0f / 5040.0f);
    p[n] = p[n] * r[n] + (1.0f / 720.0f);
    p[n] = p[n] * r[n] + (1.0f / 120.0f);
    p[n] = p[n] * r[n] + (1.0f / 24.0f);
  });
  for_each<N>([&](int n) {
    p[n] = p[n] * r[n] + (1.0f / 6.0f);
    p[n] = p[n] * r[n] + 0.5f;
    p[n] = p[n] * r[n] + 1.0f;
    p[n] = p[n] * r[n] + 1.0f;
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

// 1 / x for x of 1 and above. (Division of a vector of 16 takes as long as all of vexp.)
inline Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  const Vec near = (Vec)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
  return near * (2.0f - x * near);  // a step of Newton's
#else
  return 1.0f / x;
#endif
}

inline Vec vtanh(Vec x) { return 1.0f - 2.0f * reciprocal(vexp(x * 2.0f) + 1.0f); }

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
