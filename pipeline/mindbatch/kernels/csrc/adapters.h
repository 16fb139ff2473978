// What adapters add to the rows of a linear layer: y[row] += (x[row] A^T) B^T with A and B of the row's slot.
//
// Each row is computed by itself, in chains of multiply-adds over k, of each of its segments, and then over the rank, in
// rising order: its result does not depend on the rows of its group or batch. Rows that share an adapter share the reading of it.
// A is packed as [rank / kAdapterPanel][depth][kAdapterPanel], B as [outputs / kAdapterPanel][rank][kAdapterPanel].

constexpr int kAdapterVecs = kAdapterPanel / kLanes;
constexpr int kAdapterRows = kLanes == 16 ? 14 : (kLanes == 8 ? 6 : 3);
constexpr int64_t kAdapterTasks = 8;  // for each thread

// sum[r] += sum over k of x[r][k] * panel[k]; panel: [depth, kAdapterPanel].
template <int Rows>
inline void adapter_tile(const float* const* x, const float* panel, int64_t depth, Vec (*sum)[kAdapterVecs]) {
  Vec acc[Rows][kAdapterVecs];
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < kAdapterVecs; v++) acc[r][v] = sum[r][v];
  for (int64_t k = 0; k < depth; k++) {
    Vec w[kAdapterVecs];
    for (int v = 0; v < kAdapterVecs; v++) w[v] = load(panel + k * kAdapterPanel + v * kLanes);
    for (int r = 0; r < Rows; r++) {
      const Vec value = splat(x[r][k]);
      for (int v = 0; v < kAdapterVecs; v++) acc[r][v] = fma(value, w[v], acc[r][v]);
    }
  }
  for (int r = 0; r < Rows; r++)
    for (int v = 0; v < kAdapterVecs; v++) sum[r][v] = acc[r][v];
}

using AdapterTileFn = void (*)(const float* const*, const float*, int64_t, Vec (*)[kAdapterVecs]);

template <int Rows>
inline AdapterTileFn pick_adapter_tile(int64_t rows) {
  if constexpr (Rows == 0) return nullptr;
  else return rows == Rows ? &adapter_tile<Rows> : pick_adapter_tile<Rows - 1>(rows);
}

inline int64_t panels_of(int64_t numbers) { return (numbers + kAdapterPanel - 1) / kAdapterPanel; }

// inner[part][row] = x[row] A^T for some rows of a group.
inline void shrink_rows(const AdapterArgs& a, const AdapterGroup& group, int64_t part, int64_t first, int64_t rows) {
  const AdapterPart& its = group.parts[part];
  const int64_t depth = a.depth / a.segments;
  for (int64_t p = 0; p < panels_of(its.rank); p++) {
    const float* panel = a.arena + its.a * kAdapterPanel + p * a.depth * kAdapterPanel;
    Vec waiting[kMostLevels + 1][kAdapterRows][kAdapterVecs];
    for (int64_t s = 0; s < a.segments; s++, panel += depth * kAdapterPanel) {
      const float* x[kAdapterRows];
      for (int64_t r = 0; r < rows; r++) x[r] = a.x + a.order[first + r] * a.depth + s * depth;
      Vec sum[kAdapterRows][kAdapterVecs] = {};
      pick_adapter_tile<kAdapterRows>(rows)(x, panel, depth, sum);
      const int level = complete_before(s);
      for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < kAdapterVecs; v++) {
          for (int l = 0; l < level; l++) sum[r][v] = waiting[l][r][v] + sum[r][v];
          waiting[level][r][v] = sum[r][v];
        }
    }
    const Vec(*whole)[kAdapterVecs] = waiting[complete_before(a.segments - 1)];
    const int64_t column = p * kAdapterPanel, left = its.rank - column;
    for (int64_t r = 0; r < rows; r++) {
      float* to = a.inner[part * a.rows + first + r] + column;
      each_vector(left < kAdapterPanel ? left : kAdapterPanel,
                  [&](int64_t i, int lanes) { store_part(to + i, whole[r][i / kLanes], lanes); });
    }
  }
}

