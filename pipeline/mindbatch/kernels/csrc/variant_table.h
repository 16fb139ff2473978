// What every instruction set's kernels offer, and the arguments of each kernel.
#pragma once
#include <cstdint>

#include "settings.h"

namespace mindbatch {

// Outputs of a linear layer are packed in panels of this many columns; part of the weights' layout.
constexpr int kPanel = 32;

// How the matrix of a linear layer is kept is its WeightKind; linear_*.h says how each is packed.
constexpr int kWeightKinds = kFloat8 + 1;

// Of the last kinds, groups of inputs have scales: this many inputs, which have so many bytes of a panel.
struct InputGroups {
  int64_t inputs = 0, bytes = 0;
};

static inline bool is_grouped(WeightKind kind) { return kind >= kInt4; }

constexpr int64_t kMostOfGroup = 128;  // inputs

// Bytes of the codes of a group, which begin it.
static inline int64_t code_bytes(int64_t inputs, WeightKind kind) { return inputs * kPanel / (kind < kInt8Groups ? 2 : 1); }

// Inputs of a matrix are so many segments of equal depth, a power of two: each is packed by itself, and is summed by
// itself in every product. Sums of segments are added in a balanced tree, of which ranks of one model compute subtrees.
constexpr int kMostLevels = 8;  // of the tree

// How many sums that wait in the tree are added to that of a segment, the last first. It then waits on the level of this
// number, or with the last segment is complete.
static inline int complete_before(int64_t segment) { return __builtin_ctzll(~static_cast<unsigned long long>(segment)); }

// (Static: what is compiled for one instruction set must not be kept for all.)
// Depth of a packed matrix: padded with zeros to whole tiles of AMX, 16 rows of 4 bytes of each output.
static inline int64_t padded_depth(int64_t depth, WeightKind kind) {
  const int64_t whole = kind == kInt8 ? 64 : (kind == kBfloat16 ? 32 : 1);
  return (depth + whole - 1) / whole * whole;
}

// Behind a panel of int8: the float scale of each output, and 128 times the sum of its weights as int32.
constexpr int64_t kInt8Tail = kPanel * 8;

// Bytes of a packed panel of kPanel outputs, of one segment or of several.
static inline int64_t panel_bytes(int64_t depth, WeightKind kind, int64_t segments = 1, InputGroups groups = {}) {
  if (is_grouped(kind)) return depth / groups.inputs * groups.bytes;
  const int64_t size = kind == kInt8 ? 1 : (kind == kBfloat16 ? 2 : 4);
  return (padded_depth(depth / segments, kind) * kPanel * size + (kind == kInt8 ? kInt8Tail : 0)) * segments;
}

struct NormArgs {
  const float *x, *residual, *weight, *bias;  // residual and bias may be null; RMS norm when bias is null
  float *y, *sum;                             // sum: x + residual, or null
  int64_t rows, width;
  float epsilon;
};

struct ActivationArgs {
  const float* x;  // [rows, width], or [rows, 2 * width] (gate, then up) when gated
  float* y;        // [rows, width]
  int64_t rows, width;
  Activation kind;
  bool gated;
};

// Its input is x, or what `norm` or `activation` would write, which is computed row by row as the product reads it. Where
// there is a summary, it is written, too.
struct LinearArgs {
  const float* x;
  const void* weights;
  const float* bias;
  float* y;
  int64_t rows, depth, columns;
  int64_t segments = 1;
  const NormArgs* norm = nullptr;
  const ActivationArgs* activation = nullptr;
  float* summary = nullptr;  // [rows][2][panels] of y: see summary.h
  InputGroups groups = {};
};

struct EmbedArgs {
  const int32_t* ids;
  const void* weights;
  float* y;
  int64_t tokens, depth, vocabulary, segments = 1;
  InputGroups groups = {};
};

// Tokens of one step, flattened. Keys are cached as [block, kv head, head_dim, slot], values as
// [block, kv head, slot, padded head_dim], so that both products read whole vectors.
struct AttentionArgs {
  const float* qkv;  // [tokens, (heads + 2 * kv_heads) * head_dim]
  void *key_cache, *value_cache;
  const int32_t* slots;         // [tokens]: block * block_size + offset, -1 for padding
  const int32_t* rows;          // [tokens]: row of block_tables
  const int32_t* block_tables;  // [table rows, blocks_per_row]
  const int32_t* lengths;       // [tokens]: number of cached positions the token sees, its own included
  float* out;                   // [tokens, heads * head_dim]
  int64_t tokens, heads, kv_heads, head_dim, padded_head_dim, block_size, blocks_per_row;
  int64_t window;  // sliding window in tokens, 0 for none; below 0: chunks of so many, of which a token sees its own
  float scale;
  bool rounded_cache;  // the caches hold bfloat16, not float
  float softcap;  // scores become softcap * tanh(score / softcap), with 0 they stay
  const float* slopes;  // [heads], or null: ALiBi, of which a score gets alibi_factor * slope * position of the key
  float alibi_factor;
  bool alibi_rounded;  // slopes, positions and their products are bfloat16
  // Of encoder-decoders, or null:
  const int32_t* firsts;       // [tokens]: the first position that the token sees, in place of a window
  const int32_t* positions;    // [tokens]: its own, for distance_bias
  const float* distance_bias;  // [heads, 2 * max_distance + 1]: added to a score by key - own position, from -max_distance on
  int64_t max_distance;            // keys further away have the bias of the last
  const float* sinks = nullptr;  // [heads], or null: a logit of each head's softmax that has no value
};

// Which two numbers of a head are a pair: rotary_dim / 2 apart, neighbours, or as the first within each half of the head.
enum Pairs : int32_t { kApart = 0, kNeighbours = 1, kInHalves = 2 };

struct RotaryArgs {
  const float *qkv, *cos, *sin;         // cos, sin: [tokens, rotary_dim / 2]
  const float *query_norm, *key_norm;   // [head_dim] or null: RMS norm of each head before rotation
  float* out;
  int64_t tokens, heads, kv_heads, head_dim, rotary_dim;
  float epsilon;
  int32_t pairs;  // of Pairs
};

// The numbers that matrices are packed from.
enum StoredKind : int32_t { kStoredFloat32 = 0, kStoredBfloat16 = 1, kStoredFloat16 = 2 };

static inline int64_t number_bytes(StoredKind kind) { return kind == kStoredFloat32 ? 4 : 2; }

// Rows [count, depth], wherever they stand in memory, for the outputs from `column` on of one panel.
struct PackArgs {
  StoredKind stored;
  const char* rows;
  int64_t count, depth, row_stride, column_stride;  // strides in numbers
  char* panel;
  int64_t column;
};

// Rows of scores, and what is found of each.
struct ScoreArgs {
  const float* scores;   // [rows, columns]
  const float* summary;  // [rows][2][panels]: see summary.h; null: they are computed
  int64_t rows, columns;
  int64_t* likeliest;   // [rows]
  double* normalisers;  // [rows]
};

// How tokens are drawn from a row of scores: what decoding/filters.py calls by these names, in this order.
struct DrawRule {
  float temperature;
  int32_t top_k;  // 0: all
  float tail;     // 1 - top_p; negative: no top_p
  float min_p;
};

// The same, and tokens drawn from each row, or from what it was changed to.
struct ChoiceArgs : ScoreArgs {
  const float* const* changed;  // [rows][columns], what is drawn from; null: the row's scores
  const DrawRule* rules;        // [rows]
  const double* uniforms;       // those of row r are number firsts[r] to firsts[r + 1]
  const int64_t* firsts;        // [rows + 1]
  int64_t* tokens;              // as `uniforms`; -1 where the scores are not finite numbers
};

struct CapArgs {
  const float* x;
  float* y;  // cap * tanh(x / cap)
  int64_t count;
  float cap;
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
  float* const* inner;   // [parts][rows], in that order: x A^T of each row
  const float* arena;
  const int32_t *widths, *starts;  // [parts]: outputs of each, and where in a row of y they begin
  int64_t rows, depth, columns, num_groups, num_parts, segments = 1;
};

struct RouterArgs {
  const float *x, *weights;  // [rows, depth], [experts, depth]
  float* logits;             // [rows, experts]
  int64_t rows, depth, experts;
};

struct WeightedSumArgs {
  const float *outputs, *weights;  // [places, width], [rows, chosen]
  const int32_t* places;           // [rows, chosen]
  float* y;                        // [rows, width]
  int64_t rows, chosen, width;
};

// Tokens first .. stop - 1 of a step, which are of one sequence, and the slot of its state; only the first `kept` of them
// change it. Fresh: the state is zeros before.
struct StateSpan {
  int64_t first, stop, kept, slot;
  bool is_fresh;
};

struct ConvolutionArgs {
  const float *x, *weights, *bias;  // [tokens, width], [kernel, channels], [channels] or null
  float *state, *y;                 // [slots, kernel - 1, channels], [tokens, channels]
  const StateSpan* spans;
  int64_t num_spans, width, channels, kernel;
  bool is_activated;
};

// Columns of a head's matrix that lie together, whatever the widest vectors are.
constexpr int kStatePanel = 16;

struct DeltaArgs {
  const float *qkv, *shrink, *beta;  // the last two [tokens, value_heads]
  float *state, *y;                  // [slots, value_heads, panels, key_dim, kStatePanel], [tokens, value_heads * value_dim]
  const StateSpan* spans;
  int64_t num_spans, tokens, key_heads, value_heads, key_dim, value_dim;
};

// y = norm(x) * act(gate)
struct GatedArgs {
  const float *x, *gate, *weight;  // [rows, x_stride], [rows, gate_stride], [norm_width] or null: no norm
  float* y;                        // [rows, width]
  int64_t rows, width, x_stride, gate_stride, norm_width;
  float epsilon;
  Activation kind;
};

struct KernelTable {
  const char* name;
  void (*linear[kWeightKinds])(const LinearArgs&);
  void (*embed[kWeightKinds])(const EmbedArgs&);
  void (*attention)(const AttentionArgs&);
  void (*rounded_attention)(const AttentionArgs&);  // beside rounded weights: as they are multiplied, or `attention`
  void (*rotary)(const RotaryArgs&);
  void (*norm)(const NormArgs&);
  void (*activation)(const ActivationArgs&);
  void (*cap)(const CapArgs&);
  void (*likeliest)(const ScoreArgs&);
  void (*choose)(const ChoiceArgs&);
  int64_t (*pack[kWeightKinds])(const PackArgs&);
  void (*router)(const RouterArgs&);
  void (*weighted_sum)(const WeightedSumArgs&);
  void (*adapter_shrink)(const AdapterArgs&);
  void (*adapter_expand)(const AdapterArgs&);
  void (*convolution)(const ConvolutionArgs&);
  void (*delta)(const DeltaArgs&);
  void (*gated)(const GatedArgs&);
};

}  // namespace mindbatch
