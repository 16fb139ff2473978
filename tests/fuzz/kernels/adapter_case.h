// Linear layers with adapters against plain loops; a row alone against the same row among others, bit for bit; and
// tables that point outside of the arena.
#pragma once
#include "dense_cases.h"

constexpr int64_t kArenaPanel = 16;
constexpr int64_t kFields = 6;  // rank, a, b, scale, offset, whole

inline int64_t arena_panels(int64_t outputs) { return (outputs + kArenaPanel - 1) / kArenaPanel; }

struct AdapterCase {
  int64_t depth;
  std::vector<int32_t> widths, slots;       // of the parts; of the rows
  std::vector<std::vector<int32_t>> ranks;  // of each adapter, of each part
  bool scaled;
};

struct AdapterLayer {
  AdapterCase a;
  int64_t columns = 0, parts;
  int64_t used = 1;  // panels of the arena; the first is nobody's
  std::vector<int32_t> table, ranks;  // ranks: the largest of each part
  int64_t segments;
  Floats weights, bias, arena;

  AdapterLayer(Random& random, const AdapterCase& a)
      : a(a), columns(total(a.widths)), parts(static_cast<int64_t>(a.widths.size())), table(laid_out()),
        ranks(largest(a)), segments(some_segments(random, a.depth)),
        weights(drawn(random, "adapters.weights", {panels(columns), segments, a.depth / segments, kPanelWidth})),
        bias(drawn(random, "adapters.bias", {columns})),
        arena(drawn(random, "adapters.arena", {used, kArenaPanel})) {}

  static std::vector<int32_t> largest(const AdapterCase& a) {
    std::vector<int32_t> found(a.widths.size());
    for (const auto& ranks : a.ranks)
      for (size_t part = 0; part < ranks.size(); part++) found[part] = std::max(found[part], ranks[part]);
    return found;
  }

  static int64_t total(const std::vector<int32_t>& widths) {
    int64_t sum = 0;
    for (const int32_t width : widths) sum += width;
    return sum;
  }

  std::vector<int32_t> laid_out() {
    std::vector<int32_t> found(static_cast<size_t>(parts * kFields));  // the base
    const auto place = [&](int64_t count) { used += count; return static_cast<int32_t>(used - count); };
    for (const auto& ranks : a.ranks)
      for (size_t part = 0; part < ranks.size(); part++) {
        const int64_t rank = ranks[part], width = arena_panels(a.widths[part]);
        const int32_t first = place(arena_panels(rank) * a.depth), second = place(width * rank);
        const int32_t scale = a.scaled && rank ? place(width) : 0, offset = a.scaled && rank ? place(width) : 0;
        found.insert(found.end(), {static_cast<int32_t>(rank), first, second, scale, offset, 0});
      }
    return found;
  }

  int run(const Floats& x, const std::vector<int32_t>& slots, const Floats& y) const {
    const auto slot_count = static_cast<int64_t>(a.ranks.size()) + 1;
    const Ints its_slots("adapters.slots", {static_cast<int64_t>(slots.size())}, slots);
    const Ints its_table("adapters.table", {slot_count, parts, kFields}, table);
    const mindbatch::AdaptedShape shape = {a.depth, numbers_of(a.widths), numbers_of(ranks), false, false};
    const Ints of_products = words_of("adapters.settings", mindbatch::AdaptedProductsSettings{columns, shape});
    const Ints of_sum = words_of("adapters.settings", mindbatch::AdaptedSumSettings{shape});
    const auto rows = static_cast<int64_t>(slots.size());
    const Floats base = empty("adapters.base", {rows, columns});
    const Floats inner = empty("adapters.inner", {rows, std::max<int64_t>(total(ranks), 1)});
    const int failed = call(mb_adapted_products, {x, weights, its_slots, arena, its_table, of_products, base, inner});
    if (failed) {
      require(base.unchanged() && inner.unchanged(), "the output was written to");
      // The sum refuses, too, what it reads itself: not where A is.
      const Floats zeros("adapters.zeros", {rows, columns}, std::vector<float>(static_cast<size_t>(rows * columns)));
      call(mb_adapted_sum, {zeros, inner, bias, its_slots, arena, its_table, of_sum, zeros});
      return failed;
    }
    return call(mb_adapted_sum, {base, inner, bias, its_slots, arena, its_table, of_sum, y});
  }

