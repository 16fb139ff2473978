// What is known of rows of scores beside themselves: of each panel of kPanel neighbours the largest, and the sum of the
// exponentials of all relative to it; [rows][2][panels]. With them a row's largest score, its normaliser and the places
// of its large scores are found without reading it again. The head's product writes them while its scores are in the
// cache (store_rows); of other scores they are computed, to the same bits.
//
// A sum is NaN where one of the scores is NaN or plus infinity; of minus infinity alone it is 0.

constexpr int kVecs = kPanel / kLanes;

inline int64_t num_panels(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// Numbers at p, and `fill` in the lanes behind the last.
inline Vec load_filled(const float* p, int lanes, float fill) {
  if (lanes == kLanes) return load(p);
  Vec v = splat(fill);
  for (int l = 0; l < lanes; l++) v[l] = p[l];
  return v;
}

// For each halving of vectors the lanes of two of them that are first halves, and those that are second ones. (In memory:
// compilers put constant lanes together one by one.)
struct Halves {
  static constexpr int kRounds = kLanes == 16 ? 4 : (kLanes == 8 ? 3 : 2);
  int32_t first[kRounds][kLanes], second[kRounds][kLanes];

  constexpr Halves() : first(), second() {
    for (int round = 0; round < kRounds; round++) {
      const int width = kLanes >> (round + 1);
      for (int i = 0; i < kLanes; i++) {
        first[round][i] = i / width * 2 * width + i % width;
        second[round][i] = first[round][i] + width;
      }
    }
  }
};
alignas(64) constexpr Halves kHalves;

// Lane i is what the lanes of v[i] come to, joined by halves: sums have the order of `Sums`.
template <class Join>
inline Vec across_lanes(Vec (&v)[kLanes], Join join) {
#pragma GCC unroll 4
  for (int round = 0; round < Halves::kRounds; round++) {
    const IntVec first = load_ints(kHalves.first[round]), second = load_ints(kHalves.second[round]);
#pragma GCC unroll 8
    for (int i = 0; i < kLanes >> (round + 1); i++)
      v[i] = join(__builtin_shuffle(v[2 * i], v[2 * i + 1], first), __builtin_shuffle(v[2 * i], v[2 * i + 1], second));
  }
  return v[0];
}

struct Parts {
  Vec largest, sums;
};

// Of `pieces` panels or less of them, at most kLanes, each of `count` scores; piece(i) -> where they stand.
template <class Piece>
inline Parts parts_of(int64_t pieces, int64_t count, Piece piece) {
  const auto load_scores = [&](int64_t i, int v) {
    const int64_t left = count - v * kLanes;
    if (left >= kLanes) return load(piece(i) + v * kLanes);
    return load_filled(piece(i) + (left > 0 ? v * kLanes : 0), left > 0 ? static_cast<int>(left) : 0, -__builtin_inff());
  };
  Vec tops[kLanes], sums[kLanes];
  for (int64_t i = 0; i < kLanes; i++) tops[i] = sums[i] = splat(-__builtin_inff());
  for (int64_t i = 0; i < pieces; i++)
    for_each<kVecs>([&](int v) { tops[i] = vmax(load_scores(i, v), tops[i]); });
  const Vec largest = across_lanes(tops, [](Vec a, Vec b) { return vmax(a, b); });
  float bases[kLanes];
  store(bases, select((IntVec)(largest == splat(-__builtin_inff())), Vec{}, largest));
  for (int64_t i = 0; i < pieces; i++) {
    Vec powers[kVecs];
    for_each<kVecs>([&](int v) { powers[v] = load_scores(i, v) - bases[i]; });
    vexp<kVecs>(powers, powers);
    for (int half = kVecs / 2; half > 0; half /= 2)  // as `Sums` adds up its lanes
      for (int v = 0; v < half; v++) powers[v] = powers[v] + powers[v + half];
    sums[i] = powers[0];
  }
  return {largest, across_lanes(sums, [](Vec a, Vec b) { return a + b; })};
}

// Of one panel of `count` columns in all rows of y [rows, columns].
inline void summarise_panel(const float* y, int64_t rows, int64_t columns, int64_t panel, int64_t count, float* summary) {
  const int64_t panels = num_panels(columns);
  for (int64_t r = 0; r < rows; r += kLanes) {
    const int64_t some = rows - r < kLanes ? rows - r : kLanes;
    const Parts parts = parts_of(some, count, [&](int64_t i) { return y + (r + i) * columns + panel * kPanel; });
    for (int64_t i = 0; i < some; i++) {
      summary[(r + i) * 2 * panels + panel] = parts.largest[i];
      summary[((r + i) * 2 + 1) * panels + panel] = parts.sums[i];
    }
  }
}

// Of panels [first, end) of one row; summary: the row's.
inline void summarise_panels(const float* scores, int64_t columns, int64_t first, int64_t end, float* summary) {
  const int64_t panels = num_panels(columns), whole = columns / kPanel < end ? columns / kPanel : end;
  const auto panel_at = [&](int64_t p) { return scores + p * kPanel; };
  for (int64_t p = first; p < whole; p += kLanes) {
    const int some = static_cast<int>(whole - p < kLanes ? whole - p : kLanes);
    const Parts parts = parts_of(some, kPanel, [&](int64_t i) { return panel_at(p + i); });
    store_part(summary + p, parts.largest, some);
    store_part(summary + panels + p, parts.sums, some);
  }
  if (whole < end) summarise_panel(scores, 1, columns, whole, columns - whole * kPanel, summary);
}

// Of all panels of one row.
inline void summarise_row(const float* scores, int64_t columns, float* summary) {
  summarise_panels(scores, columns, 0, num_panels(columns), summary);
}
