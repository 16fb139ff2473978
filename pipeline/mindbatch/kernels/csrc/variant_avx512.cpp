// The kernels built for avx512; setup.py gives the compiler flags.
#define MB_VARIANT avx512
#define MB_VARIANT_NAME "avx512"
#define MB_LANES 16
#include "variant.h"
