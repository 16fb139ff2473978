// Where ranks of one host meet: sums, gathers and hand-overs through memory that all of them map.
//
// The memory has a seat for each rank, with a counter of turns on a line of its own, and two slots for each. In a
// turn a rank writes its part to one of its slots, raises its counter, and reads the parts of the others when their
// counters are there. It writes to the same slot again two turns later: by then all have come to the turn between,
// and so have read it. In a hand-over rank 0 counts what it has given and rank 1 what it has taken: the giver is up
// to two slots ahead.
//
// Whoever waits spins for a moment and then sleeps until the counter moves: a rank may be compiling. How long a rank
// may take is not decided here but by the process that watches all ranks.
#pragma once
#include <cstdint>

namespace mindbatch {

// Bytes that the ranks share.
int64_t meeting_bytes(int size);

// Maps the file for one rank of so many; returns the number of the meeting in this process, or -1 where that fails.
int join_meeting(int file, int rank, int size);

// All of these return false without such a meeting, and when the process of a rank that is waited for has gone.

// y = the sum of x over all ranks, added in the order of ranks: the same bits on each.
bool meeting_sum(int number, const float* x, float* y, int64_t count);

// x [rows, width] of each rank side by side -> y [rows, total], without what is beyond the total.
bool meeting_gather(int number, const float* x, float* y, int64_t rows, int64_t width, int64_t total);

// Rank 0 of a meeting of two gives numbers to rank 1, which takes as many. Nothing else is done in such a meeting.
bool hand_over(int number, const float* x, int64_t count);
bool take_over(int number, float* y, int64_t count);

}  // namespace mindbatch
