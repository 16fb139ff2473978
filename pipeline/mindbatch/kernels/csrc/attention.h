// Paged attention in float32: writes the step's keys and values into the cache, then every token attends to its
// sequence.
//
// Queries that read the same keys (neighbouring tokens of one sequence, the query heads of one key/value head)
// are taken together in tiles, and a span of tiles passes over the context in chunks, so that what is cached is
// loaded once for all of them and no matrix of scores leaves a core's caches: after Dao et al., "FlashAttention"
// (2022). Within a chunk they take its parts in turn, which stay in the first-level cache. After each chunk a query
// has the largest score so far, and sums over the positions: of each part in their order, then of the parts in theirs,
// for a long chain of sums is less exact. Chunks and parts begin at multiples of their size, so that neither a tile, nor
// its companions, nor the threads change anything in any query's arithmetic.

constexpr int kTileQueries = 8;
constexpr int64_t kSpanTiles = 16;
constexpr int64_t kPart = 64;  // positions

// Of a query, over the chunks so far: the largest score, and the sum of exp(score - top).
struct Running {
  float top, sum;
};

// What a tile works with. queries: [Queries, head_dim], scaled. result: [Queries, padded_head_dim], the values weighed
// by exp(score - top). scores: [Queries, stride], of a chunk, then their exponentials.
struct TileMemory {
  float *queries, *result, *scores;
  Running* running;
  int64_t stride;
};

// A chunk of a sequence's positions, from `first` on; what of it a tile reads, now or at all, counted from there.
struct Chunk {
  const int32_t* table;
  int64_t first, begin, end;

  Chunk within(int64_t from, int64_t to) const {
    return {table, first, from > begin ? from : begin, to < end ? to : end};
  }
};

// A chunk is whole blocks, so a longer block is one.
inline int64_t chunk_size(const AttentionArgs& a) {
  return a.block_size < kChunk ? kChunk / a.block_size * a.block_size : a.block_size;
}

// A vector of neighbouring positions: their keys and values, and the keys that are read next.
template <class Number>
struct Positions {
  const Number *keys, *values, *next_keys;
};

// scores[q][i] = queries[q] . key(i) for vectors of neighbouring positions. Blocks are too small for the processor
// to see what comes next, so it is told: the keys of the next vectors, and the values, which are weighed soon.
template <class Number, class Lanes, int Queries, int Vectors>
inline void score_vectors(const AttentionArgs& a, const Positions<Number>* from, const TileMemory& m, int64_t i) {
  typename Lanes::Type sum[Queries][Vectors];
  for (int q = 0; q < Queries; q++)
    for (int v = 0; v < Vectors; v++) sum[q][v] = typename Lanes::Type{};
  for (int64_t d = 0; d < a.head_dim; d++) {
    typename Lanes::Type key[Vectors];
    for (int v = 0; v < Vectors; v++) {
      key[v] = Lanes::load(from[v].keys + d * a.block_size);
      __builtin_prefetch(from[v].next_keys + d * a.block_size);
      __builtin_prefetch(from[v].values + d * Lanes::kCount, 0, 2);
    }
    for (int q = 0; q < Queries; q++)
      for (int v = 0; v < Vectors; v++)
        sum[q][v] = Lanes::fma(Lanes::splat(m.queries[q * a.head_dim + d]), key[v], sum[q][v]);
  }
  for (int q = 0; q < Queries; q++)
    for (int v = 0; v < Vectors; v++) Lanes::store(m.scores + q * m.stride + i + v * Lanes::kCount, sum[q][v]);
}

