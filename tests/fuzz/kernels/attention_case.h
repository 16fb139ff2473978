// Paged attention over a cache whose unused places are poison, and steps that point outside of it.
#pragma once
#include "cases.h"

// The first position that the last of `length` tokens sees. window: below 0 for chunks, of which it sees its own.
inline int64_t first_seen(int64_t window, int64_t length) {
  if (window < 0) return std::max<int64_t>(length - 1, 0) / -window * -window;
  return window > 0 && length > window ? length - window : 0;
}

struct AttentionCase {
  int64_t heads, kv_heads, head_dim, block_size, window;
  std::vector<std::pair<int64_t, int64_t>> sequences;  // positions cached before, new tokens
  int64_t padding, spare_columns;
  int alibi = 0;  // 1: with it; 2: rounded to bfloat16
  float softcap = 0;
  bool rounds = false;  // products may be of bfloat16: where the instruction set has them
  bool reads_alone = false;  // no keys and values come with the step
  bool has_sinks = false;
};

inline mindbatch::AttentionShape shape_of(const AttentionCase& a) {
  return {a.heads, a.kv_heads, a.head_dim, 0.3f, std::abs(a.window), {}, a.softcap, a.has_sinks, a.window < 0};
}

// The arrays of a step; table entries that no token may look at are poison, too.
struct Step {
  std::vector<int32_t> slots, rows, tables, lengths;
  int64_t blocks = 0, columns = 0, table_rows = 0;
};

inline Step step_of(Random& random, const AttentionCase& a) {
  Step step;
  std::vector<int32_t> free_blocks;
  for (const auto& [before, added] : a.sequences) {
    const int64_t needed = (before + added + a.block_size - 1) / a.block_size;
    if (needed > step.columns) step.columns = needed;
    for (int64_t b = 0; b < needed; b++) free_blocks.push_back(static_cast<int32_t>(step.blocks++));
  }
  for (size_t i = free_blocks.size(); i-- > 1;) std::swap(free_blocks[i], free_blocks[random.next() % (i + 1)]);
  step.columns += a.spare_columns;
  step.table_rows = static_cast<int64_t>(a.sequences.size());
  step.tables.assign(static_cast<size_t>(step.table_rows * step.columns), INT32_MAX);
  for (size_t row = 0; row < a.sequences.size(); row++) {
    const auto& [before, added] = a.sequences[row];
    int32_t* table = &step.tables[row * static_cast<size_t>(step.columns)];
    for (int64_t b = 0; b * a.block_size < before + added; b++) {
      table[b] = free_blocks.back();
      free_blocks.pop_back();
    }
    for (int64_t p = before; p < before + added; p++) {
      step.slots.push_back(static_cast<int32_t>(table[p / a.block_size] * a.block_size + p % a.block_size));
      step.rows.push_back(static_cast<int32_t>(row));
      step.lengths.push_back(static_cast<int32_t>(p + 1));
    }
    for (int64_t i = 0; i < a.padding; i++) {  // between the sequences, too
      step.slots.push_back(-1);
      step.rows.push_back(0);
      step.lengths.push_back(0);
    }
  }
  return step;
}

struct Attention {
  AttentionCase a;
  Step step;
  int64_t tokens, width, padded;
  Floats qkv, keys, values;
  Floats out;

  Attention(Random& random, const AttentionCase& a, const Step& step, const std::string& name = "attention")
      : a(a), step(step), tokens(static_cast<int64_t>(step.slots.size())),
        width((a.heads + (a.reads_alone ? 0 : 2 * a.kv_heads)) * a.head_dim), padded((a.head_dim + 15) / 16 * 16),
        qkv(drawn(random, name + ".qkv", {tokens, width})),
        keys(empty(name + ".keys", {step.blocks, a.kv_heads, a.head_dim, a.block_size})),
        values(empty(name + ".values", {step.blocks, a.kv_heads, a.block_size, padded})),
        out(empty(name + ".out", {tokens, a.heads * a.head_dim})) {
    for (size_t row = 0; row < a.sequences.size(); row++)
      for (int64_t p = 0; p < a.sequences[row].first; p++)
        for (int64_t h = 0; h < a.kv_heads; h++)
          for (int64_t d = 0; d < a.head_dim; d++) {
            const int64_t slot = slot_of(static_cast<int64_t>(row), p);
            set(keys, key_at(slot, h, d), static_cast<float>(random.between(-100, 100)) / 100);
            set(values, value_at(slot, h, d), static_cast<float>(random.between(-100, 100)) / 100);
          }
  }

