// Products of few rows, which wait for the weights: panels are streams of memory that a thread passes over once. Two
// side by side come faster than one behind the other (measured on a Xeon with AMX: 44 GB/s to 41).

constexpr int64_t kManyPanels = 64, kManyTasks = 16;  // of a thread: so many that it does not matter who has one more

// Fetches what will be read of a panel behind `row`, where so many are read side by side: of two not so far ahead.
template <int Panels>
inline void fetch_ahead(const char* row) {
  constexpr int64_t kAhead = Panels == 1 ? kPanelAhead : 1024;
  __builtin_prefetch(row + kAhead, 0, 2);
  __builtin_prefetch(row + kAhead + kRowBytes / 2, 0, 2);
}

// Neighbouring panels of a task: two, unless one thread would then have more of few; where there is a summary, as many as
// it is made of at once.
inline int64_t panels_of_task(const LinearArgs& a) {
  const int64_t panels = num_panels(a.columns), threads = num_threads();
  if (a.summary && panels > kLanes * kManyTasks * threads) return kLanes;
  return panels % (2 * threads) == 0 || panels > kManyPanels * threads ? 2 : 1;
}

// Calls product.multiply<Panels>(first panel) for all panels; then the summary, if one is asked for.
template <class Product>
inline void each_stream(const LinearArgs& a, const Product& product) {
  const int64_t panels = num_panels(a.columns), some = panels_of_task(a);
  auto task = [&](int64_t t, int) {
    const int64_t first = t * some, end = panels - first < some ? panels : first + some;
    int64_t p = first;
    for (; p + 2 <= end; p += 2) product.template multiply<2>(p);
    if (p < end) product.template multiply<1>(p);
    if (a.summary)
      for (int64_t r = 0; r < a.rows; r++)
        summarise_panels(a.y + r * a.columns, a.columns, first, end, a.summary + r * 2 * panels);
  };
  parallel_for((panels + some - 1) / some, task);
}

// acc[p][r][c] = sum over g of x[g][r] * panel p[g][c]; x: [groups, Kind::kWords, Rows]; panels: `bytes` from one to the
// next. The order of sums is that of `tile`.
template <class Kind, int Rows, int Panels>
inline void stream_tile(const typename Kind::Word* x, const char* panel, int64_t bytes, int64_t groups, float* acc) {
  typename Kind::Sum sum[Panels][Rows][kVecs] = {};
  for (int64_t g = 0; g < groups; g++) {
#pragma GCC unroll 2
    for (int p = 0; p < Panels; p++) {
      const char* row = panel + p * bytes + g * kRowBytes;
      fetch_ahead<Panels>(row);
      Kind::template add<Rows>(x + g * Rows * Kind::kWords, row, sum[p]);
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < Panels; p++)
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; v++) store(acc + (p * Rows + r) * kPanel + v * kLanes, (Vec)sum[p][r][v]);
}

template <class Kind, int Rows>
struct StreamProduct {
  const LinearArgs& a;
  TiledRows<Kind> x;

  template <int Panels>
  void multiply(int64_t first) const {
    alignas(64) float acc[Panels * Rows * kPanel], waiting[Panels][kMostLevels * Rows * kPanel];
    const Segments its = segments_of<Kind>(a);
    const int64_t bytes = its.count * its.bytes;
    const char* panel = static_cast<const char*>(a.weights) + first * bytes;
    for (int64_t p = 0; p < Panels; p++) own_lines(a, 0, Rows, (first + p) * kPanel);
    for (int64_t s = 0; s < its.count; s++, panel += its.bytes) {
      const typename Kind::Word* words = x.words + s * its.groups * Rows * Kind::kWords;
      stream_tile<Kind, Rows, Panels>(words, panel, bytes, its.groups, acc);
      for (int64_t p = 0; p < Panels; p++) {
        const char* tail = panel + p * bytes + its.groups * kRowBytes;
        const auto sums = Kind::sums(a, x.scales + s, acc + p * Rows * kPanel, tail);
        add_segment(a, s, (first + p) * kPanel, waiting[p], {0, Rows}, sums);
      }
    }
  }
};

// See `linear`; a.rows: 1 to `Rows`.
template <class Kind, int Rows>
void linear_stream(const LinearArgs& a) {
  if constexpr (Rows > 0) {
    if (a.rows != Rows) return linear_stream<Kind, Rows - 1>(a);
    each_stream(a, StreamProduct<Kind, Rows>{a, tile_rows<Kind>(a, Tiling(Rows, Rows))});
  }
}
