// Philox4x32-10, see decoding/draws.py: random numbers by counters.
#include <cstdint>

#include "operators.h"

namespace {

constexpr int kRounds = 10;

// 32-bit words, each in 64 bits: counters [4, count], keys [2, count] -> words [4, count]
void philox(const uint64_t* counters, const uint64_t* keys, int64_t count, uint64_t* words) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t word[4], key[2] = {static_cast<uint32_t>(keys[i]), static_cast<uint32_t>(keys[count + i])};
    for (int w = 0; w < 4; w++) word[w] = static_cast<uint32_t>(counters[w * count + i]);
    for (int round = 0; round < kRounds; round++) {
      const uint64_t first = uint64_t{0xD2511F53} * word[0], second = uint64_t{0xCD9E8D57} * word[2];
      word[0] = static_cast<uint32_t>(second >> 32) ^ word[1] ^ key[0];
      word[2] = static_cast<uint32_t>(first >> 32) ^ word[3] ^ key[1];
      word[1] = static_cast<uint32_t>(second);
      word[3] = static_cast<uint32_t>(first);
      key[0] += 0x9E3779B9;
      key[1] += 0xBB67AE85;
    }
    for (int w = 0; w < 4; w++) words[w * count + i] = word[w];
  }
}

}  // namespace

MB_EXPORT void mb_philox(const uint64_t* counters, const uint64_t* keys, int64_t count, uint64_t* words) {
  philox(counters, keys, count, words);
}