  static void set(Floats& cache, int64_t at, float value) {
    cache.values[at] = value;
    if (cache.name != planted || at + 1 < size_of(cache.shape)) cache.memory[at] = value;
  }
  int64_t slot_of(int64_t row, int64_t position) const {
    return step.tables[row * step.columns + position / a.block_size] * a.block_size + position % a.block_size;
  }
  int64_t key_at(int64_t slot, int64_t h, int64_t d) const {
    return ((slot / a.block_size * a.kv_heads + h) * a.head_dim + d) * a.block_size + slot % a.block_size;
  }
  int64_t value_at(int64_t slot, int64_t h, int64_t d) const {
    return ((slot / a.block_size * a.kv_heads + h) * a.block_size + slot % a.block_size) * padded + d;
  }

  int run() const { return run(mb_attention, keys, values, out); }

  template <class Cache>
  int run(Operator attend, const Cache& keys, const Cache& values, const Floats& out) const {
    const Ints slots("attention.slots", {tokens}, step.slots), rows("attention.rows", {tokens}, step.rows);
    const Ints tables("attention.tables", {step.table_rows, step.columns}, step.tables);
    const Ints lengths("attention.lengths", {tokens}, step.lengths);
    std::vector<float> slopes, sinks_of;
    for (int64_t h = 0; h < a.heads; h++) {
      slopes.push_back(slope_of(h));
      sinks_of.push_back(sink_of(h));
    }
    mindbatch::AttentionShape shape = shape_of(a);
    if (a.alibi) shape.alibi = {numbers_of(slopes), 0.7f, a.alibi == 2};
    const Ints settings = words_of("attention.settings", mindbatch::AttentionSettings{shape, a.rounds});
    if (!a.has_sinks) return call(attend, {qkv, keys, values, slots, rows, tables, lengths, settings, out});
    const Floats sinks("attention.sinks", {a.heads}, sinks_of);
    return call(attend, {qkv, keys, values, slots, rows, tables, lengths, sinks, settings, out});
  }

  static float sink_of(int64_t head) { return static_cast<float>(head % 5) * 0.75f - 1; }
  static float slope_of(int64_t head) { return 0.9f / static_cast<float>(head + 1); }
  static float nearest_bfloat16(float x) {
    return std::ldexp(std::nearbyint(std::ldexp(x, 8 - std::ilogb(x) - 1)), std::ilogb(x) + 1 - 8);
  }
  double bias_of(int64_t head, int64_t position) const {
    if (!a.alibi || position == 0) return 0;
    const float slope = slope_of(head), place = static_cast<float>(position);
    if (a.alibi == 1) return 0.7f * (double{slope} * position);
    return 0.7f * double{nearest_bfloat16(nearest_bfloat16(slope) * nearest_bfloat16(place))};
  }

  // Beside products of bfloat16 a float32 cache holds rounded numbers.
  float kept(float x) const { return a.rounds && x != 0 ? nearest_bfloat16(x) : x; }

