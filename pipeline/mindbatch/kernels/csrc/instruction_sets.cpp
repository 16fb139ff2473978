// The choice of the instruction set: the best one that this machine has, or one below it.
#include <cstring>

#include "operators.h"

namespace mindbatch {
namespace portable { extern const KernelTable table; }
#if defined(__x86_64__)
namespace avx2 { extern const KernelTable table; }
namespace avx512 { extern const KernelTable table; }
#endif
#if defined(MB_WITH_AVX512_VNNI)
namespace avx512_vnni { void linear_int8(const LinearArgs&); }
#endif

namespace {

// The kernels of each instruction set, the best last: each has what those before it have.
struct InstructionSets {
  static constexpr int kMost = 8;
  KernelTable tables[kMost];
  int count = 0;

  KernelTable& add(const KernelTable& kernels, const char* name) {
    tables[count] = kernels;
    tables[count].name = name;
    return tables[count++];
  }

  InstructionSets() {
    add(portable::table, "portable");
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
    add(avx2::table, "avx2");
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
      return;
    add(avx512::table, "avx512");
#endif
#if defined(MB_WITH_AVX512_VNNI)
    if (!__builtin_cpu_supports("avx512vnni")) return;
    add(avx512::table, "avx512_vnni").linear[kInt8] = avx512_vnni::linear_int8;
#endif
  }
};

const InstructionSets& sets() {
  static const InstructionSets found;
  return found;
}

}  // namespace

const KernelTable* table = &sets().tables[sets().count - 1];

}  // namespace mindbatch

using namespace mindbatch;

// The instruction set in use: "portable", "avx2", "avx512" or "avx512_vnni".
MB_EXPORT const char* mb_variant() { return table->name; }

// Chooses an instruction set by name; 0 when this machine or this build does not have it.
MB_EXPORT int mb_set_variant(const char* name) {
  for (int i = 0; i < sets().count; i++)
    if (std::strcmp(name, sets().tables[i].name) == 0) {
      table = &sets().tables[i];
      return 1;
    }
  return 0;
}
