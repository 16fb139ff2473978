// Which products a span of attention_amx.h has: tiles, or for few queries vectors.

// The positions of the chunk at `first` that [begin, end) of a sequence are in, in whole rows of tiles.
inline AmxStep step_of(int64_t q, int64_t count, int64_t begin, int64_t end, int64_t first) {
  begin = begin < first ? 0 : (begin - first) / kPairRow * kPairRow;
  end = end > first + kChunk ? kChunk : (end - first + kPairRow - 1) / kPairRow * kPairRow;
  return {q, count, begin, end, count > kTileSide};
}

template <class Number>
inline void attend_chunk(const AmxSpan& s, int64_t first, ChunkAhead& ahead) {
  const AmxStep whole = step_of(0, s.count, s.queries.begin, s.queries.end, first);
  if (s.count <= kFewQueries) return attend_few<Number, kFewQueries>(s, whole, first);
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

// Spans of the same tokens, one of each key/value head, that pass over the context together.
struct AmxGroup {
  const AttentionArgs& a;
  QueryTile queries;  // of the first
  int64_t count;
  float *shared, *own;

  AmxGroup(const AttentionArgs& a, const QueryTile& queries, int64_t count, int thread)
      : a(a), queries(queries), count(count) {
    shared = scratch(1 + thread, AmxSpan::shared_floats(a) + count * AmxSpan::own_floats(a, queries));
    own = shared + AmxSpan::shared_floats(a);
  }

  AmxSpan operator[](int64_t k) const {
    QueryTile its = queries;
    its.kv_head += k;
    its.first_head += k * its.heads;
    return AmxSpan(a, its, shared, own + k * AmxSpan::own_floats(a, queries));
  }

  // What to fetch while they attend to the chunk at `chunk`; behind: the span that follows. Many queries compute for longer
  // than what they read takes to come.
  template <class Number>
  ChunkAhead ahead(const Spans& spans, int64_t behind, int64_t chunk) const {
    constexpr int64_t kPasses = 5;  // laying out keys and values, scores, exponentials, weighing
    const int64_t shares = count * kPasses * kTileSide, size = queries.tokens * queries.heads;
    if (size <= kFewQueries || size > kTileSide) return {};
    if (chunk + kChunk < queries.end) return ChunkAhead::of<Number>(a, queries, count, chunk + kChunk, shares);
    const QueryTile following = spans[behind];
    return ChunkAhead::of<Number>(a, following, count, following.begin / kChunk * kChunk, shares);
  }
};

// How many spans attend together: those of all key/value heads where they are of single tokens, so that memory is read
// in a row, and two chunks of theirs fit into the second-level cache.
inline int64_t spans_together(const AttentionArgs& a, const Spans& spans, int64_t queries) {
  constexpr int64_t kMostBytes = 256 << 10;
  const int64_t bytes = kChunk * (a.head_dim + a.padded_head_dim) * (a.rounded_cache ? 2 : 4);
  if (queries <= kFewQueries || !spans.are_many_tokens()) return 1;
  int64_t together = spans.of_run();
  while (together > 1 && (spans.of_run() % together || together * bytes > kMostBytes)) together--;
  return together;
}

// As float32, rounded: vectors read them as they are.
struct RoundedCells {
  typedef float Number;
  static float number(float x) { return to_bfloat16(x); }
  static void store(float* to, Vec v) { AllLanes::store(to, to_bfloat16(v)); }
};

template <class Number>
inline void attend_together(const AmxGroup& group, const Spans& spans, int64_t behind) {
  const QueryTile& queries = group.queries;
  const bool is_few = queries.tokens * queries.heads <= kFewQueries;
  for (int64_t k = 0; k < group.count; k++) begin_span(group[k]);
  if (is_few)
    begin_few(group[0]);
  else
    MB_TILE_CONFIGURE();
  for (int64_t first = queries.begin / kChunk * kChunk; first < queries.end; first += kChunk) {
    ChunkAhead ahead = group.ahead<Number>(spans, behind, first);
    for (int64_t k = 0; k < group.count; k++) attend_chunk<Number>(group[k], first, ahead);
  }
  if (!is_few) MB_TILE_RELEASE();
  for (int64_t k = 0; k < group.count; k++) end_span(group[k]);
}

inline void attention_amx(const AttentionArgs& a) {
  a.rounded_cache ? write_cells<Bfloat16Cells>(a) : write_cells<RoundedCells>(a);
  const int64_t group = a.heads / a.kv_heads, heads = group < kStepQueries ? group : kStepQueries;
  const Spans spans(a, heads, kSpanQueries / heads);
  const int64_t together = spans_together(a, spans, heads);
  each_span(a, spans, together, [&](const QueryTile& queries, int64_t behind, int thread) {
    const AmxGroup its(a, queries, together, thread);
    const unsigned mode = MB_FLUSH_SUBNORMALS();
    a.rounded_cache ? attend_together<uint16_t>(its, spans, behind) : attend_together<float>(its, spans, behind);
    MB_RESTORE_MODE(mode);
  });
}
