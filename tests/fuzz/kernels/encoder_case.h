// What encoder-decoders have beside a decoder: attention by distance, cross-attention, and a cache that others write.
#pragma once
#include "rounded_attention_case.h"

enum class Seeing { kEncoder, kDecoder, kCross, kWrite };

// One of the three functions over a step; its buffers have its name.
struct Between {
  Seeing kind;
  int64_t max_distance;
  std::vector<int32_t> firsts, positions;
  Attention attention;
  Floats bias;

  Between(Random& random, Seeing kind, const AttentionCase& a, const Step& step, int64_t max_distance)
      : kind(kind), max_distance(max_distance), attention(random, a, step, name_of(kind)),
        bias(drawn(random, "distance.bias", {a.heads, 2 * max_distance + 1})) {
    Step& own = attention.step;
    for (size_t t = 0; t < own.slots.size(); t++) {
      const bool padding = own.lengths[t] == 0;
      const auto& [before, added] = a.sequences[static_cast<size_t>(own.rows[t])];
      positions.push_back(own.lengths[t] - 1);
      firsts.push_back(kind == Seeing::kDecoder && !padding ? static_cast<int32_t>(before / 2) : 0);
      if (kind == Seeing::kEncoder && !padding) own.lengths[t] = static_cast<int32_t>(before + added);
      if (kind == Seeing::kCross && !padding) {
        own.lengths[t] = static_cast<int32_t>(before);
        firsts.back() = static_cast<int32_t>(first_seen(a.window, before));
      }
    }
  }

  static std::string name_of(Seeing kind) {
    return kind == Seeing::kCross ? "cross" : kind == Seeing::kWrite ? "write" : "distance";
  }

  template <class Cache>
  int run(bool rounded, const Cache& keys, const Cache& values, const Floats& out) const {
    const std::string name = name_of(kind);
    const AttentionCase& a = attention.a;
    const Step& step = attention.step;
    const Shape tokens = {attention.tokens};
    const Ints slots(name + ".slots", tokens, step.slots), rows(name + ".rows", tokens, step.rows);
    const Ints tables(name + ".tables", {step.table_rows, step.columns}, step.tables);
    const Ints lengths(name + ".lengths", tokens, step.lengths), begins(name + ".firsts", tokens, firsts);
    const Ints places(name + ".positions", tokens, positions);
    const mindbatch::AttentionShape shape = shape_of(a);
    const Ints settings = kind == Seeing::kWrite   ? words_of(name + ".settings", mindbatch::WriteCacheSettings{shape})
                          : kind == Seeing::kCross ? words_of(name + ".settings", mindbatch::CrossAttentionSettings{shape})
                                                   : words_of(name + ".settings", mindbatch::DistanceAttentionSettings{shape, false});
    const Floats& x = attention.qkv;
    if (kind == Seeing::kWrite)
      return call(rounded ? mb_write_cache_bfloat16 : mb_write_cache, {x, keys, values, slots, settings});
    if (kind == Seeing::kCross)
      return call(rounded ? mb_cross_attention_bfloat16 : mb_cross_attention,
                  {x, keys, values, rows, tables, lengths, settings, out});
    return call(rounded ? mb_distance_attention_bfloat16 : mb_distance_attention,
                {x, keys, values, slots, rows, tables, lengths, begins, places, bias, settings, out});
  }
  int run() const { return run(false, attention.keys, attention.values, attention.out); }

  double bias_of(int64_t token, int64_t head, int64_t position) const {
    if (kind == Seeing::kCross) return 0;
    const int64_t distance = std::clamp(position - positions[token], -max_distance, max_distance);
    return bias.values[head * (2 * max_distance + 1) + max_distance + distance];
  }

  void check() {
    if (kind != Seeing::kCross) attention.write_expected();
    require(attention.keys.unchanged() && attention.values.unchanged(), "the caches hold something else");
    std::vector<double> expected;
    for (int64_t t = 0; t < attention.tokens && kind != Seeing::kWrite; t++)
      for (int64_t head = 0; head < attention.a.heads; head++) {
        const auto bias = [&](int64_t position) { return bias_of(t, head, position); };
        const std::vector<double> found = attention.attended(t, head, firsts[t], bias);
        expected.insert(expected.end(), found.begin(), found.end());
      }
    if (kind != Seeing::kWrite) compare(attention.out, expected);
  }

