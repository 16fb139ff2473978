// Runs every kernel over odd shapes under the sanitizers it was built with.
//
// driver VARIANT SEED RANDOM_CASES [BUFFER]: exits 0 when all is well, 3 when this machine cannot run the
// variant, 1 with a line "FAULT: ..." for a wrong number; a sanitizer ends it otherwise. BUFFER is allocated
// one element short, which the sanitizer must notice: proof that it would notice a kernel's overflow.
#include "adapter_case.h"
#include "choice_case.h"
#include "codes_cases.h"
#include "dense_cases.h"
#include "encoder_case.h"
#include "expert_case.h"
#include "fused_case.h"
#include "latent_case.h"
#include "program_case.h"
#include "recurrent_case.h"
#include "rounded_attention_case.h"
#include "rounded_cases.h"

namespace {

std::vector<AttentionCase> attention_cases() {
  return {
      {1, 1, 2, 8, 0, {{0, 1}}, 0, 0},
      {2, 1, 20, 16, 0, {{0, 13}, {5, 1}, {40, 3}}, 3, 1},
      {3, 1, 64, 32, 7, {{31, 2}, {32, 1}, {0, 33}}, 0, 0},
      {9, 1, 33, 8, 65, {{63, 1}, {64, 1}, {100, 9}}, 1, 2, 0, 1.5f},
      {14, 2, 6, 24, 1, {{47, 1}, {0, 49}}, 0, 0},
      {5, 5, 256, 128, 0, {{127, 1}}, 1, 0},
      {18, 2, 80, 64, 16, {{30, 34}, {63, 1}}, 2, 3},
      {5, 1, 7, 16, 0, {{0, 19}, {300, 3}, {257, 1}}, 1, 0, 1},
      {3, 3, 20, 64, 9, {{0, 35}, {299, 2}}, 0, 1, 2},
      {6, 2, 10, 16, 7, {{0, 35}, {299, 2}, {40, 1}}, 1, 0, 0, 0, false, false, true},
      {1, 1, 64, 16, 0, {{0, 3}, {270, 1}}, 0, 0, 0, 0, false, false, true},
      {4, 2, 20, 16, -8, {{0, 35}, {299, 2}, {39, 1}, {40, 1}}, 1, 0},
      {2, 1, 33, 32, -300, {{0, 5}, {299, 3}}, 0, 1, 0, 1.5f},
  };
}

void fixed_fusions(Random& random, bool emulated) {
  for (const int64_t rows : {0, 1, 3, 5, 15, 50})
    for (const int64_t depth : {1, 33, 100}) fused_cases(random, rows, depth, 33, emulated);
}

void random_fusion(Random& random, bool emulated) {
  fused_cases(random, random.between(1, 60), random.between(1, 300), random.between(1, 100), emulated);
}

void fixed_cases(Random& random) {
  for (const int64_t rows : {1, 2, 3, 14, 15, 29})
    for (const int64_t depth : {1, 15, 33, 257})
      for (const int64_t columns : {1, 2, 31, 33, 65}) linear_case(random, rows, depth, columns, rows % 2);
  for (const int64_t vocabulary : {1, 31, 33, 97})
    for (const int64_t depth : {1, 20, 33}) embed_case(random, vocabulary, depth);
  for (const int64_t rows : {1, 5})
    for (const int64_t width : {1, 2, 7, 16, 31, 33, 257}) {
      cap_case(random, rows, width);
      xielu_case(random, rows, width);
      norm_case(random, rows, width, width > 1, rows > 1);
      norm_case(random, rows, width, false, rows == 1);
      norm_case(random, rows, width, false, true, true);
      group_norm_case(random, rows, width % 3 + 1, width);
      tempered_case(random, rows, width, width / 2);
      for (int32_t kind = 0; kind < 4; kind++) activation_case(random, rows, width, kind, kind % 2);
    }
  for (const int64_t width : {1, 15, 33, 1024, 1041}) likeliest_case(random, 3, width);
  for (const int64_t head_dim : {2, 6, 20, 64, 80, 256})
    for (const int64_t rotary_dim : {int64_t{0}, int64_t{2}, head_dim})
      rotary_case(random, 3, 4, 2, head_dim, rotary_dim, head_dim % 3 > 0, head_dim % 4 == 0);
  for (const int64_t head_dim : {4, 20, 68, 128}) rotary_case(random, 3, 4, 2, head_dim, head_dim, head_dim % 3 > 0, 2);
  for (const int64_t segments : {1, 2, 8}) square_sums_case(random, 3, segments, 20);
  choice_cases(random);
  rounded_cases(random);
  codes_cases(random);
  fixed_fusions(random, false);
  adapter_cases(random);
  expert_cases(random);
  latent_cases(random);
  recurrent_cases(random);
  for (const int64_t tokens : {0, 1, 8, 17})
    for (const int64_t width : {1, 33}) {
      angles_case(random, tokens, width);
      rows_case(random, tokens, 5, width);
      for (const bool fails : {false, true}) program_case(random, tokens, width, fails);
    }
  for (const AttentionCase& each : attention_cases()) {
    attention_case(random, each);
    rounded_attention_case(random, each);
    outside_cases(random, each);
    encoder_cases(random, each);
  }
}

void random_attention(Random& random, bool rounds = false) {
  const int64_t kv_heads = random.between(1, 3);
  AttentionCase a = {kv_heads * random.between(1, 11), kv_heads, random.one_of<int64_t>({2, 7, 16, 34, 80}),
                     random.one_of<int64_t>({8, 16, 24, 32, 64}), random.one_of<int64_t>({0, 0, 1, 9, 33, -7}),
                     {}, random.between(0, 2), random.between(0, 2), random.one_of<int>({0, 0, 1, 2}),
                     random.one_of<float>({0, 0, 0.4f, 50}), rounds, false, random.next() % 3 == 0};
  // ALiBi counts from the token itself, which moves all scores but that of a sink: no model has both.
  if (a.alibi == 1) a.has_sinks = false;
  for (int64_t i = random.between(1, 3); i > 0; i--)
    a.sequences.push_back({random.between(0, 70), random.between(1, random.one_of<int64_t>({1, 9, 40}))});
  attention_case(random, a);
  rounded_attention_case(random, a);
  outside_cases(random, a);
  if (!rounds) encoder_cases(random, a);
}

void random_case(Random& random) {
  const bool either = random.next() % 2, other = random.next() % 2;
  linear_case(random, random.between(1, 40), random.between(1, 530), random.between(1, 100), either);
  embed_case(random, random.between(1, 100), random.between(1, 70));
  norm_case(random, random.between(1, 9), random.between(1, 300), either, other);
  activation_case(random, random.between(1, 9), random.between(1, 70), random.between(0, 3), either);
  group_norm_case(random, random.between(1, 9), random.between(1, 5), random.between(1, 100));
  tempered_case(random, random.between(1, 40), random.between(30, 100), random.between(0, 30));
  likeliest_case(random, random.between(1, 5), random.between(1, 2100));
  random_choice_case(random);
  const int64_t head_dim = 2 * random.between(1, 128);
  rotary_case(random, random.between(1, 5), random.between(1, 9), random.between(1, 4), head_dim,
              2 * random.between(0, head_dim / 2), random.between(0, 2) > 0, other);
  square_sums_case(random, random.between(1, 5), random.between(1, 4), random.between(1, 40));
  cap_case(random, random.between(1, 9), random.between(1, 3000));
  xielu_case(random, random.between(1, 9), random.between(1, 3000));
  random_attention(random);
  angles_case(random, random.between(0, 40), random.between(1, 70), random.between(1, 2));
  rows_case(random, random.between(0, 40), random.between(1, 40), random.between(1, 70));
  program_case(random, random.between(0, 40), random.between(1, 70), either);
  adapter_case(random, random_adapters(random));
  random_expert_case(random);
  random_latent_case(random);
  random_recurrent_case(random);
  random_rounded_case(random);
  random_codes_case(random);
  random_fusion(random, false);
}

// Instruction sets that have products of their own, amx attention, too; all else they share with the one before them.
bool has_products_only(const std::string& variant) { return variant == "amx" || variant.find('_') != variant.npos; }

void fixed_products(Random& random, bool attends) {
  rounded_cases(random);
  codes_cases(random);
  fixed_fusions(random, true);
  if (!attends) return;
  for (AttentionCase each : attention_cases()) {
    each.rounds = true;
    attention_case(random, each);
    rounded_attention_case(random, each);
  }
}

void random_products(Random& random, bool attends) {
  random_rounded_case(random);
  random_codes_case(random);
  random_fusion(random, true);
  if (attends) random_attention(random, true);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return 2;
  if (!mb_set_variant(arguments[1])) return 3;
  Random random = {std::strtoull(arguments[2], nullptr, 10)};
  if (count > 4) planted = arguments[4];
  const bool products = has_products_only(arguments[1]), attends = arguments[1] == std::string("amx");
  products ? fixed_products(random, attends) : fixed_cases(random);
  for (long i = std::strtol(arguments[3], nullptr, 10); i > 0; i--)
    products ? random_products(random, attends) : random_case(random);
  std::puts("all kernels are right");
}
