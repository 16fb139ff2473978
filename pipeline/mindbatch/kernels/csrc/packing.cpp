// Packing rows of a matrix as they are read, a panel at a time on all threads.
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "operators.h"
#include "thread_pool.h"

using namespace mindbatch;

// Writes rows [count, depth] to the outputs from first_output on of a packed matrix of zeros, or of rows that other
// calls wrote. stored: the StoredKind of the rows. Strides in numbers. Returns how many finite numbers the kind does not reach.
MB_EXPORT int64_t mb_pack(int kind, int stored, const char* rows, int64_t count, int64_t depth, int64_t row_stride,
                          int64_t column_stride, char* packed, int64_t first_output, int64_t segments) {
  PoolLock lock;
  const auto its = static_cast<WeightKind>(kind);
  const auto its_rows = static_cast<StoredKind>(stored);
  const int64_t first_panel = first_output / kPanel, last = first_output + count;
  std::atomic<int64_t> lost{0};
  auto body = [&](int64_t task, int) {
    const int64_t panel = first_panel + task;
    const int64_t begin = std::max(first_output, panel * kPanel), end = std::min(last, (panel + 1) * kPanel);
    const int64_t its_depth = depth / segments, bytes = panel_bytes(its_depth, its);
    for (int64_t s = 0; s < segments; s++) {
      const int64_t number = (begin - first_output) * row_stride + s * its_depth * column_stride;
      const PackArgs part = {its_rows, rows + number * number_bytes(its_rows), end - begin, its_depth, row_stride,
                             column_stride, packed + (panel * segments + s) * bytes, begin % kPanel};
      lost += table->pack[its](part);
    }
  };
  parallel_for((last + kPanel - 1) / kPanel - first_panel, body);
  return lost;
}
