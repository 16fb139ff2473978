// Linear layers, embeddings, norms, rotary positions and activations against plain loops in double precision.
#pragma once
#include "cases.h"

constexpr int64_t kPanelWidth = 32;

inline int64_t panels(int64_t columns) { return (columns + kPanelWidth - 1) / kPanelWidth; }
inline double packed(const Floats& weights, int64_t depth, int64_t column, int64_t k) {
  return weights.values[(column / kPanelWidth * depth + k) * kPanelWidth + column % kPanelWidth];
}

// A number of segments, a power of two up to 8 that divides the inputs.
inline int64_t some_segments(Random& random, int64_t depth) {
  const int64_t wanted = int64_t{1} << random.between(0, 3);
  return std::gcd(wanted, depth);
}

// Ranks that divide the inputs of a product of whole segments add theirs up to its bits: here two, each with every second
// half of a row and of a panel. weights: [panels, segments, ...].
template <class Weights>
void halves_case(Random& random, mindbatch::WeightKind kind, const Weights& weights, int64_t rows, int64_t depth,
                 int64_t columns) {
  const int64_t segments = weights.shape[1];
  if (segments < 2) return;
  const Ints settings = words_of("halves.settings", mindbatch::LinearSettings{columns, kind});
  const Floats x = drawn(random, "halves.x", {rows, depth}), none = drawn(random, "halves.bias", {1});
  const Floats whole = empty("halves.y", {rows, columns});
  require(call(mb_linear, {x, weights, none, settings, whole}) == 0, "failed");
  std::vector<float> sum(static_cast<size_t>(rows * columns));
  for (int64_t half = 0; half < 2; half++) {
    Shape shape = weights.shape;
    shape[1] = segments / 2;
    const int64_t size = size_of(weights.shape) / weights.shape[0] / 2;
    std::remove_const_t<decltype(weights.values)> its;
    for (int64_t p = 0; p < weights.shape[0]; p++)
      its.insert(its.end(), weights.memory + (2 * p + half) * size, weights.memory + (2 * p + half + 1) * size);
    std::vector<float> its_x;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t k = 0; k < depth / 2; k++) its_x.push_back(x.values[r * depth + half * (depth / 2) + k]);
    const Weights its_weights("halves.weights", shape, its);
    const Floats part("halves.part_of_x", {rows, depth / 2}, its_x), y = empty("halves.part_of_y", {rows, columns});
    require(call(mb_linear, {part, its_weights, none, settings, y}) == 0, "failed");
    for (size_t i = 0; i < sum.size(); i++) sum[i] = half ? sum[i] + y.memory[i] : y.memory[i];
  }
  require(std::equal(sum.begin(), sum.end(), whole.memory), "the sum of two halves has other bits");
}

// A head gives the numbers of its product, and a summary that finds what the numbers themselves give, to the bits.
inline void head_case(const Floats& x, const Floats& weights, const Floats& bias, const Floats& expected) {
  const int64_t rows = expected.shape[0], columns = expected.shape[1];
  const Floats y = empty("head.y", {rows, columns}), summary = empty("head.summary", {rows, 2, panels(columns)});
  const Ints settings = words_of("head.settings", mindbatch::LinearSettings{columns});
  require(call(mb_head, {x, weights, bias, settings, y, summary}) == 0, "failed");
  require(std::equal(y.memory, y.memory + rows * columns, expected.memory), "a head's product is another");
  std::vector<int64_t> places[2];
  std::vector<double> normalisers[2];
  for (int given = 0; given < 2; given++) {
    places[given].resize(static_cast<size_t>(rows));
    normalisers[given].resize(static_cast<size_t>(rows));
    mb_likeliest(y.memory, given ? summary.memory : nullptr, rows, columns, places[given].data(), normalisers[given].data());
  }
  require(places[0] == places[1] && normalisers[0] == normalisers[1], "a summary finds something else");
}

inline void linear_case(Random& random, int64_t rows, int64_t depth, int64_t columns, bool biased) {
  running = "linear " + std::to_string(rows) + "x" + std::to_string(depth) + "x" + std::to_string(columns);
  const Floats x = drawn(random, "linear.x", {rows, depth});
  const int64_t segments = some_segments(random, depth);
  const Floats weights = drawn(random, "linear.weights", {panels(columns), segments, depth / segments, kPanelWidth});
  const Floats bias = drawn(random, "linear.bias", {biased ? columns : 1});  // one element: no bias
  const Floats y = empty("linear.y", {rows, columns});
  const Ints settings = words_of("linear.settings", mindbatch::LinearSettings{columns});
  require(call(mb_linear, {x, weights, bias, settings, y}) == 0, "failed");
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) {
      double sum = bias.values.size() > 1 ? bias.values[c] : 0;
      for (int64_t k = 0; k < depth; k++) sum += x.values[r * depth + k] * packed(weights, depth, c, k);
      expected.push_back(sum);
    }
  compare(y, expected, static_cast<double>(depth) / 16);
  head_case(x, weights, bias, y);
  halves_case(random, mindbatch::kFloat32, weights, rows, depth, columns);
}

