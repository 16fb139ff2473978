// Paged attention: writes the step's keys and values into the cache, then every token attends to its sequence.
//
// Queries that read the same keys (neighbouring tokens of one sequence, the query heads of one key/value head)
// are taken together in tiles, so that a cached block is loaded once for all of them. The softmax is exact
// (maximum, exponentials, sum, in order of position), so a tile changes nothing in any row's arithmetic.
// Cache layout after Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention" (2023).

constexpr int kTileQueries = 8;

struct QueryTile {
  int64_t first_token, tokens;  // neighbouring tokens of one sequence
  int64_t kv_head, first_head, heads;
  int64_t begin, end;  // union of the positions that they see
};

inline int64_t first_visible(const AttentionArgs& a, int64_t token) {
  const int64_t length = a.lengths[token];
  return a.window > 0 && length > a.window ? length - a.window : 0;
}

inline void write_cache(const AttentionArgs& a) {
  const int64_t width = (a.heads + 2 * a.kv_heads) * a.head_dim;
  constexpr int64_t kTokens = 8;
  auto body = [&](int64_t chunk, int) {
    for (int64_t t = chunk * kTokens; t < a.tokens && t < (chunk + 1) * kTokens; t++) {
      if (a.slots[t] < 0) continue;
      const int64_t block = a.slots[t] / a.block_size, offset = a.slots[t] % a.block_size;
      const float* key = a.qkv + t * width + a.heads * a.head_dim;
      const float* value = key + a.kv_heads * a.head_dim;
      for (int64_t h = 0; h < a.kv_heads; h++, key += a.head_dim, value += a.head_dim) {
        float* to = a.key_cache + (block * a.kv_heads + h) * a.head_dim * a.block_size + offset;
        for (int64_t d = 0; d < a.head_dim; d++) to[d * a.block_size] = key[d];
        to = a.value_cache + ((block * a.kv_heads + h) * a.block_size + offset) * a.padded_head_dim;
        __builtin_memcpy(to, value, static_cast<size_t>(a.head_dim) * 4);
      }
    }
  };
  parallel_for((a.tokens + kTokens - 1) / kTokens, body);
}

// Where the scores of a tile begin: whole blocks and whole vectors before the first position that it sees, so
// that the lane of a position depends on nothing else.
inline int64_t scores_origin(const AttentionArgs& a, const QueryTile& tile) {
  const int64_t step = a.block_size > kLanes ? a.block_size : kLanes;
  return tile.begin / step * step;
}

// scores[q][position - origin] = queries[q] . key(position), for whole blocks, which `Lanes` divide.
template <class Lanes, int Queries>
inline void score_blocks(const AttentionArgs& a, const QueryTile& tile, const int32_t* table,
                         const float* queries, float* scores, int64_t stride) {
  const int64_t first_block = scores_origin(a, tile) / a.block_size;
  const int64_t last_block = (tile.end - 1) / a.block_size;
  for (int64_t b = first_block; b <= last_block; b++) {
    const float* keys = a.key_cache + (table[b] * a.kv_heads + tile.kv_head) * a.head_dim * a.block_size;
    for (int64_t s = 0; s < a.block_size; s += Lanes::kCount) {
      typename Lanes::Type sum[Queries];
      for (int q = 0; q < Queries; q++) sum[q] = typename Lanes::Type{};
      for (int64_t d = 0; d < a.head_dim; d++) {
        const typename Lanes::Type key = Lanes::load(keys + d * a.block_size + s);
        for (int q = 0; q < Queries; q++) sum[q] = queries[q * a.head_dim + d] * key + sum[q];
      }
      float* to = scores + (b - first_block) * a.block_size + s;
      for (int q = 0; q < Queries; q++) Lanes::store(to + q * stride, sum[q]);
    }
  }
}

// Turns scores[begin, end) into probabilities and zeros the rest of [0, padded).
inline void softmax(float* scores, int64_t begin, int64_t end, int64_t padded) {
  for (int64_t i = 0; i < begin; i++) scores[i] = 0;
  for (int64_t i = end; i < padded; i++) scores[i] = 0;
  // Vectors start at multiples of the lanes, so a position's lane does not depend on the tile.
  const int64_t from = begin / kLanes * kLanes;
  float top = scores[begin];
  for (int64_t i = begin; i < end; i++) top = scores[i] > top ? scores[i] : top;
  Vec sum{};
  for (int64_t i = from; i < end; i += kLanes) {
    Vec e = vexp(load(scores + i) - top);
    if (i < begin || i + kLanes > end)
      for (int l = 0; l < kLanes; l++)
        if (i + l < begin || i + l >= end) e[l] = 0;
    store(scores + i, e);
    sum = sum + e;
  }
  const float inverse = 1.0f / sum_lanes(sum);
  for (int64_t i = from; i < end; i += kLanes) store(scores + i, load(scores + i) * inverse);
}

// out[q][0 .. kVecWidth * lanes) of the values, `Width` vectors of the head at a time.
template <int Queries, int Width>
inline void weigh_values(const AttentionArgs& a, const QueryTile& tile, const int32_t* table, int64_t d,
                         const float* scores, int64_t stride, float* out) {
  Vec sum[Queries][Width];
  for (int q = 0; q < Queries; q++)
    for (int v = 0; v < Width; v++) sum[q][v] = Vec{};
  const int64_t origin = scores_origin(a, tile);
  for (int64_t position = tile.begin; position < tile.end;) {
    const int64_t block = position / a.block_size, offset = position % a.block_size;
    int64_t count = a.block_size - offset;
    if (count > tile.end - position) count = tile.end - position;
    const float* values = a.value_cache + d +
                          ((table[block] * a.kv_heads + tile.kv_head) * a.block_size + offset) * a.padded_head_dim;
    const float* p = scores + position - origin;
    for (int64_t j = 0; j < count; j++)
      for (int v = 0; v < Width; v++) {
        const Vec value = load(values + j * a.padded_head_dim + v * kLanes);
        for (int q = 0; q < Queries; q++) sum[q][v] = p[q * stride + j] * value + sum[q][v];
      }
    position += count;
  }
  for (int q = 0; q < Queries; q++)
    for (int v = 0; v < Width; v++) store(out + q * a.padded_head_dim + d + v * kLanes, sum[q][v]);
}

