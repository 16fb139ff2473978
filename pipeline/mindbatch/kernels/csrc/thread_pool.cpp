// The kernels' threads: started on first use, woken by a generation counter.
#include "thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>
#include <signal.h>

#include "pause.h"

namespace mindbatch {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kSpins = 10000;  // some 100 microseconds of pausing before a thread sleeps

constexpr int64_t kLine = 64;
constexpr int64_t kLinesAtOnce = 8;
constexpr int64_t kMostAhead = 512 << 10;  // bytes: a part of a core's second-level cache

struct Scratch {
  float* data = nullptr;
  int64_t floats = 0;
};

// What is left of a thread's own tasks: the number of the first in the lower half, of the one behind the last in the
// upper half. Its owner takes the first of them, others take the last.
struct alignas(kLine) Share {
  std::atomic<uint64_t> left{0};

  void set(int64_t first, int64_t end) { left.store(static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(first)); }
  int64_t take_first() {
    return take(1, [](uint64_t seen) { return seen & 0xffffffff; });
  }
  int64_t take_last() {
    return take(-(uint64_t{1} << 32), [](uint64_t seen) { return (seen >> 32) - 1; });
  }

 private:
  // A task, or -1 where none is left.
  template <class Number>
  int64_t take(uint64_t change, Number number) {
    uint64_t seen = left.load();
    while ((seen & 0xffffffff) < seen >> 32)
      if (left.compare_exchange_weak(seen, seen + change)) return static_cast<int64_t>(number(seen));
    return -1;
  }
};

// Nothing here relies on an order of memory that x86 keeps and ARM does not. What a call brings (fn, context, around, shares)
// is written before `open` is set and read by workers that found it set; what a task writes comes before its worker leaves
// `active_workers`, which the caller reads as 0 before it returns.
struct Pool {
  std::mutex in_use;
  std::mutex sleep_mutex;
  std::condition_variable wake;
  std::vector<std::thread> workers;
  std::atomic<uint64_t> generation{0};
  Share shares[kMaxThreads];
  std::atomic<int> active_workers{0};
  std::atomic<bool> open{false};  // whether a worker may take tasks
  TaskFn fn = nullptr;
  void* context = nullptr;
  const AroundTasks* around = nullptr;
  // Set for idle workers while they read it; one that sees only some of it anew prefetches in vain.
  std::atomic<const char*> ahead{nullptr};
  std::atomic<int64_t> ahead_bytes{0}, ahead_tasks{0};
  std::atomic<int> wanted{0};
  Scratch scratch[kMaxThreads + 1];
  Scratch alone[kMaxThreads][2];  // of kernels that a thread computes by itself
};

Pool* pool = new Pool;  // never destroyed: threads may still sleep in it when the process exits

// A forked child has the pool's memory but none of its threads.
const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });

// The thread of the pool that computes whole kernels just now, see AloneOnThread; -1 elsewhere.
thread_local int alone = -1;

int64_t first_task(int64_t count, int64_t thread, int64_t threads) { return count * thread / threads; }

// A thread's own tasks are neighbours, so that what it reads is one stream of memory; then it takes from the others.
void work(Pool& p, int thread) {
  const int threads = static_cast<int>(p.workers.size()) + 1;
  bool has_begun = false;
  const auto run = [&](int64_t task) {
    if (!has_begun && p.around) p.around->begin();
    has_begun = true;
    p.fn(task, thread, p.context);
  };
  for (int64_t task; (task = p.shares[thread].take_first()) >= 0;) run(task);
  for (int next = 1; next < threads; next++)
    for (int64_t task; (task = p.shares[(thread + next) % threads].take_last()) >= 0;) run(task);
  if (has_begun && p.around) p.around->end();
}

// What a waiting thread reads into its second-level cache: the beginning of its own part of what comes next. It goes on
// where it stopped when it last waited.
class ReadingAhead {
 public:
  explicit ReadingAhead(int thread) : thread_(thread) {}