  double at(int32_t first, int64_t outputs_before, int64_t inputs, int64_t input) const {
    const int64_t panel = outputs_before / kArenaPanel, lane = outputs_before % kArenaPanel;
    return arena.values[static_cast<size_t>((first + panel * inputs + input) * kArenaPanel + lane)];
  }

  double expected(const float* x, int32_t slot, int64_t part, int64_t column, int64_t output) const {
    double sum = columns > 1 ? bias.values[static_cast<size_t>(column)] : 0;  // of one element: none
    for (int64_t k = 0; k < a.depth; k++) sum += x[k] * packed(weights, a.depth, column, k);
    const int32_t* its = &table[static_cast<size_t>((slot * parts + part) * kFields)];
    if (its[3]) sum = sum * at(its[3], output, 1, 0) + at(its[4], output, 1, 0);
    for (int64_t r = 0; r < its[0]; r++) {
      double inner = 0;
      for (int64_t k = 0; k < a.depth; k++) inner += x[k] * at(its[1], r, a.depth, k);
      sum += inner * at(its[2], output, its[0], r);
    }
    return sum;
  }

  void check(const Floats& x, const Floats& y) const {
    std::vector<double> all;
    for (size_t row = 0; row < a.slots.size(); row++)
      for (int64_t part = 0, column = 0; part < parts; part++)
        for (int64_t output = 0; output < a.widths[static_cast<size_t>(part)]; output++)
          all.push_back(expected(&x.values[row * static_cast<size_t>(a.depth)], a.slots[row], part, column++, output));
    compare(y, all, static_cast<double>(a.depth));
  }

  void check_alone(const Floats& x, const Floats& y) const {
    for (size_t row = 0; row < a.slots.size(); row++) {
      const float* its = &x.values[row * static_cast<size_t>(a.depth)];
      const Floats one("adapters.one_x", {1, a.depth}, std::vector<float>(its, its + a.depth));
      const Floats found = empty("adapters.one_y", {1, columns});
      require(run(one, {a.slots[row]}, found) == 0, "failed");
      const float* among = y.memory + row * static_cast<size_t>(columns);
      require(std::memcmp(found.memory, among, static_cast<size_t>(columns) * 4) == 0, "a row alone differs");
    }
  }
};

inline void adapter_case(Random& random, const AdapterCase& a) {
  running = "adapters " + std::to_string(a.slots.size()) + "x" + std::to_string(a.depth);
  const AdapterLayer layer(random, a);
  const auto rows = static_cast<int64_t>(a.slots.size());
  const Floats x = drawn(random, "adapters.x", {rows, a.depth});
  const Floats y = empty("adapters.y", {rows, layer.columns});
  require(layer.run(x, a.slots, y) == 0, "failed");
  layer.check(x, y);
  layer.check_alone(x, y);
}

// Embeddings: a low-rank part, a whole table in place of the model's, and ids outside of both.
inline void adapted_embed_case(Random& random, int32_t vocabulary, int32_t depth, int32_t rank) {
  running = "adapted embed " + std::to_string(vocabulary) + "x" + std::to_string(depth);
  const int64_t a_size = arena_panels(int64_t{rank} * vocabulary), b_size = arena_panels(depth) * rank;
  const int64_t whole_size = panels(vocabulary) * depth * kPanelWidth / kArenaPanel;
  const auto second = static_cast<int32_t>(1 + a_size), third = static_cast<int32_t>(1 + a_size + b_size);
  const std::vector<int32_t> fields = {0, 0, 0, 0, 0, 0, rank, 1, second, 0, 0, 0, 0, 0, 0, 0, 0, third};
  const std::vector<int32_t> tokens = {0, vocabulary - 1, -1, 0, vocabulary - 1, INT32_MAX,
                                       vocabulary / 2, INT32_MIN, vocabulary - 1};
  const std::vector<int32_t> its_slots = {1, 1, 1, 2, 0, 1, 2, 2, 2};
  const auto rows = static_cast<int64_t>(tokens.size());
  const Ints ids("adapted_embed.ids", {rows}, tokens), slots("adapted_embed.slots", {rows}, its_slots);
  const Ints table("adapted_embed.table", {3, 1, kFields}, fields);
  const std::vector<int32_t> widths = {depth}, ranks = {rank};
  const mindbatch::AdaptedEmbeddingSettings of_layer = {{vocabulary, numbers_of(widths), numbers_of(ranks), true, true}};
  const Ints settings = words_of("adapted_embed.settings", of_layer);
  const Floats weights = drawn(random, "adapted_embed.weights", {panels(vocabulary), 1, depth, kPanelWidth});
  const Floats arena = drawn(random, "adapted_embed.arena", {third + whole_size, kArenaPanel});
  const Floats y = empty("adapted_embed.y", {rows, depth});
  require(call(mb_adapted_embedding, {ids, weights, slots, arena, table, settings, y}) == 0, "failed");
  std::vector<double> expected;
  for (size_t row = 0; row < tokens.size(); row++)
    for (int64_t k = 0; k < depth; k++) {
      const int64_t id = tokens[row];
      const bool inside = id >= 0 && id < vocabulary;
      double sum = inside ? packed(weights, depth, id, k) : 0;
      if (its_slots[row] == 2 && inside)
        sum = arena.values[static_cast<size_t>(third * kArenaPanel + (id / 32 * depth + k) * 32 + id % 32)];
      for (int64_t r = 0; its_slots[row] == 1 && inside && r < rank; r++)
        sum += arena.values[static_cast<size_t>(kArenaPanel + id * rank + r)] *
               double{arena.values[static_cast<size_t>((second + k / 16 * rank + r) * kArenaPanel + k % 16)]};
      expected.push_back(sum);
    }
  compare(y, expected, rank);
}

