// Products of each head's numbers with a matrix of its own, and the heads of latent attention, against plain loops.
#pragma once
#include "dense_cases.h"

// Head h reads `inputs` numbers of a row from h * stride + first on; a row has `more` numbers behind the heads.
struct HeadCase {
  int64_t rows, heads, stride, first, inputs, outputs, more;
};

inline void head_case(Random& random, const HeadCase& a) {
  running = "head products " + std::to_string(a.rows) + "x" + std::to_string(a.heads) + "x" + std::to_string(a.inputs) + "x" +
            std::to_string(a.outputs);
  const int64_t width = a.heads * a.stride + a.more;
  const Floats x = drawn(random, "heads.x", {a.rows, width}),
               weights = drawn(random, "heads.weights", {a.heads * panels(a.outputs), 1, a.inputs, kPanelWidth});
  const auto settings = [&](int64_t first) {
    return words_of("heads.settings", mindbatch::HeadProductsSettings{{a.heads, a.stride, first, a.inputs, a.outputs}});
  };
  const Floats y = empty("heads.y", {a.rows, a.heads * a.outputs});
  require(call(mb_head_products, {x, weights, settings(a.first), y}) == 0, "failed");
  std::vector<double> expected;
  for (int64_t r = 0; r < a.rows; r++)
    for (int64_t h = 0; h < a.heads; h++)
      for (int64_t c = 0; c < a.outputs; c++) {
        double sum = 0;
        for (int64_t k = 0; k < a.inputs; k++)
          sum += x.values[r * width + h * a.stride + a.first + k] *
                 packed(weights, a.inputs, h * panels(a.outputs) * kPanelWidth + c, k);
        expected.push_back(sum);
      }
  compare(y, expected, static_cast<double>(a.inputs));
  require(call(mb_head_products, {x, weights, settings(a.stride - a.inputs + 1), y}) != 0, "reads behind a head");
}

inline void latent_heads_case(Random& random, int64_t tokens, int64_t heads, int64_t plain, int64_t rope, int64_t rank) {
  running = "latent heads " + std::to_string(tokens) + "x" + std::to_string(heads) + "x" + std::to_string(rank);
  const int64_t width = heads * (plain + rope), size = rope + rank;
  const Floats queries = drawn(random, "latent.queries", {tokens, width}),
               absorbed = drawn(random, "latent.absorbed", {tokens, heads * rank}),
               keys = drawn(random, "latent.keys", {tokens, rank + rope}),
               latents = drawn(random, "latent.latents", {tokens, rank}),
               qkv = empty("latent.qkv", {tokens, (heads + 2) * size});
  const auto settings = [&](int64_t rope) {
    return words_of("latent.settings", mindbatch::LatentHeadsSettings{heads, rope});
  };
  require(call(mb_latent_heads, {queries, absorbed, keys, latents, settings(rope), qkv}) == 0, "failed");
  std::vector<double> expected;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < heads + 2; h++) {
      for (int64_t i = 0; i < rope; i++)
        expected.push_back(h < heads ? queries.values[t * width + heads * plain + h * rope + i]
                                     : keys.values[t * (rank + rope) + rank + i]);
      for (int64_t i = 0; i < rank; i++)
        expected.push_back(h < heads ? absorbed.values[(t * heads + h) * rank + i] : latents.values[t * rank + i]);
    }
  compare(qkv, expected);
  require(call(mb_latent_heads, {queries, absorbed, keys, latents, settings(rank + rope + 1), qkv}) != 0,
          "more is rotated than there is");
  const Floats y = empty("latent.columns", {tokens, rank});
  const auto from = [&](int64_t first) { return words_of("columns.settings", mindbatch::ColumnsSettings{first, rank}); };
  require(call(mb_columns, {keys, from(rope), y}) == 0, "failed");
  std::vector<double> columns;
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t i = 0; i < rank; i++) columns.push_back(keys.values[t * (rank + rope) + rope + i]);
  compare(y, columns);
  require(call(mb_columns, {keys, from(rope + 1), y}) != 0, "reads behind a row");
}

inline void latent_cases(Random& random) {
  for (const HeadCase& each : std::vector<HeadCase>{
           {1, 1, 1, 0, 1, 1, 0}, {3, 5, 9, 2, 7, 33, 4}, {17, 16, 12, 4, 8, 20, 1}, {2, 3, 40, 0, 40, 31, 0}})
    head_case(random, each);
  latent_heads_case(random, 1, 1, 1, 2, 1);
  latent_heads_case(random, 19, 3, 5, 4, 7);
}

inline void random_latent_case(Random& random) {
  const int64_t first = random.between(0, 6), inputs = random.between(1, 40), heads = random.between(1, 20);
  head_case(random, {random.between(1, 20), heads, first + inputs + random.between(0, 3), first, inputs, random.between(1, 70),
                     random.between(0, 5)});
  latent_heads_case(random, random.between(1, 20), heads, random.between(1, 9), 2 * random.between(1, 4), random.between(1, 40));
}