inline void embed_case(Random& random, int64_t vocabulary, int64_t depth) {
  running = "embed " + std::to_string(vocabulary) + "x" + std::to_string(depth);
  const int32_t last = static_cast<int32_t>(vocabulary) - 1;
  const int32_t beyond = static_cast<int32_t>(panels(vocabulary) * kPanelWidth);
  const std::vector<int32_t> values = {0, last, -1, beyond - 1, beyond, INT32_MAX, INT32_MIN, last / 2};
  const Ints ids("embed.ids", {static_cast<int64_t>(values.size())}, values);
  const Floats weights = drawn(random, "embed.weights", {panels(vocabulary), 1, depth, kPanelWidth});
  const Floats y = empty("embed.y", {static_cast<int64_t>(values.size()), depth});
  const Ints settings = words_of("embed.settings", mindbatch::EmbeddingSettings{depth});
  require(call(mb_embedding, {ids, weights, settings, y}) == 0, "failed");
  std::vector<double> expected;
  for (const int32_t id : values)
    for (int64_t k = 0; k < depth; k++)
      expected.push_back(id < 0 || id >= beyond ? 0 : packed(weights, depth, id, k));
  compare(y, expected);
}

inline void normalised(const double* x, const float* weight, const float* bias, int64_t width, double epsilon,
                       double* y) {
  double mean = 0, square = 0;
  for (int64_t i = 0; bias && i < width; i++) mean += x[i] / static_cast<double>(width);
  for (int64_t i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean) / static_cast<double>(width);
  for (int64_t i = 0; i < width; i++)
    y[i] = (x[i] - mean) / std::sqrt(square + epsilon) * weight[i] + (bias ? bias[i] : 0);
}

// added: a norm with a residual; absent: that is none.
inline void norm_case(Random& random, int64_t rows, int64_t width, bool centred, bool added, bool absent = false) {
  running = "norm " + std::to_string(rows) + "x" + std::to_string(width);
  const Floats x = drawn(random, "norm.x", {rows, width});
  const Floats residual = drawn(random, "norm.residual", absent ? Shape{1} : Shape{rows, width});
  const Floats weight = drawn(random, "norm.weight", {width});
  const Floats bias = drawn(random, "norm.bias", {centred ? width : 1});
  const Ints settings = words_of("norm.settings", mindbatch::NormSettings{1e-2f, centred});
  const Floats y = empty("norm.y", {rows, width}), sum = empty("norm.sum", {rows, width});
  const int failed = added ? call(mb_add_norm, {x, residual, weight, bias, settings, y, sum})
                           : call(mb_norm, {x, weight, bias, settings, y});
  require(failed == 0, "failed");
  std::vector<double> total(x.values.begin(), x.values.end()), expected(total.size());
  for (size_t i = 0; added && !absent && i < total.size(); i++) total[i] += residual.values[i];
  for (int64_t r = 0; r < rows; r++)
    normalised(&total[r * width], weight.values.data(), bias.values.size() > 1 ? bias.values.data() : nullptr,
               width, 1e-2f, &expected[r * width]);
  compare(y, expected);
  if (added) compare(sum, total);
}

// Each group of `size` numbers of a row is normed.
inline void group_norm_case(Random& random, int64_t rows, int64_t groups, int64_t size) {
  running = "group norm " + std::to_string(groups) + "x" + std::to_string(size);
  const Floats x = drawn(random, "group_norm.x", {rows, groups * size}), weight = drawn(random, "group_norm.weight", {size}),
               y = empty("group_norm.y", {rows, groups * size});
  const Ints settings = words_of("group_norm.settings", mindbatch::GroupNormSettings{1e-2f});
  require(call(mb_group_norm, {x, weight, settings, y}) == 0, "failed");
  std::vector<double> values(x.values.begin(), x.values.end()), expected(values.size());
  for (int64_t i = 0; i < rows * groups; i++)
    normalised(&values[i * size], weight.values.data(), nullptr, size, 1e-2f, &expected[i * size]);
  compare(y, expected);
  const Floats longer = drawn(random, "group_norm.longer", {groups * size + 1});
  require(call(mb_group_norm, {x, longer, settings, y}) != 0, "a group is longer than a row");
}

