// Where top-p ends, in one pass over a row: a sample of it says between which two keys that is likely; what lies there is
// listed and searched, while the weights above and of all are summed in blocks. Where the guess was wrong, there is a
// second pass. Weights are the exponentials of keys, the scores as they are given, divided by a temperature.

constexpr int kBounds = 7;
constexpr int64_t kFewKeys = 32;  // so few are looked through one by one
constexpr int64_t kScoresAtOnce = 1024;  // a block: summed in float32; the sums of blocks in float64
constexpr int64_t kPanelsApart = 32;  // of the sample
static_assert(kScoresAtOnce % kPanel == 0, "blocks are whole panels");

inline int64_t blocks_of(int64_t count) { return (count + kScoresAtOnce - 1) / kScoresAtOnce; }

// What may be drawn: keys in the order of their places, of which `largest` has each panel's largest where it is known.
// `places` is null where they are the whole row. A key's weight is 1 at `top` and 0 at 88 temperatures below it.
struct Drawable {
  const float* keys;
  const float* largest;
  const int32_t* places;
  int64_t count;
  float top, temperature, inverse;  // inverse: 1 / temperature
  double total;  // weight of all, 0 where it is not known

  Vec weights(Vec some) const { return vexp((some - top) * inverse); }
  // Processors do not read ahead across pages of 4 KB.
  void read_ahead(int64_t first) const {
    __builtin_prefetch(keys + first + kScoresAtOnce);
    __builtin_prefetch(keys + first + kScoresAtOnce + kPanel / 2);
  }
  float panel_top(int64_t first) const { return largest ? largest[first / kPanel] : top; }
};

// The keys that are left: above `key`, and those equal to it from place `first` on; of weights from `least` on.
struct KeptKeys {
  float key;
  int64_t first;
  float least;
};

// Keys from `low` on and below `high`, of so much weight from `high` on.
struct Bracket {
  float low, high;
  double above;
};

// Sums of a block's weights: of all, and of the keys from a bracket's end on.
struct BlockSums {
  float all, above;
};

// Keys and their weights, and for each block of the row how many are listed up to its end.
struct Listed {
  float *keys, *weights;
  int32_t* ends;
  int64_t count;
};

// A panel's keys and weights; what is behind the last key has no weight.
struct PanelWeights {
  Vec keys[kVecs], weights[kVecs];

  PanelWeights(const Drawable& d, int64_t first) {
    for_each<kVecs>([&](int v) {
      const int64_t left = d.count - first - v * kLanes;
      const int lanes = left >= kLanes ? kLanes : (left > 0 ? static_cast<int>(left) : 0);
      keys[v] = load_filled(d.keys + first + (lanes ? v * kLanes : 0), lanes, -__builtin_inff());
      weights[v] = (keys[v] - d.top) * d.inverse;
    });
    vexp<kVecs>(weights, weights);
  }
};

static_assert(kPanel == 2 * kSumLanes, "a panel's sum is that of its halves");
inline void add_panel(Sums& sum, const Vec (&v)[kVecs]) {
  for_each<kSumVecs>([&](int i) { sum.lanes[i] = sum.lanes[i] + (v[i] + v[i + kSumVecs]); });
}

// The weight of one block from `first` on.
inline float sum_of_block(const Drawable d, int64_t first) {
  const int64_t end = first + kScoresAtOnce < d.count ? first + kScoresAtOnce : d.count;
  Sums sum;
  for (int64_t i = first; i < end; i += kPanel) {
    d.read_ahead(i);
    add_panel(sum, PanelWeights(d, i).weights);
  }
  return sum.total();
}

