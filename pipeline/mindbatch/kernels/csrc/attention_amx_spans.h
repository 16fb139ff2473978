// Which products a span of attention_amx.h has: tiles, or for few queries vectors.

// The positions of the chunk at `first` that [begin, end) of a sequence are in, in whole rows of tiles.
inline AmxStep step_of(int64_t q, int64_t count, int64_t begin, int64_t end, int64_t first) {
  begin = begin < first ? 0 : (begin - first) / kPairRow * kPairRow;
  end = end > first + kChunk ? kChunk : (end - first + kPairRow - 1) / kPairRow * kPairRow;
  return {q, count, begin, end, count > kTileSide};
}

// What to fetch meanwhile: many queries compute for longer than what they read takes to come.
template <class Number>
inline ChunkAhead chunk_ahead(const AmxSpan& s, const QueryTile& following, int64_t first) {
  constexpr int64_t kShares = 5 * kTileSide;  // laying out keys and values, scores, exponentials, weighing: each a fifth
  if (s.count > kTileSide) return {};
  if (first + kChunk < s.queries.end) return ChunkAhead::of<Number>(s.a, s.queries, first + kChunk, kShares);
  return ChunkAhead::of<Number>(s.a, following, following.begin / kChunk * kChunk, kShares);
}

// following: the queries behind those of the span.
template <class Number>
inline void attend_chunk(const AmxSpan& s, const QueryTile& following, int64_t first) {
  const AmxStep whole = step_of(0, s.count, s.queries.begin, s.queries.end, first);
  if (s.count <= kFewQueries) return attend_few<Number, kFewQueries>(s, whole, first);
  ChunkAhead ahead = chunk_ahead<Number>(s, following, first);
  lay_out_keys<Number>(s, first, whole.begin, whole.end, ahead);
  lay_out_values<Number>(s, first, whole.begin, whole.end, ahead);
  for (int64_t q = 0; q < s.count; q += kStepQueries) {
    const int64_t count = s.count - q < kStepQueries ? s.count - q : kStepQueries;
    const AmxStep step = step_of(q, count, first_visible(s.a, s.token(q)), s.a.lengths[s.token(q + count - 1)], first);
    if (step.begin >= step.end) continue;
    score_tiles(s, step, ahead);
    soften_rows(s, step, first, ahead);
    weigh_tiles(s, step, ahead);
  }
}

// As float32, rounded: vectors read them as they are.
struct RoundedCells {
  typedef float Number;
  static float number(float x) { return to_bfloat16(x); }
  static void store(float* to, Vec v) { AllLanes::store(to, to_bfloat16(v)); }
};

inline void attention_amx(const AttentionArgs& a) {
  a.rounded_cache ? write_cells<Bfloat16Cells>(a) : write_cells<RoundedCells>(a);
  const int64_t group = a.heads / a.kv_heads, heads = group < kStepQueries ? group : kStepQueries;
  each_span(a, heads, kSpanQueries / heads, [&](const QueryTile& queries, const QueryTile& following, int thread) {
    const AmxSpan span(a, queries, thread);
    const unsigned mode = MB_FLUSH_SUBNORMALS();
    const bool is_few = span.count <= kFewQueries;
    begin_span(span);
    if (is_few)
      begin_few(span);
    else
      MB_TILE_CONFIGURE();
    for (int64_t first = queries.begin / kChunk * kChunk; first < queries.end; first += kChunk)
      a.rounded_cache ? attend_chunk<uint16_t>(span, following, first) : attend_chunk<float>(span, following, first);
    if (!is_few) MB_TILE_RELEASE();
    end_span(span);
    MB_RESTORE_MODE(mode);
  });
}
