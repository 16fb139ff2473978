// Products with float32 weights: [N / kPanel][K][kPanel], one multiply-add for each k.

struct Float32 : OneByOne {
  static constexpr WeightKind kKind = kFloat32;
  static constexpr int64_t kGroup = 1, kWords = 1;
  static constexpr int kTileRows = kSumRows;
  typedef float Word;
  typedef Vec Sum;

  template <int Rows, int Vecs>
  __attribute__((always_inline)) static void add(const float* x, const char* panel, Vec (*sum)[Vecs]) {
    Vec w[Vecs];
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; v++) w[v] = load(reinterpret_cast<const float*>(panel) + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
      const Vec value = splat(x[r]);
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) sum[r][v] = fma(value, w[v], sum[r][v]);
    }
  }

  static const float* words(const float* x, int64_t, float*, float*) { return x; }

  static auto sums(const LinearArgs&, const float*, const float* acc, const char*) {
    return [=](int64_t r, int64_t i) { return load(acc + r * kPanel + i); };
  }

  static void unpack(const char* panel, int64_t column, int64_t depth, float* y) {
    const float* numbers = reinterpret_cast<const float*>(panel) + column;
    for (int64_t k = 0; k < depth; k++) y[k] = numbers[k * kPanel];
  }
};
