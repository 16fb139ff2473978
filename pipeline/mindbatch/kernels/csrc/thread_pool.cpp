// The kernels' threads: started on first use, woken by a generation counter.
#include "thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>
#include <signal.h>

namespace mindbatch {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kSpins = 10000;  // some 100 microseconds of pausing before a thread sleeps

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int64_t kLine = 64;
constexpr int64_t kLinesAtOnce = 8;
constexpr int64_t kMostAhead = 512 << 10;  // bytes: a part of a core's second-level cache

struct Scratch {
  float* data = nullptr;
  int64_t floats = 0;
};

struct Pool {
  std::mutex in_use;
  std::mutex sleep_mutex;
  std::condition_variable wake;
  std::vector<std::thread> workers;
  std::atomic<uint64_t> generation{0};
  std::atomic<int64_t> next_task{0};
  std::atomic<bool> first_taken[kMaxThreads] = {};
  std::atomic<int> active_workers{0};
  std::atomic<bool> open{false};  // whether a worker may take tasks
  int64_t task_count = 0;
  TaskFn fn = nullptr;
  void* context = nullptr;
  // Set for idle workers while they read it; one that sees only the newer of the two prefetches in vain.
  std::atomic<const char*> ahead{nullptr};
  std::atomic<int64_t> ahead_bytes{0};
  int wanted = 0;
  Scratch scratch[kMaxThreads + 1];
  Scratch alone[kMaxThreads][2];  // of kernels that a thread computes by itself
};

Pool* pool = new Pool;  // never destroyed: threads may still sleep in it when the process exits

// A forked child has the pool's memory but none of its threads.
const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });

// The thread of the pool that computes whole kernels just now, see AloneOnThread; -1 elsewhere.
thread_local int alone = -1;

void run_first_task(Pool& p, int64_t owner, int thread) {
  if (owner < p.task_count && !p.first_taken[owner].exchange(true)) p.fn(owner, thread, p.context);
}

// The first task of thread t is task t, so that what it read ahead is what it needs; the others are taken as
// they come, and in the end the first tasks of threads that never came.
void work(Pool& p, int thread) {
  run_first_task(p, thread, thread);
  for (int64_t task = p.next_task++; task < p.task_count; task = p.next_task++) p.fn(task, thread, p.context);
  const int64_t owners = static_cast<int64_t>(p.workers.size()) + 1;
  for (int64_t owner = 0; owner < owners; owner++) run_first_task(p, owner, thread);
}

// Waits a little for a new generation; true when there is one.
bool spin(Pool& p, int thread, uint64_t seen) {
  const char* ahead = p.ahead.load(std::memory_order_relaxed);
  const int64_t bytes = ahead ? p.ahead_bytes.load(std::memory_order_relaxed) : 0;
  const char* line = ahead + thread * bytes;
  const char* end = line + (bytes < kMostAhead ? bytes : kMostAhead);
  for (int spins = 0; spins < kSpins;) {
    if (p.generation.load(std::memory_order_acquire) != seen) return true;
    if (line < end) {
      for (int64_t i = 0; i < kLinesAtOnce; i++) __builtin_prefetch(line + i * kLine, 0, 2);
      line += kLinesAtOnce * kLine;
    } else {
      pause_cpu();
      spins++;
    }
  }
  return false;
}

void worker_loop(Pool& p, int thread, uint64_t seen) {
  for (;;) {
    if (!spin(p, thread, seen)) {
      std::unique_lock<std::mutex> lock(p.sleep_mutex);
      p.wake.wait(lock, [&] { return p.generation.load(std::memory_order_acquire) != seen; });
    }
    seen = p.generation.load(std::memory_order_acquire);
    p.active_workers.fetch_add(1);
    if (p.open.load()) work(p, thread);
    p.active_workers.fetch_sub(1);
  }
}

int default_threads() {
  const unsigned cores = std::thread::hardware_concurrency();
  return cores == 0 ? 1 : static_cast<int>(cores);
}

// Workers take no signals: those are the main thread's business, which may have put them off for a while.
void start_workers(Pool& p) {
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  while (static_cast<int>(p.workers.size()) < p.wanted - 1) {
    const int thread = static_cast<int>(p.workers.size()) + 1;
    p.workers.emplace_back(worker_loop, std::ref(p), thread, p.generation.load());
    p.workers.back().detach();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

int num_threads() {
  if (alone >= 0) return 1;
  if (pool->wanted == 0) pool->wanted = default_threads();
  return pool->wanted;
}

void set_num_threads(int count) {
  std::lock_guard<std::mutex> lock(pool->in_use);
  const int started = static_cast<int>(pool->workers.size()) + 1;
  const int wanted = count < 1 ? 1 : (count > kMaxThreads ? kMaxThreads : count);
  pool->wanted = wanted < started ? started : wanted;  // threads are never taken away once they run
}

AloneOnThread::AloneOnThread(int thread) { alone = thread; }
AloneOnThread::~AloneOnThread() { alone = -1; }

PoolLock::PoolLock() { pool->in_use.lock(); }
PoolLock::~PoolLock() { pool->in_use.unlock(); }

void run_tasks(int64_t count, TaskFn fn, void* context) {
  Pool& p = *pool;
  if (num_threads() == 1 || count <= 1) {
    for (int64_t task = 0; task < count; task++) fn(task, 0, context);
    return;
  }
  start_workers(p);
  p.fn = fn;
  p.context = context;
  p.task_count = count;
  const int64_t owners = static_cast<int64_t>(p.workers.size()) + 1;
  for (int64_t owner = 0; owner < owners; owner++) p.first_taken[owner].store(false);
  p.next_task.store(owners);
  p.open.store(true);
  {
    std::lock_guard<std::mutex> lock(p.sleep_mutex);
    p.generation.fetch_add(1, std::memory_order_release);
  }
  p.wake.notify_all();
  work(p, 0);
  // All tasks are taken. A worker that the system has not woken yet is not waited for: it finds the door
  // closed. (Sequential consistency: either it sees `open` false, or it is counted here.)
  p.open.store(false);
  while (p.active_workers.load() != 0) pause_cpu();
}

void set_ahead(const void* begin, int64_t bytes) {
  pool->ahead.store(static_cast<const char*>(begin), std::memory_order_relaxed);
  pool->ahead_bytes.store(bytes, std::memory_order_relaxed);
}

float* scratch(int slot, int64_t floats) {
  Scratch& s = alone >= 0 ? pool->alone[alone][slot] : pool->scratch[slot];
  if (s.floats < floats) {
    std::free(s.data);
    const int64_t bytes = ((floats * 4 + 63) / 64) * 64;
    s.data = static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(bytes)));
    s.floats = floats;
  }
  return s.data;
}

}  // namespace mindbatch
