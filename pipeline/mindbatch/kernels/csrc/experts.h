// What a layer of experts computes beside the products of its experts: the router's logits, and the weighted sum.

// Experts whose products with a row are summed side by side, and those of one task.
constexpr int kRouterChains = 4;
constexpr int64_t kRouterExperts = 16, kRouterRows = 8;

// logits[e] = x . weights[e] for `count` experts, at most kRouterChains. Each is one chain of sums, whatever is beside.
inline void route_some(const float* x, const float* weights, int64_t depth, int64_t count, float* logits) {
  const float* rows[kRouterChains];
  for (int64_t e = 0; e < kRouterChains; e++) rows[e] = weights + (e < count ? e : count - 1) * depth;
  Sums sums[kRouterChains];
  each_vector(depth, [&](int64_t i, int lanes) {
    const Vec value = load_part(x + i, lanes);
    for (int e = 0; e < kRouterChains; e++)
      sums[e].at(i) = fma(value, load_part(rows[e] + i, lanes), sums[e].at(i));
  });
  for (int64_t e = 0; e < count; e++) logits[e] = sums[e].total();
}

void router(const RouterArgs& a) {
  const int64_t blocks = (a.experts + kRouterExperts - 1) / kRouterExperts;
  auto body = [&](int64_t task, int) {
    const int64_t first = task % blocks * kRouterExperts, row = task / blocks * kRouterRows;
    for (int64_t r = row; r < a.rows && r < row + kRouterRows; r++)
      for (int64_t e = first; e < a.experts && e < first + kRouterExperts; e += kRouterChains) {
        const int64_t count = a.experts - e < kRouterChains ? a.experts - e : kRouterChains;
        route_some(a.x + r * a.depth, a.weights + e * a.depth, a.depth, count, a.logits + r * a.experts + e);
      }
  };
  parallel_for((a.rows + kRouterRows - 1) / kRouterRows * blocks, body);
}

// y[r] = sum over its chosen experts, in their order, of weight * output; each product is rounded.
void weighted_sum(const WeightedSumArgs& a) {
  auto body = [&](int64_t r, int) {
    const int32_t* places = a.places + r * a.chosen;
    const float* weights = a.weights + r * a.chosen;
    each_vector(a.width, [&](int64_t i, int lanes) {
      Vec sum{};
      for (int64_t c = 0; c < a.chosen; c++)
        sum = sum + load_part(a.outputs + places[c] * a.width + i, lanes) * weights[c];
      store_part(a.y + r * a.width + i, sum, lanes);
    });
  };
  parallel_for(a.rows, body);
}
