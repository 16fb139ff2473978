// The entry points of the layers.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "operators.h"
#include "process_group.h"
#include "thread_pool.h"

namespace mindbatch {
namespace {

// Weights in the order in which a step reads them, learnt from the last step: while MindSpore passes from one
// kernel to the next, idle threads read the next layer's weights into their caches.
struct Follower {
  const void* weights;
  int64_t panel_bytes, panels;
};

void read_next_ahead(const LinearArgs& a, WeightKind kind) {
  static auto& followers = *new std::unordered_map<const void*, Follower>;
  static const void* previous = nullptr;
  followers[previous] = {a.weights, panel_bytes(a.depth, kind, a.segments, a.groups), (a.columns + kPanel - 1) / kPanel};
  previous = a.weights;
  const auto next = followers.find(a.weights);
  if (next != followers.end()) set_ahead(next->second.weights, next->second.panel_bytes, next->second.panels);
}

// The window as AttentionArgs has it.
int64_t window_of(const AttentionShape& shape) { return shape.is_chunked ? -shape.window : shape.window; }

// Whether a step reads and writes within its caches of `blocks` blocks and its table of `table_rows` rows. A block
// id is looked at once for all tokens of a sequence, which follow one another: nothing beside attention itself.
bool within_caches(const AttentionArgs& a, int64_t blocks, int64_t table_rows) {
  int64_t seen = 0;  // entries of this table row that earlier tokens have had looked at
  for (int64_t t = 0; t < a.tokens; t++) {
    if (a.slots && a.slots[t] >= blocks * a.block_size) return false;
    if (a.firsts && (a.firsts[t] < 0 || a.firsts[t] > a.lengths[t])) return false;
    if (a.rows[t] < 0 || a.rows[t] >= table_rows || a.lengths[t] > a.blocks_per_row * a.block_size) return false;
    const int32_t* table = a.block_tables + a.rows[t] * a.blocks_per_row;
    if (t > 0 && a.rows[t] != a.rows[t - 1]) seen = 0;
    for (; seen * a.block_size < a.lengths[t]; seen++)
      if (table[seen] < 0 || table[seen] >= blocks) return false;
  }
  return true;
}

}  // namespace

const float* optional(void** params, int64_t** shapes, int* ndims, int index) {
  int64_t size = 1;
  for (int i = 0; i < ndims[index]; i++) size *= shapes[index][i];
  return size > 1 ? floats(params[index]) : nullptr;
}

InputGroups groups_of(const int64_t* shape, WeightKind kind, int64_t depth) {
  if (!is_grouped(kind)) return {};
  return {depth / (shape[1] * shape[2]), shape[3]};
}

LinearArgs linear_arguments(void** params, int64_t** shapes, int* ndims, int first, int y, int64_t depth, WeightKind kind) {
  LinearArgs arguments = {nullptr, params[first], optional(params, shapes, ndims, first + 1),
                          static_cast<float*>(params[y]), shapes[y][0], depth, shapes[y][1], shapes[first][1]};
  arguments.groups = groups_of(shapes[first], kind, depth);
  return arguments;
}

void linear_of_step(const LinearArgs& arguments, WeightKind kind) {
  read_next_ahead(arguments, kind);
  table->linear[kind](arguments);
}

NormArgs norm_arguments(void** params, int64_t** shapes, int* ndims, bool adds, float epsilon, float* y, float* sum) {
  const int weight = adds ? 2 : 1;
  const float* residual = adds && ndims[1] > 1 ? floats(params[1]) : nullptr;
  return {floats(params[0]), residual, floats(params[weight]), optional(params, shapes, ndims, weight + 1), y, sum,
          shapes[0][0], shapes[0][1], epsilon};
}

ActivationArgs activation_arguments(void** params, int64_t** shapes, const ActivationSettings& settings, float* y,
                                    int64_t width) {
  return {floats(params[0]), y, shapes[0][0], width, settings.kind, settings.gated};
}

}  // namespace mindbatch

using namespace mindbatch;

// Which entry points there are, and what they take: INTERFACE of kernels/native_library.py, and settings of operations.
MB_EXPORT int mb_interface() { return 20; }
MB_EXPORT uint32_t mb_settings_digest() { return kSettingsDigest; }

