// Paged attention whose two products are of bfloat16, in AMX tiles; scores, softmax and sums are float32.
//
// A span of queries that read the same keys passes over the context in chunks, as in attention.h. A chunk's keys and
// values are rounded and laid out for tiles once for the span; then 32 queries at a time have their scores, exponentials
// and weighed values. Sums are those of TDPBF16PS: over 32 numbers of a head, and over 32 positions, counted from the
// beginning of the context. All queries go through tiles, a single one too, and what one does not see adds zeros: so its
// numbers depend neither on the queries beside it nor on the step in which it stands, nor on the type of the cache.

constexpr int64_t kPairRow = 2 * kTileSide;  // numbers of bfloat16 in a row of a tile
constexpr int64_t kStepQueries = 2 * kTileSide, kSpanQueries = 128;
constexpr int64_t kScoreStride = kChunk + kLanes;  // rows of scores begin in different sets of the first-level cache

// Of a query, over the chunks so far: the largest score, and the sums of exp(score - top) of each lane.
struct AmxRunning {
  Vec sums;
  float top;
};

// A span and what it works with. Tiles are kTileBytes each.
struct AmxSpan {
  const AttentionArgs& a;
  QueryTile queries;
  int64_t count, depth_tiles;  // queries; tiles of 32 numbers of a head
  char *rounded;               // [count / 16][depth_tiles]: queries, scaled
  char *keys;                  // [kChunk / 16][depth_tiles]: pairs of a head's numbers by positions
  char *values;                // [kChunk / 32][2 * depth_tiles]: pairs of positions by numbers
  float *result;               // [count, 32 * depth_tiles]: values weighed by exp(score - top)
  float *scores;               // [kStepQueries, kScoreStride]: of some queries in a chunk, then exponentials as bfloat16
  AmxRunning* running;         // [count]

  static int64_t padded(int64_t count) { return (count + kStepQueries - 1) / kStepQueries * kStepQueries; }
  static int64_t depth_tiles_of(const AttentionArgs& a) { return (a.head_dim + kPairRow - 1) / kPairRow; }
  static int64_t shared_floats(const AttentionArgs& a) {
    return 2 * kChunk * depth_tiles_of(a) * kTileSide + kStepQueries * kScoreStride;
  }
  static int64_t own_floats(const AttentionArgs& a, const QueryTile& queries) {
    return padded(queries.tokens * queries.heads) * (depth_tiles_of(a) * (kTileSide + kPairRow) + 2 * kLanes);
  }

  // shared: memory that spans use one after the other, for a chunk each. own: what is kept from chunk to chunk.
  AmxSpan(const AttentionArgs& a, const QueryTile& queries, float* shared, float* own)
      : a(a), queries(queries), count(queries.tokens * queries.heads), depth_tiles(depth_tiles_of(a)) {
    const auto take = [](float*& memory, int64_t size) { return (memory += size) - size; };
    running = reinterpret_cast<AmxRunning*>(take(own, padded(count) * 2 * kLanes));
    result = take(own, padded(count) * depth_tiles * kPairRow);
    rounded = reinterpret_cast<char*>(take(own, padded(count) * depth_tiles * kTileSide));
    scores = take(shared, kStepQueries * kScoreStride);
    keys = reinterpret_cast<char*>(take(shared, kChunk * depth_tiles * kTileSide));
    values = reinterpret_cast<char*>(take(shared, kChunk * depth_tiles * kTileSide));
  }

  int64_t token(int64_t q) const { return queries.first_token + q / queries.heads; }
  int64_t head(int64_t q) const { return queries.first_head + q % queries.heads; }
  int64_t width() const { return depth_tiles * kPairRow; }
};

inline void store_ints(void* to, IntVec v) { *static_cast<IntVec*>(to) = v; }

// Numbers [d, d + kLanes) of a row of `size`; zeros behind it.
inline Vec load_of(const float* row, int64_t d, int64_t size) {
  return d >= size ? Vec{} : load_part(row + d, size - d < kLanes ? static_cast<int>(size - d) : kLanes);
}

