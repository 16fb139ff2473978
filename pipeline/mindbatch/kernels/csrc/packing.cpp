// Packs rows of a matrix as they are read: rounded to bfloat16 or int8, in the layout of linear_*.h.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "operators.h"
#include "thread_pool.h"

namespace mindbatch {
namespace {

constexpr int64_t kBlock = 16;  // numbers of a row that are read at once: a cache line

// Rows [count, depth] of float32, wherever they stand in memory. Strides in numbers.
struct Rows {
  const float* first;
  int64_t count, depth, row_stride, column_stride;

  float at(int64_t row, int64_t k) const { return first[row * row_stride + k * column_stride]; }
};

// Outputs of one panel that a call writes: rows [first, first + count) go to its columns from `column` on.
struct PanelPart {
  char* panel;
  int64_t first, count, column;
};

// Calls body(row, k) for each number of a part, in an order that suits both ways in which a matrix is stored.
template <class Body>
void each_number(const Rows& rows, const PanelPart& part, Body body) {
  for (int64_t k0 = 0; k0 < rows.depth; k0 += kBlock)
    for (int64_t row = 0; row < part.count; row++)
      for (int64_t k = k0; k < std::min(rows.depth, k0 + kBlock); k++) body(row, k);
}

// Rounds to nearest, ties to even; returns how many finite numbers became infinite.
int64_t pack_bfloat16(const Rows& rows, const PanelPart& part) {
  auto* to = reinterpret_cast<uint16_t*>(part.panel) + part.column * 2;
  int64_t lost = 0;
  each_number(rows, part, [&](int64_t row, int64_t k) {
    const float x = rows.at(part.first + row, k);
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint32_t nearest = x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : bits >> 16 | 0x40;
    lost += (nearest & 0x7fff) == 0x7f80 && (bits & 0x7fffffff) != 0x7f800000;
    to[k / 2 * kPanel * 2 + row * 2 + k % 2] = static_cast<uint16_t>(nearest);
  });
  return lost;
}

// The largest number of each row is 127 times its scale. A row with a number that is none gets such a scale.
void pack_int8(const Rows& rows, const PanelPart& part) {
  float most[kPanel] = {}, poison[kPanel] = {};
  int32_t sums[kPanel] = {};
  each_number(rows, part, [&](int64_t row, int64_t k) {
    const float x = rows.at(part.first + row, k);
    most[row] = std::max(most[row], std::fabs(x));
    poison[row] += x * 0;
  });
  auto* to = reinterpret_cast<int8_t*>(part.panel) + part.column * 4;
  each_number(rows, part, [&](int64_t row, int64_t k) {
    const float ratio = most[row] > 0 ? rows.at(part.first + row, k) / most[row] : 0;
    const auto number = static_cast<int32_t>(poison[row] == 0 ? std::nearbyint(ratio * 127) : 0);
    to[k / 4 * kPanel * 4 + row * 4 + k % 4] = static_cast<int8_t>(number);
    sums[row] += number;
  });
  char* tail = part.panel + padded_depth(rows.depth, kInt8) * kPanel;
  auto* scales = reinterpret_cast<float*>(tail) + part.column;
  auto* offsets = reinterpret_cast<int32_t*>(tail) + kPanel + part.column;
  for (int64_t row = 0; row < part.count; row++) {
    scales[row] = most[row] / 127 + poison[row];
    offsets[row] = 128 * sums[row];
  }
}

}  // namespace
}  // namespace mindbatch

using namespace mindbatch;

// Writes rows [count, depth] to the outputs from first_output on of a packed matrix of zeros, or of rows that other
// calls wrote. kind: bfloat16 or int8. Strides in numbers. Returns how many finite numbers the kind does not reach.
MB_EXPORT int64_t mb_pack(int kind, const float* rows, int64_t count, int64_t depth, int64_t row_stride,
                          int64_t column_stride, char* packed, int64_t first_output) {
  PoolLock lock;
  const Rows all = {rows, count, depth, row_stride, column_stride};
  const auto its = static_cast<WeightKind>(kind);
  const int64_t first_panel = first_output / kPanel, last = first_output + count;
  std::atomic<int64_t> lost{0};
  auto body = [&](int64_t task, int) {
    const int64_t panel = first_panel + task;
    const int64_t begin = std::max(first_output, panel * kPanel), end = std::min(last, (panel + 1) * kPanel);
    char* to = packed + panel * panel_bytes(depth, its);
    const PanelPart part = {to, begin - first_output, end - begin, begin % kPanel};
    if (its == kBfloat16) lost += pack_bfloat16(all, part);
    else pack_int8(all, part);
  };
  parallel_for((last + kPanel - 1) / kPanel - first_panel, body);
  return lost;
}