// Sums each block and lists the keys within a bracket. (By value: nothing that is written could change them.)
inline void weigh_blocks(const Drawable d, const Bracket bracket, BlockSums* blocks, Listed& list) {
  float* const keys = list.keys;
  int64_t found = 0;
  for (int64_t first = 0; first < d.count; first += kScoresAtOnce) {
    const int64_t end = first + kScoresAtOnce < d.count ? first + kScoresAtOnce : d.count;
    Sums all, over;
    for (int64_t i = first; i < end; i += kPanel) {
      d.read_ahead(i);
      const PanelWeights panel(d, i);
      add_panel(all, panel.weights);
      if (d.panel_top(i) < bracket.low) continue;
      for_each<kVecs>([&](int v) {
        const Lanes high = at_least(panel.keys[v], splat(bracket.high));
        over.at(v * kLanes) = add_where(over.at(v * kLanes), high, panel.weights[v]);
        found += append(keys + found, at_least(panel.keys[v], splat(bracket.low)) & ~high, panel.keys[v]);
      });
    }
    blocks[first / kScoresAtOnce] = {all.total(), over.total()};
    list.ends[first / kScoresAtOnce] = static_cast<int32_t>(found);
  }
  list.count = found;
  each_vector(found, [&](int64_t i, int lanes) {
    store_part(list.weights + i, d.weights(load_part(keys + i, lanes)), lanes);
  });
}

// Keeps of a list those within a bracket; `from` and `to` may be the same memory.
inline void narrow(const Listed from, const Bracket bracket, Listed& to) {
  float *const keys = to.keys, *const weights = to.weights;
  int64_t found = 0;
  each_vector(from.count, [&](int64_t i, int lanes) {
    const Vec some = load_filled(from.keys + i, lanes, __builtin_nanf(""));
    const Vec those = load_part(from.weights + i, lanes);
    const Lanes mask = at_least(some, splat(bracket.low)) & above(splat(bracket.high), some);
    append(keys + found, mask, some);
    found += append(weights + found, mask, those);
  });
  to.count = found;
}

// Weights of keys from each bound on.
struct SumsAbove {
  double sums[kBounds] = {};
};

// The bracket between neighbouring bounds, which fall, in which the weight comes to be enough; else the last.
template <class Enough>
inline Bracket bracket_of(const Bracket& whole, const float* bounds, const SumsAbove& above, Enough is_enough) {
  int b = 0;
  while (b < kBounds && !is_enough(whole.above + above.sums[b])) b++;
  return {b < kBounds ? bounds[b] : whole.low, b ? bounds[b - 1] : whole.high,
          b ? whole.above + above.sums[b - 1] : whole.above};
}

// Bounds that divide a bracket evenly; false where floats are too coarse for that.
inline bool divide(const Bracket& bracket, float* bounds) {
  for (int b = 0; b < kBounds; b++)
    bounds[b] = bracket.high - (bracket.high - bracket.low) * static_cast<float>(b + 1) / (kBounds + 1);
  return bounds[0] < bracket.high && bounds[kBounds - 1] > bracket.low;
}

inline SumsAbove sums_above(const Listed& list, const float* bounds) {
  SumsAbove found;
  for (int64_t first = 0; first < list.count; first += kScoresAtOnce) {
    Sums sums[kBounds];
    each_vector(list.count - first < kScoresAtOnce ? list.count - first : kScoresAtOnce, [&](int64_t i, int lanes) {
      const Vec keys = load_filled(list.keys + first + i, lanes, __builtin_nanf(""));
      const Vec weights = load_part(list.weights + first + i, lanes);
      for_each<kBounds>([&](int b) {
        sums[b].at(i) = add_where(sums[b].at(i), at_least(keys, splat(bounds[b])), weights);
      });
    });
    for (int b = 0; b < kBounds; b++) found.sums[b] += sums[b].total();
  }
  return found;
}

inline double weight_of(const Listed& list) {
  double found = 0;
  for (int64_t first = 0; first < list.count; first += kScoresAtOnce) {
    Sums sum;
    each_vector(list.count - first < kScoresAtOnce ? list.count - first : kScoresAtOnce, [&](int64_t i, int lanes) {
      sum.add(i, load_part(list.weights + first + i, lanes));
    });
    found += sum.total();
  }
  return found;
}

