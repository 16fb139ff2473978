// Products whose input is a norm or an activation that they compute: the bits of the two one after the other. Where
// products are emulated their exponential is not the instruction set's: then activations only stay within their buffers.
#pragma once
#include "rounded_cases.h"

inline void require_same(const Floats& found, const Floats& expected) {
  require(std::memcmp(found.memory, expected.memory, expected.values.size() * sizeof(float)) == 0,
          found.name + " has other bits than " + expected.name);
}

// absent: the residual is none.
template <class Weights>
void fused_norm_case(Random& random, mindbatch::WeightKind weight_kind, const Weights& weights, int64_t rows, int64_t depth,
                     int64_t columns, bool centred, bool absent) {
  const Floats x = drawn(random, "fused.x", {rows, depth});
  const Floats residual = drawn(random, "fused.residual", absent ? Shape{1} : Shape{rows, depth});
  const Floats weight = drawn(random, "fused.weight", {depth});
  const Floats norm_bias = drawn(random, "fused.norm_bias", {centred ? depth : 1});
  const Floats bias = drawn(random, "fused.bias", {columns});
  const Ints settings = words_of("fused.settings", mindbatch::NormSettings{1e-2f, centred});
  const Ints of_product = words_of("fused.of_product", mindbatch::LinearSettings{columns, weight_kind});
  const Floats normed = empty("the norm", {rows, depth}), expected = empty("the product of both", {rows, columns});
  const Floats expected_sum = empty("the norm's sum", {rows, depth});
  const Floats sum = empty("fused.sum", {rows, depth}), y = empty("fused.y", {rows, columns});
  call(mb_norm, {x, weight, norm_bias, settings, normed});
  call(mb_linear, {normed, weights, bias, of_product, expected});
  require(call(mb_norm_linear, {x, weight, norm_bias, settings, weights, bias, of_product, y}) == 0, "failed");
  require_same(y, expected);
  call(mb_add_norm, {x, residual, weight, norm_bias, settings, normed, expected_sum});
  call(mb_linear, {normed, weights, bias, of_product, expected});
  require(call(mb_add_norm_linear,
               {x, residual, weight, norm_bias, settings, weights, bias, of_product, sum, y}) == 0, "failed");
  require_same(y, expected);
  require_same(sum, expected_sum);
}

template <class Weights>
void fused_activation_case(Random& random, mindbatch::WeightKind weight_kind, const Weights& weights, int64_t rows,
                           int64_t depth, int64_t columns, int32_t kind, bool gated, bool emulated) {
  const Floats x = drawn(random, "fused.activated", {rows, gated ? 2 * depth : depth});
  const Ints settings = words_of("fused.kind", mindbatch::ActivationSettings{static_cast<mindbatch::Activation>(kind), gated});
  const Ints of_product = words_of("fused.of_product", mindbatch::LinearSettings{columns, weight_kind});
  const Floats bias = drawn(random, "fused.bias", {columns}), active = empty("the activation", {rows, depth});
  const Floats expected = empty("the product of both", {rows, columns}), y = empty("fused.y", {rows, columns});
  call(mb_activation, {x, settings, active});
  call(mb_linear, {active, weights, bias, of_product, expected});
  require(call(mb_activation_linear, {x, settings, weights, bias, of_product, y}) == 0, "failed");
  if (!emulated) require_same(y, expected);
}

template <class Weights>
void fused_case(Random& random, mindbatch::WeightKind weight_kind, const Weights& weights, int64_t rows, int64_t depth,
                int64_t columns, bool emulated) {
  running = "fused " + std::to_string(rows) + "x" + std::to_string(depth) + "x" + std::to_string(columns);
  fused_norm_case(random, weight_kind, weights, rows, depth, columns, rows % 2, depth % 2);
  const int32_t kind = static_cast<int32_t>(random.next() % 4);
  fused_activation_case(random, weight_kind, weights, rows, depth, columns, kind, rows % 2, emulated);
}

// With weights of every kind.
inline void fused_cases(Random& random, int64_t rows, int64_t depth, int64_t columns, bool emulated) {
  fused_case(random, mindbatch::kFloat32, drawn(random, "fused.weights", {panels(columns), 1, depth, kPanelWidth}), rows, depth,
             columns, emulated);
  for (const Kind& kind : kKinds)
    fused_case(random, kind.number, Packed(random, kind, columns, depth).bytes, rows, depth, columns, emulated);
}