template <int Queries>
void attend(const AttentionArgs& a, const QueryTile& tile, float* memory) {
  const int32_t* table = a.block_tables + static_cast<int64_t>(a.rows[tile.first_token]) * a.blocks_per_row;
  const int64_t origin = scores_origin(a, tile);
  const int64_t stride = ((tile.end - origin + a.block_size - 1) / a.block_size) * a.block_size + kLanes;
  float* queries = memory;
  float* result = queries + Queries * a.head_dim;
  float* scores = result + Queries * a.padded_head_dim;
  const int64_t width = (a.heads + 2 * a.kv_heads) * a.head_dim;
  for (int q = 0; q < Queries; q++) {
    const int64_t token = tile.first_token + q / tile.heads, head = tile.first_head + q % tile.heads;
    const float* from = a.qkv + token * width + head * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; d++) queries[q * a.head_dim + d] = from[d] * a.scale;
  }
  if (a.block_size % kLanes == 0)
    score_blocks<AllLanes, Queries>(a, tile, table, queries, scores, stride);
  else
    score_blocks<FewLanes, Queries>(a, tile, table, queries, scores, stride);
  for (int q = 0; q < Queries; q++) {
    const int64_t token = tile.first_token + q / tile.heads;
    softmax(scores + q * stride, first_visible(a, token) - origin, a.lengths[token] - origin, stride);
  }
  int64_t d = 0;
  constexpr int kWide = kLanes == 16 ? 2 : 1;
  for (; d + kWide * kLanes <= a.padded_head_dim; d += kWide * kLanes)
    weigh_values<Queries, kWide>(a, tile, table, d, scores, stride, result);
  for (; d < a.padded_head_dim; d += kLanes) weigh_values<Queries, 1>(a, tile, table, d, scores, stride, result);
  for (int q = 0; q < Queries; q++) {
    const int64_t token = tile.first_token + q / tile.heads, head = tile.first_head + q % tile.heads;
    __builtin_memcpy(a.out + (token * a.heads + head) * a.head_dim, result + q * a.padded_head_dim,
                     static_cast<size_t>(a.head_dim) * 4);
  }
}

using AttendFn = void (*)(const AttentionArgs&, const QueryTile&, float*);

template <int Queries>
inline AttendFn pick_attend(int64_t queries) {
  if constexpr (Queries == 0) return nullptr;
  else return queries == Queries ? &attend<Queries> : pick_attend<Queries - 1>(queries);
}

// The tokens from `first` on that share a table row and stand one after the other, `most` at the most.
inline int64_t run_length(const AttentionArgs& a, int64_t first, int64_t most) {
  int64_t count = 1;
  while (count < most && first + count < a.tokens && a.rows[first + count] == a.rows[first] &&
         a.lengths[first + count] == a.lengths[first] + count)
    count++;
  return count;
}

void attention(const AttentionArgs& a) {
  write_cache(a);
  const int64_t group = a.heads / a.kv_heads;
  const int64_t tile_heads = group < kTileQueries ? group : kTileQueries;
  const int64_t tile_tokens = kTileQueries / tile_heads;
  const int64_t head_tiles = (group + tile_heads - 1) / tile_heads;
  int64_t* starts = reinterpret_cast<int64_t*>(scratch(0, (a.tokens + 1) * 2));
  int64_t tiles = 0, longest = 0;
  for (int64_t t = 0; t < a.tokens; tiles++) {
    starts[tiles] = t;
    t += a.lengths[t] > 0 ? run_length(a, t, tile_tokens) : 1;
    longest = a.lengths[t - 1] > longest ? a.lengths[t - 1] : longest;
  }
  starts[tiles] = a.tokens;
  const int64_t memory_floats =
      kTileQueries * (a.head_dim + a.padded_head_dim + longest + 2 * a.block_size + 2 * kLanes);
  const int64_t tasks_per_tile = a.kv_heads * head_tiles;
  auto body = [&](int64_t task, int thread) {
    const int64_t index = tiles - 1 - task / tasks_per_tile;  // the last tokens have the longest contexts
    const int64_t head_tile = task % head_tiles, first = starts[index], last = starts[index + 1] - 1;
    const int64_t kv_head = task % tasks_per_tile / head_tiles;
    const int64_t first_head = kv_head * group + head_tile * tile_heads;
    const int64_t heads = (kv_head + 1) * group - first_head < tile_heads ? (kv_head + 1) * group - first_head
                                                                         : tile_heads;
    if (a.lengths[first] <= 0) {
      __builtin_memset(a.out + (first * a.heads + first_head) * a.head_dim, 0,
                       static_cast<size_t>(heads * a.head_dim) * 4);
      return;
    }
    const QueryTile tile = {first, last - first + 1, kv_head, first_head, heads, first_visible(a, first),
                            a.lengths[last]};
    float* memory = scratch(1 + thread, memory_floats);
    pick_attend<kTileQueries>(tile.tokens * heads)(a, tile, memory);
  };
  parallel_for(tiles * tasks_per_tile, body);
}
