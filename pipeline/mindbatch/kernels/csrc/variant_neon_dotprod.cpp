// Products with int8 weights on ARM's dot products (ARMv8.2: Kunpeng 920); setup.py gives the compiler flags.
#define MB_VARIANT neon_dotprod
#define MB_LANES 4
#define MB_HAS_DOT_BYTES
#include "variant_products.h"
#include "linear_int8.h"
#include "linear_codes.h"

}  // namespace

void extend(KernelTable& table) {
  table.linear[kInt8] = linear<Int8>;
  table.linear[kInt4] = linear_codes<Int4Codes>;
  table.linear[kFloat4] = linear_codes<Float4Codes>;
  table.linear[kInt8Groups] = linear_codes<Int8Codes>;
}

}  // namespace MB_VARIANT
}  // namespace mindbatch
