// Products with bfloat16 and int8 weights in AMX tiles: 32 rows of x by a panel of 32 outputs, 64 bytes of depth at a
// time. Few rows are computed in vectors, to the same bits (linear_amx_few.h), so that each row has the same order of
// summation: for bfloat16 that of TDPBF16PS, which is not the one of the other instruction sets. x is packed as
// [16 rows][64 bytes of depth][row].
//
// A slice of a panel stays in the first-level cache while the rows of x pass by, which stay in the second-level cache;
// sums wait in memory between slices, as exact as in the tiles.

constexpr int64_t kSliceTiles = 8;  // 16 KB of a panel
constexpr int64_t kRowsBytes = 1 << 20;  // of x at a time, packed
constexpr int64_t kLine = 64, kPairBytes = 2 * kTileBytes;  // a panel's two tiles for 64 bytes of depth
constexpr int64_t kPairsAhead = 4;

struct AmxBfloat16 : Bfloat16 {
  static void few(const LinearArgs& a) { linear_few<kFewRows>(a); }

  // Writes a row to its place in each tile; returns its scale.
  static float write(const float* x, int64_t depth, char* to) {
    typedef uint16_t Halves __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
    typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
    const int64_t padded = padded_depth(depth, kKind);
    for (int64_t k = 0; k < padded; k += kLanes) {
      const int64_t left = depth - k;
      const Vec value = load_part(x + (left > 0 ? k : 0), static_cast<int>(left < 0 ? 0 : left < kLanes ? left : kLanes));
      const Words nearest = (Words)to_bfloat16(value) >> 16;
      *reinterpret_cast<Halves*>(to + k / 32 * kTileBytes + k % 32 * 2) = __builtin_convertvector(nearest, Halves);
    }
    return 1;
  }

  static void add(bool both) {
    MB_TILE_DOT_PAIRS(0, 4, 6);
    MB_TILE_DOT_PAIRS(1, 4, 7);
    if (!both) return;
    MB_TILE_DOT_PAIRS(2, 5, 6);
    MB_TILE_DOT_PAIRS(3, 5, 7);
  }
};

struct AmxInt8 : Int8 {
  static constexpr int8_t kSign = -128;  // see Int8Words

  static void few(const LinearArgs& a) { linear<Int8>(a); }

  static float write(const float* x, int64_t depth, char* to) {
    const ByteVec zeros = ByteVec{} ^ kSign;
    for (int64_t k = depth / kLanes * kLanes; k < padded_depth(depth, kKind); k += kLanes) put(k, zeros, to);
    return quantise(x, depth, [&](int64_t k, ByteVec bytes, int) { put(k, bytes ^ kSign, to); });
  }

  static void add(bool both) {
    MB_TILE_DOT_BYTES(0, 4, 6);
    MB_TILE_DOT_BYTES(1, 4, 7);
    if (!both) return;
    MB_TILE_DOT_BYTES(2, 5, 6);
    MB_TILE_DOT_BYTES(3, 5, 7);
  }

 private:
  static void put(int64_t k, ByteVec bytes, char* to) {
    __builtin_memcpy(to + k / kTileRowBytes * kTileBytes + k % kTileRowBytes, &bytes, sizeof bytes);
  }
};

// What is fetched into the second-level cache while tiles compute: `lines` at each step of depth, from `bytes` on.
struct Fetch {
  const char* bytes;
  int64_t lines;

  void fetch() {
    for (int64_t line = 0; line < lines; line++) __builtin_prefetch(bytes + line * kLine, 0, 2);
    bytes += lines * kLine;
  }
};

constexpr int64_t kPairRows = 2 * kTileSide, kPairSums = kPairRows * kPanel;

// The sums of a segment for a pair of blocks, added to those of the segments before a few rows at a time, while tiles
// compute what comes next.
template <class Kind>
struct PairSums {
  LinearArgs rows{};
  int64_t segment = 0, first_column = 0;
  const float *sums = nullptr, *scales = nullptr;
  const char* tail = nullptr;
  float* waiting = nullptr;
  int64_t done = 0;

  void add(int64_t most) {
    const RowRange some = {done, rows.rows - done < most ? rows.rows : done + most};
    if (some.first < some.end)
      add_segment(rows, segment, first_column, waiting, some, Kind::sums(rows, scales, sums, tail));
    done = some.end;
  }
};

// acc [16 or 32 rows, kPanel] = x times a slice of a panel, added to what acc holds unless `is_first`.
// x: 16 rows in `tiles` tiles, and where `both` 16 more, `stride` bytes behind them.
template <class Kind>
inline void multiply_tiles(const char* x, int64_t stride, const char* panel, int64_t tiles, bool both, bool is_first,
                           float* acc, Fetch& ahead, PairSums<Kind>& before) {
  const int64_t rows_at_once = (kPairRows + tiles - 1) / tiles;
  if (is_first) {
    MB_TILE_ZERO(0);
    MB_TILE_ZERO(1);
    MB_TILE_ZERO(2);
    MB_TILE_ZERO(3);
  } else {
    MB_TILE_LOAD(0, acc, kRowBytes);
    MB_TILE_LOAD(1, acc + kTileSide, kRowBytes);
    if (both) {
      MB_TILE_LOAD(2, acc + kTileSide * kPanel, kRowBytes);
      MB_TILE_LOAD(3, acc + kTileSide * kPanel + kTileSide, kRowBytes);
    }
  }
  for (int64_t t = 0; t < tiles; t++) {
    ahead.fetch();
    before.add(rows_at_once);
    MB_TILE_LOAD(4, x + t * kTileBytes, kTileRowBytes);
    if (both) MB_TILE_LOAD(5, x + stride + t * kTileBytes, kTileRowBytes);
    MB_TILE_LOAD(6, panel + t * kPairBytes, kRowBytes);
    MB_TILE_LOAD(7, panel + t * kPairBytes + kTileRowBytes, kRowBytes);
    Kind::add(both);
  }
  MB_TILE_STORE(0, acc, kRowBytes);
  MB_TILE_STORE(1, acc + kTileSide, kRowBytes);
  if (!both) return;
  MB_TILE_STORE(2, acc + kTileSide * kPanel, kRowBytes);
  MB_TILE_STORE(3, acc + kTileSide * kPanel + kTileSide, kRowBytes);
}