// Queries, the first numbers of a row, grow with the position.
inline void tempered_case(Random& random, int64_t tokens, int64_t width, int64_t query) {
  running = "tempered " + std::to_string(tokens) + "x" + std::to_string(width);
  std::vector<int32_t> places;
  for (int64_t t = 0; t < tokens; t++) places.push_back(static_cast<int32_t>(random.between(0, 200)));
  const Floats qkv = drawn(random, "tempered.qkv", {tokens, width}), y = empty("tempered.y", {tokens, width});
  const Ints positions("tempered.positions", {tokens}, places);
  const auto settings = [](int64_t query) {
    return words_of("tempered.settings", mindbatch::TemperedSettings{{query, 1, 1}, 16, 0.5f});
  };
  require(call(mb_tempered, {qkv, positions, settings(query), y}) == 0, "failed");
  std::vector<double> expected;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t i = 0; i < width; i++)
      expected.push_back(qkv.values[t * width + i] * (i < query ? 1 + 0.5 * std::log1p((places[t] + 1) / 16) : 1));
  compare(y, expected);
  require(call(mb_tempered, {qkv, positions, settings(width + 1), y}) != 0, "queries are wider than a row");
}

// Twice as many queries as keys, and twice as many segments of them. Of one segment more than there are numbers nothing is
// computed.
inline void square_sums_case(Random& random, int64_t tokens, int64_t segments, int64_t of_segment) {
  running = "square sums " + std::to_string(tokens) + "x" + std::to_string(segments) + "x" + std::to_string(of_segment);
  segments = int64_t{1} << segments / 2;
  const int64_t heads = 2 * segments, width = (heads + 2 * segments) * of_segment;
  const Floats qkv = drawn(random, "squares.qkv", {tokens, width}), sums = empty("squares.sums", {tokens, 2});
  const auto squared = [&](int32_t of_query, int32_t of_key) {
    const std::vector<int32_t> both = {of_query, of_key};
    const mindbatch::SquareSumsSettings its = {{heads, segments, of_segment}, numbers_of(both)};
    return call(mb_square_sums, {qkv, words_of("squares.settings", its), sums});
  };
  const auto most = static_cast<int32_t>(heads * of_segment);
  for (const int32_t outside : {0, -1, most + 1, 1 << 20}) require(squared(outside, 1) != 0, "segments outside are taken");
  require(squared(static_cast<int32_t>(heads), static_cast<int32_t>(segments)) == 0, "failed");
  std::vector<double> expected;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t first = 0, some = heads; first <= heads; first += heads, some = segments) {
      double sum = 0;
      for (int64_t i = first * of_segment; i < (first + some) * of_segment; i++)
        sum += std::pow(double{qkv.values[t * width + i]}, 2);
      expected.push_back(sum);
    }
  compare(sums, expected, static_cast<double>(heads * of_segment));
}

// pairs: as of variant_table.h.
inline void rotary_case(Random& random, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        int64_t rotary_dim, bool normed, int32_t pairs) {
  running = "rotary " + std::to_string(head_dim) + "/" + std::to_string(rotary_dim);
  const int64_t width = (heads + 2 * kv_heads) * head_dim, half = rotary_dim / 2;
  const Floats qkv = drawn(random, "rotary.qkv", {tokens, width});
  const Floats cosine = drawn(random, "rotary.cos", {tokens, half});
  const Floats sine = drawn(random, "rotary.sin", {tokens, half});
  const Floats query_norm = drawn(random, "rotary.query_norm", {normed ? head_dim : 1});
  const Floats key_norm = drawn(random, "rotary.key_norm", {normed ? head_dim : 1});
  const mindbatch::RotarySettings of_heads = {{heads, kv_heads, head_dim}, 1e-2f, pairs == 1, pairs == 2};
  const Ints settings = words_of("rotary.settings", of_heads);
  const Floats out = empty("rotary.out", {tokens, width});
  require(call(mb_rotary, {qkv, cosine, sine, query_norm, key_norm, settings, out}) == 0, "failed");
  std::vector<double> expected(qkv.values.begin(), qkv.values.end());
  for (int64_t t = 0; t < tokens; t++) {
    double *queries = &expected[t * width], *keys = queries + heads * head_dim;
    for (int64_t i = 0; normed && i < heads * head_dim; i += head_dim)
      normalised(queries + i, query_norm.values.data(), nullptr, head_dim, 1e-2f, queries + i);
    for (int64_t i = 0; normed && i < kv_heads * head_dim; i += head_dim)
      normalised(keys + i, key_norm.values.data(), nullptr, head_dim, 1e-2f, keys + i);
    for (int64_t h = 0; h < heads + kv_heads; h++) {
      double* x = queries + h * head_dim;
      for (int64_t i = 0; i < half; i++) {
        const int64_t each = half > 1 ? half / 2 : 1, in_half = i / each * (head_dim / 2) + i % each;
        double& one = x[pairs == 2 ? in_half : pairs == 1 ? 2 * i : i];
        double& other = x[pairs == 2 ? in_half + each : pairs == 1 ? 2 * i + 1 : half + i];
        const double first = one, second = other;
        const double c = cosine.values[t * half + i], s = sine.values[t * half + i];
        one = first * c - second * s;
        other = second * c + first * s;
      }
    }
  }
  compare(out, expected);
}

