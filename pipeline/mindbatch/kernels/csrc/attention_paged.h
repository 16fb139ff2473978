// What attention over a paged cache needs, whatever its products are computed in: writing the step's keys and values,
// where they lie, what is added to scores, and which queries read the same keys.
//
// Cache layout after Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention" (2023).

constexpr int64_t kChunk = 256;  // positions that are passed over at once
constexpr float kNoScore = -__builtin_inff();

// How a number is cached: as it is, or rounded to bfloat16 and widened where it is read.
struct Float32Cells {
  typedef float Number;
  static float number(float x) { return x; }
  static void store(float* to, Vec v) { AllLanes::store(to, v); }
};
struct Bfloat16Cells {
  typedef uint16_t Number;
  static uint16_t number(float x) { return static_cast<uint16_t>(float_bits(to_bfloat16(x)) >> 16); }
  static void store(uint16_t* to, Vec v) { AllLanes::store(to, to_bfloat16(v)); }
};

template <class Number>
inline const Number* keys_at(const AttentionArgs& a, const int32_t* table, int64_t kv_head, int64_t position) {
  const int64_t head = table[position / a.block_size] * a.kv_heads + kv_head;
  return static_cast<const Number*>(a.key_cache) + head * a.head_dim * a.block_size + position % a.block_size;
}

template <class Number>
inline const Number* values_at(const AttentionArgs& a, const int32_t* table, int64_t kv_head, int64_t position) {
  const int64_t row = (table[position / a.block_size] * a.kv_heads + kv_head) * a.block_size;
  return static_cast<const Number*>(a.value_cache) + (row + position % a.block_size) * a.padded_head_dim;
}

inline int64_t first_visible(const AttentionArgs& a, int64_t token) {
  if (a.firsts) return a.firsts[token];
  const int64_t length = a.lengths[token];
  if (a.window < 0) return length > 0 ? (length - 1) / -a.window * -a.window : 0;
  return a.window > 0 && length > a.window ? length - a.window : 0;
}

// Numbers of a token in `qkv`: where nothing is written to the cache there are queries only.
inline int64_t row_width(const AttentionArgs& a) { return (a.heads + (a.slots ? 2 * a.kv_heads : 0)) * a.head_dim; }

// Whether the tokens from t on, a vector of them, follow one another in a block.
inline bool are_neighbours(const AttentionArgs& a, int64_t t, int64_t last) {
  if (t + kLanes > last || a.slots[t] < 0 || a.slots[t] % a.block_size + kLanes > a.block_size) return false;
  for (int i = 1; i < kLanes; i++)
    if (a.slots[t + i] != a.slots[t] + i) return false;
  return true;
}

// Writes the keys of tokens that are neighbours to columns. width: from one token's to the next.
template <class Cells>
inline void write_columns(const AttentionArgs& a, const float* key, int64_t width, typename Cells::Number* keys) {
  for (int64_t d = 0; d < a.head_dim; d += kLanes) {
    const int count = a.head_dim - d < kLanes ? static_cast<int>(a.head_dim - d) : kLanes;
    Vec rows[kLanes];
    for (int i = 0; i < kLanes; i++) rows[i] = load_part(key + i * width + d, count);
    transpose(rows);
    for (int i = 0; i < count; i++) Cells::store(keys + (d + i) * a.block_size, rows[i]);
  }
}

// Task by task some tokens of a head: threads do not write to the same lines, and the keys of neighbouring tokens, which
// are columns of a block, find it in the first-level cache.
template <class Cells>
inline void write_cells(const AttentionArgs& a) {
  typedef typename Cells::Number Number;
  constexpr int64_t kTokens = 128;
  const int64_t width = row_width(a), heads = a.kv_heads, size = a.head_dim;
  auto body = [&](int64_t task, int) {
    const int64_t h = task % heads, first = task / heads * kTokens;
    const int64_t last = first + kTokens < a.tokens ? first + kTokens : a.tokens;
    int64_t written = first;  // keys of the tokens before are
    for (int64_t t = first; t < last; t++) {
      if (a.slots[t] < 0) continue;
      const int64_t head = a.slots[t] / a.block_size * heads + h, offset = a.slots[t] % a.block_size;
      const float *key = a.qkv + t * width + (a.heads + h) * size, *value = key + heads * size;
      Number* keys = static_cast<Number*>(a.key_cache) + head * size * a.block_size + offset;
      Number* values = static_cast<Number*>(a.value_cache) + (head * a.block_size + offset) * a.padded_head_dim;
      int64_t d = 0;
      for (; d + kLanes <= size; d += kLanes) Cells::store(values + d, load(value + d));
      for (; d < size; d++) values[d] = Cells::number(value[d]);
      if (t < written) continue;
      if (are_neighbours(a, t, last)) {
        write_columns<Cells>(a, key, width, keys);
        written = t + kLanes;
      } else {
        for (int64_t d = 0; d < size; d++) keys[d * a.block_size] = Cells::number(key[d]);
      }
    }
  };
  parallel_for((a.tokens + kTokens - 1) / kTokens * heads, body);
}

inline void write_cache(const AttentionArgs& a) {
  if (!a.slots) return;
  a.rounded_cache ? write_cells<Bfloat16Cells>(a) : write_cells<Float32Cells>(a);
}

// Scores [begin, end) of a query become cap * tanh(score / cap). (Not inlined: rounded alike for tiles of every size.)
__attribute__((noinline)) void cap_scores(float cap, int64_t begin, int64_t end, float* scores) {
  for (int64_t i = begin / kLanes * kLanes; i < end; i += kLanes) store(scores + i, vtanh(load(scores + i) / cap) * cap);
}

