// The choice of the instruction set: the best one that this machine has, or one below it.
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "operators.h"

namespace mindbatch {
namespace portable { extern const KernelTable table; }
#if defined(__x86_64__)
namespace avx2 { extern const KernelTable table; }
namespace avx512 { extern const KernelTable table; }
#endif
#if defined(MB_WITH_AVX512_VNNI)
namespace avx512_vnni { void extend(KernelTable&); }
#endif
#if defined(MB_WITH_AVX512_BF16)
namespace avx512_bf16 { void linear_bfloat16(const LinearArgs&); }
#endif
#if defined(MB_WITH_NEON_DOTPROD)
namespace neon_dotprod { void extend(KernelTable&); }
#endif
#if defined(MB_WITH_NEON_I8MM_BF16)
namespace neon_i8mm_bf16 {
void linear_bfloat16(const LinearArgs&);
void linear_int8(const LinearArgs&);
}  // namespace neon_i8mm_bf16
#endif
#if defined(MB_WITH_AMX)
namespace amx {
void linear_bfloat16(const LinearArgs&);
void linear_int8(const LinearArgs&);
void attention(const AttentionArgs&);
}  // namespace amx
#endif

namespace {

#if defined(__aarch64__)
constexpr const char* kPlain = "neon";  // with multiply-adds, which plain x86 does not have
#else
constexpr const char* kPlain = "portable";
#endif

#if defined(__x86_64__)
// Which instruction sets the processor has; with MB_EMULATED all of those that are emulated.
#if defined(MB_EMULATED)
bool has_vnni() { return true; }
bool has_bf16() { return true; }
bool has_amx() { return true; }
#else
[[maybe_unused]] bool has_vnni() { return __builtin_cpu_supports("avx512vnni"); }
[[maybe_unused]] bool has_bf16() { return __builtin_cpu_supports("avx512bf16"); }

// The system keeps a process's tiles only where it has asked for it, before its threads use them (Linux,
// Documentation/arch/x86/xstate.rst).
[[maybe_unused]] bool has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8Bit = 1u << 25;  // CPUID 7.0, EDX
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if ((d & (kBf16 | kTile | kInt8Bit)) != (kBf16 | kTile | kInt8Bit)) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
}
#elif defined(__aarch64__)
// Linux, Documentation/arch/arm64/elf_hwcaps.rst
[[maybe_unused]] bool has_dotprod() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
[[maybe_unused]] bool has_i8mm_and_bf16() {
  constexpr unsigned long kBoth = HWCAP2_I8MM | HWCAP2_BF16;
  return (getauxval(AT_HWCAP2) & kBoth) == kBoth;
}
#endif

// The kernels of each instruction set, the best last: a processor that has one has those before it.
struct InstructionSets {
  static constexpr int kMost = 8;
  KernelTable tables[kMost];
  int count = 0;

  KernelTable& add(const KernelTable& kernels, const char* name) {
    tables[count] = kernels;
    tables[count].name = name;
    return tables[count++];
  }
  // The same with other products.
  KernelTable& extend(const char* name) { return add(tables[count - 1], name); }

  InstructionSets() {
    add(portable::table, kPlain);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!has_avx2()) return;
    add(avx2::table, "avx2");
    if (!has_avx512()) return;
    add(avx512::table, "avx512");
#endif
#if defined(MB_WITH_AVX512_VNNI)
    if (!has_vnni()) return;
    avx512_vnni::extend(extend("avx512_vnni"));
#endif
#if defined(MB_WITH_AVX512_BF16)
    if (!has_bf16()) return;
    extend("avx512_bf16").linear[kBfloat16] = avx512_bf16::linear_bfloat16;
#endif
#if defined(MB_WITH_NEON_DOTPROD)
    if (!has_dotprod()) return;
    neon_dotprod::extend(extend("neon_dotprod"));
#endif
#if defined(MB_WITH_NEON_I8MM_BF16)
    if (!has_i8mm_and_bf16()) return;
    KernelTable& paired = extend("neon_i8mm_bf16");
    paired.linear[kBfloat16] = neon_i8mm_bf16::linear_bfloat16;
    paired.linear[kInt8] = neon_i8mm_bf16::linear_int8;
#endif
#if defined(MB_WITH_AMX)
    if (!has_amx()) return;
    KernelTable& tiled = extend("amx");
    tiled.linear[kBfloat16] = amx::linear_bfloat16;
    tiled.linear[kInt8] = amx::linear_int8;
    tiled.rounded_attention = amx::attention;
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

// The instruction set in use: "portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16" or "amx"; "neon", "neon_dotprod" or
// "neon_i8mm_bf16".
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
