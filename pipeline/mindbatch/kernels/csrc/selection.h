// Selecting among keys without sorting them: lanes of vectors, and the k-th largest.

// Which lanes: a bit for each where there are such registers, else all bits of a lane.
#if defined(__AVX512F__)
typedef __mmask16 Lanes;
inline Lanes at_least(Vec a, Vec b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
inline Lanes above(Vec a, Vec b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }
inline Vec where(Lanes lanes, Vec v) { return (Vec)_mm512_maskz_mov_ps(lanes, (__m512)v); }
inline Vec add_where(Vec sum, Lanes lanes, Vec v) {
  return (Vec)_mm512_mask_add_ps((__m512)sum, lanes, (__m512)sum, (__m512)v);
}
#else
typedef IntVec Lanes;
inline Lanes at_least(Vec a, Vec b) { return (IntVec)(a >= b); }
inline Lanes above(Vec a, Vec b) { return (IntVec)(a > b); }
inline Vec where(Lanes lanes, Vec v) { return (Vec)((IntVec)v & lanes); }
inline Vec add_where(Vec sum, Lanes lanes, Vec v) { return sum + where(lanes, v); }
#endif

// Writes such lanes of `v` one after the other: how many. `to` has room for all lanes.
inline int append(float* to, Lanes lanes, Vec v) {
#if defined(__AVX512F__)
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(lanes, (__m512)v));
  return __builtin_popcount(lanes);
#else
  int count = 0;
  for (int l = 0; l < kLanes; l++) {
    to[count] = v[l];
    count -= lanes[l];
  }
  return count;
#endif
}

inline int number_of(Lanes lanes) {
#if defined(__AVX512F__)
  return __builtin_popcount(lanes);
#else
  int count = 0;
  for (int l = 0; l < kLanes; l++) count -= lanes[l];
  return count;
#endif
}

// The float that such bits stand for, which order floats as their values do.
inline float from_ordered_bits(uint32_t bits) {
  bits ^= bits >> 31 ? 0x80000000u : 0xFFFFFFFFu;
  float key;
  __builtin_memcpy(&key, &bits, 4);
  return key;
}

// The k-th largest of at least k keys, bit by bit: each is set if so many keys are still as large.
inline float kth_largest(const float* keys, int64_t count, int64_t k) {
  uint32_t bits = 0;
  for (uint32_t bit = 1u << 31; bit > 0; bit >>= 1) {
    const Vec bound = splat(from_ordered_bits(bits | bit));
    int64_t found = 0;
    each_vector(count, [&](int64_t i, int lanes) {
      found += number_of(at_least(load_filled(keys + i, lanes, __builtin_nanf("")), bound));
    });
    if (found >= k) bits |= bit;
  }
  const float key = from_ordered_bits(bits);
  return key == key ? key : -__builtin_inff();  // bits below those of minus infinity are no numbers
}
