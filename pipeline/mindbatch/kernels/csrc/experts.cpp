// The entry points of layers of experts: rows are grouped by the experts that they choose, and summed again.
#include <algorithm>
#include <cstring>
#include <vector>

#include "operators.h"
#include "routing.h"
#include "thread_pool.h"

namespace mindbatch {
namespace {

constexpr int64_t kRowsOfTask = 64;  // at least, where an expert's rows are cut: each task reads all of its weights
constexpr int64_t kTasksOfThread = 4;
constexpr int64_t kRoutedAtOnce = 8;

// A packed stack of matrices [experts]([outputs, inputs]), each beginning with a panel of its own.
struct Stack {
  const char* weights;
  int64_t inputs, outputs, segments;
  WeightKind kind;
  InputGroups groups;

  Stack(const void* its_weights, const int64_t* shape, WeightKind its_kind, int64_t its_inputs, int64_t its_outputs)
      : weights(static_cast<const char*>(its_weights)), inputs(its_inputs), outputs(its_outputs), segments(shape[1]),
        kind(its_kind), groups(groups_of(shape, its_kind, its_inputs)) {}

  // y [rows, outputs] = x [rows, inputs] W^T + b, of one expert.
  void multiply(int64_t expert, const float* x, const float* bias, float* y, int64_t rows) const {
    const int64_t panels = (outputs + kPanel - 1) / kPanel;
    LinearArgs arguments = {x, weights + expert * panels * panel_bytes(inputs, kind, segments, groups), bias, y, rows,
                            inputs, outputs, segments};
    arguments.groups = groups;
    table->linear[kind](arguments);
  }
};

// The matrices of all experts, and what is added to their products.
struct ExpertWeights {
  Stack up, down;  // [experts]([2 * inner, hidden]), the gates first, and [experts]([hidden, inner])
  const float *up_bias, *down_bias;  // [experts, 2 * inner] and [experts, hidden], or null
  int64_t hidden, inner;
};

// Some rows of one expert: places [first, first + count) among all rows in the order of their experts.
struct Task {
  int64_t expert, first, count;
};

// Which experts rows have, and where they are in the order of experts. Kept between calls, as `memory` is.
struct Groups {
  std::vector<int32_t> experts, places, rows;  // [rows][chosen], the same, and the row of each place
  std::vector<float> weights;                  // [rows][chosen]
  std::vector<float> factors;                  // of what is taken in at each place; empty where there are none
  std::vector<Task> tasks;

  void choose(const Routing& routing, const float* correction, const float* logits, int64_t count) {
    const auto chosen = static_cast<size_t>(routing.chosen), all = static_cast<size_t>(count) * chosen;
    for (auto* each : {&experts, &places, &rows}) each->resize(all);
    weights.resize(all);
    auto body = [&](int64_t block, int) {
      Router router(routing, correction);
      for (int64_t r = block * kRoutedAtOnce; r < count && r < (block + 1) * kRoutedAtOnce; r++)
        router.choose(logits + r * routing.experts, &experts[static_cast<size_t>(r) * chosen],
                      &weights[static_cast<size_t>(r) * chosen]);
    };
    parallel_for((count + kRoutedAtOnce - 1) / kRoutedAtOnce, body);
    arrange(routing, static_cast<int64_t>(all));
  }

  // Makes the weights factors of what experts take in, or not.
  void weigh_inputs(bool does) {
    factors.resize(does ? weights.size() : 0);
    for (size_t i = 0; i < factors.size(); i++) {
      factors[static_cast<size_t>(places[i])] = weights[i];
      weights[i] = 1;
    }
  }

