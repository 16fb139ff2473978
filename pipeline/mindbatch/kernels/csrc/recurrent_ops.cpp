// The entry points of layers that keep a state of each sequence (kernels/operations/recurrent.py), and of gates.
#include <cstdint>
#include <vector>

#include "elementary.h"
#include "operators.h"
#include "thread_pool.h"

namespace mindbatch {
namespace {

// Operands of a step, from `first` on: state, rows, positions, states.
struct StepStates {
  float* state;
  const int32_t *rows, *positions, *slots;
  int64_t tokens, num_slots;

  StepStates(void** params, int64_t** shapes, int first)
      : state(static_cast<float*>(params[first])), rows(ints(params[first + 1])), positions(ints(params[first + 2])),
        slots(ints(params[first + 3])), tokens(shapes[first + 1][0]), num_slots(shapes[first][0]) {}

  // The sequences; none where one has no slot of the state's.
  const std::vector<StateSpan>& spans() const {
    static auto& spans = *new std::vector<StateSpan>;  // needs a PoolLock
    spans.clear();
    for (int64_t t = 0; t < tokens; t++) {
      if (t == 0 || rows[t] != rows[t - 1]) {
        if (slots[t] < 0 || slots[t] >= num_slots) {
          spans.clear();
          break;
        }
        spans.push_back({t, t, 0, slots[t], positions[t] == 0});
      }
      spans.back().stop = t + 1;
      if (slots[t] >= 0) spans.back().kept++;
    }
    return spans;
  }
};

}  // namespace
}  // namespace mindbatch

using namespace mindbatch;

// x [tokens, at least channels], weights [kernel, channels], bias [channels] or [1], state [slots, kernel - 1, channels],
// rows, positions, states, settings -> y [tokens, channels]
// Fails, with nothing written, when a slot is outside.
MB_OP(mb_causal_convolution) {
  PoolLock lock;
  const StepStates step(params, shapes, 3);
  const auto& spans = step.spans();
  const int64_t width = shapes[0][1], kernel = shapes[1][0], channels = shapes[1][1];
  if (spans.empty() || channels > width || shapes[3][1] != kernel - 1 || shapes[3][2] != channels) return kOutside;
  table->convolution({floats(params[0]), floats(params[1]), optional(params, shapes, ndims, 2), step.state,
                      static_cast<float*>(params[8]), spans.data(), static_cast<int64_t>(spans.size()), width, channels,
                      kernel, settings_of<CausalConvolutionSettings>(count, params).shape.is_activated});
  return 0;
}

// qkv [tokens, 2 * key_heads * key_dim + value_heads * value_dim], gates [tokens, 2 * value_heads], decay [value_heads], bias
// [value_heads], state [slots, value_heads, panels * key_dim, kStatePanel], rows, positions, states, settings -> y [tokens, value_heads * value_dim]
// Fails, with nothing written, when a slot is outside.
MB_OP(mb_gated_delta) {
  PoolLock lock;
  const StepStates step(params, shapes, 4);
  const auto& spans = step.spans();
  const DeltaShape shape = settings_of<GatedDeltaSettings>(count, params).shape;
  const int64_t heads = shape.value_heads, rows = (shape.value_dim + kStatePanel - 1) / kStatePanel * shape.key_dim;
  if (spans.empty() || shapes[4][1] != heads || shapes[4][2] != rows || shapes[1][1] != 2 * heads) return kOutside;
  if (shapes[0][1] != 2 * shape.key_heads * shape.key_dim + heads * shape.value_dim) return kOutside;
  const float *gates = floats(params[1]), *decay = floats(params[2]), *bias = floats(params[3]);
  static auto& factors = *new std::vector<float>;  // what a state shrinks by of each token and head, then beta
  factors.resize(static_cast<size_t>(2 * step.tokens * heads));
  float *shrink = factors.data(), *beta = shrink + step.tokens * heads;
  for (int64_t t = 0; t < step.tokens; t++)
    for (int64_t h = 0; h < heads; h++) {
      const double change = gates[t * 2 * heads + h], x = double{gates[t * 2 * heads + heads + h]} + double{bias[h]};
      const double softplus = x > 30 ? x : elementary::log1p(elementary::exp(x));
      shrink[t * heads + h] = static_cast<float>(elementary::exp(decay[h] * softplus));
      beta[t * heads + h] = static_cast<float>(1 / (1 + elementary::exp(-change)));
    }
  table->delta({floats(params[0]), shrink, beta, step.state, static_cast<float*>(params[9]), spans.data(),
                static_cast<int64_t>(spans.size()), step.tokens, shape.key_heads, heads, shape.key_dim, shape.value_dim});
  return 0;
}

// x [rows, at least width], gate [rows, at least first + width], norm's weight [a part of width] or [1], settings -> y [rows, width]
MB_OP(mb_gated) {
  PoolLock lock;
  const auto settings = settings_of<GatedSettings>(count, params);
  const int64_t width = shapes[4][1], first = settings.first;
  if (width > shapes[0][1] || first < 0 || first + width > shapes[1][1] || width % shapes[2][0]) return kOutside;
  table->gated({floats(params[0]), floats(params[1]) + first, optional(params, shapes, ndims, 2),
                static_cast<float*>(params[4]), shapes[0][0], width, shapes[0][1], shapes[1][1], shapes[2][0],
                settings.epsilon, settings.kind});
  return 0;
}
