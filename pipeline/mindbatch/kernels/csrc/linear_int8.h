// Products with int8 weights: [N / kPanel]([K / 4][kPanel][4], scales, offsets), see kInt8Tail.
//
// x is rounded to int8 with a scale of its own for each segment of a row, the largest of it being 127. Sums are exact in
// int32 (up to a depth of 133,000); then each is sum * weight's scale * row's scale, each rounded to float32. So every
// set of instructions gives the same bits.

typedef int16_t ShortVec __attribute__((vector_size(MB_LANES * 4), aligned(4), may_alias));
typedef int8_t ByteVec __attribute__((vector_size(MB_LANES), aligned(1), may_alias));

constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer, ties to even

inline Vec vabs(Vec x) { return (Vec)((IntVec)x & 0x7fffffff); }

// Rounds a row to int8; returns its scale, which is not a number where one of x is none or is infinite.
// write: (offset, its bytes, as many as there are lanes or, behind x, zeros, how many are of x).
template <class Write>
inline float quantise(const float* x, int64_t depth, Write write) {
  Vec largest[kAtOnce] = {}, poison[kAtOnce] = {};
  const auto look_at = [&](int n, Vec value) {
    largest[n] = vmax(largest[n], vabs(value));
    poison[n] = poison[n] + value * 0.0f;
  };
  int64_t first = 0;
  for (; first + kAtOnce * kLanes <= depth; first += kAtOnce * kLanes)
    for_each<kAtOnce>([&](int n) { look_at(n, load(x + first + n * kLanes)); });
  each_vector(depth - first, [&](int64_t i, int lanes) { look_at(0, load_part(x + first + i, lanes)); });
  for (int n = 1; n < kAtOnce; n++) {
    largest[0] = vmax(largest[0], largest[n]);
    poison[0] = poison[0] + poison[n];
  }
  const float most = largest_of(largest[0]);
  const float factor = most > 1e-30f && most < 3e38f ? 127.0f / most : 0;
  each_vector(depth, [&](int64_t i, int lanes) {
    const Vec shifted = load_part(x + i, lanes) * factor + kRounding;
    write(i, __builtin_convertvector((IntVec)shifted - 0x4B400000, ByteVec), lanes);
  });
  float scale = factor > 0 ? most / 127.0f : 0;
  for (int l = 0; l < kLanes; l++) scale += poison[0][l];
  return scale;
}

// Sums of neighbouring products of int16, in int32.
inline IntVec add_pairs(IntVec x, IntVec y) {
#if MB_LANES == 16 && defined(__AVX512BW__)
  return (IntVec)_mm512_madd_epi16((__m512i)x, (__m512i)y);
#elif MB_LANES == 8 && defined(__AVX2__)
  return (IntVec)_mm256_madd_epi16((__m256i)x, (__m256i)y);
#elif MB_LANES == 4 && defined(__SSE2__)
  return (IntVec)_mm_madd_epi16((__m128i)x, (__m128i)y);
#else
  return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}

#if defined(MB_HAS_DOT_BYTES)
// Four products at once. x86 multiplies bytes without a sign by bytes with one: x is stored with 128 added to it, which the
// panel's offsets take out.
struct Int8Words : OneByOne {
  static constexpr int kCount = 1, kTileRows = kSumRows;
  static constexpr bool kIsShifted = kDotsAreShifted;

  static void write(const int8_t* four, int32_t* words) {
    __builtin_memcpy(words, four, 4);
    if (kIsShifted) words[0] ^= static_cast<int32_t>(0x80808080u);
  }

  template <int Rows, int Vecs>
  __attribute__((always_inline)) static void add(const int32_t* x, const char* panel, IntVec (*sum)[Vecs]) {
    IntVec w[Vecs];
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; v++) w[v] = load_ints(panel + v * kLanes * 4);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++)
        sum[r][v] = MB_DOT_BYTES(sum[r][v], splat_int(x[r]), w[v]);
  }
};
#else
// Products of int16: the first and third of the four, and the second and fourth.
struct Int8Words : OneByOne {
  static constexpr int kCount = 2, kTileRows = kLanes == 16 ? 12 : kSumRows;
  static constexpr bool kIsShifted = false;

  static int32_t pair(int8_t low, int8_t high) {
    return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(low)) |
                                static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16);
  }
  static void write(const int8_t* four, int32_t* words) {
    words[0] = pair(four[0], four[2]);
    words[1] = pair(four[1], four[3]);
  }

  template <int Rows, int Vecs>
  __attribute__((always_inline)) static void add(const int32_t* x, const char* panel, IntVec (*sum)[Vecs]) {
    IntVec even[Vecs], odd[Vecs];
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; v++) {
      const ShortVec four = (ShortVec)load_ints(panel + v * kLanes * 4);
      even[v] = (IntVec)(four << 8 >> 8);
      odd[v] = (IntVec)(four >> 8);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) sum[r][v] += add_pairs(splat_int(x[r]), even[v]);
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) sum[r][v] += add_pairs(splat_int(x[Rows + r]), odd[v]);
    }
  }
};
#endif

