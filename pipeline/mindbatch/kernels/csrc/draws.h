// Drawing tokens from rows of scores: temperature, top-k, top-p and min-p without sorting a row, and the draw itself.
//
// A row is read a few times while it lies in a core's cache. Keys are the scores as they are given: a temperature
// changes no order, so only weights, the exponentials, are taken of scores divided by it.

constexpr int kBounds = 8;
constexpr int64_t kFewKeys = 2048;  // from so many on, summing above bounds comes before looking at each key

// What may be drawn: keys in the order of their places, their weights, and the sums of these in each block.
// `places` is null where it is the whole row.
struct Drawable {
  const float* keys;
  float* weights;
  double* sums;
  const int32_t* places;
  int64_t count;
};

// The keys that are left: above `key`, and those equal to it from place `first` on; of weights from `least` on.
struct KeptKeys {
  float key;
  int64_t first;
  float least;
};

// Appends the keys of a row that are at least `bound` when divided, and their places, in order: how many.
inline int64_t list_from(const DrawRule& rule, const float* scores, int64_t count, const float* tops, float bound,
                         float* keys, int32_t* places) {
  int64_t found = 0;
  IntVec lanes_in_order;
  for (int l = 0; l < kLanes; l++) lanes_in_order[l] = l;
  for (int64_t first = 0; first < count; first += kScoresAtOnce, tops += kLanes) {
    if (largest_lane(load(tops)) / rule.temperature < bound) continue;
    each_vector(count - first < kScoresAtOnce ? count - first : kScoresAtOnce, [&](int64_t i, int lanes) {
      const Vec some = load_filled(scores + first + i, lanes, __builtin_nanf(""));
      const Lanes mask = at_least(some / rule.temperature, splat(bound));
      const IntVec where = lanes_in_order + static_cast<int32_t>(first + i);
      append(reinterpret_cast<float*>(places) + found, mask, (Vec)where);
      found += append(keys + found, mask, some);
    });
  }
  return found;
}

// The k largest of a row and their equals, as they are when divided: their keys and places, in order; how many.
// No score below the k-th largest of all `tops` can be one of them.
inline int64_t list_largest(const DrawRule& rule, const float* scores, int64_t count, const float* tops, float* keys,
                            int32_t* places) {
  const auto one = [](int64_t) { return 1.0; };
  const auto is_enough = [&](double above) { return above >= rule.top_k; };
  const int64_t num_tops = (count + kScoresAtOnce - 1) / kScoresAtOnce * kLanes;
  float bound = -__builtin_inff();
  if (num_tops >= rule.top_k) bound = crossing_key(tops, num_tops, 0.0, one, is_enough).key;
  const int64_t found = list_from(rule, scores, count, tops, bound / rule.temperature, keys, places);
  bound = crossing_key(keys, found, 0.0, one, is_enough).key / rule.temperature;
  int64_t kept = 0;
  for (int64_t i = 0; i < found; i++) {
    keys[kept] = keys[i];
    places[kept] = places[i];
    kept += keys[i] / rule.temperature >= bound;
  }
  return kept;
}

// Adds to `sums` the weights of the keys that are at least each of the bounds.
struct SumsAbove {
  float bounds[kBounds];
  double sums[kBounds] = {};

  struct Chunk {
    Vec sums[kBounds] = {};
  };
  void add(Chunk& chunk, Vec keys, Vec weights) const {
    for (int b = 0; b < kBounds; b++)
      chunk.sums[b] = add_where(chunk.sums[b], at_least(keys, splat(bounds[b])), weights);
  }
  void add(const Chunk& chunk) {
    for (int b = 0; b < kBounds; b++) sums[b] += sum_lanes(chunk.sums[b]);
  }
};

// Weights of the keys, the largest of which is `top`: their sum. Those above bounds are summed if there are any.
template <bool kDivides, bool kBounded>
inline double weigh(const Drawable& d, float top, float temperature, SumsAbove* above) {
  const float highest = top / temperature;
  double total = 0;
  for (int64_t first = 0; first < d.count; first += kScoresAtOnce) {
    Vec sum{};
    SumsAbove::Chunk chunk;
    each_vector(d.count - first < kScoresAtOnce ? d.count - first : kScoresAtOnce, [&](int64_t i, int lanes) {
      const Vec keys = load_filled(d.keys + first + i, lanes, -__builtin_inff());
      const Vec weights = vexp((kDivides ? keys / temperature : keys) - highest);
      store_part(d.weights + first + i, weights, lanes);
      sum = sum + weights;
      if (kBounded) above->add(chunk, keys, weights);
    });
    total += d.sums[first / kScoresAtOnce] = sum_lanes(sum);
    if (kBounded) above->add(chunk);
  }
  return total;
}

