// The entry points of layers with adapters: which rows have which, checked against the memory that there is.
#include <algorithm>
#include <numeric>
#include <vector>

#include "operators.h"
#include "thread_pool.h"

namespace mindbatch {
namespace {

int64_t panels(int64_t numbers) { return (numbers + kAdapterPanel - 1) / kAdapterPanel; }

// The adapters of a layer. size: panels of the arena. slots: those of the table, the base's among them.
struct Adapters {
  const float* arena;
  const AdapterPart* table;
  const int32_t* widths;
  int64_t size, slots, parts;

  const AdapterPart* of(int64_t slot) const { return table + slot * parts; }

  bool fits(int32_t first, int64_t count) const { return first >= 0 && first + count <= size; }

  // Whether what a part has is in the arena. a_size: panels of A. whole_size: panels of whole weights.
  bool within(const AdapterPart& its, int64_t width, int64_t a_size, int64_t whole_size) const {
    if (its.rank < 0 || !fits(its.a, a_size) || !fits(its.b, panels(width) * its.rank)) return false;
    return fits(its.scale, its.scale ? panels(width) : 0) && fits(its.offset, its.offset ? panels(width) : 0) &&
           fits(its.whole, its.whole ? whole_size : 0) && (parts == 1 || !its.whole);
  }
};

// Rows by the slot of their adapters, those without any left out.
struct Groups {
  std::vector<int32_t> order;
  std::vector<AdapterGroup> groups;

