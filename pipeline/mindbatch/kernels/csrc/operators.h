// What the entry points share: how MindSpore's ops.Custom(..., "aot") calls them, and the variant in use.
//
// Signature and meaning of the arguments: MindSpore's "Custom operators, AOT type". Inputs come first in `params`
// and `shapes`, outputs after them. A return value other than 0 makes the graph fail.
#pragma once
#include <cstdint>

#include "settings.h"
#include "variant_table.h"

#define MB_EXPORT extern "C" __attribute__((visibility("default")))
#define MB_OP(name) \
  MB_EXPORT int name([[maybe_unused]] int count, void** params, [[maybe_unused]] int* ndims, int64_t** shapes, const char**, \
                     void*, void*)

namespace mindbatch {

constexpr int kOutside = 1;

// The kernels of the instruction set in use.
extern const KernelTable* table;

inline const float* floats(void* p) { return static_cast<const float*>(p); }
inline const int32_t* ints(void* p) { return static_cast<const int32_t*>(p); }

// The settings of a call with so many operands, which are its last input.
template <class Settings>
Settings settings_of(int count, void** params, int outputs = 1) {
  return read_settings<Settings>(params[count - outputs - 1]);
}

// A tensor of one element stands for an absent optional input.
const float* optional(void** params, int64_t** shapes, int* ndims, int index);

// x [rows, width], residual like it, [1] or null -> a norm's arguments, which `y` and `sum` are written by.
NormArgs norm_arguments(void** params, int64_t** shapes, int* ndims, bool adds, float epsilon, float* y, float* sum);

// x [rows, width or 2 * width] -> an activation's arguments
ActivationArgs activation_arguments(void** params, int64_t** shapes, const ActivationSettings& settings, float* y,
                                    int64_t width);

// The groups of packed weights [panels, segments, groups, bytes] of so many inputs.
InputGroups groups_of(const int64_t* shape, WeightKind kind, int64_t depth);

// Packed weights [panels, segments, ...] and bias [columns] or [1] from operand `first` on, y [rows, columns] -> a product's
// arguments, but for its input.
LinearArgs linear_arguments(void** params, int64_t** shapes, int* ndims, int first, int y, int64_t depth, WeightKind kind);

// A linear layer of a step: its product, and what the next one reads is read ahead. Needs a PoolLock.
void linear_of_step(const LinearArgs& arguments, WeightKind kind);

}  // namespace mindbatch
