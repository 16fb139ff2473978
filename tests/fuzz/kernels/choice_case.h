// Tokens drawn from rows of scores, against sorted scores in double numbers.
#pragma once
#include <numeric>

#include "cases.h"
#include "variant_table.h"

struct ChoiceCase {
  int64_t rows, width;
  mindbatch::DrawRule rule;
  bool is_tied = false;  // few different scores, so that many are equal
};

// Which scores are left, and their shares, 0 for the others; `doubt` is how near the tail's sum comes to its limit.
inline std::vector<double> shares_left(const ChoiceCase& c, const float* scores, double& doubt) {
  const mindbatch::DrawRule& rule = c.rule;
  std::vector<float> divided(scores, scores + c.width);
  for (float& each : divided) each /= rule.temperature;
  std::vector<size_t> order(divided.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return divided[a] < divided[b]; });
  const float top = divided[order.back()];
  const size_t k = rule.top_k > 0 && rule.top_k < c.width ? static_cast<size_t>(rule.top_k) : order.size();
  const float kth = divided[order[order.size() - k]];
  std::vector<double> shares;
  double total = 0, removed = 0, left = 0;
  for (const float each : divided) shares.push_back(each >= kth ? std::exp(double{each} - top) : 0);
  for (const double each : shares) total += each;
  for (const size_t i : order) {
    removed += shares[i] / total;
    doubt = std::min(doubt, rule.tail < 0 || i == order.back() ? 1.0 : std::fabs(removed - rule.tail));
    if ((rule.tail >= 0 && removed <= rule.tail && i != order.back()) || shares[i] < rule.min_p) shares[i] = 0;
    left += shares[i];
  }
  for (double& each : shares) each /= left;
  return shares;
}

inline void check_draws(const ChoiceCase& c, const float* scores, const std::vector<double>& uniforms,
                        const int64_t* tokens) {
  double doubt = 1;
  const std::vector<double> shares = shares_left(c, scores, doubt);
  if (doubt < 1e-6) return;
  for (size_t i = 0; i < uniforms.size(); i++) {
    require(tokens[i] >= 0 && tokens[i] < c.width && shares[tokens[i]] > 0, "a token that is not left was drawn");
    const double end = std::accumulate(shares.begin(), shares.begin() + tokens[i] + 1, 0.0);
    require(uniforms[i] < end + 1e-5 && uniforms[i] > end - shares[tokens[i]] - 1e-5, "another token was drawn");
  }
}

// Every other row is drawn from changed scores, every third not at all, and the last row's scores are not finite.
inline void choice_case(Random& random, const ChoiceCase& c) {
  running = "choice " + std::to_string(c.rows) + "x" + std::to_string(c.width) + " top_k " + std::to_string(c.rule.top_k);
  const auto made = [&](const std::string& name) {
    std::vector<float> found = numbers(random, c.rows * c.width);
    for (float& each : found) each = c.is_tied ? std::round(2 * each) : 3 * each;
    if (name == "choice.scores") found.back() = std::numeric_limits<float>::infinity();
    return found;
  };
  const Floats logits("choice.logits", {c.rows, c.width}, made("choice.logits"));
  const Floats changed("choice.scores", {c.rows, c.width}, made("choice.scores"));
  std::vector<const float*> rows;
  std::vector<int64_t> firsts = {0};
  std::vector<double> numbers_drawn;
  for (int64_t r = 0; r < c.rows; r++) {
    rows.push_back(r % 2 || r == c.rows - 1 ? changed.memory + r * c.width : nullptr);
    for (int64_t i = 0; i < (r % 3 == 2 ? 0 : 9); i++) numbers_drawn.push_back(random.between(0, 999'999) / 1e6);
    firsts.push_back(static_cast<int64_t>(numbers_drawn.size()));
  }
  const std::vector<mindbatch::DrawRule> rules(rows.size(), c.rule);
  const Buffer<int64_t> places("choice.places", {c.rows}, std::vector<int64_t>(rows.size()));
  const Buffer<double> normalisers("choice.normalisers", {c.rows}, std::vector<double>(rows.size()));
  const Buffer<int64_t> tokens("choice.tokens", {firsts.back()}, std::vector<int64_t>(numbers_drawn.size()));
  mb_choose(logits.memory, nullptr, rows.data(), rules.data(), numbers_drawn.data(), firsts.data(), c.rows, c.width,
            places.memory, normalisers.memory, tokens.memory);
  for (int64_t r = 0; r < c.rows; r++) {
    const float* row = &logits.values[r * c.width];
    require(places.memory[r] == std::max_element(row, row + c.width) - row, "another place than the largest's");
    const std::vector<double> own(numbers_drawn.begin() + firsts[r], numbers_drawn.begin() + firsts[r + 1]);
    const int64_t* found = tokens.memory + firsts[r];
    if (r < c.rows - 1)
      check_draws(c, rows[r] ? &changed.values[r * c.width] : row, own, found);
    else
      for (size_t i = 0; i < own.size(); i++) require(found[i] == -1, "a token was drawn from infinity");
  }
}

inline void choice_cases(Random& random) {
  const std::vector<mindbatch::DrawRule> rules = {
      {1, 0, -1, 0}, {0.7f, 0, 0.1f, 0}, {1, 1, -1, 0}, {1.5f, 40, 0.2f, 0.01f}, {1, 900, -1, 0}, {1, 0, 0.5f, 0}, {9, 0, 1, 0}};
  for (const int64_t width : {1, 2, 15, 33, 1024, 1041, 5003})
    for (const mindbatch::DrawRule& rule : rules)
      for (const bool is_tied : {false, true}) choice_case(random, {5, width, rule, is_tied});
}

inline void random_choice_case(Random& random) {
  const float tail = random.between(0, 2) ? static_cast<float>(random.between(0, 1000)) / 1000 : -1;
  const mindbatch::DrawRule rule = {static_cast<float>(random.between(1, 40)) / 10, static_cast<int32_t>(random.between(-500, 500)),
                                    tail, static_cast<float>(random.between(-50, 50)) / 500};
  choice_case(random, {random.between(1, 6), random.between(1, 9000), {rule.temperature, std::max(rule.top_k, 0), tail, std::max(rule.min_p, 0.0f)},
                       random.between(0, 1) == 0});
}
