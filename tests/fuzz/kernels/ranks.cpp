// Ranks that meet, as threads over one memory: sums, gathers and hand-overs of every size, some of them late.
//
// Exits 0 when every number is right; a sanitizer ends it otherwise. A first argument plants a race: a rank reads
// another's slot before that one has come.
#include "meeting.cpp"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using namespace mindbatch;

constexpr int kRanks = 3;
constexpr int kFirstHandOver = kRanks;  // numbers of the meetings: a rank of all, then both ends of each hand-over
const std::vector<int64_t> kCounts = {1, 3, 97, kSlotFloats, 2 * kSlotFloats + 5, 12, 1, 5, 1000};

float number_of(int rank, int64_t turn, int64_t place) {
  return static_cast<float>((place * 7 + rank * 3 + turn) % 1000);
}

std::vector<float> part(int rank, int64_t turn, int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i++) numbers[i] = number_of(rank, turn, i);
  return numbers;
}

void must(bool right, const char* what) {
  if (right) return;
  std::printf("FAULT: %s\n", what);
  std::exit(1);
}

void sum(int rank, int64_t turn, int64_t count) {
  std::vector<float> x = part(rank, turn, count), y(x.size());
  must(meeting_sum(rank, x.data(), y.data(), count), "a sum");
  for (int64_t i = 0; i < count; i++)
    must(y[i] == number_of(0, turn, i) + number_of(1, turn, i) + number_of(2, turn, i), "a number of a sum");
}

void gather(int rank, int64_t turn, int64_t width) {
  const int64_t rows = 2, total = kRanks * width - (turn % 2);
  std::vector<float> x = part(rank, turn, rows * width), y(static_cast<size_t>(rows * total));
  must(meeting_gather(rank, x.data(), y.data(), rows, width, total), "a gather");
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < total; i++)
      must(y[row * total + i] == number_of(static_cast<int>(i / width), turn, row * width + i % width),
           "a number of a gather");
}

// Each rank takes what rank 0 began with from the one before it, and hands it on.
void hand_on(int rank, int64_t turn, int64_t count) {
  std::vector<float> x = part(0, turn, count);
  if (rank > 0) {
    std::fill(x.begin(), x.end(), -1.0f);
    must(take_over(kFirstHandOver + 2 * rank - 1, x.data(), count), "taking over");
  }
  for (int64_t i = 0; i < count; i++) must(x[i] == number_of(0, turn, i), "a number that was handed over");
  if (rank < kRanks - 1) must(hand_over(kFirstHandOver + 2 * rank, x.data(), count), "handing over");
}

void take_part(int rank, bool races) {
  for (int64_t turn = 0; turn < static_cast<int64_t>(kCounts.size()); turn++) {
    const timespec moment = {0, 2000000};  // beyond the spinning: the others sleep
    if (turn % kRanks == rank) nanosleep(&moment, nullptr);
    sum(rank, turn, kCounts[turn]);
    gather(rank, turn, kCounts[turn]);
    hand_on(rank, turn, kCounts[turn]);
    if (races) must(*meeting(rank)->slot((rank + 1) % kRanks, static_cast<uint32_t>(turn)) >= -1e9f, "a race");
  }
}

char* shared_memory(int size) {
  static std::vector<std::vector<Seat>> all;
  all.emplace_back(static_cast<size_t>(meeting_bytes(size)) / sizeof(Seat));
  return reinterpret_cast<char*>(all.back().data());
}

}  // namespace

int main(int count, char**) {
  char* whole = shared_memory(kRanks);
  for (int rank = 0; rank < kRanks; rank++) meetings[rank] = Meeting(whole, rank, kRanks);
  for (int sender = 0; sender < kRanks - 1; sender++) {
    char* pair = shared_memory(2);
    for (int end = 0; end < 2; end++) meetings[kFirstHandOver + 2 * sender + end] = Meeting(pair, end, 2);
  }
  must(!meeting(kMostMeetings) && !meeting(-1) && !take_over(0, nullptr, 1), "a meeting that is none");
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; rank++) ranks.emplace_back(take_part, rank, count > 1);
  for (std::thread& rank : ranks) rank.join();
  std::puts("every number is right");
}
