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

// acc [16 or 32 rows, kPanel] = x times a slice of a panel, added to what acc holds unless `is_first`.
// x: 16 rows in `tiles` tiles, and where `both` 16 more, `stride` bytes behind them.
template <class Kind>
inline void multiply_tiles(const char* x, int64_t stride, const char* panel, int64_t tiles, bool both, bool is_first,
                           float* acc, Fetch& ahead) {
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
};

// acc: [rows, kPanel] = x times a segment of a panel, whose outputs go to columns of a.y from `first_column` on. While a
// slice computes, the next one is fetched, each pair of blocks a share. One pair reads the panel once, from memory: there
// is no use in slices, and it fetches not far ahead.
template <class Kind>
inline void multiply_panel(const LinearArgs& a, int64_t first_column, const PackedRows& x, const char* panel,
                           float* acc) {
  const int64_t pairs = (x.blocks + 1) / 2;
  const int64_t most = pairs == 1 ? x.tiles : kSliceTiles, lines = (kPairBytes / kLine + pairs - 1) / pairs;
  for (int64_t t = 0; t < x.tiles; t += most) {
    const int64_t some = x.tiles - t < most ? x.tiles - t : most;
    const char* slice = panel + t * kPairBytes;
    Fetch ahead = {slice + (pairs == 1 ? kPairsAhead : some) * kPairBytes, lines};
    const bool is_last = t + some == x.tiles;
    for (int64_t b = 0; b < x.blocks; b += 2) {
      const int64_t first = b * kTileSide, left = a.rows - first;
      if (is_last) own_lines(a, first, left < 2 * kTileSide ? left : 2 * kTileSide, first_column);
      multiply_tiles<Kind>(x.bytes + b * x.stride + t * kTileBytes, x.stride, slice, some, b + 1 < x.blocks, t == 0,
                           acc + b * kTileSide * kPanel, ahead);
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
    LinearArgs part = a;
    const int64_t first = b * kTileSide;
    part.rows = a.rows - first < blocks * kTileSide ? a.rows - first : blocks * kTileSide;
    part.y = a.y + first * a.columns;
    if (a.summary) part.summary = a.summary + first * 2 * num_panels(a.columns);
    each_panel(part, [&](int64_t p, int thread) {
      float* acc = scratch(1 + thread, sums_and_waiting(some * kTileSide, its.count));
      const char* panel = static_cast<const char*>(a.weights) + p * its.count * its.bytes;
      for (int64_t s = 0; s < its.count; s++, panel += its.bytes) {
        const PackedRows x = {packed + b * block_bytes + s * tiles * kTileBytes, some, tiles, block_bytes};
        multiply_panel<Kind>(part, p * kPanel, x, panel, acc);
        add_segment(part, s, p * kPanel, acc + some * kTileSide * kPanel,
                    Kind::sums(part, scales + first * its.count + s, acc, panel + tiles * kPairBytes));
      }
      summarise(part, p);
    }, &kWithTiles);
  }
}
