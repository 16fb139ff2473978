// The kernels for one instruction set: included by variant_*.cpp after MB_VARIANT and MB_LANES are defined.
// Only headers without inline library code are used here: a function compiled for AVX-512 must never be the
// one that the linker keeps for everybody.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "elementary.h"
#include "thread_pool.h"
#include "variant_table.h"

namespace mindbatch {
namespace MB_VARIANT {
namespace {

#include "vector.h"
#include "rows.h"
#include "summary.h"
#include "linear.h"
#include "linear_stream.h"
#include "linear_float32.h"
#include "linear_bfloat16.h"
#include "linear_int8.h"
#include "linear_codes.h"
#include "linear_float8.h"
#include "adapters.h"
#include "attention_paged.h"
#include "attention.h"
#include "elementwise.h"
#include "experts.h"
#include "scores.h"
#include "selection.h"
#include "nucleus.h"
#include "draws.h"
#include "packing.h"
#include "recurrent.h"

}  // namespace

extern const KernelTable table;
const KernelTable table = {MB_VARIANT_NAME,
                           {linear<Float32>, linear<Bfloat16>, linear<Int8>, linear_codes<Int4Codes>, linear_codes<Float4Codes>, linear_codes<Int8Codes>, linear_float8},
                           {embed<Float32>, embed<Bfloat16>, embed<Int8>, embed_codes<Int4Codes>, embed_codes<Float4Codes>, embed_codes<Int8Codes>, embed_codes<Float8Codes>},
                           attention,
                           attention,
                           rotary,
                           norm,
                           activation,
                           cap,
                           likeliest,
                           choose,
                           {pack_float32, pack_bfloat16, pack_int8},
                           router,
                           weighted_sum,
                           adapter_shrink,
                           adapter_expand,
                           convolution,
                           delta,
                           gated};

}  // namespace MB_VARIANT
}  // namespace mindbatch
