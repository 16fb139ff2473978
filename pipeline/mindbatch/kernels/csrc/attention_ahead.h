// Reading a chunk's keys and values ahead, to the second-level cache, while a core computes what the chunk before it holds.
//
// A core waits for a dozen lines of memory at a time, and those that hold it up keep it from its caches, too. So it asks for
// few at a time, all the while, and where it can for lines that follow one another: the keys of neighbouring heads, block by
// block.

class ChunkAhead {
 public:
  ChunkAhead() = default;

  // The chunk at `first` of what queries see, of so many heads from theirs on, in shares.
  template <class Number>
  static ChunkAhead of(const AttentionArgs& a, const QueryTile& queries, int64_t heads, int64_t first, int64_t shares) {
    const int64_t end = queries.end < first + kChunk ? queries.end : first + kChunk;
    if (first >= end) return {};
    const int64_t positions = a.block_size * static_cast<int64_t>(sizeof(Number));
    const Cells keys = {static_cast<const char*>(a.key_cache), a.head_dim * positions};
    const Cells values = {static_cast<const char*>(a.value_cache), a.padded_head_dim * positions};
    const int32_t *block = queries.table + first / a.block_size, *last = queries.table + (end - 1) / a.block_size;
    const int64_t lines = (keys.bytes + values.bytes) * heads / kLine * (last - block + 1);
    return {keys, values, a.kv_heads, queries.kv_head, heads, block, last, (lines + shares - 1) / shares};
  }

  void fetch(int64_t shares) {
    for (int64_t left = shares * share_; left > 0; left--, line_ += kLine) {
      if (line_ >= end_ && !next()) return;
      __builtin_prefetch(line_, 0, 2);
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  // A cache, and the bytes of a head in a block.
  struct Cells {
    const char* first = nullptr;
    int64_t bytes = 0;
  };

  ChunkAhead(Cells keys, Cells values, int64_t all_heads, int64_t head, int64_t heads, const int32_t* block,
             const int32_t* last, int64_t share)
      : keys_(keys), values_(values), all_heads_(all_heads), head_(head), heads_(heads), block_(block), last_(last),
        share_(share) {}

  // Goes on to the values of a block after its keys, then to the next block; false behind the last.
  bool next() {
    if (block_ > last_) share_ = 0;
    if (share_ == 0) return false;
    const Cells& cells = is_at_keys_ ? keys_ : values_;
    line_ = cells.first + (*block_ * all_heads_ + head_) * cells.bytes;
    end_ = line_ + heads_ * cells.bytes;
    if (!is_at_keys_) block_++;
    is_at_keys_ = !is_at_keys_;
    return true;
  }

  Cells keys_, values_;
  int64_t all_heads_ = 0, head_ = 0, heads_ = 0;
  const int32_t *block_ = nullptr, *last_ = nullptr;
  int64_t share_ = 0;  // lines; 0 where there are none
  const char *line_ = nullptr, *end_ = nullptr;
  bool is_at_keys_ = true;
};
