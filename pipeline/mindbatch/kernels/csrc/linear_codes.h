// Products with weights that are codes with a scale for each group of inputs, as published in 4 and 8 bits:
// [N / kPanel][segments][groups](codes, scales [kPanel], offsets [kPanel] or none).
//
// A weight is number * scale + offset. Codes of 4 bits are [inputs / 8][kPanel][4] bytes, of which the lower halves are of
// the first four inputs; those of 8 bits are [inputs / 4][kPanel][4]. A code is its number with `kShift` added, so that it
// has no sign. x is rounded to int8 with a scale of its own for each group of a row. Of each group
//   sum = fma(float(exact sum) * scale of x, scale, sum), and with offsets sum = fma(sum of x * scale of x, offset, sum),
// one chain over the groups of a segment; segments are added as everywhere. So every set of instructions gives the same bits.

// How numbers are found of the lower four bits of bytes, what was added to them, and the place in a line of an output's code.
struct CodesInOrder {
  static IntVec bytes(IntVec codes) { return codes; }
  static int64_t place(int64_t output, int64_t input) { return output * 4 + input; }
};

struct Int4Codes : CodesInOrder {
  static constexpr WeightKind kKind = kInt4;
  static constexpr int kBits = 4, kShift = 8, kLargest = 15;
  static int number(int code) { return code - kShift; }
};

// E2M1, doubled.
constexpr int8_t kFloat4Numbers[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
struct Float4Codes : CodesInOrder {
  static constexpr WeightKind kKind = kFloat4;
  static constexpr int kBits = 4, kShift = 12, kLargest = 24;
  static int number(int code) { return kFloat4Numbers[code]; }

  static IntVec bytes(IntVec codes) {
    // What is looked up, kShift being added.
    alignas(16) static constexpr uint8_t kTable[] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
#if MB_LANES == 16 && defined(__AVX512BW__)
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kTable));
    return (IntVec)_mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, table), (__m512i)codes);
#elif MB_LANES == 8 && defined(__AVX2__)
    const __m128i table = _mm_load_si128(reinterpret_cast<const __m128i*>(kTable));
    return (IntVec)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)codes);
#elif MB_LANES == 4 && defined(__aarch64__)
    return (IntVec)vqtbl1q_u8(vld1q_u8(kTable), (uint8x16_t)codes);
#else
    uint8_t found[kLanes * 4];
    __builtin_memcpy(found, &codes, sizeof found);
    for (uint8_t& each : found) each = kTable[each];
    return load_ints(found);
#endif
  }
};

struct Int8Codes : CodesInOrder {
  static constexpr WeightKind kKind = kInt8Groups;
  static constexpr int kBits = 8, kShift = 128, kLargest = 255;
  static int number(int code) { return code - kShift; }
};

// Products of four unsigned bytes of weights with four signed bytes of x, for which x has so many kWords. Their sums are int32,
// or int16 for the products of kAtOnce words at most.
#if defined(MB_HAS_DOT_BYTES)
template <class Codes>
struct Products {
  static constexpr int kWords = 1, kAtOnce = 0;
  // ARM multiplies bytes with a sign: codes of 8 bits get theirs back.
  static constexpr bool kHasSign = !kDotsAreShifted && Codes::kLargest > 127;

  static void write(const int8_t* four, int32_t* words) { __builtin_memcpy(words, four, 4); }
  static IntVec weights(IntVec bytes) { return kHasSign ? bytes ^ static_cast<int32_t>(0x80808080u) : bytes; }
  template <int Rows>
  static IntVec added(IntVec sum, IntVec w, const int32_t* x) {
    return MB_DOT_BYTES(sum, w, splat_int(x[0]));
  }
};
#else
// Products of int16, as Int8Words has them.
template <class Codes, class = void>
struct Products {
  static constexpr int kWords = 2, kAtOnce = 0;
  static constexpr bool kHasSign = false;

