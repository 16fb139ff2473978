// Products with bfloat16 and int8 weights on ARM's BF16 and I8MM (ARMv8.6: Graviton 3 and 4, Kunpeng 950); setup.py gives the
// compiler flags.
#define MB_VARIANT neon_i8mm_bf16
#define MB_LANES 4
#define MB_HAS_BF16
#define MB_HAS_DOT_BYTES
#define MB_HAS_I8MM
#include "variant_products.h"
#include "linear_bfloat16.h"
#include "linear_int8.h"

}  // namespace

void linear_bfloat16(const LinearArgs& a) { linear<Bfloat16>(a); }
void linear_int8(const LinearArgs& a) { linear<Int8>(a); }

}  // namespace MB_VARIANT
}  // namespace mindbatch
