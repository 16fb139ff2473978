// The entry points of layers with adapters: which rows have which, checked against the memory that there is.
#include <algorithm>
#include <memory>
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

  // Whether what a part has is in the arena, for a layer of `depth` inputs.
  bool within(const AdapterPart& its, int64_t width, int64_t depth) const {
    const auto fits = [&](int32_t first, int64_t count) { return first >= 0 && first + count <= size; };
    if (its.rank < 0 || !fits(its.a, panels(its.rank) * depth) || !fits(its.b, panels(width) * its.rank)) return false;
    return fits(its.scale, its.scale ? panels(width) : 0) && fits(its.offset, its.offset ? panels(width) : 0);
  }
};

// Rows by the slot of their adapters, those without any left out.
struct Groups {
  std::vector<int32_t> order;
  std::vector<AdapterGroup> groups;

  // False when a slot, or what an adapter has, is outside.
  bool find(const Adapters& adapters, const int32_t* slots, int64_t rows, int64_t depth) {
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
        if (!adapters.within(adapters.of(slot)[part], adapters.widths[part], depth)) return false;
      groups.push_back({first, count, adapters.of(slot)});
    }
    order.resize(static_cast<size_t>(counts.back()));
    for (int64_t row = 0; row < rows; row++)
      if (slots[row]) order[static_cast<size_t>(counts[static_cast<size_t>(slots[row])]++)] = static_cast<int32_t>(row);
    return true;
  }
};

// y[row] += what the row's adapter adds for x[row].
void add(const Adapters& adapters, const Groups& found, const float* x, float* y, int64_t depth, int64_t columns) {
  const auto rows = static_cast<int64_t>(found.order.size());
  int64_t floats_of_row = 0;
  for (const AdapterGroup& group : found.groups)
    for (int64_t part = 0; part < adapters.parts; part++)
      floats_of_row = std::max(floats_of_row, panels(group.parts[part].rank) * kAdapterPanel);
  const std::unique_ptr<float[]> memory(new float[static_cast<size_t>(rows * adapters.parts * floats_of_row)]);
  std::vector<float*> inner;
  for (int64_t i = 0; i < rows * adapters.parts; i++) inner.push_back(memory.get() + i * floats_of_row);
  std::vector<int32_t> starts(1);
  for (int64_t part = 1; part < adapters.parts; part++) starts.push_back(starts.back() + adapters.widths[part - 1]);
  const AdapterArgs arguments = {x, y, found.order.data(), found.groups.data(), inner.data(), adapters.arena,
                                 adapters.widths, starts.data(), rows, depth, columns,
                                 static_cast<int64_t>(found.groups.size()), adapters.parts};
  table->adapter_shrink(arguments);
  table->adapter_expand(arguments);
}

}  // namespace
}  // namespace mindbatch

using namespace mindbatch;

// x [rows, depth], weights [panels, depth, kPanel], bias [columns] or [1], slots [rows], arena [panels, kAdapterPanel],
// table [slots, parts, fields of AdapterPart], widths [parts] -> y [rows, columns]
// Fails, with nothing written, when a slot or an adapter is outside.
MB_OP(mb_adapted_linear) {
  PoolLock lock;
  const int64_t rows = shapes[0][0], depth = shapes[0][1], columns = shapes[7][1];
  const Adapters adapters = {floats(params[4]), static_cast<const AdapterPart*>(params[5]), ints(params[6]),
                             shapes[4][0], shapes[5][0], shapes[5][1]};
  Groups found;
  if (!found.find(adapters, ints(params[3]), rows, depth)) return kOutside;
  float* y = static_cast<float*>(params[7]);
  linear_of_step(params, shapes, ndims, y, columns);
  if (!found.groups.empty()) add(adapters, found, floats(params[0]), y, depth, columns);
  return 0;
}