  static void write(const int8_t* four, int32_t* words) {
    words[0] = Int8Words::pair(four[0], four[2]);
    words[1] = Int8Words::pair(four[1], four[3]);
  }
  static IntVec weights(IntVec bytes) { return bytes; }
  template <int Rows>
  static IntVec added(IntVec sum, IntVec w, const int32_t* x) {
    return sum + add_pairs(splat_int(x[0]), w & 0x00ff00ff) + add_pairs(splat_int(x[Rows]), w >> 8 & 0x00ff00ff);
  }
};

#if (MB_LANES == 16 && defined(__AVX512BW__)) || (MB_LANES == 8 && defined(__AVX2__))
// Sums of two products that int16 holds, and those of several words too: codes of 4 bits are small.
template <class Codes>
struct Products<Codes, std::enable_if_t<Codes::kBits == 4>> {
  static constexpr int kWords = 1, kAtOnce = 32767 / (2 * Codes::kLargest * 127);
  static constexpr bool kHasSign = false;

  static void write(const int8_t* four, int32_t* words) { __builtin_memcpy(words, four, 4); }
  static IntVec weights(IntVec bytes) { return bytes; }
  template <int Rows>
  static ShortVec added(ShortVec sum, IntVec w, const int32_t* x) {
#if MB_LANES == 16
    return sum + (ShortVec)_mm512_maddubs_epi16((__m512i)w, (__m512i)splat_int(x[0]));
#else
    return sum + (ShortVec)_mm256_maddubs_epi16((__m256i)w, (__m256i)splat_int(x[0]));
#endif
  }
};
#endif
#endif

// IsUnpacked: codes of 4 bits, too, have a byte each, as `unpack` leaves them.
template <class Codes, bool IsUnpacked>
struct Grouped {
  static constexpr WeightKind kKind = Codes::kKind;
  typedef Products<Codes> Its;
  static constexpr int kWords = Its::kWords;
  static constexpr int kTileRows = kLanes == 16 ? 8 : 2;
  static constexpr int kShift = Its::kHasSign ? 0 : Codes::kShift;
  static constexpr bool kHasBytes = IsUnpacked || Codes::kBits == 8;
  static constexpr int64_t kLine = kPanel * 4, kInLine = kHasBytes ? 4 : 8;  // bytes of a line, and its inputs

  // sum[r][v] += the products of a line.
  template <int Rows, int Vecs, class Sum>
  __attribute__((always_inline)) static void add_line(const int32_t* x, const char* codes, Sum (*sum)[Vecs]) {
    IntVec low[Vecs], high[Vecs];
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; v++) {
      const IntVec both = load_ints(codes + v * kLanes * 4);
      if constexpr (kHasBytes) {
        low[v] = Its::weights(both);
      } else {
        low[v] = Codes::bytes(both & 0x0f0f0f0f);
        high[v] = Codes::bytes(both >> 4 & 0x0f0f0f0f);
      }
    }
    if constexpr (!IsUnpacked) {
      __builtin_prefetch(codes + kPanelAhead);
      __builtin_prefetch(codes + kPanelAhead + kLine / 2);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; v++) {
        sum[r][v] = Its::template added<Rows>(sum[r][v], low[v], x + r);
        if constexpr (!kHasBytes) sum[r][v] = Its::template added<Rows>(sum[r][v], high[v], x + Rows * kWords + r);
      }
  }

  // sum[r][v] += the exact products of so many inputs.
  template <int Rows, int Vecs>
  __attribute__((always_inline)) static void add(const int32_t* x, const char* codes, int64_t inputs, IntVec (*sum)[Vecs]) {
    constexpr int64_t kStep = kInLine / 4 * Rows * kWords;
    if constexpr (Its::kAtOnce == 0) {
      for (int64_t i = 0; i < inputs; i += kInLine, x += kStep, codes += kLine) add_line<Rows, Vecs>(x, codes, sum);
    } else {
      constexpr int64_t kFew = 16 / kInLine, kMany = Its::kAtOnce >= 8 ? 32 / kInLine : kFew;  // lines that int16 holds
      static_assert(Its::kAtOnce >= 4, "the smallest group has 16 inputs");
      const int64_t lines = inputs % 32 == 0 ? kMany : kFew;
      for (int64_t i = 0; i < inputs; i += lines * kInLine) {
        ShortVec some[Rows][Vecs] = {};
        for (int64_t line = 0; line < lines; line++, x += kStep, codes += kLine) add_line<Rows, Vecs>(x, codes, some);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
          for (int v = 0; v < Vecs; v++) sum[r][v] += add_pairs((IntVec)some[r][v], splat_int(0x00010001));
      }
    }
  }
};