MB_EXPORT void mb_set_num_threads(int count) { set_num_threads(count); }
MB_EXPORT int mb_num_threads() { return num_threads(); }

// x [rows, depth], packed weights [panels, segments, ...], bias [columns] or [1], settings -> y [rows, columns]
static void multiply(void** params, int64_t** shapes, int* ndims, float* summary) {
  PoolLock lock;
  const WeightKind kind = read_settings<LinearSettings>(params[3]).weight_kind;
  LinearArgs arguments = linear_arguments(params, shapes, ndims, 1, 4, shapes[0][1], kind);
  arguments.x = floats(params[0]);
  arguments.summary = summary;
  linear_of_step(arguments, kind);
}
MB_OP(mb_linear) {
  multiply(params, shapes, ndims, nullptr);
  return 0;
}

// The same, and what is known of each row: -> y [rows, columns], summary [rows, 2, panels]: see summary.h
MB_OP(mb_head) {
  multiply(params, shapes, ndims, static_cast<float*>(params[5]));
  return 0;
}

// ids [tokens], packed weights [panels, segments, ...], settings -> y [tokens, depth]
MB_OP(mb_embedding) {
  PoolLock lock;
  const WeightKind kind = settings_of<EmbeddingSettings>(count, params).weight_kind;
  const int64_t depth = shapes[3][1];
  table->embed[kind]({ints(params[0]), params[1], static_cast<float*>(params[3]), shapes[0][0], depth,
                      shapes[1][0] * kPanel, shapes[1][1], groups_of(shapes[1], kind, depth)});
  return 0;
}

// qkv, key cache, value cache, slots, rows, block tables, lengths, settings -> out [tokens, heads * head_dim]
// Where it has sinks, they stand before the settings: float [heads].
// Fails, with nothing written, when a slot, a block or a table row is outside.
static int attend(int count, void** params, int64_t** shapes, bool rounded_cache) {
  PoolLock lock;
  const auto settings = settings_of<AttentionSettings>(count, params);
  const AttentionShape& shape = settings.shape;
  const Alibi* alibi = shape.alibi ? &*shape.alibi : nullptr;
  const AttentionArgs arguments = {
      floats(params[0]), params[1], params[2], ints(params[3]),
      ints(params[4]), ints(params[5]), ints(params[6]), static_cast<float*>(params[count - 1]), shapes[0][0],
      shape.heads, shapes[1][1], shape.head_dim, shapes[2][3], shapes[1][3], shapes[5][1],
      window_of(shape), shape.scale, rounded_cache, shape.softcap,
      alibi ? alibi->slopes.data : nullptr, alibi ? alibi->factor : 0, alibi && alibi->is_rounded,
      nullptr, nullptr, nullptr, 0, shape.has_sinks ? floats(params[7]) : nullptr};
  if (shape.has_sinks && shapes[7][0] != shape.heads) return kOutside;
  if (!within_caches(arguments, shapes[1][0], shapes[5][0])) return kOutside;
  (settings.is_rounded ? table->rounded_attention : table->attention)(arguments);
  return 0;
}
MB_OP(mb_attention) { return attend(count, params, shapes, false); }
MB_OP(mb_attention_bfloat16) { return attend(count, params, shapes, true); }

// The attention of encoder-decoders, where a token sees positions [first, length) with a bias by distance:
// qkv, key cache, value cache, slots, rows, block tables, lengths, firsts, positions, bias [heads, 2 * max_distance + 1],
// settings -> out [tokens, heads * head_dim]
static int attend_between(int count, void** params, int64_t** shapes, bool rounded_cache) {
  PoolLock lock;
  const AttentionShape shape = settings_of<DistanceAttentionSettings>(count, params).shape;
  const AttentionArgs arguments = {
      floats(params[0]), params[1], params[2], ints(params[3]),
      ints(params[4]), ints(params[5]), ints(params[6]), static_cast<float*>(params[11]), shapes[0][0],
      shape.heads, shapes[1][1], shape.head_dim, shapes[2][3], shapes[1][3], shapes[5][1], 0,
      shape.scale, rounded_cache, 0, nullptr, 0, false,
      ints(params[7]), ints(params[8]), floats(params[9]), shapes[9][1] / 2};
  if (!within_caches(arguments, shapes[1][0], shapes[5][0])) return kOutside;
  table->attention(arguments);
  return 0;
}
MB_OP(mb_distance_attention) { return attend_between(count, params, shapes, false); }
MB_OP(mb_distance_attention_bfloat16) { return attend_between(count, params, shapes, true); }