// Calls body(group, part, n) for task number `task`, when each part of each group has `counts(group, part)` tasks.
template <class Counts, class Body>
inline void find_adapter_task(const AdapterArgs& a, int64_t task, Counts counts, Body body) {
  for (int64_t g = 0; g < a.num_groups; g++)
    for (int64_t part = 0; part < a.num_parts; part++) {
      const int64_t count = counts(a.groups[g], part);
      if (task < count) return body(a.groups[g], part, task);
      task -= count;
    }
}

template <class Counts, class Body>
inline void for_adapter_tasks(const AdapterArgs& a, Counts counts, Body body) {
  int64_t total = 0;
  for (int64_t g = 0; g < a.num_groups; g++)
    for (int64_t part = 0; part < a.num_parts; part++) total += counts(a.groups[g], part);
  auto run = [&](int64_t task, int) { find_adapter_task(a, task, counts, body); };
  parallel_for(total, run);
}

void adapter_shrink(const AdapterArgs& a) {
  const auto tiles = [&](const AdapterGroup& group, int64_t part) -> int64_t {
    return group.parts[part].rank ? (group.rows + kAdapterRows - 1) / kAdapterRows : 0;
  };
  for_adapter_tasks(a, tiles, [&](const AdapterGroup& group, int64_t part, int64_t tile) {
    const int64_t count = tiles(group, part), first = tile * group.rows / count;
    shrink_rows(a, group, part, group.first + first, (tile + 1) * group.rows / count - first);
  });
}

// y[row] = y[row] * scale + offset + inner[row] B^T for one panel of a part's outputs and some rows of a group.
inline void expand_rows(const AdapterArgs& a, const AdapterGroup& group, int64_t part, int64_t panel, int64_t first,
                        int64_t rows) {
  const AdapterPart& its = group.parts[part];
  const int64_t column = panel * kAdapterPanel, left = a.widths[part] - column;
  const int64_t columns = left < kAdapterPanel ? left : kAdapterPanel;
  Vec sum[kAdapterRows][kAdapterVecs] = {};
  float* y[kAdapterRows];
  for (int64_t r = 0; r < rows; r++) {
    y[r] = a.y + a.order[first + r] * a.columns + a.starts[part] + column;
    each_vector(columns, [&](int64_t i, int lanes) {
      Vec value = load_part(y[r] + i, lanes);
      if (its.scale) value = value * load(a.arena + its.scale * kAdapterPanel + column + i);
      if (its.offset) value = value + load(a.arena + its.offset * kAdapterPanel + column + i);
      sum[r][i / kLanes] = value;
    });
  }
  const float* b = a.arena + its.b * kAdapterPanel + panel * its.rank * kAdapterPanel;
  pick_adapter_tile<kAdapterRows>(rows)(a.inner + part * a.rows + first, b, its.rank, sum);
  for (int64_t r = 0; r < rows; r++)
    each_vector(columns, [&](int64_t i, int lanes) { store_part(y[r] + i, sum[r][i / kLanes], lanes); });
}

void adapter_expand(const AdapterArgs& a) {
  const int64_t parts = a.num_groups * a.num_parts;
  const int64_t wanted = (num_threads() * kAdapterTasks + parts - 1) / parts;  // tasks of each part of a group
  const auto runs = [&](const AdapterGroup& group, int64_t part) -> int64_t {
    const int64_t panels = panels_of(a.widths[part]);
    return group.parts[part].rank ? (panels < wanted ? panels : wanted) : 0;
  };
  for_adapter_tasks(a, runs, [&](const AdapterGroup& group, int64_t part, int64_t run) {
    const int64_t panels = panels_of(a.widths[part]), count = runs(group, part);
    const int64_t tiles = (group.rows + kAdapterRows - 1) / kAdapterRows;
    for (int64_t panel = run * panels / count; panel < (run + 1) * panels / count; panel++)
      for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t first = tile * group.rows / tiles;
        expand_rows(a, group, part, panel, group.first + first, (tile + 1) * group.rows / tiles - first);
      }
  });
}
