// Running a recorded step.
#include "program.h"

#include "operators.h"

using namespace mindbatch;

// 0, or the number, counted from 1, of the call that has failed; those after it are left out.
MB_EXPORT int64_t mb_run_program(const Program* program) {
  for (int64_t call = 0; call < program->calls; call++) {
    void* params[kMostOperands];
    int64_t* shapes[kMostOperands];
    int dimensions[kMostOperands];
    const int32_t* operands = program->operands + program->first[call];
    const int count = program->first[call + 1] - program->first[call];
    if (count > kMostOperands) return call + 1;
    for (int i = 0; i < count; i++) {
      params[i] = program->addresses[operands[i]];
      shapes[i] = program->shapes[operands[i]];
      dimensions[i] = program->dimensions[operands[i]];
    }
    if (program->functions[call](count, params, dimensions, shapes, nullptr, nullptr, nullptr) != 0) return call + 1;
  }
  return 0;
}
