// Stands before each source of a wheel for manylinux_2_28 (setup.py): functions whose newest version needs a newer
// glibc than 2.28, or a newer libstdc++ than that of GCC 8, are taken in the oldest. auditwheel names what is missing here.

#pragma once

#include <new>

#ifdef __x86_64__
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

asm(".symver exp, exp@" OLDEST);
asm(".symver log, log@" OLDEST);
asm(".symver pthread_sigmask, pthread_sigmask@" OLDEST);
#define WAIT "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
asm(".symver " WAIT ", " WAIT "@GLIBCXX_3.4.11");

namespace std {
// Thrown where the size of an array overflows; older libraries have only its base.
[[noreturn]] __attribute__((weak, visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_alloc(); }
}  // namespace std
