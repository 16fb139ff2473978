// Process groups of ranks on one host: sums, gathers and point-to-point transfers through memory that all of them map.
//
// The memory has a state for each rank, with a counter of rounds on a cache line of its own, and two slots for each rank.
// In a round a rank writes its part to one of its slots, raises its counter, and reads the parts of the others when their
// counters have reached the round. It writes to the same slot again two rounds later: by then all have reached the round
// between, and so have read it. In a transfer rank 0 counts what it has sent and rank 1 what it has received: the sender is
// up to two slots ahead.
//
// A waiting rank spins for a moment and then sleeps until the counter moves: a rank may be compiling. How long a rank may
// take is not decided here but by the process that watches all ranks.
#pragma once
#include <cstdint>

namespace mindbatch {

// Bytes that the ranks share.
int64_t process_group_bytes(int size);

// Maps the file for one rank of so many; returns the number of the group in this process, or -1 where that fails.
int join_process_group(int file, int rank, int size);

// All of these return false without such a group, and when the process of a rank that is waited for has ended.

// y = the sum of x over all ranks, added in the order of ranks: the same bits on each.
bool sum_over_group(int number, const float* x, float* y, int64_t count);

// x [rows, width] of each rank side by side -> y [rows, total], without what is beyond the total.
bool gather_over_group(int number, const float* x, float* y, int64_t rows, int64_t width, int64_t total);

// Rank 0 of a group of two sends numbers to rank 1, which receives as many. Such a group does nothing else.
bool send_to_peer(int number, const float* x, int64_t count);
bool receive_from_peer(int number, float* y, int64_t count);

}  // namespace mindbatch
