// Layers of experts against plain loops; a row alone against the same row among others, bit for bit; and settings
// that contradict each other.
#pragma once
#include "dense_cases.h"

// groups: 1 for a softmax over all experts, else sigmoids with a correction among the best half of the groups.
struct ExpertCase {
  int64_t rows, hidden, inner, experts, chosen, groups;
  float limit = 0;  // above 0: gates and ups take turns and are clamped, and there are biases
  bool weighs_inputs = false;
  bool has_logits = false;  // in place of the router; with biases a scale of each expert, too
};

struct ExpertLayer {
  static constexpr double kLeastLead = 1e-3;  // of chosen scores over others, so that rounding chooses alike

  ExpertCase a;
  Floats router, correction, up;
  int64_t segments;  // of down
  Floats down, router_bias, up_bias, down_bias, scale;

  ExpertLayer(Random& random, const ExpertCase& a)
      : a(a), router(drawn(random, "experts.router", {a.experts, a.hidden})),
        correction(drawn(random, "experts.correction", {a.groups > 1 ? a.experts : 1})),
        up(drawn(random, "experts.up", {a.experts * panels(2 * a.inner), 1, a.hidden, kPanelWidth})),
        segments(some_segments(random, a.inner)),
        down(drawn(random, "experts.down", {a.experts * panels(a.hidden), segments, a.inner / segments, kPanelWidth})),
        router_bias(drawn(random, "experts.router_bias", {a.experts})),
        up_bias(drawn(random, "experts.up_bias", {a.experts, 2 * a.inner})),
        down_bias(drawn(random, "experts.down_bias", {a.experts, a.hidden})),
        scale(drawn(random, "experts.scale", {a.has_logits ? a.experts : 1})) {}

  bool is_grouped() const { return a.groups > 1; }

  mindbatch::ExpertsShape shape() const {
    const mindbatch::Routing routing = {a.experts, a.chosen, is_grouped(), true, 1.5f, a.groups, (a.groups + 1) / 2, 1};
    return {routing, a.inner, mindbatch::kSilu, a.limit > 0, a.limit, a.weighs_inputs, a.has_logits};
  }

  int run(const Floats& x, const mindbatch::ExpertsShape& shape, const Floats& y) const {
    const Ints settings = words_of("experts.settings", mindbatch::ExpertsSettings{shape});
    if (!a.has_logits) return run(x, router, settings, y);
    const Floats logits = empty("experts.logits", {x.shape[0], a.experts});
    require(call(mb_router_logits, {x, router, logits}) == 0, "the router failed");
    return run(x, logits, settings, y);
  }

  // scorer: the router, or its logits.
  int run(const Floats& x, const Floats& scorer, const Ints& settings, const Floats& y) const {
    if (a.limit > 0)
      return call(mb_experts,
                  {x, scorer, correction, up, down, router_bias, up_bias, down_bias, scale, settings, y});
    return call(mb_experts, {x, scorer, correction, up, down, settings, y});
  }

  // The same in two calls, as ranks that divide the experts compute it.
  int run_apart(const Floats& x, const mindbatch::ExpertsShape& shape, const Floats& y) const {
    const Floats logits = empty("experts.logits", {x.shape[0], a.experts}), none("experts.none", {1}, {0});
    const Floats products = empty("experts.products", {x.shape[0], shape.routing.chosen * a.hidden});
    const bool has_biases = a.limit > 0;
    require(call(mb_router_logits, {x, router, logits}) == 0, "the router failed");
    const Ints of_products = words_of("experts.settings", mindbatch::ExpertProductsSettings{shape});
    const Ints of_sum = words_of("experts.settings", mindbatch::ExpertSumSettings{shape});
    const Floats &of_router = has_biases ? router_bias : none, &of_up = has_biases ? up_bias : none;
    const Floats &of_down = has_biases ? down_bias : none, &factor = has_biases ? scale : none;
    const int failed = call(mb_expert_products, {x, logits, correction, up, down, of_router, of_up, of_products, products});
    return failed ? failed : call(mb_expert_sum, {products, logits, correction, of_router, of_down, factor, of_sum, y});
  }

  std::vector<double> scores(const float* x) const {
    std::vector<double> found;
    double sum = 0;
    for (int64_t e = 0; e < a.experts; e++) {
      double logit = a.limit > 0 ? router_bias.values[e] : 0;
      for (int64_t k = 0; k < a.hidden; k++) logit += x[k] * double{router.values[e * a.hidden + k]};
      found.push_back(is_grouped() ? 1 / (1 + std::exp(-logit)) : std::exp(logit));
      sum += found.back();
    }
    for (double& each : found) each /= is_grouped() ? 1 : sum;
    return found;
  }

  // The largest `count` numbers first; false where the next is too near to be told apart.
  static bool best_first(std::vector<std::pair<double, int64_t>>& all, int64_t count) {
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    const auto last = static_cast<size_t>(count);
    return last == all.size() || all[last - 1].first - all[last].first > kLeastLead;
  }

  // The experts of a row; empty where they are not certain.
  std::vector<int64_t> chosen(const std::vector<double>& scores) const {
    const int64_t size = a.experts / a.groups;
    std::vector<std::pair<double, int64_t>> groups, candidates;
    for (int64_t e = 0; e < a.experts; e++) {
      candidates.emplace_back(scores[e] + (is_grouped() ? correction.values[e] : 0), e);
      if (e % size == 0) groups.emplace_back(candidates.back().first, e / size);
      groups.back().first = std::max(groups.back().first, candidates.back().first);
    }
    if (!best_first(groups, (a.groups + 1) / 2)) return {};
    for (size_t g = static_cast<size_t>((a.groups + 1) / 2); g < groups.size(); g++)
      for (int64_t i = 0; i < size; i++) candidates[groups[g].second * size + i].first = 0;
    if (!best_first(candidates, a.chosen)) return {};
    std::vector<int64_t> found;
    for (int64_t i = 0; i < a.chosen; i++) found.push_back(candidates[i].second);
    return found;
  }

