// Products with bfloat16 weights on AVX512_BF16; setup.py gives the compiler flags.
#define MB_VARIANT avx512_bf16
#define MB_LANES 16
#define MB_HAS_BF16
#include "variant_products.h"
#include "linear_bfloat16.h"

}  // namespace

void linear_bfloat16(const LinearArgs& a) { linear<Bfloat16>(a); }

}  // namespace MB_VARIANT
}  // namespace mindbatch