// A slot, or a number of the table, that points outside: the layer is refused, and nothing is written.
inline void outside_adapter_cases(Random& random) {
  const AdapterCase good = {20, {17, 5}, {1, 0, 2}, {{3, 40}, {1, 0}}, true};
  const Floats x = drawn(random, "adapters.x", {3, good.depth});
  const auto refused = [&](const char* what, const std::vector<int32_t>& slots, size_t field, int64_t value) {
    running = std::string("adapters, ") + what + " " + std::to_string(value);
    AdapterLayer layer(random, good);
    const Floats y = empty("adapters.y", {3, layer.columns});
    if (field) layer.table[field] = static_cast<int32_t>(value);
    require(layer.run(x, slots, y) != 0, "was not refused");
    require(y.unchanged(), "the output was written to");
  };
  for (const int32_t slot : {-1, 3, INT32_MAX, INT32_MIN}) refused("slot", {1, 0, slot}, 0, slot);
  const size_t first = 2 * kFields;  // of the first adapter's first part
  for (const int64_t value : {int64_t{-1}, int64_t{1 << 20}, int64_t{INT32_MAX}, int64_t{INT32_MIN}})
    refused("rank", good.slots, first + kFields, value);
  for (size_t field = 1; field < 5; field++)
    for (const int64_t value : {int64_t{-1}, int64_t{INT32_MAX}, int64_t{INT32_MIN}, int64_t{1 << 20}})
      refused("offset", good.slots, first + field, value);
}

inline AdapterCase random_adapters(Random& random) {
  AdapterCase found = {random.between(1, 300), {}, {}, {}, random.next() % 2 == 0};
  for (int64_t i = random.between(1, 3); i > 0; i--) found.widths.push_back(static_cast<int32_t>(random.between(1, 70)));
  const std::vector<int32_t> ranks = {0, 1, 3, 8, 16, 17, 64, 256};
  for (int64_t i = random.between(1, 5); i > 0; i--) {
    found.ranks.emplace_back();
    for (size_t part = 0; part < found.widths.size(); part++) found.ranks.back().push_back(random.one_of(ranks));
  }
  const auto last = static_cast<int64_t>(found.ranks.size());
  for (int64_t i = random.between(1, 40); i > 0; i--)
    found.slots.push_back(static_cast<int32_t>(random.between(0, last)));
  return found;
}

inline void adapter_cases(Random& random) {
  const std::vector<int32_t> one_each = {2, 1, 0, 1, 3, 3}, many(31, 1), none(5, 0);
  adapter_case(random, {33, {32}, one_each, {{1}, {16}, {17}}, false});
  adapter_case(random, {7, {20, 3, 16}, one_each, {{256, 0, 2}, {4, 4, 4}, {0, 0, 9}}, true});
  adapter_case(random, {129, {65, 1}, many, {{8, 3}}, false});
  adapter_case(random, {5, {9}, none, {{2}}, false});
  // 64 fill their panels: the last number of weights and arena is read.
  for (const int32_t vocabulary : {1, 31, 64, 97}) adapted_embed_case(random, vocabulary, 20, vocabulary % 7);
  outside_adapter_cases(random);
}