// Codes of 4 bits of a group -> lines of a byte each.
template <class Codes>
inline void unpack(const char* codes, int64_t inputs, char* to) {
  for (int64_t i = 0; i < inputs; i += 8, codes += kRowBytes, to += 2 * kRowBytes)
    for (int64_t b = 0; b < kRowBytes; b += kLanes * 4) {
      const IntVec both = load_ints(codes + b);
      *reinterpret_cast<IntVec*>(to + b) = Codes::bytes(both & 0x0f0f0f0f);
      *reinterpret_cast<IntVec*>(to + kRowBytes + b) = Codes::bytes(both >> 4 & 0x0f0f0f0f);
    }
}

// x as its tiles read it. words: [tile][input / 4][word][row]; of each tile [group][row]: scales, sums of x times them, and
// what exact sums begin at.
struct GroupedRows {
  const int32_t* words;
  const float *scales, *sums;
  const int32_t* starts;
};

// The groups of all segments.
inline int64_t num_groups(const LinearArgs& a) { return a.depth / a.groups.inputs; }

template <class Kind>
inline GroupedRows group_rows(const LinearArgs& a, const Tiling& tiling) {
  const int64_t groups = num_groups(a), lines = a.groups.inputs / 4, count = groups * lines * Kind::kWords;
  float* words = scratch(0, a.rows * (count + 3 * groups));
  float *scales = words + a.rows * count, *sums = scales + a.rows * groups;
  auto* starts = reinterpret_cast<int32_t*>(sums + a.rows * groups);
  auto body = [&](int64_t t, int thread) {
    const int64_t first = tiling.begin(t), height = tiling.height(t);
    float* own = scratch(1 + thread, height * count + a.depth);
    const float* rows[Kind::kTileRows];
    for (int64_t r = 0; r < height; r++) {
      const float* x = row_of(a, first + r, own + height * count);
      auto* to = reinterpret_cast<int32_t*>(own + r * count);
      rows[r] = own + r * count;
      for (int64_t g = 0; g < groups; g++, x += a.groups.inputs, to += lines * Kind::kWords) {
        alignas(64) int8_t bytes[kMostOfGroup];
        const float scale = quantise(x, a.groups.inputs, [&](int64_t i, ByteVec some, int lanes) {
          __builtin_memcpy(bytes + i, &some, static_cast<size_t>(lanes));
        });
        int32_t sum = 0;
        for (int64_t i = 0; i < a.groups.inputs; i++) sum += bytes[i];
        for (int64_t line = 0; line < lines; line++) Kind::Its::write(bytes + line * 4, to + line * Kind::kWords);
        const int64_t place = first * groups + g * height + r;
        scales[place] = scale;
        sums[place] = static_cast<float>(sum) * scale;
        starts[place] = -Kind::kShift * sum;
      }
    }
    lay_out(rows, height, count, words + first * count);
  };
  if (tiling.tiles == 1) body(0, 0);
  else parallel_for(tiling.tiles, body);
  return {reinterpret_cast<const int32_t*>(words), scales, sums, starts};
}

