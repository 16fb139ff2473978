#include "meeting.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace mindbatch {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kSlotFloats = 1 << 18;  // 1 MiB: what is written is read from the caches that processes share
constexpr int kSpins = 2000;              // some tens of microseconds: ranks are about as fast as each other
constexpr int kYields = 200;
constexpr long kSleepNanoseconds = 50000;

static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share the counters");

struct Meeting {
  char* memory = nullptr;
  int rank = 0;
  int size = 0;
  uint64_t turn = 0;

  std::atomic<uint64_t>& counter(int of) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(memory + of * kLine);
  }
  float* slot(int of) const {
    const int64_t index = (turn % 2) * size + of;
    return reinterpret_cast<float*>(memory + size * kLine) + index * kSlotFloats;
  }
};

Meeting meeting;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when a rank has come to this turn. Whoever waits long leaves its core to others: a rank may be compiling.
void wait_for(int rank) {
  const std::atomic<uint64_t>& counter = meeting.counter(rank);
  for (int waited = 0; counter.load(std::memory_order_acquire) < meeting.turn; waited++) {
    if (waited < kSpins) {
      pause();
    } else if (waited < kSpins + kYields) {
      sched_yield();
    } else {
      const timespec moment = {0, kSleepNanoseconds};
      nanosleep(&moment, nullptr);
    }
  }
}

// One turn: gives this rank's part, and each rank's part in turn to `take`.
template <class Take>
void exchange(const float* part, int64_t count, Take take) {
  meeting.turn++;
  std::memcpy(meeting.slot(meeting.rank), part, count * sizeof(float));
  meeting.counter(meeting.rank).store(meeting.turn, std::memory_order_release);
  for (int rank = 0; rank < meeting.size; rank++) {
    wait_for(rank);
    take(rank, meeting.slot(rank));
  }
}

}  // namespace

int64_t meeting_bytes(int size) { return size * (kLine + 2 * kSlotFloats * int64_t{sizeof(float)}); }

bool join_meeting(int file, int rank, int size) {
  if (meeting.memory || rank < 0 || rank >= size) return false;
  void* mapped = mmap(nullptr, meeting_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return false;
  meeting = {static_cast<char*>(mapped), rank, size, 0};
  return true;
}

bool meeting_sum(const float* x, float* y, int64_t count) {
  if (!meeting.memory) return false;
  for (int64_t start = 0; start < count; start += kSlotFloats) {
    const int64_t some = std::min(kSlotFloats, count - start);
    float* sum = y + start;
    exchange(x + start, some, [=](int rank, const float* part) {
      if (rank == 0) {
        std::memcpy(sum, part, some * sizeof(float));
      } else {
        for (int64_t i = 0; i < some; i++) sum[i] += part[i];
      }
    });
  }
  return true;
}

bool meeting_gather(const float* x, float* y, int64_t rows, int64_t width, int64_t total) {
  if (!meeting.memory) return false;
  const int64_t count = rows * width;
  for (int64_t start = 0; start < count; start += kSlotFloats) {
    const int64_t some = std::min(kSlotFloats, count - start);
    exchange(x + start, some, [=](int rank, const float* part) {
      for (int64_t done = 0; done < some;) {
        const int64_t row = (start + done) / width, column = (start + done) % width;
        const int64_t run = std::min(width - column, some - done), target = rank * width + column;
        const int64_t kept = std::min(run, total - target);
        if (kept > 0) std::memcpy(y + row * total + target, part + done, kept * sizeof(float));
        done += run;
      }
    });
  }
  return true;
}

}  // namespace mindbatch
