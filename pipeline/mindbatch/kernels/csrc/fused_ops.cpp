// The entry points of products whose input is a norm or an activation, which the product computes as it reads its rows:
// see LinearArgs. They take what the two functions take, but for what is between them (kernels/native_program.py).
#include "operators.h"
#include "thread_pool.h"

using namespace mindbatch;

namespace {

// x, weight, norm's bias or [1], its settings, packed weights, bias or [1], the product's settings -> y [rows, columns];
// with a residual behind x, and x + residual before y, where it `adds`.
int norm_linear(void** params, int64_t** shapes, int* ndims, bool adds, WeightKind kind) {
  PoolLock lock;
  const int first = adds ? 5 : 4;
  const void* settings = params[first - 1];
  const float epsilon = adds ? read_settings<AddNormSettings>(settings).epsilon : read_settings<NormSettings>(settings).epsilon;
  float* sum = adds ? static_cast<float*>(params[first + 3]) : nullptr;
  const NormArgs norm = norm_arguments(params, shapes, ndims, adds, epsilon, nullptr, sum);
  LinearArgs arguments = linear_arguments(params, shapes, ndims, first, first + (adds ? 4 : 3), norm.width);
  arguments.norm = &norm;
  linear_of_step(arguments, kind);
  return 0;
}

// x [rows, width or 2 * width], its settings, packed weights, bias or [1], the product's settings -> y [rows, columns]
int activation_linear(void** params, int64_t** shapes, int* ndims, WeightKind kind) {
  PoolLock lock;
  const auto settings = read_settings<ActivationSettings>(params[1]);
  const int64_t width = shapes[0][1] / (settings.gated ? 2 : 1);
  const ActivationArgs activation = activation_arguments(params, shapes, settings, nullptr, width);
  LinearArgs arguments = linear_arguments(params, shapes, ndims, 2, 5, width);
  arguments.activation = &activation;
  linear_of_step(arguments, kind);
  return 0;
}

}  // namespace

#define MB_FUSED(suffix, kind)                                                                               \
  MB_OP(mb_norm_linear##suffix) { return norm_linear(params, shapes, ndims, false, kind); }                  \
  MB_OP(mb_add_norm_linear##suffix) { return norm_linear(params, shapes, ndims, true, kind); }               \
  MB_OP(mb_activation_linear##suffix) { return activation_linear(params, shapes, ndims, kind); }
MB_FUSED(, kFloat32)
MB_FUSED(_bfloat16, kBfloat16)
MB_FUSED(_int8, kInt8)