inline double weigh(const Drawable& d, float top, float temperature, SumsAbove* above) {
  if (temperature == 1) return above ? weigh<false, true>(d, top, 1, above) : weigh<false, false>(d, top, 1, above);
  return above ? weigh<true, true>(d, top, temperature, above) : weigh<true, false>(d, top, temperature, above);
}

// Keys from `low` on and below `high`, of so much weight above them.
struct Bracket {
  float low, high;
  double above;
};

// The bracket between neighbouring bounds, which fall, in which the weight above comes to be enough; else the last.
template <class Enough>
inline Bracket bracket_of(const SumsAbove& above, float high, double before, Enough is_enough) {
  int b = 0;
  while (b < kBounds - 1 && !is_enough(before + above.sums[b])) b++;
  return {above.bounds[b], b ? above.bounds[b - 1] : high, b ? before + above.sums[b - 1] : before};
}

// Copies keys within a bracket and their weights; `to` may be the same memory, and has room for all lanes more.
inline int64_t list_bracket(const float* keys, const float* weights, int64_t count, const Bracket& bracket, float* to,
                            float* weights_to) {
  int64_t found = 0;
  each_vector(count, [&](int64_t i, int lanes) {
    const Vec some = load_filled(keys + i, lanes, __builtin_nanf(""));
    const Vec those = load_part(weights + i, lanes);
    const Lanes mask = at_least(some, splat(bracket.low)) & above(splat(bracket.high), some);
    append(to + found, mask, some);
    found += append(weights_to + found, mask, those);
  });
  return found;
}

// Eight bounds that divide a bracket evenly; false where floats are too coarse for that.
inline bool divide(const Bracket& bracket, SumsAbove& above) {
  for (int b = 0; b < kBounds; b++) {
    above.bounds[b] = bracket.high - (bracket.high - bracket.low) * (b + 1) / kBounds;
    above.sums[b] = 0;
  }
  above.bounds[kBounds - 1] = bracket.low;
  return above.bounds[0] < bracket.high && above.bounds[kBounds - 2] > bracket.low;
}

// Where top-p ends, as decoding/nucleus.py says: a key, and how many of its equals are removed. The weights are those
// of `above`, which has them summed for bounds that fall from the largest key on.
inline KeptKeys nucleus_of(const Drawable& d, float top, double total, float tail, SumsAbove& above, float* space) {
  const auto is_enough = [&](double kept) { return static_cast<float>((total - kept) / total) <= tail; };
  Bracket bracket = bracket_of(above, __builtin_inff(), 0.0, is_enough);
  float *keys = space, *weights = space + d.count + kLanes;
  int64_t count = list_bracket(d.keys, d.weights, d.count, bracket, keys, weights);
  if (bracket.high > top) bracket.high = __builtin_nextafterf(top, __builtin_inff());
  while (count > kFewKeys && divide(bracket, above)) {
    for (int64_t first = 0; first < count; first += kScoresAtOnce) {
      SumsAbove::Chunk chunk;
      each_vector(count - first < kScoresAtOnce ? count - first : kScoresAtOnce, [&](int64_t i, int lanes) {
        above.add(chunk, load_filled(keys + first + i, lanes, __builtin_nanf("")), load_part(weights + first + i, lanes));
      });
      above.add(chunk);
    }
    bracket = bracket_of(above, bracket.high, bracket.above, is_enough);
    count = list_bracket(keys, weights, count, bracket, keys, weights);
  }
  if (count == 0) return {-__builtin_inff(), 0, 0};
  const auto weight = [&](int64_t i) { return static_cast<double>(weights[i]); };
  const Crossed found = crossing_key(keys, count, bracket.above, weight, is_enough);
  int64_t at = 0;
  while (ordered_bits(keys[at]) != ordered_bits(found.key)) at++;
  // Of equals, the first are removed while those behind them are enough; the last one stays.
  int64_t removed = 0, end = found.equals - 1;
  while (removed < end) {
    const int64_t middle = (removed + end + 1) / 2;
    const double left = found.above + static_cast<double>(found.equals - middle) * weight(at);
    if (is_enough(left)) removed = middle;
    else end = middle - 1;
  }
  int64_t first = 0;
  for (int64_t i = 0; removed > 0; i++)
    if (d.keys[i] == found.key && --removed == 0) first = i + 1;
  return {found.key, first, 0};
}

// Takes the weight of what is not kept away.
inline void keep(const Drawable& d, const KeptKeys& kept) {
  for (int64_t first = 0; first < d.count; first += kScoresAtOnce) {
    const int64_t count = d.count - first < kScoresAtOnce ? d.count - first : kScoresAtOnce;
    const int64_t removed = kept.first - first;  // so many places from here on, of keys equal to the last
    for (int64_t i = 0; i < removed && i < count; i++)
      if (d.keys[first + i] == kept.key) d.weights[first + i] = 0;
    Vec sum{};
    each_vector(count, [&](int64_t i, int lanes) {
      const Vec keys = load_filled(d.keys + first + i, lanes, __builtin_nanf(""));
      const Vec weights = load_part(d.weights + first + i, lanes);
      const Vec left = where(at_least(keys, splat(kept.key)) & at_least(weights, splat(kept.least)), weights);
      store_part(d.weights + first + i, left, lanes);
      sum = sum + left;
    });
    d.sums[first / kScoresAtOnce] = sum_lanes(sum);
  }
}

