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
  int64_t rows, width;  // of x
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
    product(memory, weights + head * panels * panel_bytes(inputs, kind), products, rows, inputs, outputs, kind);
    for (int64_t r = 0; r < rows; r++) copy(y + (r * heads + head) * outputs, products + r * outputs, outputs);
  }
};

// Each head on one thread; where there are few, one after another on all of them. A row's bits are the same.
int head_products(void** params, int64_t** shapes, WeightKind kind) {
  const int32_t* settings = ints(params[2]);
  const HeadProducts its = {settings[0], settings[1], settings[2], settings[3], settings[4], shapes[0][0], shapes[0][1],
                            floats(params[0]), static_cast<const char*>(params[1]), static_cast<float*>(params[3]), kind};
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
// settings: int32 [heads, stride, first, inputs, outputs]: head h reads `inputs` numbers of a row from h * stride + first.
// Fails when they are not within a row.
#define MB_HEAD_PRODUCTS(name, kind) \
  MB_OP(name) { return head_products(params, shapes, kind); }
MB_HEAD_PRODUCTS(mb_head_products, kFloat32)
MB_HEAD_PRODUCTS(mb_head_products_bfloat16, kBfloat16)
MB_HEAD_PRODUCTS(mb_head_products_int8, kInt8)

// x [rows, width], settings int32 [first] -> y [rows, count]: the numbers of each row from `first` on
MB_OP(mb_columns) {
  const int64_t width = shapes[0][1], count = shapes[2][1], first = *ints(params[1]);
  if (first < 0 || first + count > width) return kOutside;
  const float* x = floats(params[0]);
  float* y = static_cast<float*>(params[2]);
  for_tokens(shapes[0][0], [=](int64_t t) { copy(y + t * count, x + t * width + first, count); });
  return 0;
}

// queries [tokens, .. + heads * rope], absorbed [tokens, heads * rank], keys [tokens, .. + rope], latents [tokens, rank],
// settings int32 [rope] -> qkv [tokens, (heads + 2) * (rope + rank)]: of each head what is rotated, then what meets the
// latents; the one key, and the same once more as the value
MB_OP(mb_latent_heads) {
  const int64_t tokens = shapes[0][0], width = shapes[0][1], key_width = shapes[2][1], rank = shapes[3][1];
  const int64_t rope = *ints(params[4]), heads = shapes[1][1] / rank, size = rope + rank;
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
