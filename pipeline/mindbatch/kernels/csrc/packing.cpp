// Packs rows of a matrix as they are read, in the layout of linear_*.h: as they are, or rounded to bfloat16 or int8.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "operators.h"
#include "thread_pool.h"

namespace mindbatch {
namespace {

// In a packed panel the 4 bytes of an output for 1, 2 or 4 neighbouring inputs stand together: a unit. It has a
// line of units, one of each output, for every so many inputs.
constexpr int64_t kDepth = 64;  // inputs that are converted at once: whole cache lines, and units of every kind

// Rows [count, depth] of float32, wherever they stand in memory. Strides in numbers.
struct Rows {
  const float* first;
  int64_t count, depth, row_stride, column_stride;
};

// Outputs of one panel that a call writes: rows [first, first + count) go to its columns from `column` on.
struct PanelPart {
  char* panel;
  int64_t first, count, column;
};

using Tile = float[kDepth][kPanel];  // numbers of a panel's outputs, each input's side by side
using Line = uint32_t[kPanel];

typedef uint32_t Four __attribute__((vector_size(16)));

Four four_bits(const float* from) {
  Four bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

// Numbers [k0, k0 + 4) of 4 neighbouring rows, turned.
void turn_4x4(const float* from, int64_t row_stride, float* to) {
  const Four a = four_bits(from), b = four_bits(from + row_stride);
  const Four c = four_bits(from + 2 * row_stride), d = four_bits(from + 3 * row_stride);
  const Four ab = __builtin_shuffle(a, b, Four{0, 4, 1, 5}), ab2 = __builtin_shuffle(a, b, Four{2, 6, 3, 7});
  const Four cd = __builtin_shuffle(c, d, Four{0, 4, 1, 5}), cd2 = __builtin_shuffle(c, d, Four{2, 6, 3, 7});
  const Four turned[4] = {
      __builtin_shuffle(ab, cd, Four{0, 1, 4, 5}), __builtin_shuffle(ab, cd, Four{2, 3, 6, 7}),
      __builtin_shuffle(ab2, cd2, Four{0, 1, 4, 5}), __builtin_shuffle(ab2, cd2, Four{2, 3, 6, 7})};
  for (int64_t k = 0; k < 4; k++) std::memcpy(to + k * kPanel, &turned[k], sizeof(Four));
}

// Inputs [k0, k0 + depth) of the part's rows; the tile is zero elsewhere.
void read_tile(const Rows& rows, const PanelPart& part, int64_t k0, int64_t depth, Tile& tile) {
  const int64_t row_stride = rows.row_stride, column_stride = rows.column_stride;
  const float* from = rows.first + part.first * row_stride + k0 * column_stride;
  if (column_stride == 1 && part.count == kPanel && depth == kDepth) {
    for (int64_t row = 0; row < kPanel; row += 4)
      for (int64_t k = 0; k < kDepth; k += 4) turn_4x4(from + row * row_stride + k, row_stride, &tile[k][row]);
    return;
  }
  if (part.count < kPanel || depth < kDepth) std::memset(tile, 0, sizeof(tile));
  if (row_stride == 1) {
    for (int64_t k = 0; k < depth; k++)
      for (int64_t row = 0; row < part.count; row++) tile[k][row] = from[k * column_stride + row];
  } else {
    for (int64_t k = 0; k < depth; k++)
      for (int64_t row = 0; row < part.count; row++)
        tile[k][row] = from[row * row_stride + k * column_stride];
  }
}

// Calls body(tile, k0, depth) for all inputs of a part, kDepth at a time.
template <class Body>
void each_tile(const Rows& rows, const PanelPart& part, Body body) {
  Tile tile;
  for (int64_t k0 = 0; k0 < rows.depth; k0 += kDepth) {
    const int64_t depth = std::min(kDepth, rows.depth - k0);
    read_tile(rows, part, k0, depth, tile);
    body(tile, k0, depth);
  }
}

void write_line(const Line& units, const PanelPart& part, int64_t line) {
  auto* to = reinterpret_cast<uint32_t*>(part.panel) + line * kPanel + part.column;
  std::memcpy(to, units, static_cast<size_t>(part.count) * 4);
}

void pack_float32(const Rows& rows, const PanelPart& part) {
  each_tile(rows, part, [&](const Tile& tile, int64_t k0, int64_t depth) {
    for (int64_t k = 0; k < depth; k++) {
      Line units;
      std::memcpy(units, tile[k], sizeof(units));
      write_line(units, part, k0 + k);
    }
  });
}

// To nearest, ties to even; a NaN keeps its upper half and is made quiet. Counts finite numbers that become infinite.
void round_to_bfloat16(const float* numbers, Line& rounded, Line& lost) {
  Line bits;
  std::memcpy(bits, numbers, sizeof(bits));
  for (int64_t row = 0; row < kPanel; row++) {
    const uint32_t size = bits[row] & 0x7fffffff;
    const uint32_t nearest = (bits[row] + 0x7fff + (bits[row] >> 16 & 1)) >> 16;
    rounded[row] = size > 0x7f800000 ? bits[row] >> 16 | 0x40 : nearest;
    lost[row] += size < 0x7f800000 && (nearest & 0x7fff) == 0x7f80;
  }
}

int64_t pack_bfloat16(const Rows& rows, const PanelPart& part) {
  Line lost = {};
  each_tile(rows, part, [&](const Tile& tile, int64_t k0, int64_t depth) {
    for (int64_t k = 0; k < depth; k += 2) {
      Line low, high;
      round_to_bfloat16(tile[k], low, lost);
      round_to_bfloat16(tile[k + 1], high, lost);
      for (int64_t row = 0; row < kPanel; row++) low[row] |= high[row] << 16;
      write_line(low, part, (k0 + k) / 2);
    }
  });
  int64_t all = 0;
  for (const uint32_t each : lost) all += each;
  return all;
}

// The largest number of each row is 127 times its scale. A row with a number that is none gets such a scale.
struct RowScales {
  float most[kPanel] = {}, poison[kPanel] = {};

  void include(const float* numbers) {
    for (int64_t row = 0; row < kPanel; row++) {
      const float size = std::fabs(numbers[row]);
      most[row] = size > most[row] ? size : most[row];
      poison[row] += numbers[row] * 0;
    }
  }

  // Divisors for which such rows, and those of zeros, become zeros.
  void divisors(float* found) const {
    for (int64_t row = 0; row < kPanel; row++)
      found[row] = most[row] > 0 && poison[row] == 0 ? most[row] : std::numeric_limits<float>::infinity();
  }
};

// 127ths of the divisor; nearest, ties to even, as the sum with 1.5 * 2^23 leaves it in its lowest bits.
void round_to_int8(const float* numbers, const float* divisors, Line& rounded, int32_t* sums) {
  for (int64_t row = 0; row < kPanel; row++) {
    const float ratio = numbers[row] / divisors[row];
    const float shifted = (ratio == ratio ? ratio : 0) * 127 + 12582912.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, 4);
    rounded[row] = bits & 0xff;
    sums[row] += static_cast<int32_t>(bits) - 0x4b400000;
  }
}

void pack_int8(const Rows& rows, const PanelPart& part) {
  RowScales scales;
  each_tile(rows, part, [&](const Tile& tile, int64_t, int64_t depth) {
    for (int64_t k = 0; k < depth; k++) scales.include(tile[k]);
  });
  float divisors[kPanel];
  scales.divisors(divisors);
  int32_t sums[kPanel] = {};
  each_tile(rows, part, [&](const Tile& tile, int64_t k0, int64_t depth) {
    for (int64_t k = 0; k < depth; k += 4) {
      Line units = {};
      for (int64_t place = 0; place < 4; place++) {
        Line rounded;
        round_to_int8(tile[k + place], divisors, rounded, sums);
        for (int64_t row = 0; row < kPanel; row++) units[row] |= rounded[row] << (8 * place);
      }
      write_line(units, part, (k0 + k) / 4);
    }
  });
  char* tail = part.panel + padded_depth(rows.depth, kInt8) * kPanel;
  auto* factors = reinterpret_cast<float*>(tail) + part.column;
  auto* offsets = reinterpret_cast<int32_t*>(tail) + kPanel + part.column;
  for (int64_t row = 0; row < part.count; row++) {
    factors[row] = scales.most[row] / 127 + scales.poison[row];
    offsets[row] = 128 * sums[row];
  }
}

}  // namespace
}  // namespace mindbatch

using namespace mindbatch;

// Writes rows [count, depth] to the outputs from first_output on of a packed matrix of zeros, or of rows that other
// calls wrote. Strides in numbers. Returns how many finite numbers the kind does not reach.
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
    if (its == kFloat32) pack_float32(all, part);
    else if (its == kBfloat16) lost += pack_bfloat16(all, part);
    else pack_int8(all, part);
  };
  parallel_for((last + kPanel - 1) / kPanel - first_panel, body);
  return lost;
}
