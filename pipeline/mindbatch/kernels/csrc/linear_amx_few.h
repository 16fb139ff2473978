// Products of few rows with bfloat16 weights in vectors, with the bits of tiles: a tile waits for its sixteen rows of
// a panel at once, vectors read a panel as the stream of memory that it is. Sums have the order of TDPBF16PS: of 32
// numbers of depth the first ones and the second ones of all pairs are added up apart, then to one another, then to the
// sum. (Products of two bfloat16 are exact in float32.) Sums of int8 are exact in any order: see `linear`.

// Pairs of bfloat16, widened.
struct VecPair {
  Vec first, second;
};

inline VecPair widen(IntVec pairs) { return {(Vec)(pairs << 16), (Vec)(pairs & static_cast<int32_t>(0xffff0000u))}; }

// Rows as floats, rounded: of each pair the first numbers of all rows, then the second.
struct WidenedRows : Bfloat16 {
  static constexpr int64_t kWords = 2;
  static constexpr int kTileRows = kFewRows;
  typedef float Word;

  static const float* words(const float* x, int64_t depth, float* to, float*) {
    each_vector(depth, [&](int64_t i, int lanes) { store_part(to + i, to_bfloat16(load_part(x + i, lanes)), lanes); });
    __builtin_memset(to + depth, 0, static_cast<size_t>(padded_depth(depth, kKind) - depth) * 4);
    return to;
  }
};

// acc[p][r][c] = x[r] . panel p[c]; x: [groups, 2, Rows]; panels [groups, kPanel] of pairs, `bytes` from one to the next;
// groups: whole tiles of kTileSide.
template <int Rows, int Panels>
inline void multiply_few(const float* x, const char* panel, int64_t bytes, int64_t groups, float* acc) {
  Vec sum[Panels][Rows][kVecs] = {};
  for (int64_t g = 0; g < groups; g += kTileSide) {
    Vec first[Panels][Rows][kVecs] = {}, second[Panels][Rows][kVecs] = {};
#pragma GCC unroll 4
    for (int64_t i = g; i < g + kTileSide; i++) {
      const float* words = x + i * 2 * Rows;
#pragma GCC unroll 2
      for (int p = 0; p < Panels; p++) {
        const char* row = panel + p * bytes + i * kRowBytes;
        fetch_ahead<Panels>(row);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; v++) {
          const VecPair weights = widen(load_ints(row + v * kLanes * 4));
#pragma GCC unroll 4
          for (int r = 0; r < Rows; r++) {
            first[p][r][v] = fma(splat(words[r]), weights.first, first[p][r][v]);
            second[p][r][v] = fma(splat(words[Rows + r]), weights.second, second[p][r][v]);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < Panels; p++)
#pragma GCC unroll 4
      for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; v++) sum[p][r][v] = sum[p][r][v] + (first[p][r][v] + second[p][r][v]);
  }
#pragma GCC unroll 2
  for (int p = 0; p < Panels; p++)
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; v++) store(acc + (p * Rows + r) * kPanel + v * kLanes, sum[p][r][v]);
}

template <int Rows>
struct FewProduct {
  const LinearArgs& a;
  TiledRows<WidenedRows> x;

  template <int Panels>
  void multiply(int64_t first) const {
    if constexpr (Panels > 1 && Rows > 3) {  // more sums than registers
      for (int64_t p = 0; p < Panels; p++) multiply<1>(first + p);
      return;
    }
    alignas(64) float acc[Panels * Rows * kPanel], waiting[Panels][kMostLevels * Rows * kPanel];
    const Segments its = segments_of<WidenedRows>(a);
    const int64_t bytes = its.count * its.bytes;
    const char* panel = static_cast<const char*>(a.weights) + first * bytes;
    for (int64_t p = 0; p < Panels; p++) own_lines(a, 0, Rows, (first + p) * kPanel);
    for (int64_t s = 0; s < its.count; s++, panel += its.bytes) {
      const unsigned mode = MB_FLUSH_SUBNORMALS();
      multiply_few<Rows, Panels>(x.words + s * its.groups * Rows * WidenedRows::kWords, panel, bytes, its.groups, acc);
      MB_RESTORE_MODE(mode);
      for (int64_t p = 0; p < Panels; p++)
        add_segment(a, s, (first + p) * kPanel, waiting[p], {0, Rows},
                    WidenedRows::sums(a, nullptr, acc + p * Rows * kPanel, nullptr));
    }
  }
};

template <int Rows>
inline void linear_few(const LinearArgs& a) {
  if constexpr (Rows > 0) {
    if (a.rows != Rows) return linear_few<Rows - 1>(a);
    each_stream(a, FewProduct<Rows>{a, tile_rows<WidenedRows>(a, Tiling(Rows, Rows))});
  }
}
