#include "process_group.h"

#include <cerrno>
#include <climits>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "pause.h"

namespace mindbatch {
namespace {

constexpr int64_t kSlotFloats = 1 << 18;  // 1 MiB: what is written is read from the caches that processes share
constexpr int kMaxGroups = 8;             // of one process
constexpr int kSpins = 2000;              // some 100 microseconds: ranks are about as fast as each other
constexpr timespec kNap = {1, 0};
constexpr int kNapsWithoutProcess = 5;  // the process that watches the ranks has said by then which one ended, and why

// What one rank writes and the others read. Counters wrap around: rounds are compared by their difference.
struct alignas(64) RankState {
  std::atomic<uint32_t> round;
  std::atomic<uint32_t> sleepers;
  std::atomic<int32_t> process;
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(RankState) == 64, "processes share the states");

bool has_reached(uint32_t counter, uint32_t round) { return static_cast<int32_t>(counter - round) >= 0; }

// Sleeps until the counter has changed, or for a nap.
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

bool has_ended(const RankState& state) {
  const int32_t process = state.process.load();
  return process != 0 && kill(process, 0) != 0 && errno == ESRCH;
}

// Nothing here relies on an order of memory that x86 keeps and ARM does not. A rank writes its slot before it reaches a round,
// and others read the slot after they saw that. Slots take turns: a rank writes to one again two rounds later, after it saw
// all others reach the round between, which they do when they have read it.
class ProcessGroup {
 public:
  ProcessGroup() = default;
  ProcessGroup(char* memory, int rank, int size) : rank(rank), size(size), memory_(memory) {
    state(rank).process.store(getpid());
  }

  int rank = -1;
  int size = 0;

  bool exists() const { return memory_ != nullptr; }

  // The memory of a rank in a round.
  float* slot(int of, uint32_t round) const {
    const int64_t index = int64_t{round % 2} * size + of;
    return reinterpret_cast<float*>(memory_ + size * sizeof(RankState)) + index * kSlotFloats;
  }

  // The round that this rank has reached.
  uint32_t round() const { return state(rank).round.load(std::memory_order_relaxed); }

  // Reaches the next round, and wakes the ranks that wait for that. (Sequential consistency: either the sleeper sees
  // the new round, or it is seen here.)
  void advance() const {
    RankState& own = state(rank);
    own.round.fetch_add(1);
    if (own.sleepers.load() != 0) wake_all(own.round);
  }

  // Waits until a rank has reached a round; false if its process has ended.
  bool wait_for(int of, uint32_t round) const {
    RankState& other = state(of);
    for (int spins = 0; spins < kSpins; spins++) {
      if (has_reached(other.round.load(std::memory_order_acquire), round)) return true;
      pause_cpu();
    }
    for (int alone = 0; alone < kNapsWithoutProcess; alone += has_ended(other)) {
      other.sleepers.fetch_add(1);
      const uint32_t seen = other.round.load();
      if (!has_reached(seen, round)) sleep_on(other.round, seen);
      other.sleepers.fetch_sub(1);
      if (has_reached(other.round.load(std::memory_order_acquire), round)) return true;
    }
    return false;
  }

 private:
  RankState& state(int of) const { return reinterpret_cast<RankState*>(memory_)[of]; }

  char* memory_ = nullptr;
};

ProcessGroup groups[kMaxGroups];

// The group of a number, or null.
const ProcessGroup* group(int number) {
  return number >= 0 && number < kMaxGroups && groups[number].exists() ? &groups[number] : nullptr;
}

// Calls do(start, count) for each part of so many floats that fits a slot, until one returns false.
template <class Do>
bool each_part(int64_t count, Do part) {
  for (int64_t start = 0; start < count; start += kSlotFloats)
    if (!part(start, std::min(kSlotFloats, count - start))) return false;
  return true;
}

constexpr int64_t kSumFloats = 512;  // 2 KB, on the stack once for each level of a tree

// sum[i] = the sum over so many parts of part[first + i], of the first half of them and of the second.
void add_in_tree(const float* const* parts, int count, int64_t first, int64_t some, float* sum) {
  if (count == 1) {
    std::memcpy(sum, parts[0] + first, static_cast<size_t>(some) * sizeof(float));
    return;
  }
  float other[kSumFloats];
  const int half = (count + 1) / 2;
  add_in_tree(parts, half, first, some, sum);
  add_in_tree(parts + half, count - half, first, some, other);
  for (int64_t i = 0; i < some; i++) sum[i] += other[i];
}

// One round: shares this rank's part, and calls take(rank, part) for every rank in order.
template <class Take>
bool exchange(const ProcessGroup& here, const float* part, int64_t count, Take take) {
  const uint32_t round = here.round() + 1;
  std::memcpy(here.slot(here.rank, round), part, count * sizeof(float));
  here.advance();
  for (int rank = 0; rank < here.size; rank++) {
    if (!here.wait_for(rank, round)) return false;
    take(rank, here.slot(rank, round));
  }
  return true;
}

}  // namespace

int64_t process_group_bytes(int size) {
  return size * (int64_t{sizeof(RankState)} + 2 * kSlotFloats * int64_t{sizeof(float)});
}

int join_process_group(int file, int rank, int size) {
  if (rank < 0 || rank >= size) return -1;
  for (int number = 0; number < kMaxGroups; number++) {
    if (groups[number].exists()) continue;
    void* mapped = mmap(nullptr, process_group_bytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) return -1;
    groups[number] = ProcessGroup(static_cast<char*>(mapped), rank, size);
    return number;
  }
  return -1;
}

bool sum_over_group(int number, const float* x, float* y, int64_t count) {
  const ProcessGroup* here = group(number);
  return here && each_part(count, [=](int64_t start, int64_t some) {
    std::vector<const float*> parts;
    if (!exchange(*here, x + start, some, [&](int, const float* part) { parts.push_back(part); })) return false;
    for (int64_t done = 0; done < some; done += kSumFloats)
      add_in_tree(parts.data(), here->size, done, std::min(kSumFloats, some - done), y + start + done);
    return true;
  });
}

bool gather_over_group(int number, const float* x, float* y, int64_t rows, int64_t width, int64_t total) {
  const ProcessGroup* here = group(number);
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

bool send_to_peer(int number, const float* x, int64_t count) {
  const ProcessGroup* here = group(number);
  return here && here->size == 2 && here->rank == 0 && each_part(count, [=](int64_t start, int64_t some) {
    const uint32_t round = here->round() + 1;
    if (!here->wait_for(1, round - 2)) return false;  // the slot is free again
    std::memcpy(here->slot(0, round), x + start, some * sizeof(float));
    here->advance();
    return true;
  });
}

bool receive_from_peer(int number, float* y, int64_t count) {
  const ProcessGroup* here = group(number);
  return here && here->size == 2 && here->rank == 1 && each_part(count, [=](int64_t start, int64_t some) {
    const uint32_t round = here->round() + 1;
    if (!here->wait_for(0, round)) return false;
    std::memcpy(y + start, here->slot(0, round), some * sizeof(float));
    here->advance();
    return true;
  });
}

}  // namespace mindbatch
