// The instructions beyond AVX-512 and NEON that products and attention use: those of AVX512_VNNI, AVX512_BF16 and AMX as
// Intel's manual (SDM, volume 2) has them; those of ARM's extensions (Arm ARM, DDI 0487) with one rounding for each product.
//
// With MB_EMULATED they are plain C++ that does the same, numbers below the normal ones aside: tests run the kernels
// on processors that lack them. A tile has 16 rows of 64 bytes; tiles 0 to 3 are sums, 4 and 5 are of x, 6 and 7 of
// the weights.

constexpr int64_t kTileSide = 16, kTileRowBytes = 64, kTileBytes = kTileSide * kTileRowBytes;

#if defined(__aarch64__)

// SDOT; and BFMLALT, then BFMLALB, where x86's VDPBF16PS adds the second number of a pair first, too. (BFDOT and BFMMLA
// round otherwise.)
#define MB_DOT_BYTES(sum, x, w) (IntVec)vdotq_s32((int32x4_t)(sum), (int8x16_t)(x), (int8x16_t)(w))
#define MB_DOT_PAIRS(sum, x, w) dot_pairs(sum, x, w)
constexpr bool kDotsAreShifted = false;

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
inline Vec dot_pairs(Vec sum, IntVec x, IntVec w) {
  const float32x4_t second = vbfmlaltq_f32((float32x4_t)sum, (bfloat16x8_t)w, (bfloat16x8_t)x);
  return (Vec)vbfmlalbq_f32(second, (bfloat16x8_t)w, (bfloat16x8_t)x);
}
#endif

#else

constexpr bool kDotsAreShifted = true;

#if !defined(MB_EMULATED)

#define MB_DOT_BYTES(sum, x, w) (IntVec)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(x), (__m512i)(w))
#define MB_DOT_PAIRS(sum, x, w) (Vec)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(x), (__m512bh)(w))

#if defined(__AMX_TILE__)
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;

#define MB_TILE_CONFIGURE() _tile_loadconfig(&kTileConfig)
#define MB_TILE_RELEASE() _tile_release()
#define MB_TILE_ZERO(tile) _tile_zero(tile)
#define MB_TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define MB_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define MB_TILE_DOT_PAIRS(sum, x, w) _tile_dpbf16ps(sum, x, w)
#define MB_TILE_DOT_BYTES(sum, x, w) _tile_dpbusd(sum, x, w)

// Vectors treat numbers below the normal ones as tiles do: as zeros. Gives what to restore.
inline unsigned flush_subnormals() {
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);
  return mode;
}
#define MB_FLUSH_SUBNORMALS() flush_subnormals()
#define MB_RESTORE_MODE(mode) _mm_setcsr(mode)
#endif

#if defined(__AVX512BF16__)
// Two vectors rounded to bfloat16, one behind the other; and each number beside the one that stands 16 behind it.
#define MB_ROUND(first, second) (IntVec)_mm512_cvtne2ps_pbh((__m512)(second), (__m512)(first))
#define MB_PAIR(numbers) pair_up(numbers)
// Two vectors of bfloat16, one behind the other.
#define MB_JOIN(first, second) join(first, second)

struct alignas(64) PairOrder {
  uint16_t from[kLanes * 2];
  constexpr PairOrder() : from() {
    for (int i = 0; i < kLanes * 2; i++) from[i] = static_cast<uint16_t>(i / 2 + i % 2 * kLanes);
  }
};
constexpr PairOrder kPairOrder;
inline IntVec pair_up(IntVec numbers) {
  return (IntVec)_mm512_permutexvar_epi16(_mm512_load_si512(kPairOrder.from), (__m512i)numbers);
}
inline IntVec join(const uint16_t* first, const uint16_t* second) {
  const __m256i halves[2] = {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first)),
                             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second))};
  return (IntVec)_mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(halves[0]), halves[1], 1);
}
#endif

#else

inline IntVec emulated_dot_bytes(IntVec sum, IntVec x, IntVec w) {
  uint8_t unsigned_bytes[kLanes * 4];
  int8_t signed_bytes[kLanes * 4];
  __builtin_memcpy(unsigned_bytes, &x, sizeof x);
  __builtin_memcpy(signed_bytes, &w, sizeof w);
  for (int i = 0; i < kLanes * 4; i++) sum[i / 4] += int32_t{unsigned_bytes[i]} * signed_bytes[i];
  return sum;
}

inline float widened(uint16_t bfloat16) {
  const uint32_t bits = uint32_t{bfloat16} << 16;
  float found;
  __builtin_memcpy(&found, &bits, 4);
  return found;
}

inline Vec emulated_dot_pairs(Vec sum, IntVec x, IntVec w) {
  uint16_t left[kLanes * 2], right[kLanes * 2];
  __builtin_memcpy(left, &x, sizeof x);
  __builtin_memcpy(right, &w, sizeof w);
  for (int i = 0; i < kLanes; i++) {
    sum[i] += widened(left[2 * i + 1]) * widened(right[2 * i + 1]);
    sum[i] += widened(left[2 * i]) * widened(right[2 * i]);
  }
  return sum;
}

