// Products with weights that are codes with a scale for each group of inputs, against the numbers that they stand for.
#pragma once
#include "dense_cases.h"

struct CodesCase {
  mindbatch::WeightKind kind;
  int64_t group;
  bool has_offsets;
  int64_t rows, columns, groups, segments;  // groups: of a segment
};

struct CodedWeights {
  const CodesCase& a;
  int64_t depth, code_bytes, group_bytes;
  Buffer<uint8_t> bytes;

  CodedWeights(Random& random, const CodesCase& a)
      : a(a), depth(a.segments * a.groups * a.group), code_bytes(a.group * kPanelWidth / (has_bytes() ? 1 : 2)),
        group_bytes(code_bytes + kPanelWidth * (a.has_offsets ? 8 : 4)),
        bytes("codes", {panels(a.columns), a.segments, a.groups, group_bytes}, drawn_bytes(random)) {}

  bool has_bytes() const { return a.kind == mindbatch::kInt8Groups || a.kind == mindbatch::kFloat8; }

  // A byte of FP8 that stands for a number.
  uint8_t some_byte(Random& random) const {
    const auto byte = static_cast<uint8_t>(random.next());
    return a.kind == mindbatch::kFloat8 && (byte & 127) == 127 ? 0 : byte;
  }

  std::vector<uint8_t> drawn_bytes(Random& random) const {
    std::vector<uint8_t> found;
    for (int64_t g = 0; g < panels(a.columns) * a.segments * a.groups; g++) {
      for (int64_t i = 0; i < code_bytes; i++) found.push_back(some_byte(random));
      for (const float number : numbers(random, (group_bytes - code_bytes) / 4)) {
        const auto* its = reinterpret_cast<const uint8_t*>(&number);
        found.insert(found.end(), its, its + 4);
      }
    }
    return found;
  }

  double at(int64_t column, int64_t k) const {
    static const double kFloat4[] = {0, 1, 2, 3, 4, 6, 8, 12};
    const int64_t place = column / kPanelWidth * a.segments * a.groups + k / a.group, within = k % a.group;
    const int64_t in_line = has_bytes() ? 4 : 8, output = column % kPanelWidth;
    const uint8_t* its = bytes.memory + place * group_bytes;
    const bool is_float8 = a.kind == mindbatch::kFloat8;
    const int64_t in_unit = is_float8 ? output / 4 * 16 + within % 4 / 2 * 8 + output % 4 * 2 + within % 2 : output * 4 + within % 4;
    const uint8_t byte = its[within / in_line * kPanelWidth * 4 + in_unit];
    const int code = has_bytes() ? byte : within % 8 < 4 ? byte & 15 : byte >> 4;
    const double size = byte >> 3 & 15 ? std::ldexp(8 + (byte & 7), (byte >> 3 & 15) - 10) : std::ldexp(byte & 7, -9);
    const double number = is_float8 ? (byte & 128 ? -size : size) : a.kind == mindbatch::kFloat4 ? (code < 8 ? 1 : -1) * kFloat4[code % 8] : code - (has_bytes() ? 128 : 8);
    float factors[2] = {};
    for (int64_t i = 0; i <= a.has_offsets; i++)
      std::memcpy(&factors[i], its + code_bytes + (i * kPanelWidth + output) * 4, 4);
    return number * factors[0] + factors[1];
  }
};

inline void codes_case(Random& random, const CodesCase& a) {
  const CodedWeights weights(random, a);
  running = "codes " + std::to_string(a.kind) + " " + std::to_string(a.rows) + "x" + std::to_string(weights.depth) + "x" +
            std::to_string(a.columns);
  const Floats x = drawn(random, "codes.x", {a.rows, weights.depth}), bias = drawn(random, "codes.bias", {a.columns});
  const Floats y = empty("codes.y", {a.rows, a.columns});
  const Ints settings = words_of("codes.settings", mindbatch::LinearSettings{a.columns, a.kind});
  require(call(mb_linear, {x, weights.bytes, bias, settings, y}) == 0, "failed");
  for (int64_t r = 0; r < a.rows; r++)
    for (int64_t c = 0; c < a.columns; c++) {
      double sum = bias.values[c], limit = 1e-3;
      for (int64_t first = 0; first < weights.depth; first += a.group) {
        double largest = 0;
        for (int64_t k = first; k < first + a.group; k++)
          largest = std::max(largest, std::fabs(double{x.values[r * weights.depth + k]}));
        for (int64_t k = first; k < first + a.group; k++) {
          sum += x.values[r * weights.depth + k] * weights.at(c, k);
          limit += (a.kind == mindbatch::kFloat8 ? std::fabs(x.values[r * weights.depth + k]) / 200 : 0.501 * largest / 127) *
                   std::fabs(weights.at(c, k));
        }
      }
      require(std::fabs(y.memory[r * a.columns + c] - sum) <= limit, "a sum is too far from what it should be");
    }
  halves_case(random, a.kind, weights.bytes, a.rows, weights.depth, a.columns);
  const int32_t last = static_cast<int32_t>(a.columns) - 1;
  const std::vector<int32_t> ids = {0, last, -1, INT32_MAX, last / 2};
  const Floats rows = empty("codes.rows", {static_cast<int64_t>(ids.size()), weights.depth});
  const Ints of_rows = words_of("codes.settings", mindbatch::EmbeddingSettings{weights.depth, a.kind});
  require(call(mb_embedding, {Ints("codes.ids", {static_cast<int64_t>(ids.size())}, ids), weights.bytes, of_rows, rows}) == 0,
          "failed");
  std::vector<double> expected;
  for (const int32_t id : ids)
    for (int64_t k = 0; k < weights.depth; k++) expected.push_back(id < 0 || id > last ? 0 : weights.at(id, k));
  compare(rows, expected);
}

inline const std::vector<mindbatch::WeightKind> kCodes = {mindbatch::kInt4, mindbatch::kFloat4, mindbatch::kInt8Groups,
                                                         mindbatch::kFloat8};

inline void codes_cases(Random& random) {
  for (const auto kind : kCodes)
    for (const int64_t group : {16, 32, 64, 128})
      for (const int64_t rows : {0, 1, 2, 3, 8, 19})
        codes_case(random, {kind, group, rows % 2 == 1 && kind != mindbatch::kFloat8, rows, 33, 384 / group, rows % 4 == 1 ? 4 : 1});
}

inline void random_codes_case(Random& random) {
  const int64_t group = int64_t{16} << random.between(0, 3), segments = int64_t{1} << random.between(0, 3);
  const auto kind = random.one_of(kCodes);
  codes_case(random, {kind, group, kind != mindbatch::kFloat8 && random.next() % 2 == 0, random.between(1, 20), random.between(1, 80),
                      random.between(1, 5), segments});
}
