// The kernels built for avx2; setup.py gives the compiler flags.
#define MB_VARIANT avx2
#define MB_VARIANT_NAME "avx2"
#define MB_LANES 8
#include "variant.h"
