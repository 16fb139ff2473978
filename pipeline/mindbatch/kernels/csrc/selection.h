// Selecting among keys without sorting them: lanes of vectors, and where a sum of weights is enough.

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

// Bits that order floats as their values do.
inline uint32_t ordered_bits(float key) {
  key += 0.0f;  // there is one zero
  uint32_t bits;
  __builtin_memcpy(&bits, &key, 4);
  return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}

inline float from_ordered_bits(uint32_t bits) {
  bits ^= bits >> 31 ? 0x80000000u : 0xFFFFFFFFu;
  float key;
  __builtin_memcpy(&key, &bits, 4);
  return key;
}

// A key, the weight above it, and how many keys equal it.
struct Crossed {
  float key;
  double above;
  int64_t equals;
};

// The first key, from the largest down, at which the weight above it and of its equals is enough; the last key if none
// is. `above` is the weight of keys that are not here. By digits of the keys' bits, each pass within the digit found.
template <class Weight, class Enough>
inline Crossed crossing_key(const float* keys, int64_t count, double above, Weight weight, Enough is_enough) {
  constexpr int kShifts[] = {21, 10, 0}, kDigits[] = {2048, 2048, 1024};
  uint32_t prefix = 0, seen = 0;
  int64_t equals = 0;
  for (int pass = 0; pass < 3; pass++) {
    const int shift = kShifts[pass], digits = kDigits[pass];
    double sums[2048] = {};
    int32_t numbers[2048] = {};
    for (int64_t i = 0; i < count; i++) {
      const uint32_t bits = ordered_bits(keys[i]);
      if ((bits & seen) != prefix) continue;
      const int digit = static_cast<int>(bits >> shift) & (digits - 1);
      sums[digit] += weight(i);
      numbers[digit]++;
    }
    int found = -1;
    double before = above;
    for (int digit = digits - 1; digit >= 0; digit--) {
      if (!numbers[digit]) continue;
      before = above;
      found = digit;
      above += sums[digit];
      if (is_enough(above)) break;
    }
    above = before;
    equals = numbers[found];
    prefix |= static_cast<uint32_t>(found) << shift;
    seen |= static_cast<uint32_t>(digits - 1) << shift;
  }
  return {from_ordered_bits(prefix), above, equals};
}
