// y = x W^T + b over weights packed in panels of kPanel outputs, of whatever kind: [N / kPanel][groups][kPanel].
//
// A group is as many neighbouring k as fill 4 bytes of each output: 1 of float32, 2 of bfloat16, 4 of int8. Every
// output element is, of each segment of k, one chain of sums over the groups in rising order, whatever the number of
// rows, the tile it falls in and the thread that computes it; the segments' are added in a balanced tree. So a row's
// result does not depend on the other rows of its batch, nor on how many ranks the segments are divided over. The
// blocking follows Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008): a panel's
// slice of kGroupsAtOnce (16 KB) stays in the first-level cache of its core while the tiles of x pass by, and so do the sums
// of a tile until they are added to those of the segments before.
//
// A Kind (linear_*.h) says what it reads of x (Word, so many for each row and group), what its sums are, how many
// rows a tile has at most, and how groups are added, kStep of them at a time.

constexpr int64_t kGroupsAtOnce = 128, kMostAtOnce = 192;  // the latter of a segment that is no longer
constexpr int64_t kRowBytes = kPanel * 4;
// As many vectors of a panel as a tile of so many rows sums up at once, for registers hold the sums.
constexpr int part_vecs(int rows) { return kLanes > 4 || rows * kVecs <= kRegisters / 2 ? kVecs : kRegisters / 8; }
// Rows of a tile at most, and no more than a vector has lanes: see `lay_out`.
constexpr int kSumRows = kLanes == 16 ? 14 : (kLanes == 8 ? 3 : 4);
// How far ahead a tile takes x and the panel from the second-level cache to the first.
constexpr int64_t kWordsAhead = 192, kGroupsAhead = 4;
// How many bytes ahead a panel comes from memory that one tile passes over. Measured: at 2048 and 4096 it came slower.
constexpr int64_t kPanelAhead = 3584;

// What a tile prefetches at each group: the line at `bytes` and the one `second` bytes behind it; then `step` further.
struct Ahead {
  const char* bytes;
  int64_t step, second;
};

// Of a part of a panel: see `tile`. Fetches: what is ahead, and the panel.
// (Loops over sums are unrolled early: later, the compiler has already put the sums in memory before and behind.)
template <class Kind, int Rows, bool IsStream, bool Fetches>
inline void tile_part(const typename Kind::Word* x, const char* panel, int64_t groups, bool is_first, float* acc, Ahead ahead) {
  typedef typename Kind::Sum Sum;
  constexpr int kPartVecs = part_vecs(Rows);
  Sum sum[Rows][kPartVecs];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < kPartVecs; v++) sum[r][v] = is_first ? Sum{} : (Sum)load(acc + r * kPanel + v * kLanes);
  if constexpr (Kind::kStep > 1) Kind::template turn<Rows>(sum);
  for (int64_t g = 0; g < groups; g += Kind::kStep) {
    const typename Kind::Word* words = x + g * Rows * Kind::kWords;
    if constexpr (Fetches) {
      for (int step = 0; step < Kind::kStep; step++, ahead.bytes += ahead.step) {
        __builtin_prefetch(ahead.bytes, 0, 2);
        __builtin_prefetch(ahead.bytes + ahead.second, 0, 2);
      }
      __builtin_prefetch(words + kWordsAhead);
      if (!IsStream) {
        __builtin_prefetch(panel + (g + kGroupsAhead) * kRowBytes);
        __builtin_prefetch(panel + (g + kGroupsAhead) * kRowBytes + kRowBytes / 2);
      }
    }
    Kind::template add<Rows>(words, panel + g * kRowBytes, sum);
  }
  if constexpr (Kind::kStep > 1) Kind::template turn<Rows>(sum);
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < kPartVecs; v++) store(acc + r * kPanel + v * kLanes, (Vec)sum[r][v]);
}

// acc[r][c] += sum over g of x[g][r] * panel[g][c]; x: [groups, Kind::kWords, Rows], panel: [groups, kPanel].
// is_first: acc holds nothing yet.
// IsStream: the panel comes from memory. The processor itself takes it on to the first-level cache; a fetch for that too
// holds up those from memory.
template <class Kind, int Rows, bool IsStream>
inline void tile(const typename Kind::Word* x, const char* panel, int64_t groups, bool is_first, float* acc, Ahead ahead) {
  constexpr int64_t kPart = part_vecs(Rows) * kLanes;
  tile_part<Kind, Rows, IsStream, true>(x, panel, groups, is_first, acc, ahead);
  for (int64_t first = kPart; first < kPanel; first += kPart)
    tile_part<Kind, Rows, IsStream, false>(x, panel + first * 4, groups, is_first, acc + first, ahead);
}

// The groups of a Kind are added one by one, to sums as they are stored. (Where they are not, `turn` turns sums into what is
// added to, and back.)
struct OneByOne {
  static constexpr int kStep = 1;
};

