// Layers that keep a state of each sequence, and gates, against plain loops; slots and columns that are not there.
#pragma once
#include "dense_cases.h"

constexpr int64_t kColumnsOfPanel = 16;

// Tokens of one sequence: `kept` of them change its state, the others are drafted.
struct Tokens {
  int64_t position, count, kept;
};

// What a step says of its sequences. Sequence i has slot 2 * i + 1 of `slots`, which are more than are in use.
struct RecurrentStep {
  const std::vector<Tokens>& all;
  int64_t tokens = 0, slots;
  std::vector<int32_t> rows, positions, states;

  explicit RecurrentStep(const std::vector<Tokens>& all) : all(all), slots(2 * static_cast<int64_t>(all.size())) {
    for (size_t i = 0; i < all.size(); i++) {
      for (int64_t t = 0; t < all[i].count; t++) {
        rows.push_back(static_cast<int32_t>(i));
        positions.push_back(static_cast<int32_t>(all[i].position + t));
        states.push_back(t < all[i].kept ? static_cast<int32_t>(2 * i + 1) : -1);
      }
      tokens += all[i].count;
    }
  }

  Ints of(const std::string& name, const std::vector<int32_t>& values) const { return Ints(name, {tokens}, values); }
  static int64_t slot(size_t sequence) { return 2 * static_cast<int64_t>(sequence) + 1; }

  // The last sequence's slot is outside.
  std::vector<int32_t> outside() const {
    std::vector<int32_t> its = states;
    for (int64_t t = tokens - all.back().count; t < tokens; t++) its[t] = static_cast<int32_t>(slots);
    return its;
  }
};

inline void convolution_case(Random& random, const std::vector<Tokens>& sequences, int64_t channels, int64_t kernel,
                             int64_t more, bool biased, bool is_activated) {
  running = "convolution of " + std::to_string(channels) + " over " + std::to_string(kernel);
  const RecurrentStep step(sequences);
  const int64_t width = channels + more, before = kernel - 1;
  const Floats x = drawn(random, "convolution.x", {step.tokens, width}),
               weights = drawn(random, "convolution.weights", {kernel, channels}),
               bias = drawn(random, "convolution.bias", {biased ? channels : 1}),
               state = drawn(random, "convolution.state", {step.slots, before, channels}),
               y = empty("convolution.y", {step.tokens, channels});
  const Ints rows = step.of("convolution.rows", step.rows), positions = step.of("convolution.positions", step.positions),
             states = step.of("convolution.states", step.states), wrong = step.of("convolution.wrong", step.outside()),
             settings = words_of("convolution.settings", mindbatch::CausalConvolutionSettings{{channels, kernel, is_activated}});
  require(call(mb_causal_convolution, {x, weights, bias, state, rows, positions, wrong, settings, y}) != 0,
          "a slot outside is taken");
  require(state.unchanged(), "a state is written though a slot is outside");
  require(call(mb_causal_convolution, {x, weights, bias, state, rows, positions, states, settings, y}) == 0, "failed");
  std::vector<double> expected, left(state.values.begin(), state.values.end());
  int64_t first = 0;
  for (size_t i = 0; i < sequences.size(); first += sequences[i++].count) {
    const int64_t at = RecurrentStep::slot(i) * before * channels;
    const auto input = [&](int64_t j, int64_t c) -> double {
      if (j >= before) return x.values[(first + j - before) * width + c];
      return sequences[i].position ? state.values[at + j * channels + c] : 0;
    };
    for (int64_t t = 0; t < sequences[i].count; t++)
      for (int64_t c = 0; c < channels; c++) {
        double sum = biased && channels > 1 ? bias.values[c] : 0;
        for (int64_t j = 0; j < kernel; j++) sum += weights.values[j * channels + c] * input(t + j, c);
        expected.push_back(is_activated ? sum / (1 + std::exp(-sum)) : sum);
      }
    for (int64_t j = 0; j < before; j++)
      for (int64_t c = 0; c < channels; c++) left[at + j * channels + c] = input(sequences[i].kept + j, c);
  }
  compare(y, expected, static_cast<double>(kernel));
  compare(state, left);
}

