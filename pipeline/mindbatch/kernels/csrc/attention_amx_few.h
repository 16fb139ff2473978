// The products of attention_amx.h in vectors, for spans of few queries: laying out tiles would take longer than reading
// the cache. Sums have the order of TDPBF16PS and so the same bits: of 32 numbers, the first ones and the second ones of
// all pairs are added up apart, then to one another, then to the sum. (Products of two bfloat16 are exact in float32,
// and a float32 cache holds rounded numbers.)

constexpr int64_t kFewQueries = 4;

// The span's queries, widened: of each 32 numbers the first ones of all pairs, then the second ones: [count, width],
// where the keys of tiles would be.
inline float* widened_queries(const AmxSpan& s) { return reinterpret_cast<float*>(s.keys); }

inline void begin_few(const AmxSpan& s) {
  float* to = widened_queries(s);
  for (int64_t q = 0; q < s.count; q++)
    for (int64_t t = 0; t < s.depth_tiles; t++, to += kPairRow) {
      const VecPair pairs = widen(load_ints(s.rounded + t * kTileBytes + q * kTileRowBytes));
      store(to, pairs.first);
      store(to + kTileSide, pairs.second);
    }
}

// scores[q][0 .. 16) = queries[q] . keys of 16 positions.
template <class Number, int Count, bool IsWhole>
inline void score_columns(const AmxSpan& s, const KeyColumns<Number>& from, const Number* next, const Number* values,
                          float* scores) {
  const int64_t size = s.a.block_size;
  const float* queries = widened_queries(s);
  Vec sum[Count];
  for (int q = 0; q < Count; q++) sum[q] = Vec{};
  for (int64_t begin = 0; begin < s.a.head_dim; begin += kPairRow) {
    const int64_t end = begin + kPairRow < s.a.head_dim ? begin + kPairRow : s.a.head_dim;
    Vec first[Count], second[Count];
    for (int q = 0; q < Count; q++) first[q] = second[q] = Vec{};
    for (int64_t d = begin; d < end; d += 2) {
      const bool is_pair = d + 1 < end;
      __builtin_prefetch(next + d * size);
      if (is_pair) __builtin_prefetch(next + (d + 1) * size);
      __builtin_prefetch(values + d * kLanes, 0, 2);
      __builtin_prefetch(values + (d + 1) * kLanes, 0, 2);
      const VecPair keys = {from.template load<IsWhole>(d * size),
                            is_pair ? from.template load<IsWhole>((d + 1) * size) : Vec{}};
      for (int q = 0; q < Count; q++) {
        const float* pair = queries + q * s.width() + begin + (d - begin) / 2;
        first[q] = fma(splat(pair[0]), keys.first, first[q]);
        second[q] = fma(splat(pair[kTileSide]), keys.second, second[q]);
      }
    }
    for (int q = 0; q < Count; q++) sum[q] = sum[q] + (first[q] + second[q]);
  }
  for (int q = 0; q < Count; q++) store(scores + q * kScoreStride, sum[q]);
}

template <class Number, int Count>
void score_few(const AmxSpan& s, const AmxStep& step, int64_t first) {
  KeyColumns<Number> from(s, first + step.begin);
  for (int64_t i = step.begin; i < step.end; i += kTileSide) {
    const KeyColumns<Number> next(s, first + i + (first + i + kTileSide < s.queries.end ? kTileSide : 0));
    const Number* values = value_rows<Number>(s, first + i);
    if (from.is_whole())
      score_columns<Number, Count, true>(s, from, next.halves[0], values, s.scores + i);
    else
      score_columns<Number, Count, false>(s, from, next.halves[0], values, s.scores + i);
    from = next;
  }
}

// Exponentials of 32 positions, widened; and where the values of each 8 of them lie.
template <class Number, int Count>
struct FewWeights {
  alignas(64) float first[Count][kTileSide], second[Count][kTileSide];
  const Number* rows[4];

  FewWeights(const AmxSpan& s, int64_t chunk, int64_t i) {
    for (int q = 0; q < Count; q++) {
      const VecPair both = widen(load_ints(s.scores + q * kScoreStride + i / 2));
      store(first[q], both.first);
      store(second[q], both.second);
    }
    for (int64_t e = 0; e < 4; e++) rows[e] = value_rows<Number>(s, chunk + i + e * 8);
  }
};

// Adds the values of 32 positions, from `position` on, to `Width` vectors of the head from `d` on.
template <class Number, int Count, int Width, bool IsWhole>
inline void weigh_rows(const AmxSpan& s, const FewWeights<Number, Count>& weights, int64_t position, int64_t d) {
  const int64_t width = s.a.padded_head_dim;
  Vec first[Count][Width], second[Count][Width];
  for (int q = 0; q < Count; q++)
    for (int v = 0; v < Width; v++) first[q][v] = second[q][v] = Vec{};
  for (int64_t k = 0; k < kTileSide; k++) {
    const int64_t at = position + 2 * k, place = 2 * k % 8 * width + d;
    const bool sees[2] = {IsWhole || (at >= s.queries.begin && at < s.queries.end),
                          IsWhole || (at + 1 >= s.queries.begin && at + 1 < s.queries.end)};
    if (!sees[0] && !sees[1]) continue;
    const Number* row = weights.rows[k / 4] + place;
    for (int v = 0; v < Width; v++) {
      const VecPair values = {sees[0] ? AllLanes::load(row + v * kLanes) : Vec{},
                              sees[1] ? AllLanes::load(row + width + v * kLanes) : Vec{}};
      for (int q = 0; q < Count; q++) {
        first[q][v] = fma(splat(weights.first[q][k]), values.first, first[q][v]);
        second[q][v] = fma(splat(weights.second[q][k]), values.second, second[q][v]);
      }
    }
  }
  for (int q = 0; q < Count; q++)
    for (int v = 0; v < Width; v++) {
      float* result = s.result + q * s.width() + d + v * kLanes;
      store(result, load(result) + (first[q][v] + second[q][v]));
    }
}

template <class Number, int Count, bool IsWhole>
inline void weigh_block(const AmxSpan& s, int64_t chunk, int64_t i) {
  constexpr int kWide = Count <= 2 ? 4 : 2;
  const FewWeights<Number, Count> weights(s, chunk, i);
  int64_t d = 0;
  for (; d + kWide * kLanes <= s.a.padded_head_dim; d += kWide * kLanes)
    weigh_rows<Number, Count, kWide, IsWhole>(s, weights, chunk + i, d);
  for (; d < s.a.padded_head_dim; d += kLanes) weigh_rows<Number, Count, 1, IsWhole>(s, weights, chunk + i, d);
}

template <class Number, int Count>
void weigh_few(const AmxSpan& s, const AmxStep& step, int64_t first) {
  for (int64_t i = step.begin; i < step.end; i += kPairRow)
    if (first + i >= s.queries.begin && first + i + kPairRow <= s.queries.end)
      weigh_block<Number, Count, true>(s, first, i);
    else
      weigh_block<Number, Count, false>(s, first, i);
}

// What all queries of a span do with the chunk at `first`.
template <class Number, int Count>
void attend_few(const AmxSpan& s, const AmxStep& step, int64_t first) {
  if constexpr (Count > 0) {
    if (step.count != Count) return attend_few<Number, Count - 1>(s, step, first);
    score_few<Number, Count>(s, step, first);
    ChunkAhead nothing;
    soften_rows(s, step, first, nothing);
    weigh_few<Number, Count>(s, step, first);
  }
}
