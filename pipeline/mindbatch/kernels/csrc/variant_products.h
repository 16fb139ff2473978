// The beginning of a source that adds products to an instruction set's kernels; it closes the three namespaces.
// See variant.h for what may be included here.
#include <cmath>
#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include "elementary.h"
#include "thread_pool.h"
#include "variant_table.h"

namespace mindbatch {
namespace MB_VARIANT {

namespace {

#include "vector.h"
#include "instructions.h"
#include "rows.h"
#include "summary.h"
#include "linear.h"
#include "linear_stream.h"