inline void begin_span(const AmxSpan& s) {
  const AttentionArgs& a = s.a;
  for (int64_t q = 0; q < s.count; q++) {
    const float* from = a.qkv + s.token(q) * row_width(a) + s.head(q) * a.head_dim;
    char* to = s.rounded + (q / kTileSide * s.depth_tiles * kTileSide + q % kTileSide) * kTileRowBytes;
    for (int64_t d = 0; d < s.width(); d += kPairRow, to += kTileBytes)
      store_ints(to, MB_ROUND(load_of(from, d, a.head_dim) * a.scale, load_of(from, d + kLanes, a.head_dim) * a.scale));
    s.running[q] = {Vec{}, kNoScore};
    if (!a.sinks) continue;
    s.running[q].sums[0] = 1;
    s.running[q].top = a.sinks[s.head(q)];
  }
  __builtin_memset(s.result, 0, static_cast<size_t>(s.count * s.width()) * sizeof(float));
}

inline void end_span(const AmxSpan& s) {
  for (int64_t q = 0; q < s.count; q++) {
    const float inverse = 1.0f / Sums{{s.running[q].sums}}.total();
    float *out = s.a.out + (s.token(q) * s.a.heads + s.head(q)) * s.a.head_dim, *result = s.result + q * s.width();
    each_vector(s.a.head_dim, [&](int64_t d, int lanes) { store_part(out + d, load(result + d) * inverse, lanes); });
  }
}

// Two vectors in bfloat16, one behind the other; what is cached so is as it was rounded.
inline IntVec both_rounded(const float* first, const float* second) {
  return MB_ROUND(AllLanes::load(first), AllLanes::load(second));
}
inline IntVec both_rounded(const uint16_t* first, const uint16_t* second) { return MB_JOIN(first, second); }

// Where the keys of 16 positions are: blocks have 8 of them or more; null where no query of the span sees one.
template <class Number>
struct KeyColumns {
  const Number* halves[2];

  KeyColumns(const AmxSpan& s, int64_t position) {
    for (int64_t h = 0; h < 2; h++) {
      const int64_t at = position + h * 8;
      const bool is_seen = at < s.queries.end && at + 8 > s.queries.begin;
      halves[h] = is_seen ? keys_at<Number>(s.a, s.queries.table, s.queries.kv_head, at) : nullptr;
    }
  }
  bool is_whole() const { return halves[0] && halves[1] == halves[0] + 8; }

  template <bool IsWhole>
  Vec load(int64_t offset) const {
    if constexpr (IsWhole) return AllLanes::load(halves[0] + offset);
    Vec found{};
    for (int h = 0; h < 2; h++) {
      if (!halves[h]) continue;
      const FewLanes::Type half = FewLanes::load(halves[h] + offset);
      __builtin_memcpy(reinterpret_cast<char*>(&found) + h * 32, &half, 32);
    }
    return found;
  }

  template <bool IsWhole>
  IntVec load_both(int64_t first, int64_t second) const {
    if constexpr (IsWhole) return both_rounded(halves[0] + first, halves[0] + second);
    return MB_ROUND(load<IsWhole>(first), load<IsWhole>(second));
  }
};

// Lays out the keys of 16 positions. Blocks are too small for the processor to see what comes next, so it is told.
template <class Number, bool IsWhole>
inline void lay_out_columns(const AmxSpan& s, const KeyColumns<Number>& from, const Number* next, char* to) {
  const int64_t size = s.a.block_size;
  int64_t d = 0;
  for (; d + 1 < s.a.head_dim; d += 2, to += kTileRowBytes) {
    __builtin_prefetch(next + d * size);
    __builtin_prefetch(next + (d + 1) * size);
    store_ints(to, MB_PAIR(from.template load_both<IsWhole>(d * size, (d + 1) * size)));
  }
  for (; d < s.width(); d += 2, to += kTileRowBytes) {
    const Vec last = d < s.a.head_dim ? from.template load<IsWhole>(d * size) : Vec{};
    store_ints(to, MB_PAIR(MB_ROUND(last, Vec{})));
  }
}

// Positions [begin, end) of the chunk at `first`, in whole tiles.
template <class Number>
inline void lay_out_keys(const AmxSpan& s, int64_t first, int64_t begin, int64_t end, ChunkAhead& ahead) {
  KeyColumns<Number> from(s, first + begin);
  for (int64_t i = begin; i < end; i += kTileSide) {
    ahead.fetch(1);
    const int64_t position = first + i;
    const KeyColumns<Number> next(s, position + kTileSide < s.queries.end ? position + kTileSide : position);
    char* to = s.keys + i / kTileSide * s.depth_tiles * kTileBytes;
    if (from.is_whole())
      lay_out_columns<Number, true>(s, from, next.halves[0], to);
    else
      lay_out_columns<Number, false>(s, from, next.halves[0], to);
    from = next;
  }
}

