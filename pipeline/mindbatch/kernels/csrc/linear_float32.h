// Products with float32 weights: [N / kPanel][K][kPanel], one multiply-add for each k.

struct Float32 {
  static constexpr WeightKind kKind = kFloat32;
  static constexpr int64_t kGroup = 1, kWords = 1;
  static constexpr int kTileRows = kLanes == 16 ? 14 : (kLanes == 8 ? 3 : 2);
  typedef float Word;
  typedef Vec Sum;

  struct Rows {
    const float* words;
  };

  template <int Rows>
  __attribute__((always_inline)) static void add(const float* x, const char* panel, Vec (*sum)[kVecs]) {
    Vec w[kVecs];
    for (int v = 0; v < kVecs; v++) w[v] = load(reinterpret_cast<const float*>(panel) + v * kLanes);
    for (int r = 0; r < Rows; r++) {
      const Vec value = splat(x[r]);
      for (int v = 0; v < kVecs; v++) sum[r][v] = value * w[v] + sum[r][v];
    }
  }

  // Lays the tiles of x out as [tile][k][row], so that a tile is one stream of memory; one row is that already.
  static Rows pack(const LinearArgs& a, const Tiling& tiling) {
    if (a.rows == 1) return {a.x};
    float* packed = scratch(0, a.rows * a.depth);
    auto body = [&](int64_t t, int) {
      const int64_t first = tiling.begin(t), height = tiling.height(t);
      float* to = packed + first * a.depth;
      for (int64_t k0 = 0; k0 < a.depth; k0 += 16)
        for (int64_t r = 0; r < height; r++)
          for (int64_t k = k0; k < a.depth && k < k0 + 16; k++)
            to[k * height + r] = a.x[(first + r) * a.depth + k];
    };
    parallel_for(tiling.tiles, body);
    return {packed};
  }

  static void store(const LinearArgs& a, const Rows&, const float* acc, const char*, int64_t first_column) {
    store_rows(a, first_column, [&](int64_t r, int64_t i) { return load(acc + r * kPanel + i); });
  }

  static void unpack(const char* panel, int64_t column, int64_t depth, float* y) {
    const float* numbers = reinterpret_cast<const float*>(panel) + column;
    for (int64_t k = 0; k < depth; k++) y[k] = numbers[k * kPanel];
  }
};
