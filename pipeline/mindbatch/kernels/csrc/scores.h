// What choosing a token needs of each row of logits: the largest, and the sum of all exponentials.

constexpr int64_t kScoresAtOnce = 64 * kLanes;  // summed in float32; the sums of such blocks in float64

// Numbers at p, and `fill` in the lanes behind the last.
inline Vec load_filled(const float* p, int lanes, float fill) {
  Vec v = load_part(p, lanes);
  for (int l = lanes; l < kLanes; l++) v[l] = fill;
  return v;
}

// The largest of each lane; `finite` keeps its bits where no score is NaN or plus infinity.
inline Vec largest_lanes(const float* scores, int64_t count, IntVec& finite) {
  Vec largest[kAtOnce];
  for_each<kAtOnce>([&](int n) { largest[n] = splat(-__builtin_inff()); });
  const auto look = [&](int n, Vec some) {
    finite = finite & (IntVec)(some <= splat(__FLT_MAX__));
    largest[n] = vmax(some, largest[n]);
  };
  int64_t first = 0;
  for (; first + kAtOnce * kLanes <= count; first += kAtOnce * kLanes)
    for_each<kAtOnce>([&](int n) { look(n, load(scores + first + n * kLanes)); });
  each_vector(count - first, [&](int64_t i, int lanes) {
    look(0, load_filled(scores + first + i, lanes, -__builtin_inff()));
  });
  return vmax(vmax(largest[0], largest[1]), vmax(largest[2], largest[3]));
}

inline float largest_lane(Vec v) {
  float top = v[0];
  for (int l = 1; l < kLanes; l++) top = v[l] > top ? v[l] : top;
  return top;
}

// Meanwhile it reads the block behind this one ahead: processors do not do that across pages of 4 KB.
inline double sum_of_exponentials(const float* scores, int64_t count, float top) {
  Vec sums[kAtOnce] = {};
  int64_t first = 0;
  for (; first + kAtOnce * kLanes <= count; first += kAtOnce * kLanes) {
    Vec power[kAtOnce];
    for_each<kAtOnce>([&](int n) {
      const float* some = scores + first + n * kLanes;
      __builtin_prefetch(some + kScoresAtOnce);
      power[n] = load(some) - top;
    });
    vexp<kAtOnce>(power, power);
    for_each<kAtOnce>([&](int n) { sums[n] = sums[n] + power[n]; });
  }
  each_vector(count - first, [&](int64_t i, int lanes) {
    sums[0] = sums[0] + vexp(load_filled(scores + first + i, lanes, -__builtin_inff()) - top);
  });
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// What is known of a row: its largest score and the block where that is, and the logarithm of the sum of exponentials.
// `is_sound` is false where a score is NaN or plus infinity, or all are minus infinity.
struct RowScores {
  float top = -__builtin_inff();
  int64_t block = 0;
  double normaliser = 0;
  bool is_sound = false;
};

// One pass: while a block is in the cache, its exponentials are summed, relative to the largest score up to there.
// Without kSummed there is no normaliser. `tops` [blocks][kLanes], if it is not null, gets the largest of each lane.
template <bool kSummed>
inline RowScores look_at(const float* scores, int64_t count, float* tops) {
  RowScores row;
  IntVec finite = splat_int(-1);
  double sum = 0;
  for (int64_t first = 0; first < count; first += kScoresAtOnce) {
    const int64_t some = count - first < kScoresAtOnce ? count - first : kScoresAtOnce;
    const Vec lanes = largest_lanes(scores + first, some, finite);
    if (tops) store(tops + first / 64, lanes);
    const float top = largest_lane(lanes);
    if (top > row.top) {
      if (kSummed) sum *= __builtin_exp(static_cast<double>(row.top) - top);
      row.top = top;
      row.block = first;
    }
    if (kSummed && row.top > -__builtin_inff()) sum += sum_of_exponentials(scores + first, some, row.top);
  }
  row.is_sound = row.top > -__builtin_inff();
  for (int l = 0; l < kLanes; l++) row.is_sound = row.is_sound && finite[l];
  row.normaliser = row.is_sound ? row.top + __builtin_log(sum) : __builtin_nan("");
  return row;
}

// The place of the largest score, the lowest among equals; 0 where there is none.
inline int64_t place_of_top(const float* scores, int64_t count, const RowScores& row) {
  int64_t place = row.block;
  while (place < count && scores[place] != row.top) place++;
  return place < count ? place : 0;
}

void likeliest(const ScoreArgs& a) {
  auto body = [&](int64_t r, int) {
    const float* scores = a.scores + r * a.columns;
    const RowScores row = look_at<true>(scores, a.columns, nullptr);
    a.likeliest[r] = place_of_top(scores, a.columns, row);
    a.normalisers[r] = row.normaliser;
  };
  parallel_for(a.rows, body);
}
