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

// The float nearest to x that bfloat16 has; not a number stays none.
inline float to_bfloat16(float x) {
  const uint32_t bits = float_bits(x), nearest = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  float y;
  __builtin_memcpy(&y, &nearest, 4);
  return x == x ? y : x;
}

struct Bfloat16 {
  static constexpr WeightKind kKind = kBfloat16;
  static constexpr int64_t kGroup = 2, kWords = 2;
  static constexpr int kTileRows = kLanes == 16 ? 12 : (kLanes == 8 ? 3 : 2);
  typedef float Word;
  typedef Vec Sum;

  struct Rows {
    const float* words;  // [tile][pair][row][2]
  };

  template <int Rows>
  __attribute__((always_inline)) static void add(const float* x, const char* panel, Vec (*sum)[kVecs]) {
    Vec first[kVecs], second[kVecs];
    for (int v = 0; v < kVecs; v++) {
      const IntVec pairs = load_ints(panel + v * kLanes * 4);
      first[v] = (Vec)(pairs << 16);
      second[v] = (Vec)(pairs & static_cast<int32_t>(0xffff0000u));
    }
    for (int r = 0; r < Rows; r++) {
      for (int v = 0; v < kVecs; v++) sum[r][v] = splat(x[2 * r + 1]) * second[v] + sum[r][v];
      for (int v = 0; v < kVecs; v++) sum[r][v] = splat(x[2 * r]) * first[v] + sum[r][v];
    }
  }

  static Rows pack(const LinearArgs& a, const Tiling& tiling) {
    const int64_t depth = padded_depth(a.depth, kBfloat16);
    float* packed = scratch(0, a.rows * depth);
    auto body = [&](int64_t t, int) {
      const int64_t first = tiling.begin(t), height = tiling.height(t);
      float* to = packed + first * depth;
      for (int64_t k0 = 0; k0 < depth; k0 += 16)
        for (int64_t r = 0; r < height; r++) {
          const float* x = a.x + (first + r) * a.depth;
          for (int64_t k = k0; k < k0 + 16; k++)
            to[(k / 2 * height + r) * 2 + k % 2] = k < a.depth ? to_bfloat16(x[k]) : 0;
        }
    };
    parallel_for(tiling.tiles, body);
    return {packed};
  }

  static void store(const LinearArgs& a, const Rows&, const float* acc, const char*, int64_t first_column) {
    store_rows(a, first_column, [&](int64_t r, int64_t i) { return load(acc + r * kPanel + i); });
  }

  static void unpack(const char* panel, int64_t column, int64_t depth, float* y) {
    const uint16_t* numbers = reinterpret_cast<const uint16_t*>(panel) + column * 2;
    for (int64_t k = 0; k < depth; k++) {
      const uint32_t bits = static_cast<uint32_t>(numbers[k / 2 * kPanel * 2 + k % 2]) << 16;
      __builtin_memcpy(y + k, &bits, 4);
    }
  }
};