  // False when a slot, or what an adapter has, is outside. within: (part of an adapter, width) -> bool.
  template <class Within>
  bool find(const Adapters& adapters, const int32_t* slots, int64_t rows, Within within) {
    std::vector<int64_t> counts(static_cast<size_t>(adapters.slots) + 1);
    for (int64_t row = 0; row < rows; row++) {
      if (slots[row] < 0 || slots[row] >= adapters.slots) return false;
      counts[static_cast<size_t>(slots[row]) + 1]++;
    }
    counts[1] = 0;
    for (int64_t slot = 1; slot < adapters.slots; slot++) {
      const int64_t count = counts[static_cast<size_t>(slot) + 1];
      const int64_t first = counts[static_cast<size_t>(slot)];
      counts[static_cast<size_t>(slot) + 1] = first + count;
      if (count == 0) continue;
      for (int64_t part = 0; part < adapters.parts; part++)
        if (!within(adapters.of(slot)[part], adapters.widths[part])) return false;
      groups.push_back({first, count, adapters.of(slot)});
    }
    order.resize(static_cast<size_t>(counts.back()));
    for (int64_t row = 0; row < rows; row++)
      if (slots[row]) order[static_cast<size_t>(counts[static_cast<size_t>(slots[row])]++)] = static_cast<int32_t>(row);
    return true;
  }
};

// Where x A^T of each row of the groups is in inner [rows, rank], the parts' side by side, for each part.
std::vector<float*> rows_of_inner(const Groups& found, const AdaptedShape& shape, float* inner, int64_t rank) {
  std::vector<float*> rows;
  for (int64_t part = 0, first = 0; part < shape.ranks.count; first += shape.ranks[part++])
    for (const int32_t row : found.order) rows.push_back(inner + row * rank + first);
  return rows;
}

std::vector<int32_t> starts_of(const AdaptedShape& shape) {
  std::vector<int32_t> starts(1);
  for (int64_t part = 1; part < shape.widths.count; part++) starts.push_back(starts.back() + shape.widths[part - 1]);
  return starts;
}

// Rows of a group whose adapter has whole weights: computed anew, by the kernel of the layer's own.
void replace_rows(const Adapters& adapters, const Groups& found, const float* x, float* y, int64_t depth,
                  int64_t columns, int64_t segments) {
  for (const AdapterGroup& group : found.groups) {
    if (!group.parts->whole) continue;
    std::vector<float> its_x(static_cast<size_t>(group.rows * depth));
    std::vector<float> its_y(static_cast<size_t>(group.rows * columns));
    const int32_t* order = found.order.data() + group.first;
    for (int64_t i = 0; i < group.rows; i++)
      std::copy_n(x + order[i] * depth, depth, its_x.data() + i * depth);
    table->linear[kFloat32]({its_x.data(), adapters.arena + int64_t{group.parts->whole} * kAdapterPanel, nullptr,
                             its_y.data(), group.rows, depth, columns, segments});
    for (int64_t i = 0; i < group.rows; i++)
      std::copy_n(its_y.data() + i * columns, columns, y + order[i] * columns);
  }
}

// The same of rows of a table of `vocabulary` tokens.
void replace_tokens(const Adapters& adapters, const Groups& found, const int32_t* ids, float* y, int64_t depth,
                    int64_t vocabulary) {
  for (const AdapterGroup& group : found.groups)
    for (int64_t i = 0; group.parts->whole && i < group.rows; i++) {
      const int64_t row = found.order[static_cast<size_t>(group.first + i)];
      table->embed[kFloat32]({ids + row, adapters.arena + int64_t{group.parts->whole} * kAdapterPanel, y + row * depth,
                              1, depth, vocabulary});
    }
}

// y[row] += B A[:, id] for rows of tokens, A being packed as [vocabulary, rank]; nothing for ids outside.
void add_tokens(const Adapters& adapters, Groups& found, const int32_t* ids, float* y, int64_t depth,
                int64_t vocabulary, float* zeros) {
  std::vector<float*> inner;
  for (const AdapterGroup& group : found.groups)
    for (int64_t i = 0; i < group.rows; i++) {
      const AdapterPart& its = *group.parts;
      const int64_t id = ids[found.order[static_cast<size_t>(group.first + i)]];
      const float* row = adapters.arena + int64_t{its.a} * kAdapterPanel + id * its.rank;
      inner.push_back(id < 0 || id >= vocabulary ? zeros : const_cast<float*>(row));
    }
  const int32_t start = 0;
  table->adapter_expand({nullptr, y, found.order.data(), found.groups.data(), inner.data(), adapters.arena,
                         adapters.widths, &start, static_cast<int64_t>(found.order.size()), 0, depth,
                         static_cast<int64_t>(found.groups.size()), 1});
}

// Finds the adapters of rows, and whether what they have is within memory. rank: numbers of x A^T of a row. depth: 0 where
// only B is read.
bool find_adapters(const Adapters& adapters, const AdaptedShape& shape, const int32_t* slots, int64_t rows, int64_t rank,
                   int64_t depth, int64_t whole_size, Groups& found) {
  if (std::accumulate(shape.ranks.data, shape.ranks.data + shape.ranks.count, int64_t{0}) > rank) return false;
  if (shape.ranks.count != adapters.parts || shape.widths.count != adapters.parts) return false;
  for (int64_t part = 0; part < adapters.parts; part++)
    for (int64_t slot = 1; slot < adapters.slots; slot++)
      if (adapters.of(slot)[part].rank > shape.ranks[part]) return false;
  return found.find(adapters, slots, rows, [&](const AdapterPart& its, int64_t width) {
    return adapters.within(its, width, panels(its.rank) * depth, depth ? whole_size : 0);
  });
}

// x [rows, depth], packed weights [panels, segments, ...], slots [rows], arena [panels, kAdapterPanel], table [slots, parts,
// fields of AdapterPart], settings -> y [rows, columns], inner [rows, rank]
// Fails, with nothing written, when a slot or an adapter is outside.
int adapted_products(int count, void** params, int64_t** shapes) {
  PoolLock lock;
  const auto settings = read_settings<AdaptedProductsSettings>(params[5]);
  const AdaptedShape& shape = settings.shape;
  const int64_t rows = shapes[0][0], depth = shapes[0][1], columns = shapes[6][1], rank = shapes[7][1];
  const int64_t segments = shapes[1][1], whole = shapes[1][0] * depth * (kPanel / kAdapterPanel);
  const Adapters adapters = {floats(params[3]), static_cast<const AdapterPart*>(params[4]), shape.widths.data,
                             shapes[3][0], shapes[4][0], shapes[4][1]};
  Groups found;
  if (count != 8 || !find_adapters(adapters, shape, ints(params[2]), rows, rank, depth, whole, found)) return kOutside;
  const float* x = floats(params[0]);
  float *y = static_cast<float*>(params[6]), *inner = static_cast<float*>(params[7]);
  LinearArgs arguments = {x, params[1], nullptr, y, rows, depth, columns, segments};
  arguments.groups = groups_of(shapes[1], settings.weight_kind, depth);
  linear_of_step(arguments, settings.weight_kind);
  std::fill_n(inner, rows * rank, 0.0f);
  if (found.groups.empty()) return 0;
  replace_rows(adapters, found, x, y, depth, columns, segments);
  const auto of_inner = rows_of_inner(found, shape, inner, rank);
  table->adapter_shrink({x, y, found.order.data(), found.groups.data(), of_inner.data(), adapters.arena, adapters.widths,
                         nullptr, static_cast<int64_t>(found.order.size()), depth, columns,
                         static_cast<int64_t>(found.groups.size()), adapters.parts, segments});
  return 0;
}

// ids [tokens], packed weights [panels, ...], slots [tokens], arena, table [slots, 1, fields of AdapterPart],
// settings -> y [tokens, depth]
// Fails, with nothing written, when a slot or an adapter is outside.
int adapted_embedding(int count, void** params, int64_t** shapes) {
  PoolLock lock;
  const auto settings = settings_of<AdaptedEmbeddingSettings>(count, params);
  const AdaptedShape& shape = settings.shape;
  const int64_t tokens = shapes[0][0], depth = shapes[6][1], vocabulary = shape.inputs;
  const Adapters adapters = {floats(params[3]), static_cast<const AdapterPart*>(params[4]), shape.widths.data,
                             shapes[3][0], shapes[4][0], 1};
  const int64_t whole = shapes[1][0] * depth * (kPanel / kAdapterPanel);
  int64_t largest = 0;
  const auto within = [&](const AdapterPart& its, int64_t width) {
    largest = std::max(largest, int64_t{its.rank});
    return adapters.within(its, width, panels(its.rank * vocabulary), whole);
  };
  Groups found;
  if (!found.find(adapters, ints(params[2]), tokens, within)) return kOutside;
  float* y = static_cast<float*>(params[6]);
  const int32_t* ids = ints(params[0]);
  const int64_t rows = shapes[1][0] * kPanel;
  const InputGroups groups = groups_of(shapes[1], settings.weight_kind, depth);
  table->embed[settings.weight_kind]({ids, params[1], y, tokens, depth, rows, shapes[1][1], groups});
  if (found.groups.empty()) return 0;
  replace_tokens(adapters, found, ids, y, depth, rows);
  std::vector<float> zeros(static_cast<size_t>(largest));
  add_tokens(adapters, found, ids, y, depth, vocabulary, zeros.data());
  return 0;
}

}  // namespace
}  // namespace mindbatch