#if defined(MB_HAS_I8MM)
// Two rows by two outputs at once, eight numbers deep: vectors of sums are such squares. What is left of the rows is as
// above.
struct Int8Step : Int8Words {
  static constexpr int kStep = 2;

  // Of two rows of four sums two squares, and the other way round.
  template <int Rows, int Vecs>
  static void turn(IntVec (*sum)[Vecs]) {
#pragma GCC unroll 16
    for (int r = 0; r + 1 < Rows; r += 2)
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) {
        const int64x2_t first = (int64x2_t)sum[r][v], second = (int64x2_t)sum[r + 1][v];
        sum[r][v] = (IntVec)vzip1q_s64(first, second);
        sum[r + 1][v] = (IntVec)vzip2q_s64(first, second);
      }
  }

  template <int Rows, int Vecs>
  __attribute__((always_inline)) static void add(const int32_t* x, const char* panel, IntVec (*sum)[Vecs]) {
    if constexpr (Rows > 1) {
      int32_t words[2][4] = {};
      for (int g = 0; g < 2; g++) __builtin_memcpy(words[g], x + g * Rows, Rows * sizeof(int32_t));
      const int32x4_t low = vld1q_s32(words[0]), high = vld1q_s32(words[1]);
      const int8x16_t rows[2] = {(int8x16_t)vzip1q_s32(low, high), (int8x16_t)vzip2q_s32(low, high)};
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) {
        const int32x4_t w[2] = {(int32x4_t)load_ints(panel + v * kLanes * 4),
                                (int32x4_t)load_ints(panel + kPanel * 4 + v * kLanes * 4)};
        const int8x16_t upper = (int8x16_t)vzip1q_s32(w[0], w[1]), lower = (int8x16_t)vzip2q_s32(w[0], w[1]);
#pragma GCC unroll 16
        for (int r = 0; r + 1 < Rows; r += 2) {
          sum[r][v] = (IntVec)vmmlaq_s32((int32x4_t)sum[r][v], rows[r / 2], upper);
          sum[r + 1][v] = (IntVec)vmmlaq_s32((int32x4_t)sum[r + 1][v], rows[r / 2], lower);
        }
      }
    }
    if constexpr (Rows % 2 == 1)
      for (int g = 0; g < kStep; g++) Int8Words::add<1>(x + g * Rows + Rows - 1, panel + g * kPanel * 4, sum + Rows - 1);
  }
};
#else
typedef Int8Words Int8Step;
#endif

struct Int8 : Int8Step {
  static constexpr WeightKind kKind = kInt8;
  static constexpr int64_t kGroup = 4, kWords = kCount;
  typedef int32_t Word;
  typedef IntVec Sum;

  // A row, rounded, and zeros behind it. Its bytes are first written to the end of its words, none of which is
  // written before its own bytes are read.
  static const int32_t* words(const float* x, int64_t depth, int32_t* to, float* scale) {
    const int64_t groups = padded_depth(depth, kKind) / kGroup;
    int8_t* bytes = reinterpret_cast<int8_t*>(to + (kWords - 1) * groups);
    __builtin_memset(bytes + depth, 0, static_cast<size_t>(groups * kGroup - depth));
    *scale = quantise(x, depth, [&](int64_t i, ByteVec some, int lanes) {
      __builtin_memcpy(bytes + i, &some, static_cast<size_t>(lanes));
    });
    for (int64_t g = 0; g < groups; g++) {
      int8_t four[kGroup];
      __builtin_memcpy(four, bytes + g * kGroup, kGroup);
      Int8Words::write(four, to + g * kWords);
    }
    return to;
  }

  static auto sums(const LinearArgs& a, const float* scales_of_rows, const float* acc, const char* tail) {
    const float* scales = reinterpret_cast<const float*>(tail);
    return [=, segments = a.segments](int64_t r, int64_t i) {
      IntVec sum = load_ints(acc + r * kPanel + i);
      if (Int8Words::kIsShifted) sum -= load_ints(scales + kPanel + i);
      return __builtin_convertvector(sum, Vec) * load(scales + i) * scales_of_rows[r * segments];
    };
  }

  static void unpack(const char* panel, int64_t column, int64_t depth, float* y) {
    const int8_t* numbers = reinterpret_cast<const int8_t*>(panel) + column * kGroup;
    const char* tail = panel + padded_depth(depth, kInt8) * kPanel;
    const float scale = reinterpret_cast<const float*>(tail)[column];
    for (int64_t k = 0; k < depth; k++)
      y[k] = static_cast<float>(numbers[k / kGroup * kPanel * kGroup + k % kGroup]) * scale;
  }
};