// acc[r][c] += the sums of some groups of a panel, of one tile. codes: those of the first group; of each group `step` bytes
// behind that of the one before. is_first: acc holds nothing yet.
template <class Kind, int Rows>
inline void grouped_tile(const LinearArgs& a, const GroupedRows& x, const char* panel, const char* codes, int64_t step,
                         int64_t groups, bool is_first, float* acc) {
  // So many that registers hold the sums, and what they are added from.
  constexpr int kPartVecs = kLanes == 16 ? kVecs : 4;
  const int64_t inputs = a.groups.inputs, its_codes = code_bytes(inputs, Kind::kKind), words = inputs / 4 * Rows * Kind::kWords;
  const bool has_offsets = a.groups.bytes > its_codes + kRowBytes;
  for (int64_t part = 0; part < kPanel; part += kPartVecs * kLanes) {
    Vec total[Rows][kPartVecs];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < kPartVecs; v++) total[r][v] = is_first ? Vec{} : load(acc + r * kPanel + part + v * kLanes);
    for (int64_t g = 0; g < groups; g++) {
      IntVec sum[Rows][kPartVecs];
#pragma GCC unroll 16
      for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kPartVecs; v++) sum[r][v] = splat_int(x.starts[g * Rows + r]);
      Kind::template add<Rows, kPartVecs>(x.words + g * words, codes + g * step + part * 4, inputs, sum);
      const float* scales = reinterpret_cast<const float*>(panel + g * a.groups.bytes + its_codes) + part;
#pragma GCC unroll 16
      for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kPartVecs; v++) {
          const Vec exact = __builtin_convertvector(sum[r][v], Vec) * x.scales[g * Rows + r];
          total[r][v] = fma(exact, load(scales + v * kLanes), total[r][v]);
        }
      if (!has_offsets) continue;
#pragma GCC unroll 16
      for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < kPartVecs; v++)
          total[r][v] = fma(splat(x.sums[g * Rows + r]), load(scales + kPanel + v * kLanes), total[r][v]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 8
      for (int v = 0; v < kPartVecs; v++) store(acc + r * kPanel + part + v * kLanes, total[r][v]);
  }
}

template <class Kind, int Rows>
inline void grouped_tile_of(int64_t rows, const LinearArgs& a, const GroupedRows& x, const char* panel, const char* codes,
                            int64_t step, int64_t groups, bool is_first, float* acc) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return grouped_tile<Kind, Rows>(a, x, panel, codes, step, groups, is_first, acc);
    return grouped_tile_of<Kind, Rows - 1>(rows, a, x, panel, codes, step, groups, is_first, acc);
  }
}

// One panel for all rows, at most so many groups of it at a time, which stay in the first-level cache as the tiles pass by.
// prepare: (their bytes, how many). multiply: (first row, rows, first group, how many, bytes, is_first, sums), which adds to the
// sums of a tile. acc holds what `sums_and_waiting` says.
template <class Prepare, class Multiply>
inline void panel_by_groups(const LinearArgs& a, const Tiling& tiling, int64_t p, int64_t most, float* acc, Prepare prepare,
                            Multiply multiply) {
  const int64_t groups = num_groups(a), of_segment = groups / a.segments;
  const char* panel = static_cast<const char*>(a.weights) + p * groups * a.groups.bytes;
  float* waiting = acc + a.rows * kPanel;
  for (int64_t s = 0; s < a.segments; s++)
    for (int64_t begin = 0; begin < of_segment; begin += most) {
      const int64_t g = s * of_segment + begin, some = of_segment - begin < most ? of_segment - begin : most;
      const char* its = panel + g * a.groups.bytes;
      prepare(its, some);
      const bool is_last = begin + some == of_segment;
      for (int64_t t = 0; t < tiling.tiles; t++) {
        const int64_t first = tiling.begin(t), height = tiling.height(t);
        if (is_last && s + 1 == a.segments) own_lines(a, first, height, p * kPanel);
        float* sums = acc + first * kPanel;
        multiply(first, height, g, some, its, begin == 0, sums);
        if (is_last)
          add_segment(rows_of(a, first, height), s, p * kPanel, waiting + first * kPanel * complete_before(a.segments - 1),
                      {0, height}, [&](int64_t r, int64_t i) { return load(sums + r * kPanel + i); });
      }
    }
  summarise(a, p);
}