// Queries that see the first `lengths` cached positions, within a window, and write none:
// queries, key cache, value cache, rows, block tables, lengths, settings -> out [tokens, heads * head_dim]
static int attend_across(int count, void** params, int64_t** shapes, bool rounded_cache) {
  PoolLock lock;
  const AttentionShape shape = settings_of<CrossAttentionSettings>(count, params).shape;
  const AttentionArgs arguments = {
      floats(params[0]), params[1], params[2], nullptr,
      ints(params[3]), ints(params[4]), ints(params[5]), static_cast<float*>(params[7]), shapes[0][0],
      shape.heads, shapes[1][1], shape.head_dim, shapes[2][3], shapes[1][3], shapes[4][1], window_of(shape),
      shape.scale, rounded_cache, 0, nullptr, 0, false, nullptr, nullptr, nullptr, 0};
  if (!within_caches(arguments, shapes[1][0], shapes[4][0])) return kOutside;
  table->attention(arguments);
  return 0;
}
MB_OP(mb_cross_attention) { return attend_across(count, params, shapes, false); }
MB_OP(mb_cross_attention_bfloat16) { return attend_across(count, params, shapes, true); }

// Keys and values that others attend to: kv, key cache, value cache, slots, settings -> kv as it is
static int write_cached(int count, void** params, int64_t** shapes, bool rounded_cache) {
  PoolLock lock;
  const AttentionShape shape = settings_of<WriteCacheSettings>(count, params, 0).shape;
  const AttentionArgs arguments = {
      floats(params[0]), params[1], params[2], ints(params[3]),
      nullptr, nullptr, nullptr, nullptr, shapes[0][0],
      0, shapes[1][1], shape.head_dim, shapes[2][3], shapes[1][3], 0, 0,
      0, rounded_cache, 0, nullptr, 0, false, nullptr, nullptr, nullptr, 0};
  for (int64_t t = 0; t < arguments.tokens; t++)
    if (arguments.slots[t] >= shapes[1][0] * arguments.block_size) return kOutside;
  table->attention(arguments);
  return 0;
}
MB_OP(mb_write_cache) { return write_cached(count, params, shapes, false); }
MB_OP(mb_write_cache_bfloat16) { return write_cached(count, params, shapes, true); }

// qkv, cos, sin, query norm [of a head or of all] or [1], key norm or [1], settings -> qkv
MB_OP(mb_rotary) {
  PoolLock lock;
  const auto settings = settings_of<RotarySettings>(count, params);
  const AttentionShape& shape = settings.shape;
  for (const int norm : {3, 4})
    if (optional(params, shapes, ndims, norm) && shapes[norm][0] != shape.head_dim) return kOutside;
  const Pairs pairs = settings.in_halves ? kInHalves : settings.is_interleaved ? kNeighbours : kApart;
  table->rotary({floats(params[0]), floats(params[1]), floats(params[2]), optional(params, shapes, ndims, 3),
                 optional(params, shapes, ndims, 4), static_cast<float*>(params[6]), shapes[0][0], shape.heads,
                 shape.kv_heads, shape.head_dim, shapes[1][1] * 2, settings.epsilon, pairs});
  return 0;
}

// x [rows, width], weight [width], bias [width] or [1], settings -> y
MB_OP(mb_norm) {
  PoolLock lock;
  const float epsilon = settings_of<NormSettings>(count, params).epsilon;
  table->norm(norm_arguments(params, shapes, ndims, false, epsilon, static_cast<float*>(params[4]), nullptr));
  return 0;
}

