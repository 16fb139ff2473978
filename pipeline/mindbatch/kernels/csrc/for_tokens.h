// A loop over the tokens of a step on all threads, for what is too small to be cut otherwise.
#pragma once
#include <cstdint>

#include "thread_pool.h"

namespace mindbatch {

constexpr int64_t kTokensOfTask = 8;

// Calls body(token) for each token.
template <class Body>
void for_tokens(int64_t tokens, Body body) {
  auto some = [&](int64_t chunk, int) {
    for (int64_t t = chunk * kTokensOfTask; t < tokens && t < (chunk + 1) * kTokensOfTask; t++) body(t);
  };
  PoolLock lock;
  parallel_for((tokens + kTokensOfTask - 1) / kTokensOfTask, some);
}

}  // namespace mindbatch
