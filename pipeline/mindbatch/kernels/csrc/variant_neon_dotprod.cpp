// Products with int8 weights on ARM's dot products (ARMv8.2: Kunpeng 920); setup.py gives the compiler flags.
#define MB_VARIANT neon_dotprod
#define MB_LANES 4
#define MB_HAS_DOT_BYTES
#include "variant_products.h"
#include "linear_int8.h"

}  // namespace

void linear_int8(const LinearArgs& a) { linear<Int8>(a); }

}  // namespace MB_VARIANT
}  // namespace mindbatch
