// Products with weights of FP8 (E4M3) and a scale for each group of inputs, one multiply-add in bfloat16 for each:
// [N / kPanel][segments][groups](codes, scales [kPanel]).
//
// Codes are lines of four inputs; of each four outputs first [4][2] bytes of the first two inputs, then those of the others.
// x is rounded to bfloat16, which has all numbers of E4M3, too. Each group is summed as linear_bfloat16.h says, from 0; then
// sum = fma(that, scale, sum), one chain over the groups of a segment. The lines of a panel are made bfloat16 as they are
// reached, in the first-level cache, where all tiles read them.

// Source: Micikevicius et al., "FP8 Formats for Deep Learning" (2022). bfloat16 has the bits of a code but for the
// exponent's, 120 more, and without an exponent for those of 1/512 to 7/512.
struct Float8Codes {
  static constexpr WeightKind kKind = kFloat8;
  static constexpr int kBits = 8;

  static float number(int code) {
    const int exponent = code >> 3 & 15, digits = code & 7;
    const float size = exponent ? static_cast<float>(8 + digits) * static_cast<float>(1 << exponent) / 1024.0f
                                : static_cast<float>(digits) / 512.0f;
    return code & 128 ? -size : size;
  }
  static int64_t place(int64_t output, int64_t input) {
    return output / 4 * 16 + input / 2 * 8 + output % 4 * 2 + input % 2;
  }
};

// Bytes of bfloat16 by the halves of a code. Where the upper half has of the exponent only the lowest bit at most, they are
// looked up by the lower one, too: elsewhere `outside` is added to it, for which a table gives 0.
struct Float8Tables {
  alignas(16) uint8_t upper[16], outside[16], small_upper[16], small_lower[16];  // the last: what differs from a shift
  constexpr Float8Tables() : upper(), outside(), small_upper(), small_lower() {
    constexpr int kSmall[] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    for (int i = 0; i < 16; i++) {
      upper[i] = static_cast<uint8_t>((i & 8) << 4 | (i & 7 ? 60 + (i & 7) : 0));
      outside[i] = i & 7 ? 0x80 : 0;
      const int bits = i < 8 ? kSmall[i] : 0x3c80 + ((i - 8) << 4);
      small_upper[i] = static_cast<uint8_t>(bits >> 8);
      small_lower[i] = static_cast<uint8_t>(bits ^ i << 4);
    }
  }
};
constexpr Float8Tables kFloat8Tables;

// A line of codes -> two lines of pairs of bfloat16.
#if (MB_LANES == 8 && defined(__AVX2__)) || (MB_LANES == 16 && defined(__AVX512BW__)) || defined(__aarch64__)
#if MB_LANES == 16
typedef __m512i Bytes;
inline Bytes table_of(const uint8_t* bytes) {
  return _mm512_maskz_broadcast_i32x4(0xffff, _mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}
inline Bytes looked_up(Bytes table, Bytes places) { return _mm512_shuffle_epi8(table, places); }
inline Bytes interleaved(Bytes low, Bytes high, bool is_second) {
  return is_second ? _mm512_unpackhi_epi8(low, high) : _mm512_unpacklo_epi8(low, high);
}
#elif MB_LANES == 8
typedef __m256i Bytes;
inline Bytes table_of(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}
inline Bytes looked_up(Bytes table, Bytes places) { return _mm256_shuffle_epi8(table, places); }
inline Bytes interleaved(Bytes low, Bytes high, bool is_second) {
  return is_second ? _mm256_unpackhi_epi8(low, high) : _mm256_unpacklo_epi8(low, high);
}
#else
typedef uint8x16_t Bytes;
inline Bytes table_of(const uint8_t* bytes) { return vld1q_u8(bytes); }
inline Bytes looked_up(Bytes table, Bytes places) { return vqtbl1q_u8(table, places); }
inline Bytes interleaved(Bytes low, Bytes high, bool is_second) { return is_second ? vzip2q_u8(low, high) : vzip1q_u8(low, high); }
#endif

inline void widen_line(const char* codes, char* to) {
  const Bytes upper = table_of(kFloat8Tables.upper), outside = table_of(kFloat8Tables.outside);
  const Bytes small_upper = table_of(kFloat8Tables.small_upper), small_lower = table_of(kFloat8Tables.small_lower);
  for (int64_t b = 0; b < kRowBytes; b += kLanes * 4) {
    const IntVec bytes = load_ints(codes + b), low = bytes & 0x0f0f0f0f;
    const Bytes high = (Bytes)(bytes >> 4 & 0x0f0f0f0f), place = (Bytes)(low | (IntVec)looked_up(outside, high));
    const IntVec its_upper = (IntVec)looked_up(upper, high) | (IntVec)looked_up(small_upper, place);
    const IntVec its_lower = low << 4 ^ (IntVec)looked_up(small_lower, place);
    *reinterpret_cast<IntVec*>(to + b) = (IntVec)interleaved((Bytes)its_lower, (Bytes)its_upper, false);
    *reinterpret_cast<IntVec*>(to + kRowBytes + b) = (IntVec)interleaved((Bytes)its_lower, (Bytes)its_upper, true);
  }
}
#else
inline void widen_line(const char* codes, char* to) {
  for (int64_t output = 0; output < kPanel; output++)
    for (int64_t k = 0; k < 4; k++) {
      const auto code = static_cast<uint8_t>(codes[Float8Codes::place(output, k)]);
      const auto bits = static_cast<uint16_t>(float_bits(Float8Codes::number(code)) >> 16);
      __builtin_memcpy(to + k / 2 * kRowBytes + output * 4 + k % 2 * 2, &bits, 2);
    }
}
#endif

// acc[r][c] += the sums of some groups of a panel, of one tile. numbers: their lines of bfloat16.
template <int Rows>
inline void float8_tile(const LinearArgs& a, const Bfloat16::Word* x, const char* panel, const char* numbers, int64_t groups,
                        bool is_first, float* acc) {
  constexpr int kPartVecs = kLanes == 16 ? kVecs : Rows <= 2 ? 4 : 2;
  const int64_t inputs = a.groups.inputs, pairs = inputs / 2, codes = code_bytes(inputs, kFloat8);
  for (int64_t part = 0; part < kPanel; part += kPartVecs * kLanes) {
    Vec total[Rows][kPartVecs];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < kPartVecs; v++) total[r][v] = is_first ? Vec{} : load(acc + r * kPanel + part + v * kLanes);
    for (int64_t g = 0; g < groups; g++) {
      Vec sum[Rows][kPartVecs] = {};
      const Bfloat16::Word* words = x + g * pairs * Rows * Bfloat16::kWords;
      const char* line = numbers + g * pairs * kRowBytes + part * 4;
      for (int64_t pair = 0; pair < pairs; pair++, words += Rows * Bfloat16::kWords, line += kRowBytes)
        Bfloat16::add<Rows>(words, line, sum);
      const float* scales = reinterpret_cast<const float*>(panel + g * a.groups.bytes + codes) + part;
#pragma GCC unroll 16
      for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kPartVecs; v++) total[r][v] = fma(sum[r][v], load(scales + v * kLanes), total[r][v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < kPartVecs; v++) store(acc + r * kPanel + part + v * kLanes, total[r][v]);
  }
}

template <int Rows>
inline void float8_tile_of(int64_t rows, const LinearArgs& a, const Bfloat16::Word* x, const char* panel, const char* numbers,
                           int64_t groups, bool is_first, float* acc) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return float8_tile<Rows>(a, x, panel, numbers, groups, is_first, acc);
    return float8_tile_of<Rows - 1>(rows, a, x, panel, numbers, groups, is_first, acc);
  }
}