// The scores of part of a chunk, in whole vectors of `Lanes`, which divide a block.
template <class Number, class Lanes, int Queries>
inline void score_blocks(const AttentionArgs& a, const QueryTile& tile, const Chunk& chunk, const TileMemory& m) {
  constexpr int kVectors = kRegisters == 32 ? 2 : 1;
  const auto positions = [&](int64_t i) -> Positions<Number> {
    const int64_t at = chunk.first + i, next = at + kVectors * Lanes::kCount;
    const Number* keys = keys_at<Number>(a, chunk.table, tile.kv_head, at);
    return {keys, values_at<Number>(a, chunk.table, tile.kv_head, at),
            next < tile.end ? keys_at<Number>(a, chunk.table, tile.kv_head, next) : keys};
  };
  int64_t i = chunk.begin / Lanes::kCount * Lanes::kCount;
  for (; i + (kVectors - 1) * Lanes::kCount < chunk.end; i += kVectors * Lanes::kCount) {
    Positions<Number> from[kVectors];
    for (int v = 0; v < kVectors; v++) from[v] = positions(i + v * Lanes::kCount);
    score_vectors<Number, Lanes, Queries, kVectors>(a, from, m, i);
  }
  if (i >= chunk.end) return;
  const Positions<Number> from = positions(i);
  score_vectors<Number, Lanes, Queries, 1>(a, &from, m, i);
}

// Turns scores[begin, end) into exponentials, and the others of the chunk into zeros. Returns what became of
// exp(score - top) of the chunks before, as a factor. (Not inlined: rounded alike for tiles of every size.)
__attribute__((noinline)) float exponentials(float* scores, int64_t begin, int64_t end, const Chunk& chunk,
                                             Running& running) {
  // They start at multiples of the sum's lanes, so that a position's lane does not depend on the tile.
  const int64_t from = begin / kSumLanes * kSumLanes, to = (end + kSumLanes - 1) / kSumLanes * kSumLanes;
  for (int64_t i = chunk.begin; i < from; i++) scores[i] = 0;
  for (int64_t i = to; i < chunk.end; i++) scores[i] = 0;
  for (int64_t i = from; i < begin; i++) scores[i] = kNoScore;
  for (int64_t i = end; i < to; i++) scores[i] = kNoScore;
  Vec largest = splat(running.top);
  Sums sum;
  for (int64_t i = from; i < to; i += kLanes) largest = vmax(load(scores + i), largest);
  const float top = largest_of(largest);
  for (int64_t i = from; i < to; i += kSumLanes) {
    Vec e[kSumVecs];
    for_each<kSumVecs>([&](int v) { e[v] = load(scores + i + v * kLanes) - top; });
    vexp<kSumVecs>(e, e);
    for_each<kSumVecs>([&](int v) {
      store(scores + i + v * kLanes, e[v]);
      sum.lanes[v] = sum.lanes[v] + e[v];
    });
  }
  const float before = vexp(splat(running.top - top))[0];
  running = {top, running.sum * before + sum.total()};
  return before;
}

// Adds the values of part of a chunk, `Width` vectors of the head from `d` on.
template <class Number, int Queries, int Width>
inline void weigh_values(const AttentionArgs& a, const QueryTile& tile, const Chunk& chunk, int64_t d,
                         const TileMemory& m) {
  Vec sum[Queries][Width];
  for (int q = 0; q < Queries; q++)
    for (int v = 0; v < Width; v++) sum[q][v] = Vec{};
  for (int64_t i = chunk.begin; i < chunk.end;) {
    int64_t count = a.block_size - (chunk.first + i) % a.block_size;
    if (count > chunk.end - i) count = chunk.end - i;
    const Number* values = values_at<Number>(a, chunk.table, tile.kv_head, chunk.first + i) + d;
    const float* p = m.scores + i;
    for (int64_t j = 0; j < count; j++)
      for (int v = 0; v < Width; v++) {
        const Vec value = AllLanes::load(values + j * a.padded_head_dim + v * kLanes);
        for (int q = 0; q < Queries; q++) sum[q][v] = fma(splat(p[q * m.stride + j]), value, sum[q][v]);
      }
    i += count;
  }
  for (int q = 0; q < Queries; q++)
    for (int v = 0; v < Width; v++) {
      float* result = m.result + q * a.padded_head_dim + d + v * kLanes;
      store(result, load(result) + sum[q][v]);
    }
}

