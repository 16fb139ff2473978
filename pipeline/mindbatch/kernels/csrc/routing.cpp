// Choosing experts as Hugging Face's models do with torch: softmax or sigmoid, torch.topk, and its order of ties.
#include "routing.h"

#include <algorithm>
#include <cmath>

#include "elementary.h"

namespace mindbatch {
namespace {

constexpr float kLeast = 1e-20f;  // added to a sum that is divided by

inline float power(float x) { return static_cast<float>(elementary::exp(x)); }

}  // namespace

Router::Router(const Routing& its, const float* bias)
    : routing(its), correction(bias), scores(static_cast<size_t>(its.experts)), candidates(scores.size()),
      of_group(static_cast<size_t>(its.experts / its.groups)), groups(static_cast<size_t>(its.groups)) {}

void Router::score(const float* logits) {
  if (routing.is_sigmoid) {
    for (size_t e = 0; e < scores.size(); e++) scores[e] = 1.0f / (1.0f + power(-logits[e]));
    return;
  }
  const float largest = *std::max_element(logits, logits + routing.experts);
  float sum = 0;
  for (size_t e = 0; e < scores.size(); e++) sum += scores[e] = power(logits[e] - largest);
  for (float& each : scores) each /= sum;
}

// torch.topk on a CPU (TopKImpl.h of ATen): the ties of the standard library's selection, in both of its ways.
void Router::best_first(std::vector<Scored>& all, int64_t count) {
  const auto is_better = [](const Scored& a, const Scored& b) {
    return (std::isnan(a.first) && !std::isnan(b.first)) || a.first > b.first;
  };
  if (count * 64 <= static_cast<int64_t>(all.size())) {
    std::partial_sort(all.begin(), all.begin() + count, all.end(), is_better);
    return;
  }
  std::nth_element(all.begin(), all.begin() + (count - 1), all.end(), is_better);
  std::sort(all.begin(), all.begin() + (count - 1), is_better);
}

// Experts outside the best groups are never chosen (DeepSeek-AI, "DeepSeek-V2", 2024, 2.1.2).
void Router::leave_groups() {
  const size_t size = of_group.size();
  for (size_t g = 0; g < groups.size(); g++) {
    std::copy_n(candidates.begin() + static_cast<int64_t>(g * size), size, of_group.begin());
    best_first(of_group, routing.group_best);
    float sum = 0;
    for (int64_t i = 0; i < routing.group_best; i++) sum += of_group[static_cast<size_t>(i)].first;
    groups[g] = {sum, static_cast<int64_t>(g)};
  }
  best_first(groups, routing.chosen_groups);
  for (size_t g = static_cast<size_t>(routing.chosen_groups); g < groups.size(); g++)
    for (size_t i = 0; i < size; i++) candidates[static_cast<size_t>(groups[g].second) * size + i].first = -INFINITY;
}

void Router::choose(const float* logits, int32_t* experts, float* weights) {
  score(logits);
  for (size_t e = 0; e < scores.size(); e++)
    candidates[e] = {scores[e] + (correction ? correction[e] : 0), static_cast<int64_t>(e)};
  if (routing.groups > 1) leave_groups();
  best_first(candidates, routing.chosen);
  float sum = kLeast;
  for (int64_t i = 0; i < routing.chosen; i++) sum += scores[static_cast<size_t>(candidates[static_cast<size_t>(i)].second)];
  const auto by_expert = [](const Scored& a, const Scored& b) { return a.second < b.second; };
  std::sort(candidates.begin(), candidates.begin() + routing.chosen, by_expert);
  for (int64_t i = 0; i < routing.chosen; i++) {
    const int64_t expert = candidates[static_cast<size_t>(i)].second;
    const float weight = scores[static_cast<size_t>(expert)];
    experts[i] = static_cast<int32_t>(expert);
    weights[i] = (routing.is_normalised ? weight / sum : weight) * routing.scale;
  }
}

}  // namespace mindbatch
