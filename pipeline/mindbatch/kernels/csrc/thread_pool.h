// A small pool of threads for the kernels, with no dependence on OpenMP.
//
// MindSpore brings thread pools of its own. OpenMP threads spin between parallel regions and take the cores
// away from them, so the threads here spin only for some tens of microseconds (the distance between two
// kernels of one layer) and then sleep on a futex.
#pragma once
#include <cstdint>

namespace mindbatch {

// One unit of work: `task` counts from 0, `thread` tells which scratch memory may be used.
using TaskFn = void (*)(int64_t task, int thread, void* context);

// Number of threads that run tasks, the calling one included.
int num_threads();
void set_num_threads(int count);

// Holds the pool for one kernel: kernels that MindSpore starts at the same time run one after the other.
class PoolLock {
 public:
  PoolLock();
  ~PoolLock();
  PoolLock(const PoolLock&) = delete;
  PoolLock& operator=(const PoolLock&) = delete;
};

// What a thread does before its first task and after its last one.
struct AroundTasks {
  void (*begin)();
  void (*end)();
};

// Runs tasks 0..count-1 and returns when all are done. Each thread has as many neighbouring tasks of its own, and takes
// those of threads that are held up. Needs a PoolLock.
void run_tasks(int64_t count, TaskFn fn, void* context, const AroundTasks* around);

template <class Body>
void parallel_for(int64_t count, Body& body, const AroundTasks* around = nullptr) {
  run_tasks(
      count, [](int64_t task, int thread, void* context) { (*static_cast<Body*>(context))(task, thread); },
      &body, around);
}

// What waiting threads read ahead into their caches: of `tasks` tasks, each of which will read `bytes` behind those of
// the one before it, the beginning of their own part. Holds until it is set again; nullptr for nothing.
void set_ahead(const void* begin, int64_t bytes, int64_t tasks);

// While it lives, kernels that this thread calls are computed by it alone, with scratch memory of their own: so a task
// of the pool may itself be made of kernels. `thread` is the task's.
class AloneOnThread {
 public:
  explicit AloneOnThread(int thread);
  ~AloneOnThread();
  AloneOnThread(const AloneOnThread&) = delete;
  AloneOnThread& operator=(const AloneOnThread&) = delete;
};

// Memory that grows and is kept between kernels; 64-byte aligned. Slot 0 is shared, slot 1 + t is thread t's.
float* scratch(int slot, int64_t floats);

}  // namespace mindbatch