template <class Number, int Queries>
void score(const AttentionArgs& a, const QueryTile& tile, const Chunk& chunk, const TileMemory& m) {
  if (a.block_size % kLanes == 0)
    score_blocks<Number, AllLanes, Queries>(a, tile, chunk, m);
  else
    score_blocks<Number, FewLanes, Queries>(a, tile, chunk, m);
}

template <class Number, int Queries>
void weigh(const AttentionArgs& a, const QueryTile& tile, const Chunk& chunk, const TileMemory& m) {
  int64_t d = 0;
  constexpr int kWide = kRegisters == 32 ? 2 : 1;
  for (; d + kWide * kLanes <= a.padded_head_dim; d += kWide * kLanes)
    weigh_values<Number, Queries, kWide>(a, tile, chunk, d, m);
  for (; d < a.padded_head_dim; d += kLanes) weigh_values<Number, Queries, 1>(a, tile, chunk, d, m);
}

// Scores become exponentials, each query's of the positions that it sees.
inline void soften(const AttentionArgs& a, const QueryTile& tile, const Chunk& chunk, const TileMemory& m) {
  for (int64_t q = 0; q < tile.tokens * tile.heads; q++) {
    const int64_t token = tile.first_token + q / tile.heads;
    const Chunk seen = chunk.within(first_visible(a, token) - chunk.first, a.lengths[token] - chunk.first);
    float *scores = m.scores + q * m.stride, *result = m.result + q * a.padded_head_dim;
    if (seen.begin >= seen.end) {
      for (int64_t i = chunk.begin; i < chunk.end; i++) scores[i] = 0;
      continue;
    }
    if (a.softcap > 0) cap_scores(a.softcap, seen.begin, seen.end, scores);
    if (a.slopes)
      add_alibi(a, tile.first_head + q % tile.heads, a.lengths[token] - 1, chunk.first, seen.begin, seen.end, scores);
    if (a.distance_bias)
      add_distance_bias(a, tile.first_head + q % tile.heads, a.positions[token], chunk.first, seen.begin, seen.end,
                        scores);
    const float before = exponentials(scores, seen.begin, seen.end, chunk, m.running[q]);
    for (int64_t d = 0; d < a.padded_head_dim; d += kLanes) store(result + d, load(result + d) * before);
  }
}

using TileFunction = void (*)(const AttentionArgs&, const QueryTile&, const Chunk&, const TileMemory&);

struct TileFunctions {
  TileFunction score, weigh;
};

template <class Number, int Queries>
inline TileFunctions pick_functions(int64_t queries) {
  if constexpr (Queries == 0) return {};
  else
    return queries == Queries ? TileFunctions{score<Number, Queries>, weigh<Number, Queries>}
                              : pick_functions<Number, Queries - 1>(queries);
}

inline TileFunctions functions_for(const AttentionArgs& a, int64_t queries) {
  return a.rounded_cache ? pick_functions<Bfloat16Cells::Number, kTileQueries>(queries)
                         : pick_functions<Float32Cells::Number, kTileQueries>(queries);
}

inline void begin_tile(const AttentionArgs& a, const QueryTile& tile, const TileMemory& m) {
  const int64_t width = row_width(a);
  for (int64_t q = 0; q < tile.tokens * tile.heads; q++) {
    const int64_t token = tile.first_token + q / tile.heads, head = tile.first_head + q % tile.heads;
    const float* from = a.qkv + token * width + head * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; d++) m.queries[q * a.head_dim + d] = from[d] * a.scale;
    m.running[q] = a.sinks ? Running{a.sinks[head], 1} : Running{kNoScore, 0};
    __builtin_memset(m.result + q * a.padded_head_dim, 0, static_cast<size_t>(a.padded_head_dim) * 4);
  }
}