// Rows of x in blocks of 16, which are `stride` bytes apart; of each the `tiles` tiles of a segment.
struct PackedRows {
  const char* bytes;
  int64_t blocks, tiles, stride;

  // Of the last pair the second block may be missing.
  int64_t pairs() const { return (blocks + 1) / 2; }
};

// x times a segment of a panel; complete(pair, its sums [kPairRows, kPanel]) as soon as a pair of blocks has them, while
// those of the pair before are still added. acc: kPairSums for each pair, or of two where a segment is one slice. While a
// slice computes, the next one is fetched, each pair of blocks a share. One pair reads the panel once, from memory: there
// is no use in slices, and it fetches not far ahead.
template <class Kind, class Complete>
inline void multiply_panel(const PackedRows& x, const char* panel, float* acc, PairSums<Kind>& before, Complete complete) {
  const int64_t pairs = x.pairs(), most = pairs == 1 ? x.tiles : kSliceTiles;
  const int64_t lines = (kPairBytes / kLine + pairs - 1) / pairs;
  for (int64_t t = 0; t < x.tiles; t += most) {
    const int64_t some = x.tiles - t < most ? x.tiles - t : most;
    const char* slice = panel + t * kPairBytes;
    Fetch ahead = {slice + (pairs == 1 ? kPairsAhead : some) * kPairBytes, lines};
    for (int64_t pair = 0; pair < pairs; pair++) {
      const char* rows = x.bytes + 2 * pair * x.stride + t * kTileBytes;
      float* sums = x.tiles > most ? acc + pair * kPairSums : before.sums == acc ? acc + kPairSums : acc;
      multiply_tiles(rows, x.stride, slice, some, 2 * pair + 1 < x.blocks, t == 0, sums, ahead, before);
      if (t + some == x.tiles) complete(pair, sums);
    }
  }
}

// Once for all panels of a thread: to configure tiles takes as long as some of their products.
constexpr AroundTasks kWithTiles = {[] { MB_TILE_CONFIGURE(); }, [] { MB_TILE_RELEASE(); }};

// See `linear`. What is behind the last row of x in its tiles is never read again: those sums are left out.
template <class Kind>
void linear_amx(const LinearArgs& a) {
  if (a.rows <= kFewRows) return Kind::few(a);
  const Segments its = segments_of<Kind>(a);
  const int64_t tiles = its.groups / kTileSide, block_bytes = its.count * tiles * kTileBytes;
  const int64_t all = (a.rows + kTileSide - 1) / kTileSide;
  float* memory = scratch(0, all * block_bytes / 4 + a.rows * its.count);
  char* packed = reinterpret_cast<char*>(memory);
  float* scales = memory + all * block_bytes / 4;
  auto pack = [&](int64_t r, int thread) {
    char* to = packed + r / kTileSide * block_bytes + r % kTileSide * kTileRowBytes;
    const float* x = row_of(a, r, scratch(1 + thread, a.depth));
    for (int64_t s = 0; s < its.count; s++)
      scales[r * its.count + s] = Kind::write(x + s * its.depth, its.depth, to + s * tiles * kTileBytes);
  };
  each_row(a.rows, pack);
  const int64_t parts = (all * block_bytes + kRowsBytes - 1) / kRowsBytes;
  const int64_t blocks = ((all + parts - 1) / parts + 1) / 2 * 2;
  for (int64_t b = 0; b < all; b += blocks) {
    const int64_t some = all - b < blocks ? all - b : blocks;
    const int64_t first = b * kTileSide;
    LinearArgs part = rows_of(a, first, blocks * kTileSide);
    if (a.summary) part.summary = a.summary + first * 2 * num_panels(a.columns);
    const int64_t pairs = (some + 1) / 2, waiting_sums = kPairSums * complete_before(its.count - 1);
    each_panel(part, [&](int64_t p, int thread) {
      float* waiting = scratch(1 + thread, (pairs + 1) * kPairSums + pairs * waiting_sums) + (pairs + 1) * kPairSums;
      const char* panel = static_cast<const char*>(a.weights) + p * its.count * its.bytes;
      PairSums<Kind> before;
      for (int64_t s = 0; s < its.count; s++, panel += its.bytes) {
        const PackedRows x = {packed + b * block_bytes + s * tiles * kTileBytes, some, tiles, block_bytes};
        multiply_panel(x, panel, waiting - (pairs + 1) * kPairSums, before, [&](int64_t pair, const float* sums) {
          before.add(kPairRows);
          const int64_t row = pair * kPairRows;
          before = {rows_of(part, row, kPairRows), s, p * kPanel, sums, scales + (first + row) * its.count + s,
                    panel + tiles * kPairBytes, waiting + pair * waiting_sums};
          if (s + 1 == its.count) own_lines(before.rows, 0, before.rows.rows, p * kPanel);
        });
      }
      before.add(kPairRows);
      summarise(part, p);
    }, &kWithTiles);
  }
}