template <class Kind>
using TileFn = void (*)(const typename Kind::Word*, const char*, int64_t, bool, float*, Ahead);

template <class Kind, int Rows, bool IsStream>
inline TileFn<Kind> pick_tile(int64_t rows) {
  if constexpr (Rows == 0) return nullptr;
  else return rows == Rows ? &tile<Kind, Rows, IsStream> : pick_tile<Kind, Rows - 1, IsStream>(rows);
}

// Rows are cut into tiles of nearly equal height, so that no small tile is left over.
struct Tiling {
  int64_t tiles, rows;
  Tiling(int64_t count, int64_t most) : tiles((count + most - 1) / most), rows(count) {}
  int64_t begin(int64_t tile_index) const { return tile_index * rows / tiles; }
  int64_t height(int64_t tile_index) const { return begin(tile_index + 1) - begin(tile_index); }
};

// Turns vectors v[i][j] into v[j][i]: each round puts a vector of the first half between those of the second.
inline void transpose(Vec (&v)[kLanes]) {
  IntVec low, high;
  for (int i = 0; i < kLanes; i++) {
    low[i] = i / 2 + i % 2 * kLanes;
    high[i] = low[i] + kLanes / 2;
  }
  for (int round = 1; round < kLanes; round *= 2) {
    Vec mixed[kLanes];
    for (int i = 0; i < kLanes / 2; i++) {
      mixed[2 * i] = __builtin_shuffle(v[i], v[i + kLanes / 2], low);
      mixed[2 * i + 1] = __builtin_shuffle(v[i], v[i + kLanes / 2], high);
    }
    for (int i = 0; i < kLanes; i++) v[i] = mixed[i];
  }
}

// to[word][row] = rows[row][word]: `count` words of 4 bytes of at most kLanes rows.
inline void lay_out(const float* const* rows, int64_t height, int64_t count, float* to) {
  int64_t word = 0;
  for (; word + kLanes <= count; word += kLanes) {
    Vec block[kLanes] = {};
    for (int64_t r = 0; r < height; r++) block[r] = load(rows[r] + word);
    transpose(block);
    for (int64_t w = 0; w < kLanes; w++) {
      // What is behind the rows is written over by the words that follow; behind the last word nothing is ours.
      const bool is_within = (word + w) * height + kLanes <= count * height;
      store_part(to + (word + w) * height, block[w], is_within ? kLanes : static_cast<int>(height));
    }
  }
  for (; word < count; word++)
    for (int64_t r = 0; r < height; r++) __builtin_memcpy(to + word * height + r, rows[r] + word, 4);
}

// The segments of a product: inputs, groups of a Kind and bytes of a panel, of each.
struct Segments {
  int64_t count, depth, groups, bytes;
};

template <class Kind>
inline Segments segments_of(const LinearArgs& a) {
  const int64_t depth = a.depth / a.segments;
  return {a.segments, depth, padded_depth(depth, Kind::kKind) / Kind::kGroup, panel_bytes(depth, Kind::kKind)};
}

// Groups of a slice.
inline int64_t slice_groups(const Segments& its) { return its.groups <= kMostAtOnce ? its.groups : kGroupsAtOnce; }

// Calls body(segment, first, count) for the groups of all segments, at most `most` at a time, which are of one segment.
template <class Body>
inline void each_slice(const Segments& its, int64_t most, Body body) {
  for (int64_t s = 0; s < its.count; s++)
    for (int64_t g = 0; g < its.groups; g += most) body(s, g, its.groups - g < most ? its.groups - g : most);
}

// x as its tiles read it: [slice][tile][group][word][row]. scales: [rows][segments], for kinds that
// have any.
template <class Kind>
struct TiledRows {
  const typename Kind::Word* words;
  const float* scales;
};

// The words of a row, those of each segment behind those of the one before: at `to`, or where the row is.
template <class Kind>
inline const typename Kind::Word* words_of_row(const Segments& its, const float* x, typename Kind::Word* to, float* scales) {
  const typename Kind::Word* words = Kind::words(x, its.depth, to, scales);
  for (int64_t s = 1; s < its.count; s++)
    Kind::words(x + s * its.depth, its.depth, to + s * its.groups * Kind::kWords, scales + s);
  return words;
}

