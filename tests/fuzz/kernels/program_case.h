// What a step needs beside its layers, against plain loops; and programs of such calls against the calls by themselves.
#pragma once
#include <climits>

#include "cases.h"

inline std::vector<int32_t> drawn_ints(Random& random, int64_t count, int64_t low, int64_t high) {
  std::vector<int32_t> found;
  for (int64_t i = 0; i < count; i++) found.push_back(static_cast<int32_t>(random.between(low, high)));
  return found;
}

// each: positions of a token.
inline void angles_case(Random& random, int64_t tokens, int64_t pairs, int64_t each = 1) {
  running = "angles " + std::to_string(tokens) + "x" + std::to_string(each) + "x" + std::to_string(pairs);
  const std::vector<int64_t> shape = each == 1 ? std::vector<int64_t>{tokens} : std::vector<int64_t>{tokens, each};
  const Ints positions("angles.positions", shape, drawn_ints(random, tokens * each, 0, 100000));
  const std::vector<float> frequencies = numbers(random, pairs);
  const float scale = numbers(random, 1)[0];
  const mindbatch::RotaryAnglesSettings of_pairs = {numbers_of(frequencies), scale};
  const Ints settings = words_of("angles.settings", of_pairs);
  const Floats cosines = empty("angles.cos", {tokens, each * pairs});
  const Floats sines = empty("angles.sin", {tokens, each * pairs});
  require(call(mb_rotary_angles, {positions, settings, cosines, sines}) == 0, "failed");
  std::vector<double> expected[2];
  for (int64_t t = 0; t < tokens * each; t++)
    for (int64_t i = 0; i < pairs; i++) {
      const double angle = static_cast<float>(positions.values[t]) * frequencies[i];
      expected[0].push_back(std::cos(angle) * scale);
      expected[1].push_back(std::sin(angle) * scale);
    }
  compare(cosines, expected[0]);
  compare(sines, expected[1]);
}

inline void rows_case(Random& random, int64_t tokens, int64_t rows, int64_t width) {
  running = "rows " + std::to_string(tokens) + " of " + std::to_string(rows) + "x" + std::to_string(width);
  const Floats table = drawn(random, "rows.table", {rows, width});
  std::vector<int32_t> values = drawn_ints(random, tokens, 0, rows - 1);
  const Ints numbers("rows.numbers", {tokens}, values);
  const Floats y = empty("rows.y", {tokens, width});
  require(call(mb_table_rows, {numbers, table, y}) == 0, "failed");
  std::vector<double> expected;
  for (const int32_t row : values)
    for (int64_t i = 0; i < width; i++) expected.push_back(table.values[row * width + i]);
  compare(y, expected);
  for (const int64_t outside : {int64_t{-1}, rows, int64_t{INT_MAX}}) {
    if (values.empty()) break;
    values.back() = static_cast<int32_t>(outside);
    const Ints wrong("rows.numbers", {tokens}, values);
    const Floats untouched = empty("rows.y", {tokens, width});
    require(call(mb_table_rows, {wrong, table, untouched}) != 0, "a row outside was taken");
    require(untouched.unchanged(), "something was written");
  }
}

// A program of two calls over a buffer between them: (x * factor) + x, and the row of a table to begin with.
inline void program_case(Random& random, int64_t tokens, int64_t width, bool fails) {
  running = "program " + std::to_string(tokens) + "x" + std::to_string(width);
  const Ints ids("program.ids", {tokens}, drawn_ints(random, tokens, 5, 9));
  const int64_t lowest = fails ? 6 : 5;
  const Ints settings = words_of("program.first", mindbatch::IdsFromSettings{lowest});  // an id of 5 becomes -1 where it fails
  const Ints local("program.local", {tokens}, std::vector<int32_t>(static_cast<size_t>(tokens)));
  const Floats table = drawn(random, "program.table", {5, width});
  const float by = numbers(random, 1)[0];
  const Ints factor = words_of("program.factor", mindbatch::ScaledSettings{by});
  const Floats rows = empty("program.rows", {tokens, width}), scaled = empty("program.scaled", {tokens, width});
  const Floats y = empty("program.y", {tokens, width});
  const std::vector<Tensor> arrays = {ids, settings, local, table, factor, rows, scaled, y};
  std::vector<void*> addresses;
  std::vector<int32_t> dimensions;
  std::vector<int64_t> shapes;
  for (const Tensor& each : arrays) {
    addresses.push_back(each.data);
    dimensions.push_back(static_cast<int32_t>(each.shape.size()));
    for (size_t i = 0; i < mindbatch::kMostDimensions; i++) shapes.push_back(i < each.shape.size() ? each.shape[i] : 1);
  }
  const std::vector<mindbatch::EntryPoint> functions = {mb_ids_from, mb_table_rows, mb_scaled, mb_sum};
  const std::vector<int32_t> first = {0, 3, 6, 9, 12}, operands = {0, 1, 2, 2, 3, 5, 5, 4, 6, 5, 6, 7};
  const mindbatch::Program program = {4, functions.data(), first.data(), operands.data(), addresses.data(),
      reinterpret_cast<int64_t(*)[mindbatch::kMostDimensions]>(shapes.data()), dimensions.data()};
  bool outside = false;
  std::vector<double> expected;
  for (const int32_t id : ids.values) {
    outside |= id < lowest;
    for (int64_t i = 0; i < width && !outside; i++) {
      const double x = table.values[(id - lowest) * width + i];
      expected.push_back(x * by + x);
    }
  }
  const int64_t failed = mb_run_program(&program);
  require(failed == (outside ? 2 : 0), "call " + std::to_string(failed) + " failed");
  if (outside) require(rows.unchanged() && scaled.unchanged() && y.unchanged(), "something was written");
  else compare(y, expected);
}
