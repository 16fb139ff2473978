// The entry points of latent attention: products with a matrix of each head's own, and heads put together.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "for_tokens.h"
#include "operators.h"
#include "thread_pool.h"

namespace mindbatch {
namespace {

void copy(float* to, const float* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

// What mb_head_products computes, and the layout of its rows.
struct HeadProducts {
  int64_t heads, stride, first, inputs, outputs;
  int64_t rows, width, segments;  // of x, and of weights
  const float* x;
  const char* weights;
  float* y;
  WeightKind kind;

  bool is_possible() const {
    return heads > 0 && first >= 0 && inputs > 0 && first + inputs <= stride && heads * stride <= width;
  }
  int64_t memory() const { return rows * (inputs + outputs); }  // of one head

  void compute(int64_t head, float* memory) const {
    const int64_t panels = (outputs + kPanel - 1) / kPanel;
    float* products = memory + rows * inputs;
    for (int64_t r = 0; r < rows; r++) copy(memory + r * inputs, x + r * width + head * stride + first, inputs);
    const char* its_weights = weights + head * panels * panel_bytes(inputs, kind, segments);
    table->linear[kind]({memory, its_weights, nullptr, products, rows, inputs, outputs, segments});
    for (int64_t r = 0; r < rows; r++) copy(y + (r * heads + head) * outputs, products + r * outputs, outputs);
  }
};

// Each head on one thread; where there are few, one after another on all of them. A row's bits are the same.
int head_products(int count, void** params, int64_t** shapes) {
  const auto settings = settings_of<HeadProductsSettings>(count, params);
  const HeadProductsShape& shape = settings.shape;
  if (is_grouped(settings.matrices_kind)) return kOutside;
  const HeadProducts its = {shape.heads, shape.stride, shape.first, shape.inputs, shape.outputs, shapes[0][0], shapes[0][1],
                            shapes[1][1], floats(params[0]), static_cast<const char*>(params[1]), static_cast<float*>(params[3]),
                            settings.matrices_kind};
  if (!its.is_possible()) return kOutside;
  PoolLock lock;
  static auto& memory = *new std::vector<float>;
  const int64_t threads = num_threads();
  memory.resize(std::max(memory.size(), static_cast<size_t>(threads * its.memory())));
  if (its.heads < 2 * threads) {
    for (int64_t head = 0; head < its.heads; head++) its.compute(head, memory.data());
    return 0;
  }
  auto alone = [&](int64_t head, int thread) {
    const AloneOnThread only(thread);
    its.compute(head, memory.data() + thread * its.memory());
  };
  parallel_for(its.heads, alone);
  return 0;
}

}  // namespace
}  // namespace mindbatch

using namespace mindbatch;

// x [rows, width], packed stack [heads]([outputs, inputs]), settings -> y [rows, heads * outputs]
// Head h reads `inputs` numbers of a row from h * stride + first. Fails when they are not within a row.
MB_OP(mb_head_products) { return head_products(count, params, shapes); }

// x [rows, width], settings -> y [rows, count]: the numbers of each row from `first` on
MB_OP(mb_columns) {
  const auto settings = settings_of<ColumnsSettings>(count, params);
  const int64_t width = shapes[0][1], number = shapes[2][1], first = settings.first;
  if (first < 0 || first + number > width) return kOutside;
  const float* x = floats(params[0]);
  float* y = static_cast<float*>(params[2]);
  for_tokens(shapes[0][0], [=](int64_t t) { copy(y + t * number, x + t * width + first, number); });
  return 0;
}

// queries [tokens, .. + heads * rope], absorbed [tokens, heads * rank], keys [tokens, .. + rope], latents [tokens, rank],
// settings -> qkv [tokens, (heads + 2) * (rope + rank)]: of each head what is rotated, then what meets the
// latents; the one key, and the same once more as the value
MB_OP(mb_latent_heads) {
  const int64_t tokens = shapes[0][0], width = shapes[0][1], key_width = shapes[2][1], rank = shapes[3][1];
  const int64_t rope = settings_of<LatentHeadsSettings>(count, params).rope, heads = shapes[1][1] / rank, size = rope + rank;
  if (rope < 1 || heads * rope > width || rope > key_width) return kOutside;
  const float *queries = floats(params[0]) + width - heads * rope, *absorbed = floats(params[1]);
  const float *keys = floats(params[2]) + key_width - rope, *latents = floats(params[3]);
  float* qkv = static_cast<float*>(params[5]);
  for_tokens(tokens, [=](int64_t t) {
    float* to = qkv + t * (heads + 2) * size;
    for (int64_t h = 0; h < heads; h++, to += size) {
      copy(to, queries + t * width + h * rope, rope);
      copy(to + rope, absorbed + (t * heads + h) * rank, rank);
    }
    for (int i = 0; i < 2; i++, to += size) {
      copy(to, keys + t * key_width, rope);
      copy(to + rope, latents + t * rank, rank);
    }
  });
  return 0;
}