template <class Kind>
inline TiledRows<Kind> tile_rows(const LinearArgs& a, const Tiling& tiling) {
  typedef typename Kind::Word Word;
  static_assert(sizeof(Word) == 4 && Kind::kTileRows <= kLanes, "rows are transposed as vectors of 4 bytes");
  const Segments its = segments_of<Kind>(a);
  const int64_t count = its.count * its.groups * Kind::kWords;  // words of a row
  float* tiled = scratch(0, a.rows * (count + its.count) + a.depth);
  float* scales = tiled + a.rows * count;
  if (a.rows == 1)
    return {words_of_row<Kind>(its, row_of(a, 0, scales + its.count), reinterpret_cast<Word*>(tiled), scales), scales};
  auto body = [&](int64_t t, int thread) {
    const int64_t first = tiling.begin(t), height = tiling.height(t);
    float* own = scratch(1 + thread, height * count + a.depth);
    const float* rows[Kind::kTileRows];
    for (int64_t r = 0; r < height; r++) {
      float* words = own + r * count;  // of float32 the row itself
      const float* x = row_of(a, first + r, Kind::kKind == kFloat32 ? words : own + height * count);
      float* its_scales = scales + (first + r) * its.count;
      rows[r] = reinterpret_cast<const float*>(words_of_row<Kind>(its, x, reinterpret_cast<Word*>(words), its_scales));
    }
    each_slice(its, slice_groups(its), [&](int64_t segment, int64_t g, int64_t groups) {
      const int64_t word = (segment * its.groups + g) * Kind::kWords, some = groups * Kind::kWords;
      lay_out(rows, height, some, tiled + word * a.rows + first * some);
      for (int64_t r = 0; r < height; r++) rows[r] += some;
    });
  };
  parallel_for(tiling.tiles, body);
  return {reinterpret_cast<const Word*>(tiled), scales};
}

// The product of rows [first, first + most), or of those that there are.
inline LinearArgs rows_of(const LinearArgs& a, int64_t first, int64_t most) {
  LinearArgs part = a;
  part.rows = a.rows - first < most ? a.rows - first : most;
  part.y = a.y + first * a.columns;
  return part;
}

// Rows [first, end) of a product.
struct RowRange {
  int64_t first, end;
};

// Adds the bias, where there is one, to values [rows, kPanel] of a panel, and writes them to its columns of y.
// value: (row, offset in the panel) -> Vec.
template <class Value>
inline void store_rows(const LinearArgs& a, int64_t first_column, RowRange rows, Value value) {
  const int64_t columns = a.columns - first_column < kPanel ? a.columns - first_column : kPanel;
  for (int64_t r = rows.first; r < rows.end; r++) {
    float* y = a.y + r * a.columns + first_column;
    each_vector(columns, [&](int64_t i, int lanes) {
      Vec found = value(r, i);
      if (a.bias) found = found + load_part(a.bias + first_column + i, lanes);
      store_part(y + i, found, lanes);
    });
  }
}

// See `add_segment`. Level: complete_before(segment), or -1.
template <int Level, class Value>
inline void add_at_level(const LinearArgs& a, int64_t segment, int64_t first_column, float* waiting, RowRange rows,
                         Value value) {
  const int64_t size = a.rows * kPanel;
  const int level = Level < 0 ? complete_before(segment) : Level;
  const auto sum = [&](int64_t r, int64_t i) {
    Vec found = value(r, i);
    for (int l = 0; l < level; l++) found = load(waiting + l * size + r * kPanel + i) + found;
    return found;
  };
  if (segment + 1 == a.segments) return store_rows(a, first_column, rows, sum);
  float* to = waiting + level * size;
  for (int64_t r = rows.first; r < rows.end; r++)
    for (int64_t i = 0; i < kPanel; i += kLanes) store(to + r * kPanel + i, sum(r, i));
}

// Adds the sums of a segment for a panel to those of the segments before it, which wait in `waiting`
// [kMostLevels][rows, kPanel], and writes what is complete: there, or with the last segment to y.
// value: (row, offset in the panel) -> the segment's Vec.
template <class Value>
inline void add_segment(const LinearArgs& a, int64_t segment, int64_t first_column, float* waiting, RowRange rows,
                        Value value) {
  switch (complete_before(segment)) {
    case 0: return add_at_level<0>(a, segment, first_column, waiting, rows, value);
    case 1: return add_at_level<1>(a, segment, first_column, waiting, rows, value);
    case 2: return add_at_level<2>(a, segment, first_column, waiting, rows, value);
    default: return add_at_level<-1>(a, segment, first_column, waiting, rows, value);
  }
}

// Floats that are needed for that, and for `rows` rows of sums.
inline int64_t sums_and_waiting(int64_t rows, int64_t segments) {
  return rows * kPanel * (1 + complete_before(segments - 1));
}

// What is known of the rows of a panel, if it is asked for.
inline void summarise(const LinearArgs& a, int64_t p) {
  if (!a.summary) return;
  const int64_t left = a.columns - p * kPanel;
  summarise_panel(a.y, a.rows, a.columns, p, left < kPanel ? left : kPanel, a.summary);
}

