// Attention over caches of bfloat16: bit for bit what caches of float give that hold the same numbers.
#pragma once
#include "attention_case.h"

using Halves = Buffer<uint16_t>;

inline uint16_t nearest_half(float value) {  // to nearest, ties to even
  const uint32_t bits = static_cast<uint32_t>(bits_of(value));
  return static_cast<uint16_t>(value == value ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16);
}
inline float widened(uint16_t half) { return from_bits(static_cast<int32_t>(uint32_t{half} << 16)); }

// Rounds a cache in its place; gives it in bfloat16.
inline Halves halves(const std::string& name, Floats& cache) {
  std::vector<uint16_t> rounded;
  for (float& each : cache.values) {
    rounded.push_back(nearest_half(each));
    each = widened(rounded.back());
  }
  std::memcpy(cache.memory, cache.values.data(), cache.values.size() * sizeof(float));
  return Halves(name, cache.shape, rounded);
}

// The last number of a planted buffer is the kernel's to be caught with.
inline void require_same(const Floats& wide, const Halves& rounded) {
  for (size_t i = 0; i < rounded.size; i++) {
    const float found = widened(rounded.memory[i]), expected = wide.memory[i];
    require(bits_of(found) == bits_of(expected) || (found != found && expected != expected),
            rounded.name + " holds something else");
  }
}

inline void rounded_attention_case(Random& random, const AttentionCase& a) {
  running = "attention over bfloat16, head of " + std::to_string(a.head_dim) + ", blocks of " +
            std::to_string(a.block_size);
  Attention attention(random, a, step_of(random, a));
  const Halves keys = halves("attention.bfloat16_keys", attention.keys);
  const Halves values = halves("attention.bfloat16_values", attention.values);
  Floats out = empty("attention.out", attention.out.shape);
  require(attention.run(mb_attention_bfloat16, keys, values, out) == 0, "failed");

  for (int64_t t = 0; t < attention.tokens; t++)  // the step's own keys and values
    for (int64_t i = a.heads * a.head_dim; i < attention.width; i++) {
      float& number = attention.qkv.memory[t * attention.width + i];
      number = widened(nearest_half(number));
    }
  require(attention.run() == 0, "failed over floats");
  require_same(attention.keys, keys);
  require_same(attention.values, values);
  require(std::memcmp(out.memory, attention.out.memory, out.values.size() * sizeof(float)) == 0,
          "other numbers than over floats");
}