  // What the step's tokens add to the caches, and nothing else.
  void write_expected() {
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t h = 0; step.slots[t] >= 0 && h < a.kv_heads; h++)
        for (int64_t d = 0; d < a.head_dim; d++) {
          const float* token = &qkv.values[t * width];
          keys.values[key_at(step.slots[t], h, d)] = kept(token[(a.heads + h) * a.head_dim + d]);
          values.values[value_at(step.slots[t], h, d)] = kept(token[(a.heads + a.kv_heads + h) * a.head_dim + d]);
        }
  }

  // What a head of a token sees of positions [first, its length); bias: of a position's score. sink: its logit.
  template <class Bias>
  std::vector<double> attended(int64_t t, int64_t head, int64_t first, const Bias& bias, double sink = -1e300) const {
    const int64_t kv_head = head / (a.heads / a.kv_heads), length = step.lengths[t];
    std::vector<double> sums(static_cast<size_t>(a.head_dim)), scores;
    double top = sink, total = 0;
    for (int64_t p = first; p < length; p++) {
      double score = 0;
      for (int64_t d = 0; d < a.head_dim; d++)
        score += qkv.values[t * width + head * a.head_dim + d] * 0.3f *
                 static_cast<double>(keys.values[key_at(slot_of(step.rows[t], p), kv_head, d)]);
      if (a.softcap > 0) score = a.softcap * std::tanh(score / a.softcap);
      score += bias(p);
      scores.push_back(score);
      top = score > top ? score : top;
    }
    for (double& score : scores) total += score = std::exp(score - top);
    total += std::exp(sink - top);
    for (int64_t p = first; p < length; p++)
      for (int64_t d = 0; d < a.head_dim; d++)
        sums[d] += scores[p - first] / total * values.values[value_at(slot_of(step.rows[t], p), kv_head, d)];
    return sums;
  }

  std::vector<double> expected_head(int64_t t, int64_t head) const {
    const int64_t first = first_seen(a.window, step.lengths[t]);
    const auto bias = [&](int64_t position) { return bias_of(head, position); };
    return attended(t, head, first, bias, a.has_sinks ? sink_of(head) : -1e300);
  }

  void check() {
    write_expected();
    require(keys.unchanged() && values.unchanged(), "the caches hold something else");
    std::vector<double> expected;
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t head = 0; head < a.heads; head++) {
        const std::vector<double> found = expected_head(t, head);
        expected.insert(expected.end(), found.begin(), found.end());
      }
    compare(out, expected, a.rounds ? 400 : 1);  // 0.04 of numbers to 2
  }
};

inline void attention_case(Random& random, const AttentionCase& a) {
  running = "attention " + std::to_string(a.heads) + "/" + std::to_string(a.kv_heads) + "x" +
            std::to_string(a.head_dim) + ", blocks of " + std::to_string(a.block_size) + ", window " +
            std::to_string(a.window);
  Attention attention(random, a, step_of(random, a));
  require(attention.run() == 0, "failed");
  attention.check();
}

// One number of a good step points outside: the kernel refuses the step and touches nothing.
inline void outside_cases(Random& random, const AttentionCase& a) {
  const Step good = step_of(random, a);
  const auto refused = [&](const char* what, std::vector<int32_t> Step::*array, size_t at, int64_t value) {
    running = std::string("attention, ") + what + " " + std::to_string(value);
    Step bad = good;
    (bad.*array)[at] = static_cast<int32_t>(value);
    Attention attention(random, a, good);
    attention.step = bad;
    require(attention.run() != 0, "was not refused");
    require(attention.keys.unchanged() && attention.values.unchanged(), "the caches were written to");
  };
  for (const int64_t value : {good.blocks * a.block_size, int64_t{INT32_MAX}})
    refused("slot", &Step::slots, 0, value);
  for (const int64_t value : {int64_t{-1}, good.table_rows, int64_t{INT32_MAX}, int64_t{INT32_MIN}})
    refused("table row", &Step::rows, 0, value);
  for (const int64_t value : {int64_t{-1}, good.blocks, int64_t{INT32_MAX}, int64_t{INT32_MIN}})
    refused("block", &Step::tables, 0, value);
  for (const int64_t value : {good.columns * a.block_size + 1, int64_t{INT32_MAX}})
    refused("length", &Step::lengths, 0, value);
}
