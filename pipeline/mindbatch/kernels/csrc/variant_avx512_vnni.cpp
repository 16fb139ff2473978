// Products with int8 weights on AVX512_VNNI; setup.py gives the compiler flags.
#define MB_VARIANT avx512_vnni
#define MB_LANES 16
#define MB_HAS_DOT_BYTES
#include "variant_products.h"
#include "linear_int8.h"

}  // namespace

void linear_int8(const LinearArgs& a) { linear<Int8>(a); }

}  // namespace MB_VARIANT
}  // namespace mindbatch