// Fetches the lines of y that a tile's sums go to, and those of the bias, so that what is behind its last slice does not
// wait for memory.
inline void own_lines(const LinearArgs& a, int64_t first, int64_t height, int64_t column) {
  if (a.bias) {
    __builtin_prefetch(a.bias + column);
    __builtin_prefetch(a.bias + column + kPanel / 2);
  }
  for (int64_t r = first; r < first + height; r++) {
    __builtin_prefetch(a.y + r * a.columns + column, 1);
    __builtin_prefetch(a.y + r * a.columns + column + kPanel / 2, 1);
  }
}

// One panel of outputs for all rows; `acc` holds what `sums_and_waiting` says. While the tiles compute with one slice of
// weights they read the next one into the second-level cache, each its share: so memory is read during all of the
// arithmetic.
template <class Kind>
inline void linear_panel(const LinearArgs& a, const Tiling& tiling, const TiledRows<Kind>& x, int64_t p,
                         float* acc) {
  const Segments its = segments_of<Kind>(a);
  const char* panel = static_cast<const char*>(a.weights) + p * its.count * its.bytes;
  const bool is_stream = tiling.tiles == 1;
  const int64_t most = is_stream ? its.groups : slice_groups(its);  // one tile reads the panel once: no use in slices
  float* waiting = acc + a.rows * kPanel;
  each_slice(its, most, [&](int64_t segment, int64_t g, int64_t groups) {
    const char *segment_panel = panel + segment * its.bytes, *slice = segment_panel + g * kRowBytes;
    const char* tail = segment_panel + its.groups * kRowBytes;
    Ahead ahead = {slice + (is_stream ? kPanelAhead : groups * kRowBytes), kRowBytes / tiling.tiles,
                   is_stream ? kRowBytes / 2 : 0};
    const bool is_last = g + groups == its.groups;
    const int64_t before = segment * its.groups + g;
    for (int64_t t = 0; t < tiling.tiles; t++) {
      const int64_t first = tiling.begin(t), height = tiling.height(t);
      if (is_last && segment + 1 == its.count) own_lines(a, first, height, p * kPanel);
      const typename Kind::Word* words = x.words + (before * a.rows + first * groups) * Kind::kWords;
      const auto multiply = is_stream ? pick_tile<Kind, Kind::kTileRows, true>(height)
                                      : pick_tile<Kind, Kind::kTileRows, false>(height);
      float* sums = most < its.groups ? acc + first * kPanel : acc;  // of one slice in the first-level cache
      multiply(words, slice, groups, g == 0, sums, ahead);
      ahead.bytes += ahead.step * groups;
      if (!is_last) continue;
      const LinearArgs rows = rows_of(a, first, height);
      add_segment(rows, segment, p * kPanel, waiting + first * kPanel * complete_before(its.count - 1), {0, height},
                  Kind::sums(a, x.scales + first * its.count + segment, sums, tail));
    }
  });
  summarise(a, p);
}

// Calls body(panel, thread) for every panel.
template <class Body>
inline void each_panel(const LinearArgs& a, Body body, const AroundTasks* around = nullptr) {
  parallel_for(num_panels(a.columns), body, around);
}

// Of few rows, at most `Rows`: linear_stream.h.
constexpr int64_t kFewRows = 4;
constexpr bool kHasStreams = kLanes == 16;  // fewer registers do not hold the sums of two panels
template <class Kind, int Rows>
void linear_stream(const LinearArgs& a);

// x: [rows, depth], packed weights, bias: [columns] or null, y: [rows, columns].
template <class Kind>
void linear(const LinearArgs& a) {
  if (a.rows == 0) return;  // no tile, whose share of a panel could be fetched
  if constexpr (kHasStreams)
    if (a.rows <= kFewRows) return linear_stream<Kind, kFewRows>(a);
  const Tiling tiling(a.rows, Kind::kTileRows);
  const TiledRows<Kind> x = tile_rows<Kind>(a, tiling);
  each_panel(a, [&](int64_t p, int thread) {
    linear_panel<Kind>(a, tiling, x, p, scratch(1 + thread, sums_and_waiting(a.rows, a.segments)));
  });
}

// Rows of a packed table: y[t] = W[ids[t]]; ids outside the table give zeros.
template <class Kind>
void embed(const EmbedArgs& a) {
  const int64_t depth = a.depth / a.segments, bytes = panel_bytes(depth, Kind::kKind);
  auto body = [&](int64_t t, int) {
    const int64_t id = a.ids[t];
    float* y = a.y + t * a.depth;
    if (id < 0 || id >= a.vocabulary) {
      __builtin_memset(y, 0, static_cast<size_t>(a.depth) * 4);
      return;
    }
    const char* panel = static_cast<const char*>(a.weights) + id / kPanel * a.segments * bytes;
    for (int64_t s = 0; s < a.segments; s++) Kind::unpack(panel + s * bytes, id % kPanel, depth, y + s * depth);
  };
  parallel_for(a.tokens, body);
}
