// Process groups of ranks that are threads over one memory: sums, gathers and transfers of every size, some of them late.
//
// Exits 0 when every number is right; a sanitizer ends it otherwise. A first argument plants a race: a rank reads
// another's slot before that one has reached the round.
#include "process_group.cpp"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using namespace mindbatch;

constexpr int kRanks = 3;
constexpr int kFirstLink = kRanks;  // numbers of the groups: a rank of all, then both ends of each link
const std::vector<int64_t> kCounts = {1, 3, 97, kSlotFloats, 2 * kSlotFloats + 5, 12, 1, 5, 1000};

float number_of(int rank, int64_t round, int64_t place) {
  return static_cast<float>((place * 7 + rank * 3 + round) % 1000);
}

std::vector<float> part(int rank, int64_t round, int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; i++) numbers[i] = number_of(rank, round, i);
  return numbers;
}

void must(bool right, const char* what) {
  if (right) return;
  std::printf("FAULT: %s\n", what);
  std::exit(1);
}

void sum(int rank, int64_t round, int64_t count) {
  std::vector<float> x = part(rank, round, count), y(x.size());
  must(sum_over_group(rank, x.data(), y.data(), count), "a sum");
  for (int64_t i = 0; i < count; i++)
    must(y[i] == number_of(0, round, i) + number_of(1, round, i) + number_of(2, round, i), "a number of a sum");
}

void gather(int rank, int64_t round, int64_t width) {
  const int64_t rows = 2, total = kRanks * width - (round % 2);
  std::vector<float> x = part(rank, round, rows * width), y(static_cast<size_t>(rows * total));
  must(gather_over_group(rank, x.data(), y.data(), rows, width, total), "a gather");
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < total; i++)
      must(y[row * total + i] == number_of(static_cast<int>(i / width), round, row * width + i % width),
           "a number of a gather");
}

// Each rank receives what rank 0 began with from the one before it, and sends it on.
void send_on(int rank, int64_t round, int64_t count) {
  std::vector<float> x = part(0, round, count);
  if (rank > 0) {
    std::fill(x.begin(), x.end(), -1.0f);
    must(receive_from_peer(kFirstLink + 2 * rank - 1, x.data(), count), "receiving");
  }
  for (int64_t i = 0; i < count; i++) must(x[i] == number_of(0, round, i), "a number that was received");
  if (rank < kRanks - 1) must(send_to_peer(kFirstLink + 2 * rank, x.data(), count), "sending");
}

void take_part(int rank, bool races) {
  for (int64_t round = 0; round < static_cast<int64_t>(kCounts.size()); round++) {
    const timespec moment = {0, 2000000};  // beyond the spinning: the others sleep
    if (round % kRanks == rank) nanosleep(&moment, nullptr);
    sum(rank, round, kCounts[round]);
    gather(rank, round, kCounts[round]);
    send_on(rank, round, kCounts[round]);
    if (races) must(*group(rank)->slot((rank + 1) % kRanks, static_cast<uint32_t>(round)) >= -1e9f, "a race");
  }
}

char* shared_memory(int size) {
  static std::vector<std::vector<RankState>> all;
  all.emplace_back(static_cast<size_t>(process_group_bytes(size)) / sizeof(RankState));
  return reinterpret_cast<char*>(all.back().data());
}

}  // namespace

int main(int count, char**) {
  char* whole = shared_memory(kRanks);
  for (int rank = 0; rank < kRanks; rank++) groups[rank] = ProcessGroup(whole, rank, kRanks);
  for (int sender = 0; sender < kRanks - 1; sender++) {
    char* pair = shared_memory(2);
    for (int end = 0; end < 2; end++) groups[kFirstLink + 2 * sender + end] = ProcessGroup(pair, end, 2);
  }
  must(!group(kMaxGroups) && !group(-1) && !receive_from_peer(0, nullptr, 1), "a group that does not exist");
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; rank++) ranks.emplace_back(take_part, rank, count > 1);
  for (std::thread& rank : ranks) rank.join();
  std::puts("every number is right");
}
