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

// Adapters are packed in panels of so many outputs; offsets in their memory count so many floats, too.
constexpr int kAdapterPanel = 16;

// What an adapter does to one part of a linear layer's outputs; as the table of a layer has it. Offsets are in
// the arena, whose first panel is never used: 0 is nothing.
struct AdapterPart {
  int32_t rank;           // 0: nothing
  int32_t a, b;           // packed matrices [rank, depth] and [outputs, rank]
  int32_t scale, offset;  // [outputs], padded to whole panels: y becomes y * scale + offset before A and B
  int32_t whole;          // packed weights, as the layer's own, and in place of them
};

// Rows order[first .. first + rows), which have the same adapter.
struct AdapterGroup {
  int64_t first, rows;
  const AdapterPart* parts;
};

struct AdapterArgs {
  const float* x;        // [rows, depth]
  float* y;              // [rows, columns]
  const int32_t* order;  // [rows]: those without an adapter are in no group
  const AdapterGroup* groups;
  float* const* inner;   // [parts][rows], in that order: x A^T of each row, whole panels
  const float* arena;
  const int32_t *widths, *starts;  // [parts]: outputs of each, and where in a row of y they begin
  int64_t rows, depth, columns, num_groups, num_parts;
};

struct KernelTable {
  const char* name;
  void (*linear)(const LinearArgs&);
  void (*embed)(const EmbedArgs&);
  void (*attention)(const AttentionArgs&);
  void (*rotary)(const RotaryArgs&);
  void (*norm)(const NormArgs&);
  void (*activation)(const ActivationArgs&);
  void (*adapter_shrink)(const AdapterArgs&);
  void (*adapter_expand)(const AdapterArgs&);
};

}  // namespace mindbatch
