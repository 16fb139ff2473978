// y = x W^T + b over weights packed in panels of kPanel outputs: packed[N / kPanel][K][kPanel].
//
// Every output element is one chain of multiply-adds over k in rising order, whatever the number of rows, the
// tile it falls in and the thread that computes it. So a row's result does not depend on the other rows of its
// batch. The blocking follows Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008):
// a panel's slice of kDepth stays in the first-level cache while the tiles of x pass by.

constexpr int kVecs = kPanel / kLanes;
constexpr int kTileRows = kLanes == 16 ? 14 : (kLanes == 8 ? 3 : 2);
constexpr int64_t kDepth = 128;
constexpr int64_t kRowBytes = kPanel * 4;

// What a tile prefetches at each k: the line at `bytes` and the one `second` bytes behind it; then `step` further.
struct Ahead {
  const char* bytes;
  int64_t step, second;
};

// acc[r][c] += sum over k of x[k][r] * panel[k][c]; x: [depth, Rows], panel: [depth, kPanel].
template <int Rows>
inline void tile(const float* x, const float* panel, int64_t depth, float* acc, Ahead ahead) {
  Vec sum[Rows][kVecs];
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < kVecs; v++) sum[r][v] = load(acc + r * kPanel + v * kLanes);
  for (int64_t k = 0; k < depth; k++) {
    Vec w[kVecs];
    for (int v = 0; v < kVecs; v++) w[v] = load(panel + k * kPanel + v * kLanes);
    __builtin_prefetch(ahead.bytes, 0, 2);
    __builtin_prefetch(ahead.bytes + ahead.second, 0, 2);
    ahead.bytes += ahead.step;
    for (int r = 0; r < Rows; r++) {
      const Vec value = splat(x[k * Rows + r]);
      for (int v = 0; v < kVecs; v++) sum[r][v] = value * w[v] + sum[r][v];
    }
  }
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < kVecs; v++) store(acc + r * kPanel + v * kLanes, sum[r][v]);
}

using TileFn = void (*)(const float*, const float*, int64_t, float*, Ahead);

template <int Rows>
inline TileFn pick_tile(int64_t rows) {
  if constexpr (Rows == 0) return nullptr;
  else return rows == Rows ? &tile<Rows> : pick_tile<Rows - 1>(rows);
}

// Rows are cut into tiles of nearly equal height, so that no small tile is left over.
struct Tiling {
  int64_t tiles, rows;
  explicit Tiling(int64_t count) : tiles((count + kTileRows - 1) / kTileRows), rows(count) {}
  int64_t begin(int64_t tile_index) const { return tile_index * rows / tiles; }
  int64_t height(int64_t tile_index) const { return begin(tile_index + 1) - begin(tile_index); }
};

// Lays the tiles of x out as [tile][k][row], so that a tile is one stream of memory.
inline const float* pack_rows(const LinearArgs& a, const Tiling& tiling) {
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
  return packed;
}

inline void store_rows(const LinearArgs& a, const float* acc, int64_t first_column) {
  const int64_t columns = a.columns - first_column < kPanel ? a.columns - first_column : kPanel;
  for (int64_t r = 0; r < a.rows; r++) {
    float* y = a.y + r * a.columns + first_column;
    const float* sum = acc + r * kPanel;
    each_vector(columns, [&](int64_t i, int lanes) {
      Vec value = load(sum + i);
      if (a.bias) value = value + load_part(a.bias + first_column + i, lanes);
      store_part(y + i, value, lanes);
    });
  }
}

// One panel of outputs for all rows; `acc` holds [rows, kPanel]. While the tiles compute with one slice of weights
// they read the next one into the second-level cache, each its share: so memory is read during all of the arithmetic.
inline void linear_panel(const LinearArgs& a, const Tiling& tiling, const float* x, int64_t p, float* acc) {
  __builtin_memset(acc, 0, static_cast<size_t>(a.rows * kPanel) * 4);
  const float* panel = a.weights + p * a.depth * kPanel;
  for (int64_t k = 0; k < a.depth; k += kDepth) {
    const int64_t depth = a.depth - k < kDepth ? a.depth - k : kDepth;
    const float* slice = panel + k * kPanel;
    Ahead ahead = {reinterpret_cast<const char*>(slice + depth * kPanel), kRowBytes / tiling.tiles,
                   tiling.tiles == 1 ? kRowBytes / 2 : 0};
    for (int64_t t = 0; t < tiling.tiles; t++) {
      const int64_t first = tiling.begin(t), height = tiling.height(t);
      const float* rows = x + first * a.depth + k * height;
      pick_tile<kTileRows>(height)(rows, slice, depth, acc + first * kPanel, ahead);
      ahead.bytes += ahead.step * depth;
    }
  }
  store_rows(a, acc, p * kPanel);
}

// x: [rows, depth], packed weights, bias: [columns] or null, y: [rows, columns].
void linear(const LinearArgs& a) {
  const Tiling tiling(a.rows);
  const float* x = a.rows == 1 ? a.x : pack_rows(a, tiling);
  const int64_t panels = (a.columns + kPanel - 1) / kPanel;
  // A task is a run of neighbouring panels, so that what is prefetched is what the same thread needs next;
  // several tasks per thread even out threads that are held up.
  const int64_t run = a.panels_per_task;
  auto body = [&](int64_t task, int thread) {
    float* acc = scratch(1 + thread, a.rows * kPanel);
    for (int64_t p = task * run; p < panels && p < (task + 1) * run; p++) linear_panel(a, tiling, x, p, acc);
  };
  parallel_for((panels + run - 1) / run, body);
}

// Rows of a packed table: y[t] = W[ids[t]]; ids outside the table give zeros.
void embed(const EmbedArgs& a) {
  auto body = [&](int64_t t, int) {
    const int64_t id = a.ids[t];
    float* y = a.y + t * a.depth;
    if (id < 0 || id >= a.vocabulary) {
      __builtin_memset(y, 0, static_cast<size_t>(a.depth) * 4);
      return;
    }
    const float* column = a.weights + (id / kPanel) * a.depth * kPanel + id % kPanel;
    for (int64_t k = 0; k < a.depth; k++) y[k] = column[k * kPanel];
  };
  parallel_for(a.tokens, body);
}
