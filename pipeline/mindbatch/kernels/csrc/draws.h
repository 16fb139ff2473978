// Drawing tokens from rows of scores: temperature, top-k, top-p and min-p without sorting a row, and the draw itself.
//
// A draw needs the weight of each block of a row, and of one block its weights one by one: they are computed again.

// Appends the keys of a row that are at least as large as `least` when divided, and their places, in order: how many.
inline int64_t list_from(const DrawRule& rule, const float* scores, int64_t columns, const float* largest, float least,
                         float* keys, int32_t* places) {
  int64_t found = 0;
  IntVec lanes_in_order;
  for (int l = 0; l < kLanes; l++) lanes_in_order[l] = l;
  const float bound = least / rule.temperature, near = least - __builtin_fabsf(least) * 1e-6f;
  for (int64_t first = 0; first < columns; first += kPanel) {
    if (largest[first / kPanel] < near) continue;
    each_vector(columns - first < kPanel ? columns - first : kPanel, [&](int64_t i, int lanes) {
      const Vec some = load_filled(scores + first + i, lanes, __builtin_nanf(""));
      const Lanes mask = at_least(some / rule.temperature, splat(bound));
      const IntVec where = lanes_in_order + static_cast<int32_t>(first + i);
      append(reinterpret_cast<float*>(places) + found, mask, (Vec)where);
      found += append(keys + found, mask, some);
    });
  }
  return found;
}

// A score that is not larger than the k-th largest of a row: that of the k-th largest of its panels, or of some of them
// together where they are many.
inline float bound_of_largest(const float* largest, int64_t panels, int64_t k, float* tops) {
  if (panels < k) return -__builtin_inff();
  int64_t count = panels;
  __builtin_memcpy(tops, largest, static_cast<size_t>(panels) * 4);
  for (; count / 2 >= 4 * k; count = (count + 1) / 2)
    each_vector(count / 2, [&](int64_t i, int lanes) {
      store_part(tops + i, vmax(load_part(tops + i, lanes), load_part(tops + (count + 1) / 2 + i, lanes)), lanes);
    });
  return kth_largest(tops, count, k);
}

// The k largest of a row and their equals, as they are when divided: their keys and places, in order; how many.
inline int64_t list_largest(const DrawRule& rule, const float* scores, int64_t columns, const float* largest, float* keys,
                            int32_t* places) {
  const float bound = bound_of_largest(largest, num_panels(columns), rule.top_k, keys);
  const int64_t found = list_from(rule, scores, columns, largest, bound, keys, places);
  const float last = kth_largest(keys, found, rule.top_k) / rule.temperature;
  int64_t kept = 0;
  for (int64_t i = 0; i < found; i++) {
    keys[kept] = keys[i];
    places[kept] = places[i];
    kept += keys[i] / rule.temperature >= last;
  }
  return kept;
}

// The weights of a vector of keys that stand from `first` on, of those that are kept.
inline Vec weights_left(const Drawable& d, const KeptKeys& kept, int64_t first, Vec keys) {
  Vec weights = d.weights(keys);
  for (int64_t l = 0; l < kLanes && first + l < kept.first; l++)
    if (keys[l] == kept.key) weights[l] = 0;
  return where(at_least(keys, splat(kept.key)) & at_least(weights, splat(kept.least)), weights);
}

// The weight of each block that min-p leaves. Panels below are passed over.
inline void sum_kept(const Drawable d, const KeptKeys kept, double* sums) {
  const float lowest = d.top + (static_cast<float>(elementary::log(kept.least)) - 1e-3f) * d.temperature;
  const float bound = lowest > kept.key ? lowest : kept.key;
  for (int64_t first = 0; first < d.count; first += kScoresAtOnce) {
    const int64_t end = first + kScoresAtOnce < d.count ? first + kScoresAtOnce : d.count;
    Sums sum;
    for (int64_t i = first; i < end; i += kPanel) {
      if (d.panel_top(i) < bound) continue;
      each_vector(end - i < kPanel ? end - i : kPanel, [&](int64_t j, int lanes) {
        sum.add(j, weights_left(d, kept, i + j, load_filled(d.keys + i + j, lanes, -__builtin_inff())));
      });
    }
    sums[first / kScoresAtOnce] = sum.total();
  }
}

// The weight of each block where all are kept.
inline void sum_all(const Drawable& d, const RowScores& row, double* sums) {
  for (int64_t first = 0; first < d.count; first += kScoresAtOnce) {
    const int64_t left = d.count - first < kScoresAtOnce ? d.count - first : kScoresAtOnce, panel = first / kPanel;
    const bool is_known = d.largest && d.temperature == 1;
    sums[first / kScoresAtOnce] = is_known ? sum_relative_to(d.top, row.largest + panel, row.sums + panel, num_panels(left))
                                           : sum_of_block(d, first);
  }
}

