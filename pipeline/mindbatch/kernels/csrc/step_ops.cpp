// The entry points of what a step needs beside its layers: angles, rows of tables, and sums.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "elementary.h"
#include "for_tokens.h"
#include "operators.h"

using namespace mindbatch;

// positions [tokens] or [tokens, p], settings -> cos, sin [tokens, p * n frequencies]
// Angles are float32 products, as models compute them; their cosines and sines are rounded once, from float64.
MB_OP(mb_rotary_angles) {
  const int32_t* positions = ints(params[0]);
  const auto settings = settings_of<RotaryAnglesSettings>(count, params, 2);
  const Numbers<float> frequencies = settings.inverse_frequencies;
  const int64_t pairs = frequencies.count, each = ndims[0] > 1 ? shapes[0][1] : 1;
  const float scale = settings.scale;
  float *cosines = static_cast<float*>(params[2]), *sines = static_cast<float*>(params[3]);
  for_tokens(shapes[0][0], [=](int64_t token) {
    for (int64_t k = 0; k < each * pairs; k++) {
      const int64_t t = token * each + k / pairs, i = k % pairs;
      const float angle = static_cast<float>(positions[t]) * frequencies[i];
      const elementary::Turn turn = elementary::turn(angle);
      cosines[t * pairs + i] = static_cast<float>(turn.cosine) * scale;
      sines[t * pairs + i] = static_cast<float>(turn.sine) * scale;
    }
  });
  return 0;
}

// numbers [tokens], table [rows, width] -> [tokens, width]
// Fails, with nothing written, when a number is outside the table.
MB_OP(mb_table_rows) {
  const int32_t* numbers = ints(params[0]);
  const int64_t tokens = shapes[0][0], width = shapes[1][1];
  for (int64_t t = 0; t < tokens; t++)
    if (numbers[t] < 0 || numbers[t] >= shapes[1][0]) return kOutside;
  const float* table_rows = floats(params[1]);
  float* y = static_cast<float*>(params[2]);
  for_tokens(tokens, [=](int64_t t) {
    std::memcpy(y + t * width, table_rows + numbers[t] * width, static_cast<size_t>(width) * sizeof(float));
  });
  return 0;
}

// ids [tokens], settings -> ids - first
MB_OP(mb_ids_from) {
  const auto first = static_cast<int32_t>(settings_of<IdsFromSettings>(count, params).first);
  int32_t* y = static_cast<int32_t*>(params[2]);
  for (int64_t t = 0; t < shapes[0][0]; t++) y[t] = ints(params[0])[t] - first;
  return 0;
}

// x [tokens, width], settings -> x * factor
MB_OP(mb_scaled) {
  const int64_t width = shapes[0][1];
  const float *x = floats(params[0]), factor = settings_of<ScaledSettings>(count, params).factor;
  float* y = static_cast<float*>(params[2]);
  for_tokens(shapes[0][0], [=](int64_t t) {
    for (int64_t i = t * width; i < (t + 1) * width; i++) y[i] = x[i] * factor;
  });
  return 0;
}

// x, y [tokens, width] -> x + y
MB_OP(mb_sum) {
  const int64_t width = shapes[0][1];
  const float *x = floats(params[0]), *y = floats(params[1]);
  float* sum = static_cast<float*>(params[2]);
  for_tokens(shapes[0][0], [=](int64_t t) {
    for (int64_t i = t * width; i < (t + 1) * width; i++) sum[i] = x[i] + y[i];
  });
  return 0;
}

// x [tokens, width], bias [width] -> x + bias
MB_OP(mb_biased) {
  const int64_t width = shapes[0][1];
  const float *x = floats(params[0]), *bias = floats(params[1]);
  float* y = static_cast<float*>(params[2]);
  for_tokens(shapes[0][0], [=](int64_t t) {
    for (int64_t i = 0; i < width; i++) y[t * width + i] = x[t * width + i] + bias[i];
  });
  return 0;
}

// x [tokens, a], y [tokens, b] -> [tokens, a + b], side by side
MB_OP(mb_joined) {
  const int64_t left = shapes[0][1], right = shapes[1][1];
  const float *x = floats(params[0]), *y = floats(params[1]);
  float* both = static_cast<float*>(params[2]);
  for_tokens(shapes[0][0], [=](int64_t t) {
    std::memcpy(both + t * (left + right), x + t * left, static_cast<size_t>(left) * sizeof(float));
    std::memcpy(both + t * (left + right) + left, y + t * right, static_cast<size_t>(right) * sizeof(float));
  });
  return 0;
}

// qkv [tokens, width], positions [tokens], settings -> qkv with the query times
// 1 + factor * log(1 + floor((position + 1) / floor))
MB_OP(mb_tempered) {
  const int64_t width = shapes[0][1];
  const auto settings = settings_of<TemperedSettings>(count, params);
  const float *qkv = floats(params[0]), step = settings.floor, factor = settings.factor;
  const int64_t query = settings.shape.heads * settings.shape.head_dim;
  if (query < 0 || query > width) return kOutside;
  const int32_t* positions = ints(params[1]);
  float* y = static_cast<float*>(params[3]);
  for_tokens(shapes[0][0], [=](int64_t t) {
    const float steps = std::floor((static_cast<float>(positions[t]) + 1) / step);
    const float scale = static_cast<float>(elementary::log1p(steps)) * factor + 1;
    for (int64_t i = t * width; i < t * width + query; i++) y[i] = qkv[i] * scale;
    std::memcpy(y + t * width + query, qkv + t * width + query, static_cast<size_t>(width - query) * sizeof(float));
  });
  return 0;
}

