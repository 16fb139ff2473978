// The kernels built for portable; setup.py gives the compiler flags.
#define MB_VARIANT portable
#define MB_VARIANT_NAME "portable"
#define MB_LANES 4
#include "variant.h"