// x [rows, width], weight [a part of width], settings -> y, each part of a row normed
MB_OP(mb_group_norm) {
  const int64_t width = shapes[0][1], size = shapes[1][0];
  if (width % size) return kOutside;
  PoolLock lock;
  table->norm({floats(params[0]), nullptr, floats(params[1]), nullptr, static_cast<float*>(params[3]), nullptr,
               shapes[0][0] * (width / size), size, settings_of<GroupNormSettings>(count, params).epsilon});
  return 0;
}

// x [rows, width], residual like it or [1], weight, bias or [1], settings -> y, x + residual
MB_OP(mb_add_norm) {
  PoolLock lock;
  float *y = static_cast<float*>(params[5]), *sum = static_cast<float*>(params[6]);
  const float epsilon = settings_of<AddNormSettings>(count, params, 2).epsilon;
  table->norm(norm_arguments(params, shapes, ndims, true, epsilon, y, sum));
  return 0;
}

// x [rows, width or 2 * width], settings -> y [rows, width]
MB_OP(mb_activation) {
  PoolLock lock;
  const auto settings = settings_of<ActivationSettings>(count, params);
  table->activation(activation_arguments(params, shapes, settings, static_cast<float*>(params[2]), shapes[2][1]));
  return 0;
}

// scores [rows, columns], their summary or null -> the place of each row's largest, and what makes log-probabilities of
// its scores
MB_EXPORT void mb_likeliest(const float* scores, const float* summary, int64_t rows, int64_t columns, int64_t* likeliest,
                            double* normalisers) {
  PoolLock lock;
  table->likeliest({scores, summary, rows, columns, likeliest, normalisers});
}

// The same, and tokens drawn from each row at its uniform numbers: see ChoiceArgs
MB_EXPORT void mb_choose(const float* scores, const float* summary, const float* const* changed, const void* rules,
                         const double* uniforms, const int64_t* firsts, int64_t rows, int64_t columns, int64_t* likeliest,
                         double* normalisers, int64_t* tokens) {
  PoolLock lock;
  table->choose({{scores, summary, rows, columns, likeliest, normalisers}, changed, static_cast<const DrawRule*>(rules),
                 uniforms, firsts, tokens});
}

// x [rows, width], settings -> cap * tanh(x / cap)
MB_OP(mb_capped) {
  PoolLock lock;
  const float cap = settings_of<CappedSettings>(count, params).cap;
  table->cap({floats(params[0]), static_cast<float*>(params[2]), shapes[0][0] * shapes[0][1], cap});
  return 0;
}

// Bytes that `size` ranks share, and joining a group of them: its number in this process, or -1.
MB_EXPORT int64_t mb_process_group_bytes(int size) { return process_group_bytes(size); }
MB_EXPORT int mb_join_process_group(int file, int rank, int size) { return join_process_group(file, rank, size); }

// x [rows, width], settings -> its sum over the ranks of the group
MB_OP(mb_all_reduce) {
  const bool done = sum_over_group(settings_of<AllReduceSettings>(count, params).group, floats(params[0]), static_cast<float*>(params[2]),
                                  shapes[0][0] * shapes[0][1]);
  return done ? 0 : kOutside;
}

// x [rows, width], settings -> [rows, total], total at most ranks * width
MB_OP(mb_all_gather) {
  const bool done = gather_over_group(settings_of<AllGatherSettings>(count, params).group, floats(params[0]), static_cast<float*>(params[2]), shapes[0][0],
                                  shapes[0][1], shapes[2][1]);
  return done ? 0 : kOutside;
}

// x [rows, width], settings -> x, which the other rank of the group receives
MB_OP(mb_send_hidden) {
  const int64_t size = shapes[0][0] * shapes[0][1];
  const bool done = send_to_peer(settings_of<SendHiddenSettings>(count, params).group, floats(params[0]), size);
  std::memcpy(params[2], params[0], static_cast<size_t>(size) * sizeof(float));
  return done ? 0 : kOutside;
}

// ids [rows], settings -> [rows, width], which the other rank of the group sends
MB_OP(mb_receive_hidden) {
  const bool done = receive_from_peer(settings_of<ReceiveHiddenSettings>(count, params).group, static_cast<float*>(params[2]), shapes[2][0] * shapes[2][1]);
  return done ? 0 : kOutside;
}
