// Which experts compute a row, and how much each counts.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "settings.h"

namespace mindbatch {

// Chooses experts for one row after another.
class Router {
 public:
  // correction: [experts], added to scores when experts are chosen and not to their weights; or null.
  Router(const Routing& routing, const float* correction);

  // logits [experts] -> the chosen experts in rising order, and their weights. Both [chosen].
  void choose(const float* logits, int32_t* experts, float* weights);

 private:
  using Scored = std::pair<float, int64_t>;

  void score(const float* logits);
  void leave_groups();
  // Moves the best `count` of the candidates to their front, in the order in which torch.topk gives them.
  static void best_first(std::vector<Scored>& candidates, int64_t count);

  const Routing routing;
  const float* correction;
  std::vector<float> scores;
  std::vector<Scored> candidates, of_group, groups;
};

}  // namespace mindbatch