// A key, its weight, the weight above it, and how many keys equal it.
struct Crossed {
  float key, weight;
  double above;
  int64_t equals;
};

// The first key of a list, from the largest down, at which the weight from it on is enough; the last key if none is.
template <class Enough>
inline Crossed crossed(const Listed& list, double above, Enough is_enough) {
  Crossed found{__builtin_inff(), 0, above, 0};
  for (;;) {
    Crossed next{-__builtin_inff(), 0, found.above + static_cast<double>(found.equals) * found.weight, 0};
    for (int64_t i = 0; i < list.count; i++) {
      if (!(list.keys[i] < found.key) || list.keys[i] < next.key) continue;
      if (list.keys[i] > next.key) next.equals = 0;
      next.key = list.keys[i];
      next.weight = list.weights[i];
      next.equals++;
    }
    if (next.equals == 0) return found;
    found = next;
    if (is_enough(found.above + static_cast<double>(found.equals) * found.weight)) return found;
  }
}

// The smallest key of a list from `low` on.
inline Crossed smallest_from(const Listed& list, float low, double above) {
  Crossed found{__builtin_inff(), 0, above, 0};
  for (int64_t i = 0; i < list.count; i++)
    if (list.keys[i] >= low && list.keys[i] < found.key) found.key = list.keys[i];
  for (int64_t i = 0; i < list.count; i++) {
    if (list.keys[i] == found.key) {
      found.weight = list.weights[i];
      found.equals++;
    } else if (list.keys[i] > found.key) {
      found.above += list.weights[i];
    }
  }
  return found;
}

// Where the weight comes to be enough within the bracket that `list` has; `part` is memory.
template <class Enough>
inline Crossed search(const Listed& list, Bracket bracket, Listed& part, Enough is_enough) {
  const double above = bracket.above;
  const Listed* left = &list;
  float bounds[kBounds];
  while (left->count > kFewKeys && divide(bracket, bounds)) {
    bracket = bracket_of(bracket, bounds, sums_above(*left, bounds), is_enough);
    narrow(*left, bracket, part);
    left = &part;
  }
  if (left->count > 0) return crossed(*left, bracket.above, is_enough);
  return smallest_from(list, bracket.high, above);  // sums in another order were a little less
}

// Of equals, the first are removed while those behind them are enough, and the last one stays: how many.
template <class Enough>
inline int64_t num_removed(const Crossed& found, Enough is_enough) {
  int64_t removed = 0, end = found.equals - 1;
  while (removed < end) {
    const int64_t middle = (removed + end + 1) / 2;
    if (is_enough(found.above + static_cast<double>(found.equals - middle) * found.weight)) removed = middle;
    else end = middle - 1;
  }
  return removed;
}

// Memory of a search: of each block its sums, and lists with room for all keys.
struct NucleusSpace {
  BlockSums* blocks;
  Listed list, part;
};

// Every panel's largest key, and all of some panels, which stand for those between them. Gives the weight of all.
inline double take_sample(const Drawable d, Listed& sample) {
  const int64_t panels = num_panels(d.count), whole = d.count / kPanel;
  float *const keys = sample.keys, *const weights = sample.weights;
  __builtin_memcpy(keys, d.largest, static_cast<size_t>(panels) * 4);
  int64_t count = panels;
  const float each = static_cast<float>(whole) / static_cast<float>((whole + kPanelsApart / 2 - 1) / kPanelsApart);
  for (int64_t p = kPanelsApart / 2; p < whole; p += kPanelsApart) {
    const PanelWeights panel(d, p * kPanel);
    for_each<kVecs>([&](int v) {
      store(keys + count, panel.keys[v]);
      store(weights + count, where(above(splat(d.largest[p]), panel.keys[v]), panel.weights[v]) * each);
      count += kLanes;
    });
  }
  sample.count = count;
  each_vector(panels, [&](int64_t i, int lanes) { store_part(weights + i, d.weights(load_part(keys + i, lanes)), lanes); });
  return weight_of(sample);
}