// Of several tiles, codes of 4 bits are unpacked for all of them.
template <class Codes, bool IsUnpacked>
inline void grouped_panel(const LinearArgs& a, const Tiling& tiling, const GroupedRows& x, int64_t p, float* acc) {
  typedef Grouped<Codes, IsUnpacked> Kind;
  constexpr int64_t kInputsAtOnce = 256;
  const int64_t inputs = a.groups.inputs, groups = num_groups(a), words = inputs / 4 * Kind::kWords;
  const int64_t step = IsUnpacked ? inputs * kPanel : a.groups.bytes;
  alignas(64) char bytes[IsUnpacked ? kInputsAtOnce * kPanel : 1];
  const auto unpack_some = [&](const char* its, int64_t some) {
    if constexpr (IsUnpacked)
      for (int64_t i = 0; i < some; i++) unpack<Codes>(its + i * a.groups.bytes, inputs, bytes + i * step);
  };
  const auto multiply = [&](int64_t first, int64_t height, int64_t g, int64_t some, const char* its, bool is_first, float* sums) {
    const int64_t place = first * groups + g * height;
    const GroupedRows rows = {x.words + place * words, x.scales + place, x.sums + place, x.starts + place};
    grouped_tile_of<Kind, Kind::kTileRows>(height, a, rows, its, IsUnpacked ? bytes : its, step, some, is_first, sums);
  };
  const int64_t most = tiling.tiles == 1 ? groups : kInputsAtOnce / inputs;
  panel_by_groups(a, tiling, p, most, acc, unpack_some, multiply);
}

// As `linear`.
template <class Codes>
void linear_codes(const LinearArgs& a) {
  typedef Grouped<Codes, false> Kind;
  if (a.rows == 0) return;
  const Tiling tiling(a.rows, Kind::kTileRows);
  const GroupedRows x = group_rows<Kind>(a, tiling);
  each_panel(a, [&](int64_t p, int thread) {
    float* acc = scratch(1 + thread, sums_and_waiting(a.rows, a.segments));
    if (Codes::kBits == 8 || tiling.tiles == 1) grouped_panel<Codes, false>(a, tiling, x, p, acc);
    else grouped_panel<Codes, true>(a, tiling, x, p, acc);
  });
}

// The code of an output and an input of a group.
template <class Codes>
inline int code_of(const char* group, int64_t column, int64_t input) {
  const int64_t in_line = Codes::kBits == 8 ? 4 : 8, k = input % in_line;
  const int byte = reinterpret_cast<const uint8_t*>(group)[input / in_line * kPanel * 4 + Codes::place(column, k % 4)];
  return Codes::kBits == 8 ? byte : k < 4 ? byte & 15 : byte >> 4;
}

// As `embed`: number * scale, and the offset is added to it.
template <class Codes>
void embed_codes(const EmbedArgs& a) {
  const int64_t inputs = a.groups.inputs, groups = a.depth / inputs, codes = code_bytes(inputs, Codes::kKind);
  auto body = [&](int64_t t, int) {
    const int64_t id = a.ids[t], column = id % kPanel;
    float* y = a.y + t * a.depth;
    if (id < 0 || id >= a.vocabulary) {
      __builtin_memset(y, 0, static_cast<size_t>(a.depth) * 4);
      return;
    }
    const char* its = static_cast<const char*>(a.weights) + id / kPanel * groups * a.groups.bytes;
    for (int64_t g = 0; g < groups; g++, its += a.groups.bytes) {
      const float* scales = reinterpret_cast<const float*>(its + codes) + column;
      for (int64_t i = 0; i < inputs; i++) {
        const float scaled = static_cast<float>(Codes::number(code_of<Codes>(its, column, i))) * scales[0];
        *y++ = a.groups.bytes > codes + kRowBytes ? scaled + scales[kPanel] : scaled;
      }
    }
  };
  parallel_for(a.tokens, body);
}