inline void end_tile(const AttentionArgs& a, const QueryTile& tile, const TileMemory& m) {
  for (int64_t q = 0; q < tile.tokens * tile.heads; q++) {
    const int64_t token = tile.first_token + q / tile.heads, head = tile.first_head + q % tile.heads;
    const float inverse = 1.0f / m.running[q].sum;
    float* out = a.out + (token * a.heads + head) * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; d++) out[d] = m.result[q * a.padded_head_dim + d] * inverse;
  }
}

// A tile of a span, and what of the current chunk it reads.
struct SpanTile {
  QueryTile queries;
  TileMemory memory;
  TileFunctions functions;
  Chunk chunk;
};

// Tiles of one sequence that pass over its context together.
struct Span {
  SpanTile tiles[kSpanTiles];
  int64_t count = 0;

  // Tokens and heads of one key/value head. memory: span_floats.
  Span(const AttentionArgs& a, const QueryTile& whole, int64_t tile_tokens, float* memory) {
    const int64_t stride = chunk_size(a) + kSumLanes, last = whole.first_token + whole.tokens;
    for (int64_t t = whole.first_token; t < last; t += tile_tokens, count++) {
      QueryTile tile = whole;
      tile.first_token = t;
      tile.tokens = last - t < tile_tokens ? last - t : tile_tokens;
      tile.begin = first_visible(a, t);
      tile.end = a.lengths[t + tile.tokens - 1];
      float *result = memory + kTileQueries * a.head_dim, *scores = result + kTileQueries * a.padded_head_dim;
      float* running = scores + kTileQueries * stride;
      const TileMemory its = {memory, result, scores, reinterpret_cast<Running*>(running), stride};
      tiles[count] = {tile, its, functions_for(a, tile.tokens * tile.heads), {}};
      memory = running + kTileQueries * 2;
      begin_tile(a, tile, its);
    }
  }

  void attend(const AttentionArgs& a, const int32_t* table, int64_t first, int64_t size) {
    for (int64_t t = 0; t < count; t++)
      tiles[t].chunk = Chunk{table, first, 0, size}.within(tiles[t].queries.begin - first, tiles[t].queries.end - first);
    each_part(a, size, &TileFunctions::score);
    for (int64_t t = 0; t < count; t++) soften(a, tiles[t].queries, tiles[t].chunk, tiles[t].memory);
    each_part(a, size, &TileFunctions::weigh);
  }

  void each_part(const AttentionArgs& a, int64_t size, TileFunction TileFunctions::* function) const {
    for (int64_t i = 0; i < size; i += kPart)
      for (int64_t t = 0; t < count; t++) {
        const Chunk part = tiles[t].chunk.within(i, i + kPart);
        if (part.begin < part.end) (tiles[t].functions.*function)(a, tiles[t].queries, part, tiles[t].memory);
      }
  }
};

inline int64_t span_floats(const AttentionArgs& a) {
  return kSpanTiles * kTileQueries * (a.head_dim + a.padded_head_dim + chunk_size(a) + kSumLanes + 2);
}

// Tokens and heads that attend together, over the union of what they see.
inline void attend_span(const AttentionArgs& a, const QueryTile& whole, int64_t tile_tokens, int thread) {
  Span span(a, whole, tile_tokens, scratch(1 + thread, span_floats(a)));
  const int64_t size = chunk_size(a);
  for (int64_t first = whole.begin / size * size; first < whole.end; first += size) span.attend(a, whole.table, first, size);
  for (int64_t t = 0; t < span.count; t++) end_tile(a, span.tiles[t].queries, span.tiles[t].memory);
}

void attention(const AttentionArgs& a) {
  write_cache(a);
  if (a.heads == 0) return;  // keys and values alone
  const int64_t group = a.heads / a.kv_heads, heads = group < kTileQueries ? group : kTileQueries;
  const int64_t tile_tokens = kTileQueries / heads;
  const Spans spans(a, heads, tile_tokens * kSpanTiles);
  each_span(a, spans, 1, [&](const QueryTile& whole, int64_t, int thread) {
    attend_span(a, whole, tile_tokens, thread);
  });
}