// qkv [tokens, query width + 2 * key width], settings -> [tokens, 2]: of each token the sums
// of the squares of its query and of its key. Squares of each segment are added in float64, the rounded sums in a tree.
MB_OP(mb_square_sums) {
  const auto settings = settings_of<SquareSumsSettings>(count, params);
  const AttentionShape& shape = settings.shape;
  const int64_t width = shapes[0][1], query = shape.heads * shape.head_dim, key = shape.kv_heads * shape.head_dim;
  if (query < 0 || key < 0 || query + key > width || settings.segments.count != 2) return kOutside;
  const int64_t of_query = settings.segments[0], of_key = settings.segments[1], most = 1 << kMostLevels;
  if (of_query < 1 || of_query > most || query % of_query || of_key < 1 || of_key > most || key % of_key) return kOutside;
  const float* qkv = floats(params[0]);
  float* sums = static_cast<float*>(params[2]);
  const auto squares = [](const float* x, int64_t count, int64_t segments) {
    float waiting[kMostLevels + 1];
    for (int64_t s = 0, i = 0; s < segments; s++) {
      double exact = 0;
      for (; i < (s + 1) * (count / segments); i++) exact += double{x[i]} * double{x[i]};
      float sum = static_cast<float>(exact);
      const int level = complete_before(s);
      for (int l = 0; l < level; l++) sum = waiting[l] + sum;
      waiting[level] = sum;
    }
    return waiting[complete_before(segments - 1)];
  };
  for_tokens(shapes[0][0], [=](int64_t t) {
    sums[2 * t] = squares(qkv + t * width, query, of_query);
    sums[2 * t + 1] = squares(qkv + t * width + query, key, of_key);
  });
  return 0;
}

// qkv [tokens, width], sums [tokens, 2], query norm, key norm, settings -> qkv with query
// and key divided by the roots of their mean squares, and times the norms
MB_OP(mb_norm_by_sums) {
  const int64_t width = shapes[0][1], query = shapes[2][0], key = shapes[3][0];
  const auto settings = settings_of<NormBySumsSettings>(count, params);
  if (query + key > width || settings.totals.count != 2) return kOutside;
  const float *qkv = floats(params[0]), *sums = floats(params[1]), epsilon = settings.epsilon;
  const auto of_queries = static_cast<float>(settings.totals[0]), of_keys = static_cast<float>(settings.totals[1]);
  const float *query_norm = floats(params[2]), *key_norm = floats(params[3]);
  float* out = static_cast<float*>(params[5]);
  for_tokens(shapes[0][0], [=](int64_t t) {
    const float *x = qkv + t * width, *sum = sums + 2 * t;
    float* y = out + t * width;
    const float by_query = 1 / std::sqrt(sum[0] / of_queries + epsilon);
    const float by_key = 1 / std::sqrt(sum[1] / of_keys + epsilon);
    for (int64_t i = 0; i < query; i++) y[i] = x[i] * by_query * query_norm[i];
    for (int64_t i = 0; i < key; i++) y[query + i] = x[query + i] * by_key * key_norm[i];
    std::memcpy(y + query + key, x + query + key, static_cast<size_t>(width - query - key) * sizeof(float));
  });
  return 0;
}

namespace {

// exp(x) for x of 0 and below, without branches, so that a loop becomes one of vectors: as `vexp` of vector.h, to which
// this file of no instruction set has no way.
inline float exp_below_zero(float x) {
  const float clamped = x < -87.3f ? -87.3f : x;
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const float whole = shifted - 12582912.0f;
  const float r = clamped - whole * 0.693359375f - whole * -2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4B400000 + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

inline float softplus(float x) { return x > 30 ? x : static_cast<float>(elementary::log1p(elementary::exp(x))); }

}  // namespace

// x [tokens, width], positive [1], negative [1], settings -> above 0 softplus(positive) x^2 + beta x,
// below (beta + softplus(negative)) (exp(min(x, epsilon)) - 1 - x) + beta x
MB_OP(mb_xielu) {
  const int64_t width = shapes[0][1];
  const auto settings = settings_of<XieluSettings>(count, params);
  const float *x = floats(params[0]), beta = settings.beta, epsilon = settings.epsilon;
  const float above = softplus(*floats(params[1])), below = beta + softplus(*floats(params[2]));
  float* y = static_cast<float*>(params[4]);
  for_tokens(shapes[0][0], [=](int64_t t) {
    for (int64_t i = t * width; i < (t + 1) * width; i++) {
      const float v = x[i], curve = below * (exp_below_zero(v < epsilon ? v : epsilon) - 1.0f - v);
      y[i] = (v > 0 ? above * v * v : curve) + beta * v;
    }
  });
  return 0;
}