// The first place at which the sum of weights, in order, exceeds a share of the whole, 0 <= share < 1.
inline int64_t place_at(const Drawable& d, const KeptKeys& kept, const double* sums, double share) {
  const int64_t blocks = blocks_of(d.count);
  double total = 0, before = 0;
  for (int64_t b = 0; b < blocks; b++) total += sums[b];
  const double target = share * total;
  int64_t block = 0;
  while (block < blocks - 1 && before + sums[block] <= target) before += sums[block++];
  while (block > 0 && sums[block] == 0) block--;  // `target` was rounded up past the end of the last with weight
  const int64_t first = block * kScoresAtOnce, end = first + kScoresAtOnce < d.count ? first + kScoresAtOnce : d.count;
  int64_t last = first;
  for (int64_t i = first; i < end; i += kLanes) {
    const int lanes = static_cast<int>(end - i < kLanes ? end - i : kLanes);
    const Vec weights = weights_left(d, kept, i, load_filled(d.keys + i, lanes, -__builtin_inff()));
    for (int l = 0; l < lanes; l++) {
      if (weights[l] == 0) continue;
      last = i + l;
      before += weights[l];
      if (before > target) return last;
    }
  }
  return last;
}

// Memory of a row that tokens are drawn from.
struct DrawSpace {
  double* sums;
  float* summary;
  int32_t* places;
  float* keys;
  NucleusSpace nucleus;

  DrawSpace(float* space, int64_t columns) {
    const int64_t blocks = blocks_of(columns), room = columns + kLanes;
    float* next = space;
    const auto take = [&](int64_t count) { return (next += count) - count; };
    sums = reinterpret_cast<double*>(take(2 * blocks));
    summary = take(2 * num_panels(columns));
    places = reinterpret_cast<int32_t*>(take(room));
    keys = take(room);
    nucleus.blocks = reinterpret_cast<BlockSums*>(take(2 * blocks));
    int32_t* ends = reinterpret_cast<int32_t*>(take(blocks));
    nucleus.list = {take(room), take(room), ends, 0};
    nucleus.part = {take(room), take(room), ends, 0};
  }
  static int64_t floats(int64_t columns) {
    return 5 * blocks_of(columns) + 2 * num_panels(columns) + 6 * (columns + kLanes);
  }
};

// Tokens at uniform numbers from scores of which is known what `row` says.
inline void draw_from(const DrawRule& rule, const float* scores, int64_t columns, const RowScores& row, DrawSpace& space,
                      const double* uniforms, int64_t count, int64_t* tokens) {
  const double total = rule.temperature == 1 ? elementary::exp(row.normaliser - row.top) : 0;
  Drawable d{scores, row.largest, nullptr, columns, row.top, rule.temperature, 1 / rule.temperature, total};
  if (rule.top_k > 0 && rule.top_k < columns) {
    d.count = list_largest(rule, scores, columns, row.largest, space.keys, space.places);
    d.keys = space.keys;
    d.places = space.places;
    d.largest = nullptr;
  }
  KeptKeys kept{-__builtin_inff(), 0, 0};
  if (rule.tail >= 0) kept = nucleus_of(d, rule.tail, space.nucleus, space.sums);
  else if (rule.min_p <= 0) sum_all(d, row, space.sums);
  kept.least = rule.min_p;
  if (rule.min_p > 0) sum_kept(d, kept, space.sums);
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = place_at(d, kept, space.sums, uniforms[i]);
    tokens[i] = d.places ? d.places[at] : at;
  }
}

// Whether weights can be computed: scores divided by the temperature are numbers.
inline bool is_drawable(const RowScores& row, float temperature) {
  return row.is_sound && __builtin_fabsf(row.top / temperature) <= __FLT_MAX__ && 1 / temperature <= __FLT_MAX__;
}

inline void choose_row(const ChoiceArgs& a, int64_t r, DrawSpace space) {
  RowScores row = find_likeliest(a, r, space.summary);
  const int64_t columns = a.columns, first = a.firsts[r], count = a.firsts[r + 1] - first;
  if (count == 0) return;
  const float* scores = a.scores + r * columns;
  if (a.changed[r]) {
    scores = a.changed[r];
    summarise_row(scores, columns, space.summary);
    row = look_at(space.summary, columns);
  }
  if (is_drawable(row, a.rules[r].temperature))
    draw_from(a.rules[r], scores, columns, row, space, a.uniforms + first, count, a.tokens + first);
  else
    for (int64_t i = 0; i < count; i++) a.tokens[first + i] = -1;
}

void choose(const ChoiceArgs& a) {
  auto body = [&](int64_t r, int thread) {
    choose_row(a, r, {scratch(1 + thread, DrawSpace::floats(a.columns)), a.columns});
  };
  parallel_for(a.rows, body);
}
