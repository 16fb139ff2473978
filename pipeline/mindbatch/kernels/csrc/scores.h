// What choosing a token needs of each row of scores: the largest, and the sum of all exponentials.

// What is known of a row: its largest score and the logarithm of the sum of exponentials.
// `is_sound` is false where a score is NaN or plus infinity, or all are minus infinity.
struct RowScores {
  const float* largest;  // of each panel: see summary.h
  const float* sums;
  float top;
  double normaliser;
  bool is_sound;
};

// Sums of exponentials relative to `top`, of panels of which the largest and the sums relative to it are given.
inline double sum_relative_to(float top, const float* largest, const float* sums, int64_t panels) {
  Sums sum;
  each_vector(panels, [&](int64_t p, int lanes) {
    sum.add(p, vexp(load_filled(largest + p, lanes, -__builtin_inff()) - top) * load_filled(sums + p, lanes, 0));
  });
  return sum.total();
}

inline RowScores look_at(const float* summary, int64_t columns) {
  const int64_t panels = num_panels(columns), some = 64 * kSumLanes;  // summed in float32; the sums of these in float64
  RowScores row{summary, summary + panels, 0, __builtin_nan(""), false};
  Vec largest = splat(-__builtin_inff());
  each_vector(panels, [&](int64_t p, int lanes) {
    largest = vmax(load_filled(row.largest + p, lanes, -__builtin_inff()), largest);
  });
  row.top = largest_of(largest);
  if (row.top == -__builtin_inff()) return row;
  double sum = 0;
  for (int64_t p = 0; p < panels; p += some)
    sum += sum_relative_to(row.top, row.largest + p, row.sums + p, panels - p < some ? panels - p : some);
  row.is_sound = sum == sum;
  if (row.is_sound) row.normaliser = row.top + elementary::log(sum);
  return row;
}

// The place of the largest score, the lowest among equals; 0 where there is none.
inline int64_t place_of_top(const float* scores, int64_t columns, const RowScores& row) {
  const int64_t panels = num_panels(columns);
  int64_t panel = 0;
  while (panel < panels && row.largest[panel] != row.top) panel++;
  int64_t place = panel * kPanel;
  while (place < columns && scores[place] != row.top) place++;
  return place < columns ? place : 0;
}

inline const float* summary_of(const ScoreArgs& a, int64_t r, float* space) {
  if (a.summary) return a.summary + r * 2 * num_panels(a.columns);
  summarise_row(a.scores + r * a.columns, a.columns, space);
  return space;
}

inline RowScores find_likeliest(const ScoreArgs& a, int64_t r, float* space) {
  const RowScores row = look_at(summary_of(a, r, space), a.columns);
  a.likeliest[r] = place_of_top(a.scores + r * a.columns, a.columns, row);
  a.normalisers[r] = row.normaliser;
  return row;
}

void likeliest(const ScoreArgs& a) {
  auto body = [&](int64_t r, int thread) { find_likeliest(a, r, scratch(1 + thread, 2 * num_panels(a.columns))); };
  parallel_for(a.rows, body);
}
