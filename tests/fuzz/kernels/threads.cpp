// The real thread pool under ThreadSanitizer: callers that take turns, tasks of every count, threads added while
// it runs, and what idle workers read ahead set anew each time.
//
// Exits 0 when every task ran once; the sanitizer ends it otherwise. A first argument plants a race.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "thread_pool.h"

namespace {

void caller(int first, bool races) {
  static int64_t shared = 0;
  std::vector<int64_t> weights(4096);
  for (int64_t count = first; count < 60; count++) {
    mindbatch::PoolLock lock;
    mindbatch::set_ahead(weights.data(), 8, count);
    std::vector<int64_t> done(static_cast<size_t>(count));
    auto body = [&](int64_t task, int thread) {
      float* memory = mindbatch::scratch(1 + thread, count * 16);
      for (int64_t i = 0; i < count * 16; i++) memory[i] = static_cast<float>(task);
      done[task] += static_cast<int64_t>(memory[count]) + 1;
      if (races) shared++;
    };
    mindbatch::parallel_for(count, body);
    for (int64_t task = 0; task < count; task++)
      if (done[task] != task + 1) std::exit(1);
  }
}

}  // namespace

int main(int count, char**) {
  mindbatch::set_num_threads(3);
  std::thread first(caller, 1, count > 1), second(caller, 7, count > 1);
  first.join();
  mindbatch::set_num_threads(5);
  std::thread third(caller, 2, count > 1);
  second.join();
  third.join();
  std::puts("every task ran once");
}
