// The entry points of products whose input is a norm or an activation, which the product computes as it reads its rows:
// see LinearArgs. They take what the two functions take, but for what is between them (kernels/native_program.py).
#include "operators.h"
#include "thread_pool.h"

using namespace mindbatch;

namespace {

// x, weight, norm's bias or [1], its settings, packed weights, bias or [1], the product's settings -> y [rows, columns];
// with a residual behind x, and x + residual before y, where it `adds`.
int norm_linear(void** params, int64_t** shapes, int* ndims, bool adds) {
  PoolLock lock;
  const int first = adds ? 5 : 4;
  const void* settings = params[first - 1];
  const float epsilon = adds ? read_settings<AddNormSettings>(settings).epsilon : read_settings<NormSettings>(settings).epsilon;
  float* sum = adds ? static_cast<float*>(params[first + 3]) : nullptr;
  const NormArgs norm = norm_arguments(params, shapes, ndims, adds, epsilon, nullptr, sum);
  const WeightKind kind = read_settings<LinearSettings>(params[first + 2]).weight_kind;
  LinearArgs arguments = linear_arguments(params, shapes, ndims, first, first + (adds ? 4 : 3), norm.width, kind);
  arguments.norm = &norm;
  linear_of_step(arguments, kind);
  return 0;
}

// x [rows, width or 2 * width], its settings, packed weights, bias or [1], the product's settings -> y [rows, columns]
int activation_linear(void** params, int64_t** shapes, int* ndims) {
  PoolLock lock;
  const auto settings = read_settings<ActivationSettings>(params[1]);
  const int64_t width = shapes[0][1] / (settings.gated ? 2 : 1);
  const ActivationArgs activation = activation_arguments(params, shapes, settings, nullptr, width);
  const WeightKind kind = read_settings<LinearSettings>(params[4]).weight_kind;
  LinearArgs arguments = linear_arguments(params, shapes, ndims, 2, 5, width, kind);
  arguments.activation = &activation;
  linear_of_step(arguments, kind);
  return 0;
}

}  // namespace

MB_OP(mb_norm_linear) { return norm_linear(params, shapes, ndims, false); }
MB_OP(mb_add_norm_linear) { return norm_linear(params, shapes, ndims, true); }
MB_OP(mb_activation_linear) { return activation_linear(params, shapes, ndims); }
