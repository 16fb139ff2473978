// y = x W^T + b over weights packed in panels of kPanel outputs, of whatever kind: [N / kPanel][groups][kPanel].
//
// A group is as many neighbouring k as fill 4 bytes of each output: 1 of float32, 2 of bfloat16, 4 of int8. Every
// output element is one chain of sums over the groups in rising order, whatever the number of rows, the tile it
// falls in and the thread that computes it. So a row's result does not depend on the other rows of its batch. The
// blocking follows Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008): a panel's
// slice of kGroupsAtOnce stays in the first-level cache while the tiles of x pass by.
//
// A Kind (linear_*.h) says what it reads of x (Word, so many for each row and group), what its sums are, how many
// rows a tile has at most, and how a group is added. What it makes of x for a step is a Kind::Rows.

constexpr int kVecs = kPanel / kLanes;
constexpr int64_t kGroupsAtOnce = 128;
constexpr int64_t kRowBytes = kPanel * 4;

// What a tile prefetches at each group: the line at `bytes` and the one `second` bytes behind it; then `step` further.
struct Ahead {
  const char* bytes;
  int64_t step, second;
};

// acc[r][c] += sum over g of x[g][r] * panel[g][c]; x: [groups, Rows, Kind::kWords], panel: [groups, kPanel].
template <class Kind, int Rows>
inline void tile(const typename Kind::Word* x, const char* panel, int64_t groups, float* acc, Ahead ahead) {
  typedef typename Kind::Sum Sum;
  Sum sum[Rows][kVecs];
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < kVecs; v++) sum[r][v] = (Sum)load(acc + r * kPanel + v * kLanes);
  for (int64_t g = 0; g < groups; g++) {
    __builtin_prefetch(ahead.bytes, 0, 2);
    __builtin_prefetch(ahead.bytes + ahead.second, 0, 2);
    ahead.bytes += ahead.step;
    Kind::template add<Rows>(x + g * Rows * Kind::kWords, panel + g * kRowBytes, sum);
  }
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < kVecs; v++) store(acc + r * kPanel + v * kLanes, (Vec)sum[r][v]);
}

template <class Kind>
using TileFn = void (*)(const typename Kind::Word*, const char*, int64_t, float*, Ahead);

template <class Kind, int Rows>
inline TileFn<Kind> pick_tile(int64_t rows) {
  if constexpr (Rows == 0) return nullptr;
  else return rows == Rows ? &tile<Kind, Rows> : pick_tile<Kind, Rows - 1>(rows);
}

// Rows are cut into tiles of nearly equal height, so that no small tile is left over.
struct Tiling {
  int64_t tiles, rows;
  Tiling(int64_t count, int64_t most) : tiles((count + most - 1) / most), rows(count) {}
  int64_t begin(int64_t tile_index) const { return tile_index * rows / tiles; }
  int64_t height(int64_t tile_index) const { return begin(tile_index + 1) - begin(tile_index); }
};

// Adds the bias, where there is one, to values [rows, kPanel] of a panel and writes them to its columns of y.
// value: (row, offset in the panel) -> Vec.
template <class Value>
inline void store_rows(const LinearArgs& a, int64_t first_column, Value value) {
  const int64_t columns = a.columns - first_column < kPanel ? a.columns - first_column : kPanel;
  for (int64_t r = 0; r < a.rows; r++) {
    float* y = a.y + r * a.columns + first_column;
    each_vector(columns, [&](int64_t i, int lanes) {
      Vec found = value(r, i);
      if (a.bias) found = found + load_part(a.bias + first_column + i, lanes);
      store_part(y + i, found, lanes);
    });
  }
}

// One panel of outputs for all rows; `acc` holds [rows, kPanel]. While the tiles compute with one slice of weights
// they read the next one into the second-level cache, each its share: so memory is read during all of the arithmetic.
template <class Kind>
inline void linear_panel(const LinearArgs& a, const Tiling& tiling, const typename Kind::Rows& x, int64_t p,
                         float* acc) {
  __builtin_memset(acc, 0, static_cast<size_t>(a.rows * kPanel) * 4);
  const int64_t all = padded_depth(a.depth, Kind::kKind) / Kind::kGroup;
  const char* panel = static_cast<const char*>(a.weights) + p * panel_bytes(a.depth, Kind::kKind);
  for (int64_t g = 0; g < all; g += kGroupsAtOnce) {
    const int64_t groups = all - g < kGroupsAtOnce ? all - g : kGroupsAtOnce;
    const char* slice = panel + g * kRowBytes;
    Ahead ahead = {slice + groups * kRowBytes, kRowBytes / tiling.tiles, tiling.tiles == 1 ? kRowBytes / 2 : 0};
    for (int64_t t = 0; t < tiling.tiles; t++) {
      const int64_t first = tiling.begin(t), height = tiling.height(t);
      const typename Kind::Word* words = x.words + (first * all + g * height) * Kind::kWords;
      pick_tile<Kind, Kind::kTileRows>(height)(words, slice, groups, acc + first * kPanel, ahead);
      ahead.bytes += ahead.step * groups;
    }
  }
  Kind::store(a, x, acc, panel + all * kRowBytes, p * kPanel);
}

// Calls body(panel, thread) for every panel. A task is a run of neighbouring panels, so that what is prefetched is
// what the same thread needs next; several tasks per thread even out threads that are held up.
template <class Body>
inline void each_panel(const LinearArgs& a, Body body) {
  const int64_t panels = (a.columns + kPanel - 1) / kPanel, run = a.panels_per_task;
  auto task_body = [&](int64_t task, int thread) {
    for (int64_t p = task * run; p < panels && p < (task + 1) * run; p++) body(p, thread);
  };
  parallel_for((panels + run - 1) / run, task_body);
}

// x: [rows, depth], packed weights, bias: [columns] or null, y: [rows, columns].
template <class Kind>
void linear(const LinearArgs& a) {
  const Tiling tiling(a.rows, Kind::kTileRows);
  const typename Kind::Rows x = Kind::pack(a, tiling);
  each_panel(a, [&](int64_t p, int thread) {
    linear_panel<Kind>(a, tiling, x, p, scratch(1 + thread, a.rows * kPanel));
  });
}

// Rows of a packed table: y[t] = W[ids[t]]; ids outside the table give zeros.
template <class Kind>
void embed(const EmbedArgs& a) {
  const int64_t bytes = panel_bytes(a.depth, Kind::kKind);
  auto body = [&](int64_t t, int) {
    const int64_t id = a.ids[t];
    float* y = a.y + t * a.depth;
    if (id < 0 || id >= a.vocabulary) {
      __builtin_memset(y, 0, static_cast<size_t>(a.depth) * 4);
      return;
    }
    Kind::unpack(static_cast<const char*>(a.weights) + id / kPanel * bytes, id % kPanel, a.depth, y);
  };
  parallel_for(a.tokens, body);
}
