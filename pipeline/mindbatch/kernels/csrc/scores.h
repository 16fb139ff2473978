// What choosing a token needs of each row of logits: the largest, and the sum of all exponentials.

constexpr int64_t kScoresAtOnce = 64 * kLanes;  // summed in float32; the sums of such blocks in float64

// The largest of a block; `finite` keeps its bits where no score is NaN or plus infinity.
inline float largest_of(const float* scores, int64_t count, float top, IntVec& finite) {
  Vec largest = splat(top);
  each_vector(count, [&](int64_t i, int lanes) {
    Vec some = load_part(scores + i, lanes);
    for (int l = lanes; l < kLanes; l++) some[l] = top;
    finite = finite & (IntVec)(some <= splat(__FLT_MAX__));
    largest = vmax(some, largest);
  });
  for (int l = 0; l < kLanes; l++) top = largest[l] > top ? largest[l] : top;
  return top;
}

inline double sum_of_exponentials(const float* scores, int64_t count, float top) {
  double sum = 0;
  for (int64_t first = 0; first < count; first += kScoresAtOnce) {
    Vec some{};
    each_vector(count - first < kScoresAtOnce ? count - first : kScoresAtOnce, [&](int64_t i, int lanes) {
      Vec e = vexp(load_part(scores + first + i, lanes) - top);
      for (int l = lanes; l < kLanes; l++) e[l] = 0;
      some = some + e;
    });
    sum += sum_lanes(some);
  }
  return sum;
}

// One row: the place of its largest score, the lowest among equals, and what to subtract from its scores for their
// log-probabilities: NaN where a score is NaN or plus infinity, or all are minus infinity.
inline void likeliest_of(const float* scores, int64_t count, int64_t* likeliest, double* normaliser) {
  float top = -__builtin_inff();
  IntVec finite = splat_int(-1);
  int64_t block = 0;
  for (int64_t first = 0; first < count; first += kScoresAtOnce) {
    const int64_t some = count - first < kScoresAtOnce ? count - first : kScoresAtOnce;
    const float found = largest_of(scores + first, some, top, finite);
    if (found > top) block = first;
    top = found;
  }
  int64_t place = block;
  while (place < count && scores[place] != top) place++;
  *likeliest = place < count ? place : 0;
  bool is_sound = top > -__builtin_inff();
  for (int l = 0; l < kLanes; l++) is_sound = is_sound && finite[l];
  *normaliser = is_sound ? top + __builtin_log(sum_of_exponentials(scores, count, top)) : __builtin_nan("");
}

void likeliest(const ScoreArgs& a) {
  auto body = [&](int64_t r, int) {
    likeliest_of(a.scores + r * a.columns, a.columns, a.likeliest + r, a.normalisers + r);
  };
  parallel_for(a.rows, body);
}
