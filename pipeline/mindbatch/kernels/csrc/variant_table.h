// What every build of the kernels (AVX-512, AVX2, portable) offers, and the arguments of each kernel.
#pragma once
#include <cstdint>

namespace mindbatch {

// Outputs of a linear layer are packed in panels of this many columns; part of the weights' layout.
constexpr int kPanel = 32;

// A linear layer is cut in so many tasks per thread, each a run of neighbouring panels.
constexpr int64_t kTasksPerThread = 8;

struct LinearArgs {
  const float *x, *weights, *bias;
  float* y;
  int64_t rows, depth, columns;
  int64_t panels_per_task;  // neighbouring panels that one task computes
};

struct EmbedArgs {
  const int32_t* ids;
  const float* weights;
  float* y;
  int64_t tokens, depth, vocabulary;
};

// Tokens of one step, flattened. Keys are cached as [block, kv head, head_dim, slot], values as
// [block, kv head, slot, padded head_dim], so that both products read whole vectors.
struct AttentionArgs {
  const float* qkv;  // [tokens, (heads + 2 * kv_heads) * head_dim]
  float *key_cache, *value_cache;
  const int32_t* slots;         // [tokens]: block * block_size + offset, -1 for padding
  const int32_t* rows;          // [tokens]: row of block_tables
  const int32_t* block_tables;  // [table rows, blocks_per_row]
  const int32_t* lengths;       // [tokens]: number of cached positions the token sees, its own included
  float* out;                   // [tokens, heads * head_dim]
  int64_t tokens, heads, kv_heads, head_dim, padded_head_dim, block_size, blocks_per_row;
  int64_t window;  // sliding window in tokens, 0 for none
  float scale;
};

struct RotaryArgs {
  const float *qkv, *cos, *sin;         // cos, sin: [tokens, head_dim / 2]
  const float *query_norm, *key_norm;   // [head_dim] each, or null: RMS norm of each head before rotation
  float* out;
  int64_t tokens, heads, kv_heads, head_dim, rotary_dim;
  float epsilon;
};

struct NormArgs {
  const float *x, *residual, *weight, *bias;  // residual and bias may be null; RMS norm when bias is null
  float *y, *sum;                             // sum = x + residual, written when residual is given
  int64_t rows, width;
  float epsilon;
};

enum Activation : int32_t { kGeluTanh = 0, kGelu = 1, kSilu = 2, kRelu = 3 };

struct ActivationArgs {
  const float* x;  // [rows, width], or [rows, 2 * width] (gate, then up) when gated
  float* y;        // [rows, width]
  int64_t rows, width;
  Activation kind;
  bool gated;
};

struct KernelTable {
  const char* name;
  void (*linear)(const LinearArgs&);
  void (*embed)(const EmbedArgs&);
  void (*attention)(const AttentionArgs&);
  void (*rotary)(const RotaryArgs&);
  void (*norm)(const NormArgs&);
  void (*activation)(const ActivationArgs&);
};

}  // namespace mindbatch