constexpr int kFloat8Rows = kLanes == 16 ? 8 : 4;  // of a tile

// x as its tiles read it: [tile][pair][word][row].
inline const Bfloat16::Word* float8_rows(const LinearArgs& a, const Tiling& tiling) {
  const int64_t count = a.depth / 2 * Bfloat16::kWords;
  float* words = scratch(0, a.rows * count);
  auto body = [&](int64_t t, int thread) {
    const int64_t first = tiling.begin(t), height = tiling.height(t);
    float* own = scratch(1 + thread, height * count + a.depth);
    const float* rows[kFloat8Rows];
    for (int64_t r = 0; r < height; r++) {
      auto* to = reinterpret_cast<Bfloat16::Word*>(own + r * count);
      Bfloat16::words(row_of(a, first + r, own + height * count), a.depth, to, nullptr);
      rows[r] = own + r * count;
    }
    lay_out(rows, height, count, words + first * count);
  };
  if (tiling.tiles == 1) body(0, 0);
  else parallel_for(tiling.tiles, body);
  return reinterpret_cast<const Bfloat16::Word*>(words);
}

// As `linear`.
void linear_float8(const LinearArgs& a) {
  if (a.rows == 0) return;
  constexpr int64_t kInputsAtOnce = 128;
  const Tiling tiling(a.rows, kFloat8Rows);
  const Bfloat16::Word* x = float8_rows(a, tiling);
  const int64_t inputs = a.groups.inputs, groups = num_groups(a), words = inputs / 2 * Bfloat16::kWords;
  each_panel(a, [&](int64_t p, int thread) {
    alignas(64) char numbers[kInputsAtOnce * kPanel * 2];
    const auto widen_some = [&](const char* its, int64_t some) {
      for (int64_t i = 0; i < some * inputs; i += 4) {
        const char* line = its + i / inputs * a.groups.bytes + i % inputs * kPanel;
        __builtin_prefetch(line + kPanelAhead);
        __builtin_prefetch(line + kPanelAhead + kRowBytes / 2);
        widen_line(line, numbers + i * kPanel * 2);
      }
    };
    const auto multiply = [&](int64_t first, int64_t height, int64_t g, int64_t some, const char* its, bool is_first,
                              float* sums) {
      const Bfloat16::Word* rows = x + (first * groups + g * height) * words;
      float8_tile_of<kFloat8Rows>(height, a, rows, its, numbers, some, is_first, sums);
    };
    float* acc = scratch(1 + thread, sums_and_waiting(a.rows, a.segments));
    panel_by_groups(a, tiling, p, kInputsAtOnce / inputs, acc, widen_some, multiply);
  });
}