inline double activated(double x, int32_t kind) {
  switch (kind) {
    case 0: return 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
    case 1: return 0.5 * x * (1 + std::erf(x * 0.7071067811865476));
    case 2: return x / (1 + std::exp(-x));
    case 3: return x > 0 ? x : 0;
    case 4: return x / (1 + std::exp(-1.702 * x));
    case 5: return 1 / (1 + std::exp(-x));
    default: return x;
  }
}

inline void cap_case(Random& random, int64_t rows, int64_t width) {
  running = "cap " + std::to_string(rows) + "x" + std::to_string(width);
  std::vector<float> values = numbers(random, rows * width);
  for (size_t i = 0; i < values.size(); i += 3) values[i] *= 50;
  const Floats x("cap.x", {rows, width}, values);
  const Ints settings = words_of("cap.settings", mindbatch::CappedSettings{2.5f});
  const Floats y = empty("cap.y", {rows, width});
  require(call(mb_capped, {x, settings, y}) == 0, "failed");
  std::vector<double> expected;
  for (const float value : values) expected.push_back(2.5 * std::tanh(value / 2.5));
  compare(y, expected);
}

// Squares above zero, exponentials below, far from it too.
inline void xielu_case(Random& random, int64_t rows, int64_t width) {
  running = "xielu " + std::to_string(rows) + "x" + std::to_string(width);
  std::vector<float> values = numbers(random, rows * width);
  for (size_t i = 0; i < values.size(); i += 3) values[i] *= 50;
  const Floats x("xielu.x", {rows, width}, values);
  const Ints settings = words_of("xielu.settings", mindbatch::XieluSettings{0.5f, -1e-6f});
  const Floats positive("xielu.positive", {1}, {0.3f}), negative("xielu.negative", {1}, {-2.0f});
  const Floats y = empty("xielu.y", {rows, width});
  require(call(mb_xielu, {x, positive, negative, settings, y}) == 0, "failed");
  const double above = std::log1p(std::exp(0.3)), below = 0.5 + std::log1p(std::exp(-2.0));
  std::vector<double> expected;
  for (const double value : values)
    expected.push_back((value > 0 ? above * value * value : below * (std::expm1(value) - value)) + 0.5 * value);
  compare(y, expected);
}

inline void activation_case(Random& random, int64_t rows, int64_t width, int32_t kind, bool gated) {
  running = "activation " + std::to_string(kind) + " " + std::to_string(rows) + "x" + std::to_string(width);
  std::vector<float> values = numbers(random, rows * width * (gated ? 2 : 1));
  for (size_t i = 0; i < values.size(); i += 3) values[i] *= 50;
  const Floats x("activation.x", {rows, width * (gated ? 2 : 1)}, values);
  const mindbatch::ActivationSettings of_kind = {static_cast<mindbatch::Activation>(kind), gated};
  const Ints settings = words_of("activation.settings", of_kind);
  const Floats y = empty("activation.y", {rows, width});
  require(call(mb_activation, {x, settings, y}) == 0, "failed");
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < width; i++) {
      const float* row = &values[r * width * (gated ? 2 : 1)];
      expected.push_back(activated(row[i], kind) * (gated ? row[width + i] : 1));
    }
  compare(y, expected);
}

inline void likeliest_case(Random& random, int64_t rows, int64_t width) {
  running = "likeliest " + std::to_string(rows) + "x" + std::to_string(width);
  const Floats scores = drawn(random, "likeliest.scores", {rows, width});
  const Buffer<int64_t> places("likeliest.places", {rows}, std::vector<int64_t>(static_cast<size_t>(rows)));
  const Buffer<double> found("likeliest.normalisers", {rows}, std::vector<double>(static_cast<size_t>(rows)));
  mb_likeliest(scores.memory, nullptr, rows, width, places.memory, found.memory);
  for (int64_t r = 0; r < rows; r++) {
    const float* row = &scores.values[r * width];
    require(places.memory[r] == std::max_element(row, row + width) - row, "another place than the largest's");
    double sum = 0;
    for (int64_t i = 0; i < width; i++) sum += std::exp(double{row[i]});
    require(std::fabs(found.memory[r] - std::log(sum)) < 1e-5, "another normaliser");
  }
}
