// Products with bfloat16 weights: [N / kPanel][K / 2][kPanel][2].
//
// x is rounded to bfloat16 (to nearest, ties to even); products are exact in float32, and so are the same bits with
// and without FMA. Sums are float32, in the order of AVX512_BF16's VDPBF16PS (Intel SDM): of each pair along K the
// second product is added first. So every set of instructions but AMX gives the same bits, subnormal numbers aside.

inline uint32_t float_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

constexpr uint32_t kUpperHalf = 0xffff0000u, kQuiet = 0x00400000u;

// The float nearest to x that bfloat16 has. What is not a number keeps its upper half and is made quiet, for a payload
// in the lower half alone would leave infinity.
inline float to_bfloat16(float x) {
  const uint32_t bits = float_bits(x), nearest = x == x ? bits + 0x7fff + (bits >> 16 & 1) : bits | kQuiet;
  const uint32_t upper = nearest & kUpperHalf;
  float y;
  __builtin_memcpy(&y, &upper, 4);
  return y;
}

inline Vec to_bfloat16(Vec x) {
  const IntVec bits = (IntVec)x;
  const int32_t upper = static_cast<int32_t>(kUpperHalf);
  const Vec nearest = (Vec)((bits + 0x7fff + (bits >> 16 & 1)) & upper);
  return select((IntVec)(x == x), nearest, (Vec)((bits | static_cast<int32_t>(kQuiet)) & upper));
}

#if defined(MB_HAS_BF16)
// Pairs of bfloat16, which need not be widened.
struct Bfloat16Words {
  typedef int32_t Word;
  static constexpr int kCount = 1, kTileRows = kSumRows;

  typedef uint16_t Number;
  static uint16_t number(float x) { return static_cast<uint16_t>(float_bits(to_bfloat16(x)) >> 16); }

  template <int Rows, int Vecs>
  __attribute__((always_inline)) static void add(const int32_t* x, const char* panel, Vec (*sum)[Vecs]) {
    IntVec w[Vecs];
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; v++) w[v] = load_ints(panel + v * kLanes * 4);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) sum[r][v] = MB_DOT_PAIRS(sum[r][v], splat_int(x[r]), w[v]);
  }
};
#else
// The two of each pair as float32.
struct Bfloat16Words {
  typedef float Word;
  static constexpr int kCount = 2, kTileRows = kLanes == 16 ? 12 : kSumRows;

  typedef float Number;
  static float number(float x) { return to_bfloat16(x); }

  template <int Rows, int Vecs>
  __attribute__((always_inline)) static void add(const float* x, const char* panel, Vec (*sum)[Vecs]) {
    Vec first[Vecs], second[Vecs];
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; v++) {
      const IntVec pairs = load_ints(panel + v * kLanes * 4);
      first[v] = (Vec)(pairs << 16);
      second[v] = (Vec)(pairs & static_cast<int32_t>(0xffff0000u));
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) sum[r][v] = fma(splat(x[Rows + r]), second[v], sum[r][v]);
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) sum[r][v] = fma(splat(x[r]), first[v], sum[r][v]);
    }
  }
};
#endif

struct Bfloat16 : OneByOne {
  static constexpr WeightKind kKind = kBfloat16;
  static constexpr int64_t kGroup = 2, kWords = Bfloat16Words::kCount;
  static constexpr int kTileRows = Bfloat16Words::kTileRows;
  typedef Bfloat16Words::Word Word;
  typedef Vec Sum;

  template <int Rows, int Vecs>
  __attribute__((always_inline)) static void add(const Word* x, const char* panel, Vec (*sum)[Vecs]) {
    Bfloat16Words::add<Rows>(x, panel, sum);
  }

  // A row, rounded, and zeros behind it.
  static const Word* words(const float* x, int64_t depth, Word* to, float*) {
    typedef Bfloat16Words::Number Number;
    char* numbers = reinterpret_cast<char*>(to);
    for (int64_t k = 0; k < depth; k++) {
      const Number number = Bfloat16Words::number(x[k]);
      __builtin_memcpy(numbers + k * static_cast<int64_t>(sizeof number), &number, sizeof number);
    }
    const auto padding = static_cast<size_t>(padded_depth(depth, kKind) - depth) * sizeof(Number);
    __builtin_memset(numbers + depth * static_cast<int64_t>(sizeof(Number)), 0, padding);
    return to;
  }

  static auto sums(const LinearArgs&, const float*, const float* acc, const char*) {
    return [=](int64_t r, int64_t i) { return load(acc + r * kPanel + i); };
  }

  static void unpack(const char* panel, int64_t column, int64_t depth, float* y) {
    const uint16_t* numbers = reinterpret_cast<const uint16_t*>(panel) + column * 2;
    for (int64_t k = 0; k < depth; k++) {
      const uint32_t bits = static_cast<uint32_t>(numbers[k / 2 * kPanel * 2 + k % 2]) << 16;
      __builtin_memcpy(y + k, &bits, 4);
    }
  }
};