 private:
  void arrange(const Routing& routing, int64_t all) {
    std::vector<int64_t> next(static_cast<size_t>(routing.experts) + 1);
    for (const int32_t expert : experts) next[static_cast<size_t>(expert) + 1]++;
    for (size_t e = 1; e < next.size(); e++) next[e] += next[e - 1];
    tasks.clear();
    const int64_t most = std::max(kRowsOfTask, all / (num_threads() * kTasksOfThread) + 1);
    for (int64_t e = 0; e < routing.experts; e++) {
      const int64_t begin = next[static_cast<size_t>(e)], end = next[static_cast<size_t>(e) + 1];
      for (int64_t first = begin; first < end; first += most) tasks.push_back({e, first, std::min(most, end - first)});
    }
    for (size_t i = 0; i < experts.size(); i++) {
      const int64_t place = next[static_cast<size_t>(experts[i])]++;
      places[i] = static_cast<int32_t>(place);
      rows[static_cast<size_t>(place)] = static_cast<int32_t>(static_cast<int64_t>(i) / routing.chosen);
    }
  }
};

// Memory of [places] for what experts read and write; their outputs take the place of their inputs.
struct Rows {
  float *hidden, *up, *inner;
};

// How a gate and an up become one number. limit: above 0, gates and ups take turns; a gate becomes at most the limit,
// and an up 1 + what is within it on both sides.
struct Gating {
  Activation activation;
  float limit;
};

// A row of gates and ups in turns -> its gates, then its ups. gates: memory for as many.
void clamp_row(float* row, int64_t inner, float limit, float* gates) {
  for (int64_t i = 0; i < inner; i++) gates[i] = row[2 * i] > limit ? limit : row[2 * i];
  for (int64_t i = inner - 1; i >= 0; i--) {  // from behind, where nothing is written that is still to be read
    const float up = row[2 * i + 1];
    row[inner + i] = 1 + (up > limit ? limit : up < -limit ? -limit : up);
  }
  std::memcpy(row, gates, static_cast<size_t>(inner) * sizeof(float));
}

const float* bias_of(const float* biases, int64_t expert, int64_t width) {
  return biases ? biases + expert * width : nullptr;
}

// factors: of a row at each place, or null.
void compute(const Task& task, const ExpertWeights& weights, const Gating& gating, const float* x, const int32_t* rows,
             const float* factors, const Rows& memory) {
  const int64_t hidden = weights.hidden, inner = weights.inner;
  float *inputs = memory.hidden + task.first * hidden, *up = memory.up + task.first * 2 * inner;
  float* active = memory.inner + task.first * inner;
  for (int64_t i = 0; i < task.count; i++) {
    float* input = inputs + i * hidden;
    std::memcpy(input, x + rows[task.first + i] * hidden, static_cast<size_t>(hidden) * 4);
    if (factors)
      for (int64_t k = 0; k < hidden; k++) input[k] *= factors[task.first + i];
  }
  weights.up.multiply(task.expert, inputs, bias_of(weights.up_bias, task.expert, 2 * inner), up, task.count);
  if (gating.limit > 0)
    for (int64_t i = 0; i < task.count; i++) clamp_row(up + i * 2 * inner, inner, gating.limit, active + i * inner);
  table->activation({up, active, task.count, inner, gating.activation, true});
  weights.down.multiply(task.expert, active, bias_of(weights.down_bias, task.expert, hidden), inputs, task.count);
}

// Each task on one thread; where there are few, one after another on all of them. A row's bits are the same.
void compute_all(const Groups& groups, const ExpertWeights& weights, const Gating& gating, const float* x,
                 const Rows& memory) {
  const auto count = static_cast<int64_t>(groups.tasks.size());
  auto body = [&](int64_t task, int) {
    const float* factors = groups.factors.empty() ? nullptr : groups.factors.data();
    compute(groups.tasks[static_cast<size_t>(task)], weights, gating, x, groups.rows.data(), factors, memory);
  };
  if (count < 2 * num_threads()) {
    for (int64_t task = 0; task < count; task++) body(task, 0);
    return;
  }
  auto alone = [&](int64_t task, int thread) {
    const AloneOnThread only(thread);
    body(task, thread);
  };
  parallel_for(count, alone);
}

bool is_possible(const Routing& its) {
  if (its.experts < 1 || its.chosen < 1 || its.chosen > its.experts) return false;
  if (its.groups < 1 || its.experts % its.groups || its.chosen_groups < 1 || its.chosen_groups > its.groups) return false;
  return its.group_best >= 1 && its.group_best <= its.experts / its.groups;
}

// What a layer of experts needs beside its arguments; kept between calls. Needs a PoolLock.
struct Layer {
  Groups groups;
  std::vector<float> memory;  // logits [rows, experts], then `Rows`