  // Over caches of bfloat16: bit for bit what caches of float give that hold the same numbers.
  void check_rounded() {
    const Halves keys = halves(name_of(kind) + ".bfloat16_keys", attention.keys);
    const Halves values = halves(name_of(kind) + ".bfloat16_values", attention.values);
    const Floats out = empty(name_of(kind) + ".out", attention.out.shape);
    require(run(true, keys, values, out) == 0, "failed over bfloat16");
    for (int64_t t = 0; t < attention.tokens && kind != Seeing::kCross; t++)
      for (int64_t i = attention.a.heads * attention.a.head_dim; i < attention.width; i++) {
        float& number = attention.qkv.memory[t * attention.width + i];
        number = widened(nearest_half(number));
      }
    require(run() == 0, "failed over floats");
    require_same(attention.keys, keys);
    require_same(attention.values, values);
    if (out.size) require(std::memcmp(out.memory, attention.out.memory, out.size * sizeof(float)) == 0, "other numbers");
  }
};

inline AttentionCase case_of(Seeing kind, AttentionCase a) {
  a.heads = kind == Seeing::kWrite ? 0 : a.kv_heads;
  for (auto& [before, added] : a.sequences) {
    if (kind == Seeing::kEncoder) before = 0;
    if (kind == Seeing::kCross && before == 0) before = 1;
  }
  a.softcap = 0;
  a.reads_alone = kind == Seeing::kCross;
  return a;
}

// Of the arrays that the function has, one number at a time points outside: refused, with nothing written.
inline void between_outside(Random& random, Seeing kind, const AttentionCase& a) {
  const Step good = step_of(random, a);
  const auto refused = [&](const char* what, auto spoil) {
    running = Between::name_of(kind) + ", " + what;
    Between bad(random, kind, a, good, 3);
    spoil(bad);
    require(bad.run() != 0, "was not refused");
    require(bad.attention.keys.unchanged() && bad.attention.values.unchanged(), "the caches were written to");
  };
  const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
  if (kind != Seeing::kCross)
    for (const int64_t value : {good.blocks * a.block_size, int64_t{INT32_MAX}})
      refused("slot", [&](Between& b) { b.attention.step.slots.front() = number(value); });
  if (kind == Seeing::kWrite) return;
  for (const int64_t value : {int64_t{-1}, good.table_rows, int64_t{INT32_MAX}, int64_t{INT32_MIN}})
    refused("table row", [&](Between& b) { b.attention.step.rows.front() = number(value); });
  for (const int64_t value : {int64_t{-1}, good.blocks, int64_t{INT32_MAX}, int64_t{INT32_MIN}})
    refused("block", [&](Between& b) { b.attention.step.tables.front() = number(value); });
  for (const int64_t value : {good.columns * a.block_size + 1, int64_t{INT32_MAX}})
    refused("length", [&](Between& b) { b.attention.step.lengths.front() = number(value); });
  if (kind == Seeing::kCross) return;
  for (const int64_t value : {int64_t{-1}, int64_t{INT32_MIN}, int64_t{INT32_MAX}})
    refused("first", [&](Between& b) { b.firsts.front() = number(value); });
  refused("first behind the last", [&](Between& b) { b.firsts.front() = b.attention.step.lengths.front() + 1; });
}

inline void encoder_cases(Random& random, const AttentionCase& plain) {
  for (const Seeing kind : {Seeing::kEncoder, Seeing::kDecoder, Seeing::kCross, Seeing::kWrite}) {
    const AttentionCase a = case_of(kind, plain);
    running = Between::name_of(kind) + " of " + std::to_string(a.kv_heads) + "x" + std::to_string(a.head_dim) +
              ", blocks of " + std::to_string(a.block_size);
    Between between(random, kind, a, step_of(random, a), random.between(1, 20));
    require(between.run() == 0, "failed");
    between.check();
    Between(random, kind, a, step_of(random, a), 5).check_rounded();
    between_outside(random, kind, a);
  }
}