struct DeltaCase {
  int64_t key_heads, value_heads, key_dim, value_dim;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t width() const { return 2 * keys() + value_heads * value_dim; }
  int64_t matrix() const { return (value_dim + kColumnsOfPanel - 1) / kColumnsOfPanel * key_dim * kColumnsOfPanel; }
  int64_t place(int64_t k, int64_t v) const {
    return (v / kColumnsOfPanel * key_dim + k) * kColumnsOfPanel + v % kColumnsOfPanel;
  }
};

// A key or query of length 1.
inline std::vector<double> unit(const float* x, int64_t size) {
  double squares = 0;
  for (int64_t i = 0; i < size; i++) squares += double{x[i]} * x[i];
  std::vector<double> found;
  for (int64_t i = 0; i < size; i++) found.push_back(x[i] / std::sqrt(squares + 1e-6));
  return found;
}

// One token of a head: its matrix changes, and y is what the query finds in it.
inline void delta_token(const DeltaCase& a, const float* qkv, int64_t head, double shrink, double beta, double* matrix,
                        double* y) {
  const int64_t key_head = head / (a.value_heads / a.key_heads) * a.key_dim;
  const std::vector<double> query = unit(qkv + key_head, a.key_dim), key = unit(qkv + a.keys() + key_head, a.key_dim);
  for (int64_t v = 0; v < a.value_dim; v++) {
    double known = 0;
    for (int64_t k = 0; k < a.key_dim; k++) known += key[k] * (matrix[a.place(k, v)] *= shrink);
    const double change = beta * (qkv[2 * a.keys() + head * a.value_dim + v] - known);
    for (int64_t k = 0; k < a.key_dim; k++)
      y[v] += query[k] / std::sqrt(static_cast<double>(a.key_dim)) * (matrix[a.place(k, v)] += key[k] * change);
  }
}

inline void delta_case(Random& random, const std::vector<Tokens>& sequences, const DeltaCase& a) {
  running = "delta " + std::to_string(a.key_dim) + "x" + std::to_string(a.value_dim);
  const RecurrentStep step(sequences);
  const int64_t heads = a.value_heads, matrix = a.matrix();
  std::vector<float> before = numbers(random, step.slots * heads * matrix);
  for (int64_t i = 0; i < static_cast<int64_t>(before.size()); i++)  // what pads a panel is zeros
    if (i % matrix / (a.key_dim * kColumnsOfPanel) * kColumnsOfPanel + i % kColumnsOfPanel >= a.value_dim) before[i] = 0;
  const Floats qkv = drawn(random, "delta.qkv", {step.tokens, a.width()}),
               gates = drawn(random, "delta.gates", {step.tokens, 2 * heads}),
               decay("delta.decay", {heads}, std::vector<float>(static_cast<size_t>(heads), -0.3f)),
               bias = drawn(random, "delta.bias", {heads}),
               state("delta.state", {step.slots, heads, matrix / kColumnsOfPanel, kColumnsOfPanel}, before),
               y = empty("delta.y", {step.tokens, heads * a.value_dim});
  const Ints rows = step.of("delta.rows", step.rows), positions = step.of("delta.positions", step.positions),
             states = step.of("delta.states", step.states), wrong = step.of("delta.wrong", step.outside());
  mindbatch::GatedDeltaSettings sizes = {{a.key_heads, heads, a.key_dim, a.value_dim}};
  const Ints settings = words_of("delta.settings", sizes);
  sizes.shape.key_dim++;
  const Ints longer = words_of("delta.longer", sizes);
  require(call(mb_gated_delta, {qkv, gates, decay, bias, state, rows, positions, wrong, settings, y}) != 0,
          "a slot outside is taken");
  require(call(mb_gated_delta, {qkv, gates, decay, bias, state, rows, positions, states, longer, y}) != 0,
          "longer keys than there are");
  require(state.unchanged(), "a state is written though an operand is wrong");
  require(call(mb_gated_delta, {qkv, gates, decay, bias, state, rows, positions, states, settings, y}) == 0, "failed");
  std::vector<double> expected(static_cast<size_t>(step.tokens * heads * a.value_dim)), left(before.begin(), before.end());
  int64_t first = 0;
  for (size_t i = 0; i < sequences.size(); first += sequences[i++].count)
    for (int64_t h = 0; h < heads; h++) {
      double* its = &left[(RecurrentStep::slot(i) * heads + h) * matrix];
      if (sequences[i].position == 0) std::fill(its, its + matrix, 0.0);
      std::vector<double> now(its, its + matrix);
      for (int64_t t = first; t < first + sequences[i].count; t++) {
        const double step_size = gates.values[t * 2 * heads + heads + h] + double{bias.values[h]};
        const double shrink = std::exp(double{decay.values[h]} * std::log1p(std::exp(step_size)));
        const double beta = 1 / (1 + std::exp(-gates.values[t * 2 * heads + h]));
        delta_token(a, &qkv.values[t * a.width()], h, shrink, beta, now.data(), &expected[(t * heads + h) * a.value_dim]);
        if (t + 1 == first + sequences[i].kept) std::copy(now.begin(), now.end(), its);
      }
    }
  compare(y, expected, static_cast<double>(a.key_dim));
  compare(state, left, static_cast<double>(a.key_dim));
}

