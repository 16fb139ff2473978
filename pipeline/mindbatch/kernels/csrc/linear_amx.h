// Products with bfloat16 and int8 weights in AMX tiles: 32 rows of x by a panel of 32 outputs, 64 bytes of depth at a
// time. All rows go through tiles, a single one too, so that each has the same order of summation: for bfloat16 that
// of TDPBF16PS, which is not the one of the other instruction sets. x is packed as [16 rows][64 bytes of depth][row].

struct AmxBfloat16 : Bfloat16 {
  static TiledRows<Bfloat16> rows(const float*) { return {nullptr, nullptr}; }

  // Writes a row to its place in each tile; returns its scale.
  static float write(const float* x, int64_t depth, char* to, int) {
    for (int64_t k = 0; k < padded_depth(depth, kKind); k++) {
      const auto number = static_cast<uint16_t>(k < depth ? float_bits(to_bfloat16(x[k])) >> 16 : 0);
      __builtin_memcpy(to + k / 32 * kTileBytes + k % 32 * 2, &number, 2);
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
  static TiledRows<Int8> rows(const float* scales) { return {nullptr, scales}; }

  static float write(const float* x, int64_t depth, char* to, int thread) {
    const int64_t padded = padded_depth(depth, kKind);
    int8_t* bytes = reinterpret_cast<int8_t*>(scratch(1 + thread, padded / 4));
    __builtin_memset(bytes + depth, 0, static_cast<size_t>(padded - depth));
    const float scale = quantise(x, depth, bytes);
    for (int64_t k = 0; k < padded; k += kGroup)
      Int8Words::write(bytes + k, reinterpret_cast<int32_t*>(to + k / 64 * kTileBytes + k % 64));
    return scale;
  }

  static void add(bool both) {
    MB_TILE_DOT_BYTES(0, 4, 6);
    MB_TILE_DOT_BYTES(1, 4, 7);
    if (!both) return;
    MB_TILE_DOT_BYTES(2, 5, 6);
    MB_TILE_DOT_BYTES(3, 5, 7);
  }
};

// acc [16 or 32 rows, kPanel] = x times a panel. x: 16 rows in `tiles` tiles, and where `both` 16 more behind them.
template <class Kind>
inline void multiply_tiles(const char* x, const char* panel, int64_t tiles, bool both, float* acc) {
  MB_TILE_ZERO(0);
  MB_TILE_ZERO(1);
  MB_TILE_ZERO(2);
  MB_TILE_ZERO(3);
  for (int64_t t = 0; t < tiles; t++) {
    MB_TILE_LOAD(4, x + t * kTileBytes, kTileRowBytes);
    if (both) MB_TILE_LOAD(5, x + (tiles + t) * kTileBytes, kTileRowBytes);
    MB_TILE_LOAD(6, panel + 2 * t * kTileBytes, kRowBytes);
    MB_TILE_LOAD(7, panel + 2 * t * kTileBytes + kTileRowBytes, kRowBytes);
    Kind::add(both);
  }
  MB_TILE_STORE(0, acc, kRowBytes);
  MB_TILE_STORE(1, acc + kTileSide, kRowBytes);
  if (!both) return;
  MB_TILE_STORE(2, acc + kTileSide * kPanel, kRowBytes);
  MB_TILE_STORE(3, acc + kTileSide * kPanel + kTileSide, kRowBytes);
}

// See `linear`. What is behind the last row of x in its tiles is never read again: those sums are left out.
template <class Kind>
void linear_amx(const LinearArgs& a) {
  const int64_t blocks = (a.rows + kTileSide - 1) / kTileSide;
  const int64_t tiles = padded_depth(a.depth, Kind::kKind) / Kind::kGroup / kTileSide;
  float* memory = scratch(0, blocks * tiles * kTileBytes / 4 + a.rows);
  char* packed = reinterpret_cast<char*>(memory);
  float* scales = memory + blocks * tiles * kTileBytes / 4;
  auto pack = [&](int64_t r, int thread) {
    char* to = packed + r / kTileSide * tiles * kTileBytes + r % kTileSide * kTileRowBytes;
    scales[r] = Kind::write(a.x + r * a.depth, a.depth, to, thread);
  };
  parallel_for(a.rows, pack);
  each_panel(a, [&](int64_t p, int thread) {
    float* acc = scratch(1 + thread, blocks * kTileSide * kPanel);
    const char* panel = static_cast<const char*>(a.weights) + p * panel_bytes(a.depth, Kind::kKind);
    MB_TILE_CONFIGURE();
    for (int64_t b = 0; b < blocks; b += 2)
      multiply_tiles<Kind>(packed + b * tiles * kTileBytes, panel, tiles, b + 1 < blocks, acc + b * kTileSide * kPanel);
    MB_TILE_RELEASE();
    Kind::store(a, Kind::rows(scales), acc, panel + 2 * tiles * kTileBytes, p * kPanel);
  });
}