  void reserve(int64_t floats) { memory.resize(std::max(memory.size(), static_cast<size_t>(floats))); }

  // Logits [rows, experts] from elsewhere, after `reserve`.
  void take(const float* logits, int64_t count) { std::memcpy(memory.data(), logits, static_cast<size_t>(count) * sizeof(float)); }

  void add_bias(const float* bias, int64_t rows, int64_t experts) {
    for (int64_t i = 0; bias && i < rows * experts; i++) memory[static_cast<size_t>(i)] += bias[i % experts];
  }

  // With its logits: each row's experts compute. scale: of the experts' weights, or null.
  Rows compute(const ExpertsShape& shape, const ExpertWeights& weights, const float* correction, const float* scale,
               const float* x, int64_t rows) {
    const int64_t places = rows * shape.routing.chosen;
    groups.choose(shape.routing, correction, memory.data(), rows);
    Rows its;
    its.hidden = memory.data() + rows * shape.routing.experts;
    its.up = its.hidden + places * weights.hidden;
    its.inner = its.up + places * 2 * weights.inner;
    if (scale)
      for (size_t i = 0; i < static_cast<size_t>(places); i++) groups.weights[i] *= scale[groups.experts[i]];
    groups.weigh_inputs(shape.weighs_inputs);
    compute_all(groups, weights, {shape.activation, shape.limit}, x, its);
    return its;
  }
};

Layer& layer() {
  static auto& kept = *new Layer;
  return kept;
}

// Those of operands 3 and 4. Settings: of either operation.
template <class Settings>
ExpertWeights weights_of(const Settings& settings, void** params, int64_t** shapes, const float* up_bias,
                         const float* down_bias) {
  const int64_t hidden = shapes[0][1], inner = settings.shape.inner;
  return {{params[3], shapes[3], settings.up_kind, hidden, 2 * inner},
          {params[4], shapes[4], settings.down_kind, inner, hidden},
          up_bias, down_bias, hidden, inner};
}

int experts_of_step(int count, void** params, int64_t** shapes, int* ndims) {
  const auto settings = settings_of<ExpertsSettings>(count, params);
  const ExpertsShape& shape = settings.shape;
  const auto bias = [&](int index) { return shape.has_biases ? optional(params, shapes, ndims, index) : nullptr; };
  const Routing& routing = shape.routing;
  if (routing.experts != shapes[1][shape.has_logits ? 1 : 0] || !is_possible(routing)) return kOutside;
  const int64_t rows = shapes[0][0], hidden = shapes[0][1], inner = shape.inner;
  const ExpertWeights weights = weights_of(settings, params, shapes, bias(6), bias(7));
  const float *x = floats(params[0]), *router = floats(params[1]);
  PoolLock lock;
  Layer& its = layer();
  its.reserve(rows * (routing.experts + routing.chosen * (hidden + 3 * inner)));
  if (shape.has_logits) its.take(router, rows * routing.experts);
  else table->router({x, router, its.memory.data(), rows, hidden, routing.experts});
  its.add_bias(bias(5), rows, routing.experts);
  const Rows found = its.compute(shape, weights, optional(params, shapes, ndims, 2), bias(8), x, rows);
  table->weighted_sum({found.hidden, its.groups.weights.data(), its.groups.places.data(),
                       static_cast<float*>(params[count - 1]), rows, routing.chosen, hidden});
  return 0;
}

int expert_products(int count, void** params, int64_t** shapes, int* ndims) {
  const auto settings = settings_of<ExpertProductsSettings>(count, params);
  const ExpertsShape& shape = settings.shape;
  const auto optional_at = [&](int index) { return optional(params, shapes, ndims, index); };
  const int64_t rows = shapes[0][0], hidden = shapes[0][1], inner = shape.inner, chosen = shape.routing.chosen;
  if (count != 9 || shape.routing.experts != shapes[1][1] || !is_possible(shape.routing)) return kOutside;
  const ExpertWeights weights = weights_of(settings, params, shapes, optional_at(6), nullptr);
  PoolLock lock;
  Layer& its = layer();
  its.reserve(rows * (shape.routing.experts + chosen * (hidden + 3 * inner)));
  its.take(floats(params[1]), rows * shape.routing.experts);
  its.add_bias(optional_at(5), rows, shape.routing.experts);
  const Rows found = its.compute(shape, weights, optional_at(2), nullptr, floats(params[0]), rows);
  float* y = static_cast<float*>(params[8]);
  const int32_t* places = its.groups.places.data();
  auto give = [=](int64_t i, int) {
    std::memcpy(y + i * hidden, found.hidden + places[i] * hidden, static_cast<size_t>(hidden) * sizeof(float));
  };
  parallel_for(rows * chosen, give);
  return 0;
}

}  // namespace
}  // namespace mindbatch

