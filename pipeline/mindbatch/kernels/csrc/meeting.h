// Where the ranks of a model that run on one host meet: sums and gathers through memory that all of them map.
//
// The memory has a counter for each rank, on a line of its own, and two slots for each. In a turn a rank writes its
// part to one of its slots, raises its counter, and reads the parts of the others when their counters are there. It
// writes to the same slot again two turns later: by then all have come to the turn between, and so have read it.
#pragma once
#include <cstdint>

namespace mindbatch {

// Bytes that the ranks share.
int64_t meeting_bytes(int size);

// Maps the file for one rank of so many. False where that fails, or this process has a meeting already.
bool join_meeting(int file, int rank, int size);

// y = the sum of x over all ranks, added in the order of ranks: the same bits on each. False without a meeting.
bool meeting_sum(const float* x, float* y, int64_t count);

// x [rows, width] of each rank side by side -> y [rows, total], without what is beyond the total. False without a
// meeting.
bool meeting_gather(const float* x, float* y, int64_t rows, int64_t width, int64_t total);

}  // namespace mindbatch
