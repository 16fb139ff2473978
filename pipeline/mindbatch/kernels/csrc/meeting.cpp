#include "meeting.h"

#include <cerrno>
#include <climits>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace mindbatch {
namespace {

constexpr int64_t kSlotFloats = 1 << 18;  // 1 MiB: what is written is read from the caches that processes share
constexpr int kMostMeetings = 8;          // of one process
constexpr int kSpins = 2000;              // some 100 microseconds: ranks are about as fast as each other
constexpr timespec kNap = {1, 0};
constexpr int kNapsWithoutProcess = 5;  // who watches the ranks has told of it before, and why

// What one rank writes and the others read. Counters wrap around: turns are compared by their difference.
struct alignas(64) Seat {
  std::atomic<uint32_t> turn;
  std::atomic<uint32_t> sleepers;
  std::atomic<int32_t> process;
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(Seat) == 64, "processes share the seats");

bool has_come(uint32_t counter, uint32_t turn) { return static_cast<int32_t>(counter - turn) >= 0; }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Until the counter is no longer what was seen, or for a nap.
void sleep_on(std::atomic<uint32_t>& counter, uint32_t seen) {
#if defined(__linux__)
  syscall(SYS_futex, &counter, FUTEX_WAIT, seen, &kNap, nullptr, 0);
#else
  const timespec moment = {0, 50000};
  if (counter.load() == seen) nanosleep(&moment, nullptr);
#endif
}

void wake_all([[maybe_unused]] std::atomic<uint32_t>& counter) {
#if defined(__linux__)
  syscall(SYS_futex, &counter, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

bool has_gone(const Seat& seat) {
  const int32_t process = seat.process.load();
  return process != 0 && kill(process, 0) != 0 && errno == ESRCH;
}

class Meeting {
 public:
  Meeting() = default;
  Meeting(char* memory, int rank, int size) : rank(rank), size(size), memory_(memory) {
    seat(rank).process.store(getpid());
  }

  int rank = -1;
  int size = 0;

  bool exists() const { return memory_ != nullptr; }

  // Of a rank and one of its turns.
  float* slot(int of, uint32_t turn) const {
    const int64_t index = int64_t{turn % 2} * size + of;
    return reinterpret_cast<float*>(memory_ + size * sizeof(Seat)) + index * kSlotFloats;
  }

  // The turn that this rank has come to.
  uint32_t turn() const { return seat(rank).turn.load(std::memory_order_relaxed); }

  // Takes part in the next turn, and wakes those who wait for that. (Sequential consistency: either the sleeper sees
  // the new turn, or it is seen here.)
  void come() const {
    Seat& own = seat(rank);
    own.turn.fetch_add(1);
    if (own.sleepers.load() != 0) wake_all(own.turn);
  }

  // Returns when a rank has come to a turn; false if it cannot any more.
  bool wait_for(int of, uint32_t turn) const {
    Seat& other = seat(of);
    for (int spins = 0; spins < kSpins; spins++) {
      if (has_come(other.turn.load(std::memory_order_acquire), turn)) return true;
      pause();
    }
    for (int alone = 0; alone < kNapsWithoutProcess; alone += has_gone(other)) {
      other.sleepers.fetch_add(1);
      const uint32_t seen = other.turn.load();
      if (!has_come(seen, turn)) sleep_on(other.turn, seen);
      other.sleepers.fetch_sub(1);
      if (has_come(other.turn.load(std::memory_order_acquire), turn)) return true;
    }
    return false;
  }

 private:
  Seat& seat(int of) const { return reinterpret_cast<Seat*>(memory_)[of]; }

  char* memory_ = nullptr;
};

Meeting meetings[kMostMeetings];

// Null where there is none.
const Meeting* meeting(int number) {
  return number >= 0 && number < kMostMeetings && meetings[number].exists() ? &meetings[number] : nullptr;
}

// Calls do(start, count) for each part of so many floats that fits a slot, until one returns false.
template <class Do>
bool each_part(int64_t count, Do part) {
  for (int64_t start = 0; start < count; start += kSlotFloats)
    if (!part(start, std::min(kSlotFloats, count - start))) return false;
  return true;
}

// One turn: gives this rank's part, and each rank's part in turn to `take`.
template <class Take>
bool exchange(const Meeting& here, const float* part, int64_t count, Take take) {
  const uint32_t turn = here.turn() + 1;
  std::memcpy(here.slot(here.rank, turn), part, count * sizeof(float));
  here.come();
  for (int rank = 0; rank < here.size; rank++) {
    if (!here.wait_for(rank, turn)) return false;
    take(rank, here.slot(rank, turn));
  }
  return true;
}

}  // namespace

int64_t meeting_bytes(int size) {
  return size * (int64_t{sizeof(Seat)} + 2 * kSlotFloats * int64_t{sizeof(float)});
}

int join_meeting(int file, int rank, int size) {
  if (rank < 0 || rank >= size) return -1;
  for (int number = 0; number < kMostMeetings; number++) {
    if (meetings[number].exists()) continue;
    void* mapped = mmap(nullptr, meeting_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) return -1;
    meetings[number] = Meeting(static_cast<char*>(mapped), rank, size);
    return number;
  }
  return -1;
}

bool meeting_sum(int number, const float* x, float* y, int64_t count) {
  const Meeting* here = meeting(number);
  return here && each_part(count, [=](int64_t start, int64_t some) {
    float* sum = y + start;
    return exchange(*here, x + start, some, [=](int rank, const float* part) {
      if (rank == 0) {
        std::memcpy(sum, part, some * sizeof(float));
      } else {
        for (int64_t i = 0; i < some; i++) sum[i] += part[i];
      }
    });
  });
}

bool meeting_gather(int number, const float* x, float* y, int64_t rows, int64_t width, int64_t total) {
  const Meeting* here = meeting(number);
  return here && each_part(rows * width, [=](int64_t start, int64_t some) {
    return exchange(*here, x + start, some, [=](int rank, const float* part) {
      for (int64_t done = 0; done < some;) {
        const int64_t row = (start + done) / width, column = (start + done) % width;
        const int64_t run = std::min(width - column, some - done), target = rank * width + column;
        const int64_t kept = std::min(run, total - target);
        if (kept > 0) std::memcpy(y + row * total + target, part + done, kept * sizeof(float));
        done += run;
      }
    });
  });
}

bool hand_over(int number, const float* x, int64_t count) {
  const Meeting* here = meeting(number);
  return here && here->size == 2 && here->rank == 0 && each_part(count, [=](int64_t start, int64_t some) {
    const uint32_t turn = here->turn() + 1;
    if (!here->wait_for(1, turn - 2)) return false;  // the slot is free again
    std::memcpy(here->slot(0, turn), x + start, some * sizeof(float));
    here->come();
    return true;
  });
}

bool take_over(int number, float* y, int64_t count) {
  const Meeting* here = meeting(number);
  return here && here->size == 2 && here->rank == 1 && each_part(count, [=](int64_t start, int64_t some) {
    const uint32_t turn = here->turn() + 1;
    if (!here->wait_for(0, turn)) return false;
    std::memcpy(y + start, here->slot(0, turn), some * sizeof(float));
    here->come();
    return true;
  });
}

}  // namespace mindbatch
