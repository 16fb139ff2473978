// Settings of operations, read from the words that kernels/settings.py makes of them.
// Written by python -m mindbatch.kernels.settings_header: change the operations' NumPy functions instead.
#pragma once
#include "words.h"

namespace mindbatch {

// Of all that follows; a library with another one was built from other settings (kernels/native_library.py).
constexpr uint32_t kSettingsDigest = 2745797175u;

enum Activation : int32_t { kGeluTanh, kGelu, kSilu, kRelu, kQuickGelu, kSigmoid, kIdentity };

struct AdaptedShape {
  int64_t inputs;
  Numbers<int32_t> widths;
  Numbers<int32_t> ranks;
  bool is_embedding;
  bool has_whole;

  template <class Parts>
  void visit(Parts& parts) { parts(inputs, widths, ranks, is_embedding, has_whole); }
};

enum WeightKind : int32_t { kFloat32, kBfloat16, kInt8, kInt4, kFloat4, kInt8Groups, kFloat8 };

struct TensorSlice {
  int64_t rank;
  int64_t size;

  template <class Parts>
  void visit(Parts& parts) { parts(rank, size); }
};

struct Alibi {
  Numbers<float> slopes;
  float factor;
  bool is_rounded;

  template <class Parts>
  void visit(Parts& parts) { parts(slopes, factor, is_rounded); }
};

struct AttentionShape {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  float scale;
  int64_t window;
  std::optional<Alibi> alibi;
  float softcap;
  bool has_sinks;
  bool is_chunked;

  template <class Parts>
  void visit(Parts& parts) { parts(heads, kv_heads, head_dim, scale, window, alibi, softcap, has_sinks, is_chunked); }
};

struct ConvolutionShape {
  int64_t channels;
  int64_t kernel;
  bool is_activated;

  template <class Parts>
  void visit(Parts& parts) { parts(channels, kernel, is_activated); }
};

struct Routing {
  int64_t experts;
  int64_t chosen;
  bool is_sigmoid;
  bool is_normalised;
  float scale;
  int64_t groups;
  int64_t chosen_groups;
  int64_t group_best;

  template <class Parts>
  void visit(Parts& parts) { parts(experts, chosen, is_sigmoid, is_normalised, scale, groups, chosen_groups, group_best); }
};

struct ExpertsShape {
  Routing routing;
  int64_t inner;
  Activation activation;
  bool has_biases;
  float limit;
  bool weighs_inputs;
  bool has_logits;

  template <class Parts>
  void visit(Parts& parts) { parts(routing, inner, activation, has_biases, limit, weighs_inputs, has_logits); }
};

struct DeltaShape {
  int64_t key_heads;
  int64_t value_heads;
  int64_t key_dim;
  int64_t value_dim;

  template <class Parts>
  void visit(Parts& parts) { parts(key_heads, value_heads, key_dim, value_dim); }
};

struct HeadProductsShape {
  int64_t heads;
  int64_t stride;
  int64_t first;
  int64_t inputs;
  int64_t outputs;

  template <class Parts>
  void visit(Parts& parts) { parts(heads, stride, first, inputs, outputs); }
};

struct ActivationSettings {
  Activation kind;
  bool gated;

  template <class Parts>
  void visit(Parts& parts) { parts(kind, gated); }
};

struct AdaptedEmbeddingSettings {
  AdaptedShape shape;
  WeightKind weight_kind;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, weight_kind); }
};

struct AdaptedProductsSettings {
  int64_t outputs;
  AdaptedShape shape;
  WeightKind weight_kind;

  template <class Parts>
  void visit(Parts& parts) { parts(outputs, shape, weight_kind); }
};

struct AdaptedSumSettings {
  AdaptedShape shape;

  template <class Parts>
  void visit(Parts& parts) { parts(shape); }
};

struct AddNormSettings {
  float epsilon;
  bool centred;

  template <class Parts>
  void visit(Parts& parts) { parts(epsilon, centred); }
};

struct AllGatherSettings {
  TensorSlice shard;
  int64_t total;
  int64_t group;

  template <class Parts>
  void visit(Parts& parts) { parts(shard, total, group); }
};

struct AllReduceSettings {
  TensorSlice shard;
  int64_t group;

  template <class Parts>
  void visit(Parts& parts) { parts(shard, group); }
};

struct AttentionSettings {
  AttentionShape shape;
  bool is_rounded;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, is_rounded); }
};