// Adds ALiBi to scores[begin, end) of a query, whose positions count from `first`. Biases are relative to the query's
// own position, which is more exact, unless they are rounded: the softmax is the same.
__attribute__((noinline)) void add_alibi(const AttentionArgs& a, int64_t head, int64_t own, int64_t first,
                                         int64_t begin, int64_t end, float* scores) {
  const auto nearest = [](Vec x) {  // in bfloat16; of numbers from 0 on
    const IntVec bits = (IntVec)x;
    return (Vec)((bits + 0x7fff + (bits >> 16 & 1)) & -0x10000);
  };
  Vec lane{}, slope = splat(a.slopes[head]);
  for (int l = 0; l < kLanes; l++) lane[l] = static_cast<float>(l);
  if (a.alibi_rounded) slope = nearest(slope);
  for (int64_t i = begin / kLanes * kLanes; i < end; i += kLanes) {
    const int64_t position = first + i - (a.alibi_rounded ? 0 : own);
    const Vec positions = lane + static_cast<float>(position);
    const Vec bias = a.alibi_rounded ? nearest(slope * nearest(positions)) : slope * positions;
    store(scores + i, fma(bias, splat(a.alibi_factor), load(scores + i)));
  }
}

// Adds the bias of each key's distance from the query's own position to scores[begin, end), whose positions count
// from `first`.
inline void add_distance_bias(const AttentionArgs& a, int64_t head, int64_t own, int64_t first, int64_t begin,
                              int64_t end, float* scores) {
  const float* biases = a.distance_bias + head * (2 * a.max_distance + 1) + a.max_distance;
  for (int64_t i = begin; i < end; i++) {
    const int64_t distance = first + i - own;
    scores[i] += biases[distance < -a.max_distance ? -a.max_distance : distance > a.max_distance ? a.max_distance : distance];
  }
}

// The tokens from `first` on that share a table row and stand one after the other, or see the same, `most` at the
// most.
inline int64_t run_length(const AttentionArgs& a, int64_t first, int64_t most) {
  const bool alike = first + 1 < a.tokens && a.lengths[first + 1] == a.lengths[first];
  int64_t count = 1;
  while (count < most && first + count < a.tokens && a.rows[first + count] == a.rows[first] &&
         a.lengths[first + count] == a.lengths[first] + (alike ? 0 : count))
    count++;
  return count;
}

// Heads of neighbouring tokens of one sequence that read the same keys.
struct QueryTile {
  int64_t first_token, tokens;
  int64_t kv_head, first_head, heads;
  int64_t begin, end;    // union of the positions that they see; none of padding
  const int32_t* table;  // of the sequence's blocks
};

// The tokens of a step, `heads` of a group and `tokens` of a sequence together at the most, key/value head by key/value head.
class Spans {
 public:
  Spans(const AttentionArgs& a, int64_t heads, int64_t tokens)
      : a_(a), heads_(heads), group_(a.heads / a.kv_heads), parts_((group_ + heads - 1) / heads),
        starts_(reinterpret_cast<int64_t*>(scratch(0, (a.tokens + 1) * 2))) {
    for (int64_t t = 0; t < a.tokens; runs_++) {
      starts_[runs_] = t;
      t += a.lengths[t] > 0 ? run_length(a, t, tokens) : 1;
    }
    starts_[runs_] = a.tokens;
  }

  int64_t count() const { return runs_ * of_run(); }
  int64_t of_run() const { return a_.kv_heads * parts_; }  // neighbours that are of the same tokens

  QueryTile operator[](int64_t i) const {
    const int64_t run = runs_ - 1 - i / of_run();  // the last have the longest contexts
    const int64_t first = starts_[run], last = starts_[run + 1] - 1, part = i % parts_;
    const int64_t kv_head = i % of_run() / parts_, first_head = kv_head * group_ + part * heads_;
    const int64_t rest = (kv_head + 1) * group_ - first_head;
    const bool is_padding = a_.lengths[first] <= 0;
    return {first, last - first + 1, kv_head, first_head, rest < heads_ ? rest : heads_,
            is_padding ? 0 : first_visible(a_, first), is_padding ? 0 : a_.lengths[last],
            a_.block_tables + static_cast<int64_t>(a_.rows[first]) * a_.blocks_per_row};
  }

  // Whether all are of single tokens, and threads share them evenly where those of a run are one task.
  bool are_many_tokens() const {
    int64_t all = 0, longest = 0;
    for (int64_t run = 0; run < runs_; run++) {
      if (starts_[run + 1] - starts_[run] > 1) return false;
      const int64_t length = a_.lengths[starts_[run]];
      all += length;
      longest = length > longest ? length : longest;
    }
    return longest * 2 * num_threads() <= all;
  }

 private:
  const AttentionArgs& a_;
  int64_t heads_, group_, parts_, runs_ = 0;
  int64_t* starts_;
};

inline void zero_span(const AttentionArgs& a, const QueryTile& queries) {
  float* out = a.out + (queries.first_token * a.heads + queries.first_head) * a.head_dim;
  __builtin_memset(out, 0, static_cast<size_t>(queries.heads * a.head_dim) * 4);
}

// Calls attend(queries of a span, number of the span that its thread most likely attends to next, thread) for the first of
// each `together` neighbours. Padding gives zeros.
template <class Attend>
inline void each_span(const AttentionArgs& a, const Spans& spans, int64_t together, Attend attend) {
  auto body = [&](int64_t task, int thread) {
    const int64_t first = task * together, behind = first + together;
    const QueryTile queries = spans[first];
    if (queries.end > 0) return attend(queries, behind < spans.count() ? behind : first, thread);
    for (int64_t i = first; i < behind; i++) zero_span(a, spans[i]);
  };
  parallel_for(spans.count() / together, body);
}