using namespace mindbatch;

MB_OP(mb_adapted_products) { return adapted_products(count, params, shapes); }

// y [rows, columns], inner [rows, rank], bias [columns] or [1], slots [rows], arena, table, settings -> [rows, columns]
// Fails, with nothing written, when a slot or an adapter is outside.
MB_OP(mb_adapted_sum) {
  PoolLock lock;
  const AdaptedShape shape = settings_of<AdaptedSumSettings>(count, params).shape;
  const int64_t rows = shapes[0][0], columns = shapes[0][1], rank = shapes[1][1];
  const Adapters adapters = {floats(params[4]), static_cast<const AdapterPart*>(params[5]), shape.widths.data,
                             shapes[4][0], shapes[5][0], shapes[5][1]};
  Groups found;
  if (!find_adapters(adapters, shape, ints(params[3]), rows, rank, 0, 0, found)) return kOutside;
  float *y = static_cast<float*>(params[7]), *inner = static_cast<float*>(params[1]);
  const float *x = floats(params[0]), *bias = optional(params, shapes, ndims, 2);
  auto add_bias = [=](int64_t r, int) {
    const bool has_bias = bias && !adapters.of(ints(params[3])[r])->whole;
    for (int64_t i = 0; i < columns; i++) y[r * columns + i] = x[r * columns + i] + (has_bias ? bias[i] : 0);
  };
  parallel_for(rows, add_bias);
  if (found.groups.empty()) return 0;
  const auto of_inner = rows_of_inner(found, shape, inner, rank);
  const auto starts = starts_of(shape);
  table->adapter_expand({nullptr, y, found.order.data(), found.groups.data(), of_inner.data(), adapters.arena,
                         adapters.widths, starts.data(), static_cast<int64_t>(found.order.size()), 0, columns,
                         static_cast<int64_t>(found.groups.size()), adapters.parts});
  return 0;
}

MB_OP(mb_adapted_embedding) { return adapted_embedding(count, params, shapes); }