using namespace mindbatch;

// x [rows, hidden], router [experts, hidden] float32, correction [experts] or [1], packed up and down of all experts,
// settings -> y [rows, hidden]
// Where it has logits [rows, experts], they stand in place of the router. Fails when settings contradict each other.
// Where there are biases, they stand before the settings: of the router [experts], of up [experts, 2 * inner] and of down
// [experts, hidden], and what weights are multiplied with [experts], each or [1].
MB_OP(mb_experts) { return experts_of_step(count, params, shapes, ndims); }

// x [rows, hidden], logits [rows, experts], correction [experts] or [1], packed up and down of all experts, biases of the
// router and of up or [1], settings -> y [rows, chosen * hidden]: what the experts of each row compute
MB_OP(mb_expert_products) { return expert_products(count, params, shapes, ndims); }

// products [rows, chosen * hidden], logits [rows, experts], correction [experts] or [1], biases of the router [experts] and
// of down [experts, hidden], and what weights are multiplied with [experts], each or [1], settings -> y [rows, hidden]
MB_OP(mb_expert_sum) {
  const ExpertsShape shape = settings_of<ExpertSumSettings>(count, params).shape;
  const auto optional_at = [&](int index) { return optional(params, shapes, ndims, index); };
  const int64_t rows = shapes[0][0], chosen = shape.routing.chosen, hidden = shapes[7][1], places = rows * chosen;
  if (count != 8 || shape.routing.experts != shapes[1][1] || !is_possible(shape.routing)) return kOutside;
  if (shapes[0][1] != chosen * hidden) return kOutside;
  PoolLock lock;
  Layer& its = layer();
  its.reserve(rows * shape.routing.experts + places * hidden);
  its.take(floats(params[1]), rows * shape.routing.experts);
  its.add_bias(optional_at(3), rows, shape.routing.experts);
  Groups& groups = its.groups;
  groups.choose(shape.routing, optional_at(2), its.memory.data(), rows);
  const float *bias = optional_at(4), *scale = optional_at(5), *products = floats(params[0]);
  float* outputs = its.memory.data() + rows * shape.routing.experts;
  auto add_bias = [&](int64_t i, int) {
    const int64_t expert = groups.experts[static_cast<size_t>(i)];
    for (int64_t k = 0; k < hidden; k++)
      outputs[i * hidden + k] = products[i * hidden + k] + (bias ? bias[expert * hidden + k] : 0);
    if (scale) groups.weights[static_cast<size_t>(i)] *= scale[expert];
    groups.places[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  };
  parallel_for(places, add_bias);
  if (shape.weighs_inputs) groups.weights.assign(static_cast<size_t>(places), 1);
  table->weighted_sum({outputs, groups.weights.data(), groups.places.data(), static_cast<float*>(params[7]), rows, chosen,
                       hidden});
  return 0;
}

// x [rows, depth], router [experts, depth] -> logits [rows, experts]
MB_OP(mb_router_logits) {
  PoolLock lock;
  table->router({floats(params[0]), floats(params[1]), static_cast<float*>(params[2]), shapes[0][0], shapes[0][1],
                 shapes[1][0]});
  return 0;
}
