// Products with bfloat16 and int8 weights, and attention beside them, on AMX; setup.py gives the compiler flags.
#define MB_VARIANT amx
#define MB_LANES 16
#define MB_HAS_BF16
#define MB_HAS_DOT_BYTES
#include "variant_products.h"
#include "linear_bfloat16.h"
#include "linear_int8.h"
#include "linear_amx_few.h"
#include "linear_amx.h"
#include "attention_paged.h"
#include "attention_ahead.h"
#include "attention_amx.h"
#include "attention_amx_few.h"
#include "attention_amx_spans.h"

}  // namespace

void linear_bfloat16(const LinearArgs& a) { linear_amx<AmxBfloat16>(a); }
void linear_int8(const LinearArgs& a) { linear_amx<AmxInt8>(a); }
void attention(const AttentionArgs& a) { attention_amx(a); }

}  // namespace MB_VARIANT
}  // namespace mindbatch
