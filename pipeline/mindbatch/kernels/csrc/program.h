// A step as a flat list of calls of the entry points, recorded once (kernels/recording.py) and run for any number of
// tokens: what MindSpore's graphs do elsewhere, without anything to compile or to launch.
#pragma once
#include <cstdint>

namespace mindbatch {

constexpr int kMostOperands = 16;
constexpr int kMostDimensions = 4;

// The signature of every MB_OP.
using EntryPoint = int (*)(int, void**, int*, int64_t**, const char**, void*, void*);

// `_Calls` of kernels/native_program.py. Arrays have numbers; their addresses and shapes are those of this run.
struct Program {
  int64_t calls;
  const EntryPoint* functions;  // [calls]
  const int32_t* first;         // [calls + 1]: where the operands of each call begin
  const int32_t* operands;      // numbers of arrays: what a call reads, then what it writes
  void* const* addresses;       // of each array
  int64_t (*shapes)[kMostDimensions];
  const int32_t* dimensions;
};

}  // namespace mindbatch