struct CappedSettings {
  float cap;

  template <class Parts>
  void visit(Parts& parts) { parts(cap); }
};

struct CausalConvolutionSettings {
  ConvolutionShape shape;

  template <class Parts>
  void visit(Parts& parts) { parts(shape); }
};

struct ColumnsSettings {
  int64_t first;
  int64_t count;

  template <class Parts>
  void visit(Parts& parts) { parts(first, count); }
};

struct CrossAttentionSettings {
  AttentionShape shape;

  template <class Parts>
  void visit(Parts& parts) { parts(shape); }
};

struct DistanceAttentionSettings {
  AttentionShape shape;
  bool within_step;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, within_step); }
};

struct EmbeddingSettings {
  int64_t width;
  WeightKind weight_kind;

  template <class Parts>
  void visit(Parts& parts) { parts(width, weight_kind); }
};

struct ExpertProductsSettings {
  ExpertsShape shape;
  WeightKind up_kind;
  WeightKind down_kind;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, up_kind, down_kind); }
};

struct ExpertSumSettings {
  ExpertsShape shape;

  template <class Parts>
  void visit(Parts& parts) { parts(shape); }
};

struct ExpertsSettings {
  ExpertsShape shape;
  WeightKind up_kind;
  WeightKind down_kind;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, up_kind, down_kind); }
};

struct GatedSettings {
  Activation kind;
  int64_t width;
  int64_t first;
  float epsilon;

  template <class Parts>
  void visit(Parts& parts) { parts(kind, width, first, epsilon); }
};

struct GatedDeltaSettings {
  DeltaShape shape;

  template <class Parts>
  void visit(Parts& parts) { parts(shape); }
};

struct GroupNormSettings {
  float epsilon;

  template <class Parts>
  void visit(Parts& parts) { parts(epsilon); }
};

struct HeadProductsSettings {
  HeadProductsShape shape;
  WeightKind matrices_kind;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, matrices_kind); }
};

struct IdsFromSettings {
  int64_t first;

  template <class Parts>
  void visit(Parts& parts) { parts(first); }
};

struct LatentHeadsSettings {
  int64_t heads;
  int64_t rope;

  template <class Parts>
  void visit(Parts& parts) { parts(heads, rope); }
};

struct LinearSettings {
  int64_t outputs;
  WeightKind weight_kind;

  template <class Parts>
  void visit(Parts& parts) { parts(outputs, weight_kind); }
};

struct NormSettings {
  float epsilon;
  bool centred;

  template <class Parts>
  void visit(Parts& parts) { parts(epsilon, centred); }
};

struct NormBySumsSettings {
  AttentionShape shape;
  float epsilon;
  Numbers<int32_t> totals;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, epsilon, totals); }
};

struct ReceiveHiddenSettings {
  int64_t stage;
  int64_t tensor_rank;
  int64_t width;
  int64_t group;

  template <class Parts>
  void visit(Parts& parts) { parts(stage, tensor_rank, width, group); }
};

struct RotarySettings {
  AttentionShape shape;
  float epsilon;
  bool is_interleaved;
  bool in_halves;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, epsilon, is_interleaved, in_halves); }
};

struct RotaryAnglesSettings {
  Numbers<float> inverse_frequencies;
  float scale;

  template <class Parts>
  void visit(Parts& parts) { parts(inverse_frequencies, scale); }
};

struct ScaledSettings {
  float factor;

  template <class Parts>
  void visit(Parts& parts) { parts(factor); }
};

struct SendHiddenSettings {
  int64_t stage;
  int64_t tensor_rank;
  int64_t group;

  template <class Parts>
  void visit(Parts& parts) { parts(stage, tensor_rank, group); }
};

struct SquareSumsSettings {
  AttentionShape shape;
  Numbers<int32_t> segments;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, segments); }
};

struct TemperedSettings {
  AttentionShape shape;
  float floor;
  float factor;

  template <class Parts>
  void visit(Parts& parts) { parts(shape, floor, factor); }
};

struct WriteCacheSettings {
  AttentionShape shape;

  template <class Parts>
  void visit(Parts& parts) { parts(shape); }
};

struct XieluSettings {
  float beta;
  float epsilon;

  template <class Parts>
  void visit(Parts& parts) { parts(beta, epsilon); }
};

}  // namespace mindbatch