// Between which keys the weight is likely to come to be all but a `tail`: by a sample of many panels, else all.
inline Bracket guess(const Drawable& d, float tail, Listed& sample) {
  const Bracket all{d.top - 88 * d.temperature, __builtin_nextafterf(d.top, __builtin_inff()), 0};
  if (!d.largest || d.count < 2 * kPanelsApart * kPanel) return all;
  float first[kBounds] = {2, 4, 5.5f, 7.5f, 10, 13, 17}, bounds[kBounds];  // temperatures below the largest key
  for (float& bound : first) bound = d.top - bound * d.temperature;
  const double sampled = take_sample(d, sample), total = d.total > 0 ? d.total : sampled;
  const SumsAbove coarse = sums_above(sample, first);
  // By what is left below, which has no single large weights that a sample has not or has too often.
  const auto bracket_at = [&](double share) {
    const auto is_enough = [&](double kept) { return sampled - kept <= share * total; };
    Bracket found = bracket_of(all, first, coarse, is_enough);
    if (!divide(found, bounds)) return found;
    found.above = 0;  // the sample is not narrowed
    return bracket_of(found, bounds, sums_above(sample, bounds), is_enough);
  };
  const float doubt = (tail < 0.5f ? tail : 1 - tail) / 4;
  return {bracket_at(tail - doubt).low, bracket_at(tail + doubt).high, 0};
}

// The weight of each block from `key` on: what is above the bracket, and those in the list.
inline void sum_left(const NucleusSpace& space, float key, int64_t blocks, double* sums) {
  int64_t next = 0;
  for (int64_t b = 0; b < blocks; b++) {
    Sums sum;
    each_vector(space.list.ends[b] - next, [&](int64_t i, int lanes) {
      const Vec keys = load_filled(space.list.keys + next + i, lanes, __builtin_nanf(""));
      sum.add(i, where(at_least(keys, splat(key)), load_part(space.list.weights + next + i, lanes)));
    });
    next = space.list.ends[b];
    sums[b] = space.blocks[b].above + sum.total();
  }
}

// Sums the blocks for a bracket: the weight above it goes there; gives that of all.
inline double weigh(const Drawable& d, NucleusSpace& space, Bracket& bracket) {
  weigh_blocks(d, bracket, space.blocks, space.list);
  double all = 0;
  bracket.above = 0;
  for (int64_t b = 0; b < blocks_of(d.count); b++) {
    all += space.blocks[b].all;
    bracket.above += space.blocks[b].above;
  }
  return all;
}

// Where top-p ends, as decoding/filters.py says; `sums` gets the weight that is left of each block.
inline KeptKeys nucleus_of(const Drawable& d, float tail, NucleusSpace& space, double* sums) {
  Bracket bracket = guess(d, tail, space.list);
  const double all = weigh(d, space, bracket);
  // The largest key is kept even where `tail` is all.
  const auto is_enough = [&](double kept) { return kept > 0 && static_cast<float>((all - kept) / all) <= tail; };
  const bool is_above = is_enough(bracket.above), is_below = !is_enough(bracket.above + weight_of(space.list));
  if (is_above) bracket = {bracket.high, __builtin_nextafterf(d.top, __builtin_inff()), 0};
  else if (is_below) bracket = {d.top - 88 * d.temperature, bracket.low, 0};
  if (is_above || is_below) weigh(d, space, bracket);
  const Crossed found = search(space.list, bracket, space.part, is_enough);
  const float key = found.equals > 0 ? found.key : bracket.high;
  KeptKeys kept{key, 0, 0};
  int64_t left = num_removed(found, is_enough);
  for (int64_t i = 0, removed = left; removed > 0; i++)
    if (space.list.keys[i] == found.key) {
      space.list.weights[i] = 0;
      removed--;
    }
  for (; left > 0; kept.first++) left -= d.keys[kept.first] == found.key;
  sum_left(space, kept.key, blocks_of(d.count), sums);
  return kept;
}