// kind: see Activation. norm_width: 0 for none, else a part of width.
inline void gated_case(Random& random, int64_t rows, int64_t width, int64_t first, int64_t norm_width, int32_t kind) {
  running = "gated " + std::to_string(rows) + "x" + std::to_string(width);
  const int64_t more = 3;  // x may be wider
  const Floats x = drawn(random, "gated.x", {rows, width + more}), gate = drawn(random, "gated.gate", {rows, first + width}),
               weight = drawn(random, "gated.weight", {norm_width ? norm_width : 1}), y = empty("gated.y", {rows, width});
  const auto settings = [&](int64_t from) {
    return words_of("gated.settings", mindbatch::GatedSettings{static_cast<mindbatch::Activation>(kind), width, from, 1e-5f});
  };
  require(call(mb_gated, {x, gate, weight, settings(first), y}) == 0, "failed");
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < width; i++) {
      double value = x.values[r * (width + more) + i];
      if (norm_width > 1) {
        double squares = 0;
        for (int64_t k = 0; k < norm_width; k++)
          squares += std::pow(x.values[r * (width + more) + i / norm_width * norm_width + k], 2);
        value *= weight.values[i % norm_width] / std::sqrt(squares / static_cast<double>(norm_width) + 1e-5);
      }
      expected.push_back(value * activated(gate.values[r * (first + width) + first + i], kind));
    }
  compare(y, expected);
  require(call(mb_gated, {x, gate, weight, settings(first + 1), y}) != 0, "reads behind a row of gates");
}

inline void recurrent_cases(Random& random) {
  const std::vector<std::vector<Tokens>> steps = {
      {{0, 1, 1}}, {{0, 9, 9}, {4, 1, 1}, {7, 5, 2}}, {{3, 4, 1}, {0, 2, 2}, {1, 1, 1}, {0, 3, 1}}};
  for (const auto& sequences : steps) {
    for (const int64_t channels : {int64_t{1}, int64_t{33}, int64_t{1041}})
      convolution_case(random, sequences, channels, 2 + channels % 3, channels % 5, channels % 2, channels > 1);
    for (const DeltaCase& each : std::vector<DeltaCase>{{1, 1, 1, 1}, {2, 4, 20, 28}, {3, 3, 33, 16}, {1, 2, 6, 49}})
      delta_case(random, sequences, each);
  }
  gated_case(random, 1, 1, 0, 0, 2);
  gated_case(random, 5, 36, 7, 12, 2);
  gated_case(random, 3, 66, 1, 33, 3);
}

inline void random_recurrent_case(Random& random) {
  std::vector<Tokens> sequences;
  for (int64_t i = random.between(1, 5); i > 0; i--) {
    const int64_t count = random.between(1, 12);
    sequences.push_back({random.one_of<int64_t>({0, 1, 40}), count, random.between(1, count)});
  }
  convolution_case(random, sequences, random.between(2, 2100), random.between(2, 6), random.between(0, 5), random.next() % 2,
                   random.next() % 2);
  const int64_t key_heads = random.between(1, 3);
  delta_case(random, sequences,
             {key_heads, key_heads * random.between(1, 3), random.between(1, 70), random.between(1, 70)});
  const int64_t norm_width = random.between(2, 40);
  gated_case(random, random.between(1, 9), norm_width * random.between(1, 4), random.between(0, 9),
             random.one_of<int64_t>({0, norm_width}), static_cast<int32_t>(random.between(0, 3)));
}