// Where the values of 8 positions are; null where no query of the span sees one.
template <class Number>
inline const Number* value_rows(const AmxSpan& s, int64_t position) {
  const bool is_seen = position < s.queries.end && position + 8 > s.queries.begin;
  return is_seen ? values_at<Number>(s.a, s.queries.table, s.queries.kv_head, position) : nullptr;
}

// Lays out the values of 8 positions. IsWhole: the span sees all of them; others become zeros.
template <class Number, bool IsWhole>
inline void lay_out_rows(const AmxSpan& s, int64_t position, const Number* row, const Number* next, char* to) {
  const int64_t width = s.a.padded_head_dim, columns = 2 * s.depth_tiles;
  const auto values = [&](int64_t p, int64_t d) {
    const bool is_seen = position + p >= s.queries.begin && position + p < s.queries.end;
    return is_seen ? AllLanes::load(row + p * width + d) : Vec{};
  };
  const auto both = [&](int64_t p, int64_t d) {
    if (d >= width) return IntVec{};
    if constexpr (IsWhole) return both_rounded(row + p * width + d, row + (p + 1) * width + d);
    return MB_ROUND(values(p, d), values(p + 1, d));
  };
  for (int64_t p = 0; p < 8; p += 2, to += kTileRowBytes)
    for (int64_t c = 0; c < columns; c++) {
      __builtin_prefetch(next + p * width + c * kLanes);
      __builtin_prefetch(next + (p + 1) * width + c * kLanes);
      store_ints(to + c * kTileBytes, MB_PAIR(both(p, c * kLanes)));
    }
}

template <class Number>
inline void lay_out_values(const AmxSpan& s, int64_t first, int64_t begin, int64_t end, ChunkAhead& ahead) {
  constexpr int64_t kAhead = 16;
  for (int64_t i = begin; i < end; i += 8) {
    if (i % kTileSide == 0) ahead.fetch(1);
    const int64_t position = first + i;
    const Number *row = value_rows<Number>(s, position), *next = value_rows<Number>(s, position + kAhead);
    char* to = s.values + i / kPairRow * 2 * s.depth_tiles * kTileBytes + i % kPairRow / 2 * kTileRowBytes;
    if (position >= s.queries.begin && position + 8 <= s.queries.end)
      lay_out_rows<Number, true>(s, position, row, next, to);
    else
      lay_out_rows<Number, false>(s, position, row, next, to);
  }
}

// Queries [first_query, first_query + 32) of the span, of which the last 16 may be missing, and the positions [begin, end) of the
// chunk that they see, in whole rows of tiles.
struct AmxStep {
  int64_t first_query, count, begin, end;
  bool both;
};

inline void score_tiles(const AmxSpan& s, const AmxStep& step, ChunkAhead& ahead) {
  const char* x = s.rounded + step.first_query / kTileSide * s.depth_tiles * kTileBytes;
  for (int64_t i = step.begin; i < step.end; i += 2 * kTileSide) {
    ahead.fetch(2);
    const char *first = s.keys + i / kTileSide * s.depth_tiles * kTileBytes, *second = first + s.depth_tiles * kTileBytes;
    MB_TILE_ZERO(0);
    MB_TILE_ZERO(1);
    MB_TILE_ZERO(2);
    MB_TILE_ZERO(3);
    for (int64_t t = 0; t < s.depth_tiles; t++) {
      MB_TILE_LOAD(4, x + t * kTileBytes, kTileRowBytes);
      MB_TILE_LOAD(6, first + t * kTileBytes, kTileRowBytes);
      MB_TILE_LOAD(7, second + t * kTileBytes, kTileRowBytes);
      if (step.both) MB_TILE_LOAD(5, x + (s.depth_tiles + t) * kTileBytes, kTileRowBytes);
      AmxBfloat16::add(step.both);
    }
    MB_TILE_STORE(0, s.scores + i, kScoreStride * 4);
    MB_TILE_STORE(1, s.scores + i + kTileSide, kScoreStride * 4);
    if (!step.both) continue;
    MB_TILE_STORE(2, s.scores + kTileSide * kScoreStride + i, kScoreStride * 4);
    MB_TILE_STORE(3, s.scores + kTileSide * kScoreStride + i + kTileSide, kScoreStride * 4);
  }
}