inline IntVec emulated_round(Vec first, Vec second) {
  IntVec found;
  uint16_t numbers[kLanes * 2];
  for (int i = 0; i < kLanes * 2; i++) {
    const float x = i < kLanes ? first[i] : second[i - kLanes];
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    numbers[i] = static_cast<uint16_t>((x == x ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000) >> 16);
  }
  __builtin_memcpy(&found, numbers, sizeof found);
  return found;
}

inline IntVec emulated_join(const uint16_t* first, const uint16_t* second) {
  uint16_t numbers[kLanes * 2];
  __builtin_memcpy(numbers, first, kLanes * 2);
  __builtin_memcpy(numbers + kLanes, second, kLanes * 2);
  return load_ints(numbers);
}

inline IntVec emulated_pair(IntVec numbers) {
  uint16_t from[kLanes * 2], to[kLanes * 2];
  __builtin_memcpy(from, &numbers, sizeof numbers);
  for (int i = 0; i < kLanes * 2; i++) to[i] = from[i / 2 + i % 2 * kLanes];
  __builtin_memcpy(&numbers, to, sizeof numbers);
  return numbers;
}

struct EmulatedTiles {
  static constexpr int kCount = 8;
  bool is_configured = false;
  alignas(64) char bytes[kCount][kTileBytes];

  template <class T>
  T* row(int tile, int64_t r) {
    if (!is_configured) __builtin_trap();
    return reinterpret_cast<T*>(bytes[tile] + r * kTileRowBytes);
  }
};
inline thread_local EmulatedTiles emulated_tiles;

inline void emulated_load(int tile, const void* from, int64_t stride) {
  for (int64_t r = 0; r < kTileSide; r++)
    __builtin_memcpy(emulated_tiles.row<char>(tile, r), static_cast<const char*>(from) + r * stride, kTileRowBytes);
}
inline void emulated_store(int tile, void* to, int64_t stride) {
  for (int64_t r = 0; r < kTileSide; r++)
    __builtin_memcpy(static_cast<char*>(to) + r * stride, emulated_tiles.row<char>(tile, r), kTileRowBytes);
}
// Even and odd products are added up apart, then to one another, then to the sum: TDPBF16PS.
inline void emulated_tile_dot_pairs(int sum, int x, int w) {
  for (int64_t m = 0; m < kTileSide; m++)
    for (int64_t n = 0; n < kTileSide; n++) {
      float even = 0, odd = 0;
      for (int64_t k = 0; k < kTileSide; k++) {
        const uint16_t* left = emulated_tiles.row<uint16_t>(x, m) + 2 * k;
        const uint16_t* right = emulated_tiles.row<uint16_t>(w, k) + 2 * n;
        even += widened(left[0]) * widened(right[0]);
        odd += widened(left[1]) * widened(right[1]);
      }
      emulated_tiles.row<float>(sum, m)[n] += even + odd;
    }
}
inline void emulated_tile_dot_bytes(int sum, int x, int w) {
  for (int64_t m = 0; m < kTileSide; m++)
    for (int64_t n = 0; n < kTileSide; n++)
      for (int64_t k = 0; k < kTileRowBytes; k++)
        emulated_tiles.row<int32_t>(sum, m)[n] +=
            int32_t{emulated_tiles.row<uint8_t>(x, m)[k]} * emulated_tiles.row<int8_t>(w, k / 4)[4 * n + k % 4];
}

#define MB_DOT_BYTES(sum, x, w) emulated_dot_bytes(sum, x, w)
#define MB_ROUND(first, second) emulated_round(first, second)
#define MB_PAIR(numbers) emulated_pair(numbers)
#define MB_JOIN(first, second) emulated_join(first, second)
#define MB_DOT_PAIRS(sum, x, w) emulated_dot_pairs(sum, x, w)
#define MB_FLUSH_SUBNORMALS() 0u
#define MB_RESTORE_MODE(mode) static_cast<void>(mode)
#define MB_TILE_CONFIGURE() emulated_tiles.is_configured = true
#define MB_TILE_RELEASE() emulated_tiles.is_configured = false
#define MB_TILE_ZERO(tile) __builtin_memset(emulated_tiles.row<char>(tile, 0), 0, kTileBytes)
#define MB_TILE_LOAD(tile, from, stride) emulated_load(tile, from, stride)
#define MB_TILE_STORE(tile, to, stride) emulated_store(tile, to, stride)
#define MB_TILE_DOT_PAIRS(sum, x, w) emulated_tile_dot_pairs(sum, x, w)
#define MB_TILE_DOT_BYTES(sum, x, w) emulated_tile_dot_bytes(sum, x, w)

#endif

#endif