// The first place at which the sum of weights, in order, exceeds a share of the whole, 0 <= share < 1.
inline int64_t place_at(const Drawable& d, double share) {
  const int64_t chunks = (d.count + kScoresAtOnce - 1) / kScoresAtOnce;
  double total = 0, before = 0;
  for (int64_t c = 0; c < chunks; c++) total += d.sums[c];
  const double target = share * total;
  int64_t chunk = 0;
  while (chunk < chunks - 1 && before + d.sums[chunk] <= target) before += d.sums[chunk++];
  while (chunk > 0 && d.sums[chunk] == 0) chunk--;  // `target` was rounded up past the end of the last with weight
  const int64_t end = (chunk + 1) * kScoresAtOnce < d.count ? (chunk + 1) * kScoresAtOnce : d.count;
  int64_t last = chunk * kScoresAtOnce;
  for (int64_t i = last; i < end; i++) {
    if (d.weights[i] == 0) continue;
    last = i;
    before += d.weights[i];
    if (before > target) break;
  }
  return last;
}

// Memory of a row that tokens are drawn from.
struct DrawSpace {
  double* sums;
  float *tops, *weights, *keys;
  int32_t* places;
  float* rest;

  DrawSpace(float* space, int64_t columns) {
    const int64_t blocks = (columns + kScoresAtOnce - 1) / kScoresAtOnce, room = blocks * kScoresAtOnce + kLanes;
    sums = reinterpret_cast<double*>(space);
    tops = space + 2 * blocks;
    weights = tops + blocks * kLanes;
    keys = weights + room;
    places = reinterpret_cast<int32_t*>(keys + room);
    rest = keys + 2 * room;
  }
  static int64_t floats(int64_t columns) {
    const int64_t blocks = (columns + kScoresAtOnce - 1) / kScoresAtOnce;
    return blocks * (2 + kLanes) + 5 * (blocks * kScoresAtOnce + kLanes);
  }
};

// Tokens at uniform numbers from scores of which `tops` and the largest, `top`, are known.
inline void draw_from(const DrawRule& rule, const float* scores, int64_t columns, float top, const DrawSpace& space,
                      const double* uniforms, int64_t count, int64_t* tokens) {
  Drawable d{scores, space.weights, space.sums, nullptr, columns};
  if (rule.top_k > 0 && rule.top_k < columns) {
    d.count = list_largest(rule, scores, columns, space.tops, space.keys, space.places);
    d.keys = space.keys;
    d.places = space.places;
  }
  KeptKeys kept{-__builtin_inff(), 0, rule.min_p};
  if (rule.tail >= 0) {
    SumsAbove above{{2.5f, 3.5f, 4.3f, 5.1f, 6, 7.5f, 12, 88}};
    for (float& bound : above.bounds) bound = top - bound * rule.temperature;
    const double total = weigh(d, top, rule.temperature, &above);
    kept = nucleus_of(d, top, total, rule.tail, above, space.rest);
    kept.least = rule.min_p;
  } else {
    weigh(d, top, rule.temperature, nullptr);
  }
  if (rule.tail >= 0 || rule.min_p > 0) keep(d, kept);
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = place_at(d, uniforms[i]);
    tokens[i] = d.places ? d.places[at] : at;
  }
}

inline void choose_row(const ChoiceArgs& a, int64_t r, const DrawSpace& space) {
  const float* logits = a.logits + r * a.columns;
  const float* scores = a.scores[r] ? a.scores[r] : logits;
  const int64_t first = a.firsts[r], count = a.firsts[r + 1] - first;
  RowScores row = look_at<true>(logits, a.columns, space.tops);
  a.likeliest[r] = place_of_top(logits, a.columns, row);
  a.normalisers[r] = row.normaliser;
  if (count == 0) return;
  if (scores != logits) row = look_at<false>(scores, a.columns, space.tops);
  const DrawRule& rule = a.rules[r];
  if (row.is_sound && __builtin_fabsf(row.top / rule.temperature) <= __FLT_MAX__)
    draw_from(rule, scores, a.columns, row.top, space, a.uniforms + first, count, a.tokens + first);
  else
    for (int64_t i = 0; i < count; i++) a.tokens[first + i] = -1;
}

void choose(const ChoiceArgs& a) {
  auto body = [&](int64_t r, int thread) {
    choose_row(a, r, {scratch(1 + thread, DrawSpace::floats(a.columns)), a.columns});
  };
  parallel_for(a.rows, body);
}
