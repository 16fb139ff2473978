// What a thread that waits for another one does between two looks.
#pragma once

namespace mindbatch {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // YIELD does nothing on most processors
#endif
}

}  // namespace mindbatch