  void add(int64_t expert, const float* x, double weight, double* y) const {
    const int64_t of_up = panels(2 * a.inner) * kPanelWidth, of_down = panels(a.hidden) * kPanelWidth;
    const auto product = [&](int64_t column) {
      double sum = 0;
      for (int64_t k = 0; k < a.hidden; k++) sum += x[k] * packed(up, a.hidden, expert * of_up + column, k);
      return sum;
    };
    const auto biased = [&](int64_t column) { return product(column) + up_bias.values[expert * 2 * a.inner + column]; };
    const double limit = a.limit;
    std::vector<double> inner;
    for (int64_t i = 0; i < a.inner; i++) {
      if (a.limit > 0)
        inner.push_back(activated(std::min(biased(2 * i), limit), 2) *
                        (1 + std::clamp(biased(2 * i + 1), -limit, limit)));
      else
        inner.push_back(activated(product(i), 2) * product(a.inner + i));
    }
    for (int64_t c = 0; c < a.hidden && a.limit > 0; c++) y[c] += weight * down_bias.values[expert * a.hidden + c];
    for (int64_t c = 0; c < a.hidden; c++)
      for (int64_t i = 0; i < a.inner; i++) y[c] += weight * inner[i] * packed(down, a.inner, expert * of_down + c, i);
  }

  void check(const float* x, const Floats& y) const {
    const std::vector<double> weights = scores(x);
    const std::vector<int64_t> its = chosen(weights);
    if (its.empty()) return;
    double sum = 0;
    for (const int64_t expert : its) sum += weights[expert];
    std::vector<double> expected(static_cast<size_t>(a.hidden));
    for (const int64_t expert : its) {
      double weight = weights[expert] / sum * 1.5;
      if (a.has_logits && a.limit > 0 && a.experts > 1) weight *= scale.values[expert];
      std::vector<float> input(x, x + a.hidden);
      if (a.weighs_inputs)
        for (float& each : input) each *= static_cast<float>(weight);
      add(expert, input.data(), a.weighs_inputs ? 1 : weight, expected.data());
    }
    compare(y, expected, static_cast<double>(a.hidden * a.hidden * a.inner));
  }
};

inline void expert_case(Random& random, const ExpertCase& a) {
  running = "experts " + std::to_string(a.rows) + "x" + std::to_string(a.hidden) + "x" + std::to_string(a.inner);
  const ExpertLayer layer(random, a);
  const Floats x = drawn(random, "experts.x", {a.rows, a.hidden}), y = empty("experts.y", {a.rows, a.hidden});
  require(layer.run(x, layer.shape(), y) == 0, "failed");
  const Floats apart = empty("experts.apart", {a.rows, a.hidden});
  if (!a.weighs_inputs || a.limit == 0) {  // no model has a scale for experts that take in weighed inputs
    require(layer.run_apart(x, layer.shape(), apart) == 0, "failed apart");
    require(std::equal(y.memory, y.memory + a.rows * a.hidden, apart.memory), "two calls give other bits than one");
  }
  for (int64_t r = 0; r < a.rows; r++) {
    const float* its = &x.values[r * a.hidden];
    const Floats one("experts.one_x", {1, a.hidden}, std::vector<float>(its, its + a.hidden));
    const Floats found = empty("experts.one_y", {1, a.hidden});
    require(layer.run(one, layer.shape(), found) == 0, "failed");
    require(std::memcmp(found.memory, y.memory + r * a.hidden, static_cast<size_t>(a.hidden) * 4) == 0,
            "a row alone has other bits");
    layer.check(its, found);
  }
  using mindbatch::Routing;
  for (const auto& [part, value] : std::vector<std::pair<int64_t Routing::*, int64_t>>{
           {&Routing::chosen, a.experts + 1}, {&Routing::chosen, 0}, {&Routing::groups, a.experts + 1}, {&Routing::experts, a.experts + 1}}) {
    mindbatch::ExpertsShape wrong = layer.shape();
    wrong.routing.*part = value;
    require(layer.run(x, wrong, y) != 0, "settings that contradict each other are taken");
  }
}

inline void expert_cases(Random& random) {
  for (const ExpertCase& each : std::vector<ExpertCase>{{1, 1, 1, 1, 1, 1}, {29, 33, 7, 5, 2, 1}, {70, 17, 3, 67, 1, 1}, {9, 20, 16, 12, 3, 4}, {29, 33, 7, 5, 3, 1, 0.5f}, {1, 2, 1, 2, 1, 1, 7},
                                    {29, 33, 7, 5, 2, 1, 0, true}, {9, 20, 16, 12, 3, 4, 0, false, true}, {29, 33, 7, 5, 3, 1, 0.5f, false, true}})
    expert_case(random, each);
}

inline void random_expert_case(Random& random) {
  const int64_t groups = random.one_of<int64_t>({1, 1, 2, 4}), experts = groups * random.between(1, 12);
  const int64_t allowed = experts / groups * ((groups + 1) / 2);
  expert_case(random, {random.between(1, 40), random.between(1, 40), random.between(1, 40), experts,
                       random.between(1, allowed), groups, random.one_of<float>({0, 0, 0.3f}), random.next() % 3 == 0, random.next() % 3 == 0});
}