inline void weigh_tiles(const AmxSpan& s, const AmxStep& step, ChunkAhead& ahead) {
  const int64_t stride = s.width() * 4;
  for (int64_t c = 0; c < 2 * s.depth_tiles; c += 2) {
    float *upper = s.result + step.first_query * s.width() + c * kTileSide, *lower = upper + kTileSide * s.width();
    MB_TILE_LOAD(0, upper, stride);
    MB_TILE_LOAD(1, upper + kTileSide, stride);
    MB_TILE_LOAD(2, lower, stride);
    MB_TILE_LOAD(3, lower + kTileSide, stride);
    for (int64_t i = step.begin; i < step.end; i += kPairRow) {
      ahead.fetch(1);
      const char* values = s.values + (i / kPairRow * 2 * s.depth_tiles + c) * kTileBytes;
      MB_TILE_LOAD(4, s.scores + i / 2, kScoreStride * 4);
      MB_TILE_LOAD(6, values, kTileRowBytes);
      MB_TILE_LOAD(7, values + kTileBytes, kTileRowBytes);
      if (step.both) MB_TILE_LOAD(5, s.scores + kTileSide * kScoreStride + i / 2, kScoreStride * 4);
      AmxBfloat16::add(step.both);
    }
    MB_TILE_STORE(0, upper, stride);
    MB_TILE_STORE(1, upper + kTileSide, stride);
    if (!step.both) continue;
    MB_TILE_STORE(2, lower, stride);
    MB_TILE_STORE(3, lower + kTileSide, stride);
  }
}

// exp of numbers to 0, by 2^n * 2^r, |r| <= 1/2, and a polynomial of degree 4: to 2.6e-6, a hundredth of bfloat16's
// half unit; 0 below -87.
inline Vec exp_to_round(Vec x) {
  const Vec clamped = vmax(x, splat(-87.0f)), shifted = fma(clamped, splat(1.44269504f), splat(12582912.0f));  // see vexp
  const Vec r = fma(clamped, splat(1.44269504f), 12582912.0f - shifted);
  constexpr float kPower[] = {0.9999992847f, 0.6931217909f, 0.2402474433f, 0.05591785908f, 0.009570101276f};
  const Vec p = polynomial(kPower, r);
  return select((IntVec)(x < splat(-87.0f)), Vec{}, (Vec)((IntVec)p + ((IntVec)shifted << 23)));
}

// Turns scores [begin, end) of a query, -inf where it sees nothing, into exponentials, which are kept rounded, in half the
// memory; `result`, its values so far, follows the largest score.
inline void exponentials_in_place(float* scores, int64_t begin, int64_t end, AmxRunning& running, float* result,
                                  int64_t width) {
  Vec largest = splat(running.top);
  for (int64_t i = begin; i < end; i += kLanes) largest = vmax(load(scores + i), largest);
  const float top = largest_of(largest);
  Vec sums = running.sums;
  if (top != running.top) {
    const float before = vexp(splat(running.top - top))[0];
    sums = sums * before;
    for (int64_t d = 0; d < width; d += kLanes) store(result + d, load(result + d) * before);
  }
  Vec even{}, odd{};
  for (int64_t i = begin; i < end; i += 2 * kLanes) {
    const Vec first = exp_to_round(load(scores + i) - top), second = exp_to_round(load(scores + i + kLanes) - top);
    store_ints(scores + i / 2, MB_ROUND(first, second));
    even = even + first;
    odd = odd + second;
  }
  running = {sums + (even + odd), top};
}

inline void soften_rows(const AmxSpan& s, const AmxStep& step, int64_t first, ChunkAhead& ahead) {
  const AttentionArgs& a = s.a;
  const int64_t shares = kTileSide / step.count;
  for (int64_t r = 0; r < step.count; r++) {
    ahead.fetch(shares);
    const int64_t q = step.first_query + r, token = s.token(q);
    float* scores = s.scores + r * kScoreStride;
    int64_t begin = first_visible(a, token) - first, end = a.lengths[token] - first;
    begin = begin < step.begin ? step.begin : begin;
    end = end > step.end ? step.end : end;
    if (begin >= end) {
      __builtin_memset(scores + step.begin / 2, 0, static_cast<size_t>(step.end - step.begin) * 2);
      continue;
    }
    if (a.softcap > 0) cap_scores(a.softcap, begin, end, scores);
    if (a.slopes) add_alibi(a, s.head(q), a.lengths[token] - 1, first, begin, end, scores);
    for (int64_t i = step.begin; i < begin; i++) scores[i] = kNoScore;
    for (int64_t i = end; i < step.end; i++) scores[i] = kNoScore;
    exponentials_in_place(scores, step.begin, step.end, s.running[q], s.result + q * s.width(), s.width());
  }
}