  // Reads a little; false when all is read.
  bool read(const Pool& p) {
    const char* ahead = p.ahead.load(std::memory_order_relaxed);
    if (ahead != begin_) begin(p, ahead);
    if (line_ >= end_) return false;
    for (int64_t i = 0; i < kLinesAtOnce; i++) __builtin_prefetch(line_ + i * kLine, 0, 2);
    line_ += kLinesAtOnce * kLine;
    return true;
  }

 private:
  void begin(const Pool& p, const char* ahead) {
    begin_ = line_ = end_ = ahead;
    if (!ahead) return;
    const int64_t bytes = p.ahead_bytes.load(std::memory_order_relaxed);
    const int64_t tasks = p.ahead_tasks.load(std::memory_order_relaxed), threads = num_threads();
    const int64_t first = first_task(tasks, thread_, threads);
    const int64_t own = (first_task(tasks, thread_ + 1, threads) - first) * bytes;
    line_ += first * bytes;
    end_ = line_ + (own < kMostAhead ? own : kMostAhead);
  }

  int thread_;
  const char *begin_ = nullptr, *line_ = nullptr, *end_ = nullptr;
};

// Waits a little for a new generation; true when there is one.
bool spin(Pool& p, ReadingAhead& ahead, uint64_t seen) {
  for (int spins = 0; spins < kSpins;) {
    if (p.generation.load(std::memory_order_acquire) != seen) return true;
    if (ahead.read(p)) continue;
    pause_cpu();
    spins++;
  }
  return false;
}

void worker_loop(Pool& p, int thread, uint64_t seen) {
  ReadingAhead ahead(thread);
  for (;;) {
    if (!spin(p, ahead, seen)) {
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

void run_tasks(int64_t count, TaskFn fn, void* context, const AroundTasks* around) {
  Pool& p = *pool;
  if (num_threads() == 1 || count <= 1) {
    if (around) around->begin();
    for (int64_t task = 0; task < count; task++) fn(task, 0, context);
    if (around) around->end();
    return;
  }
  start_workers(p);
  p.fn = fn;
  p.context = context;
  p.around = around;
  const int64_t threads = static_cast<int64_t>(p.workers.size()) + 1;
  for (int64_t thread = 0; thread < threads; thread++)
    p.shares[thread].set(first_task(count, thread, threads), first_task(count, thread + 1, threads));
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
  thread_local ReadingAhead ahead(0);
  while (p.active_workers.load() != 0)
    if (!ahead.read(p)) pause_cpu();
}

void set_ahead(const void* begin, int64_t bytes, int64_t tasks) {
  pool->ahead.store(static_cast<const char*>(begin), std::memory_order_relaxed);
  pool->ahead_bytes.store(bytes, std::memory_order_relaxed);
  pool->ahead_tasks.store(tasks, std::memory_order_relaxed);
}

namespace {

// A task has no caller that it could tell, and without its memory it cannot go on: the process says so and ends.
// What the ledger has is on disk.
[[noreturn]] void end_out_of_memory(int64_t bytes) {
  std::fprintf(stderr,
               "mindbatch: out of memory: a kernel needs %lld bytes more; what takes less: runtime.cache_memory, "
               "model.batch_size, runtime.num_threads, model.dtype=bfloat16, model.quantization=int8\n",
               static_cast<long long>(bytes));
  std::_Exit(1);
}

}  // namespace

float* scratch(int slot, int64_t floats) {
  Scratch& s = alone >= 0 ? pool->alone[alone][slot] : pool->scratch[slot];
  if (s.floats < floats) {
    std::free(s.data);
    const int64_t bytes = ((floats * 4 + 63) / 64) * 64;
    s.data = static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(bytes)));
    if (s.data == nullptr) end_out_of_memory(bytes);
    s.floats = floats;
  }
  return s.data;
}

}  // namespace mindbatch
