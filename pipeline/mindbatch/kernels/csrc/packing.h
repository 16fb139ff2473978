// Packs rows of a matrix as they are read, in the layout of linear_*.h: as they are, or rounded to bfloat16 or int8.
// Each function returns how many finite numbers its kind does not reach.

// In a packed panel the 4 bytes of an output for 1, 2 or 4 neighbouring inputs stand together: a unit. It has a
// line of units, one of each output, for every so many inputs.
constexpr int64_t kDepth = 64;  // inputs that are converted at once: whole cache lines, and units of every kind

using Tile = float[kDepth][kPanel];  // numbers of a panel's outputs, each input's side by side
using Line = uint32_t[kPanel];

typedef uint32_t Four __attribute__((vector_size(16)));

Four four_bits(const float* from) {
  Four bits;
  memcpy(&bits, from, sizeof(bits));
  return bits;
}

// As float32, exactly. Each is the same bits with every instruction set.
inline float widened(float number) { return number; }

inline float of_bits(uint32_t bits) {
  float number;
  memcpy(&number, &bits, 4);
  return number;
}

struct StoredBfloat16 { uint16_t bits; };
inline float widened(StoredBfloat16 number) { return of_bits(uint32_t{number.bits} << 16); }

// IEEE 754-2019, 3.4: numbers without an exponent are whole multiples of 2^-24, as 0.5 and more has them at its end.
// Chosen by masks: a compiler turns branches around floats into no vectors.
struct StoredFloat16 { uint16_t bits; };
inline float widened(StoredFloat16 number) {
  const uint32_t size = number.bits & 0x7fff, sign = uint32_t{number.bits & 0x8000u} << 16;
  const float small = of_bits(0x3f000000 | size) - 0.5f;
  uint32_t small_bits;
  memcpy(&small_bits, &small, 4);
  const uint32_t is_small = -uint32_t{size < 0x400}, is_outside = -uint32_t{size >= 0x7c00};
  const uint32_t large = (size << 13) + (112u << 23) + (is_outside & 112u << 23);
  return of_bits((small_bits & is_small) | (large & ~is_small) | sign);
}

// kDepth neighbouring numbers.
template <class Stored>
void widen(const Stored* from, float* to) {
  for (int64_t k = 0; k < kDepth; k++) to[k] = widened(from[k]);
}

#ifdef __AVX512F__
// The instruction makes NaNs quiet, which others leave as they are.
inline void widen(const StoredFloat16* from, float* to) {
  __mmask16 nans = 0;
  for (int64_t k = 0; k < kDepth; k += 16) {
    const __m512 wide = _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + k)));
    nans |= _mm512_cmp_ps_mask(wide, wide, _CMP_UNORD_Q);
    _mm512_storeu_ps(to + k, wide);
  }
  if (nans != 0) widen<StoredFloat16>(from, to);
}
#endif

// Numbers [k0, k0 + 4) of 4 neighbouring rows, turned.
void turn_4x4(const float* from, int64_t row_stride, float* to) {
  const Four a = four_bits(from), b = four_bits(from + row_stride);
  const Four c = four_bits(from + 2 * row_stride), d = four_bits(from + 3 * row_stride);
  const Four ab = __builtin_shuffle(a, b, Four{0, 4, 1, 5}), ab2 = __builtin_shuffle(a, b, Four{2, 6, 3, 7});
  const Four cd = __builtin_shuffle(c, d, Four{0, 4, 1, 5}), cd2 = __builtin_shuffle(c, d, Four{2, 6, 3, 7});
  const Four turned[4] = {
      __builtin_shuffle(ab, cd, Four{0, 1, 4, 5}), __builtin_shuffle(ab, cd, Four{2, 3, 6, 7}),
      __builtin_shuffle(ab2, cd2, Four{0, 1, 4, 5}), __builtin_shuffle(ab2, cd2, Four{2, 3, 6, 7})};
  for (int64_t k = 0; k < 4; k++) memcpy(to + k * kPanel, &turned[k], sizeof(Four));
}

// A tile of whole rows: 64 neighbouring numbers of each are widened, and turned from there.
template <class Stored>
void turn_rows(const Stored* from, int64_t row_stride, Tile& tile) {
  for (int64_t row = 0; row < kPanel; row += 4) {
    float wide[4][kDepth];
    for (int64_t each = 0; each < 4; each++) widen(from + (row + each) * row_stride, wide[each]);
    for (int64_t k = 0; k < kDepth; k += 4) turn_4x4(&wide[0][k], kDepth, &tile[k][row]);
  }
}

inline void turn_rows(const float* from, int64_t row_stride, Tile& tile) {
  for (int64_t row = 0; row < kPanel; row += 4)
    for (int64_t k = 0; k < kDepth; k += 4) turn_4x4(from + row * row_stride + k, row_stride, &tile[k][row]);
}

// Inputs [k0, k0 + depth) of the part's rows; the tile is zero elsewhere.
template <class Stored>
void read_tile(const PackArgs& part, int64_t k0, int64_t depth, Tile& tile) {
  const int64_t row_stride = part.row_stride, column_stride = part.column_stride;
  const Stored* from = reinterpret_cast<const Stored*>(part.rows) + k0 * column_stride;
  if (column_stride == 1 && part.count == kPanel && depth == kDepth) return turn_rows(from, row_stride, tile);
  if (part.count < kPanel || depth < kDepth) memset(tile, 0, sizeof(tile));
  if (row_stride == 1 && part.count == kPanel) {
    for (int64_t k = 0; k < depth; k++)
      for (int64_t row = 0; row < kPanel; row++) tile[k][row] = widened(from[k * column_stride + row]);
  } else {
    for (int64_t k = 0; k < depth; k++)
      for (int64_t row = 0; row < part.count; row++)
        tile[k][row] = widened(from[row * row_stride + k * column_stride]);
  }
}

void read_tile(const PackArgs& part, int64_t k0, int64_t depth, Tile& tile) {
  if (part.stored == kStoredBfloat16) return read_tile<StoredBfloat16>(part, k0, depth, tile);
  if (part.stored == kStoredFloat16) return read_tile<StoredFloat16>(part, k0, depth, tile);
  return read_tile<float>(part, k0, depth, tile);
}

// Calls body(tile, k0, depth) for all inputs of a part, kDepth at a time.
template <class Body>
void each_tile(const PackArgs& part, Body body) {
  Tile tile;
  for (int64_t k0 = 0; k0 < part.depth; k0 += kDepth) {
    const int64_t depth = part.depth - k0 < kDepth ? part.depth - k0 : kDepth;
    read_tile(part, k0, depth, tile);
    body(tile, k0, depth);
  }
}

void write_line(const Line& units, const PackArgs& part, int64_t line) {
  auto* to = reinterpret_cast<uint32_t*>(part.panel) + line * kPanel + part.column;
  memcpy(to, units, static_cast<size_t>(part.count) * 4);
}

int64_t pack_float32(const PackArgs& part) {
  each_tile(part, [&](const Tile& tile, int64_t k0, int64_t depth) {
    for (int64_t k = 0; k < depth; k++) {
      Line units;
      memcpy(units, tile[k], sizeof(units));
      write_line(units, part, k0 + k);
    }
  });
  return 0;
}

// To nearest, ties to even; a NaN keeps its upper half and is made quiet. Counts finite numbers that become infinite.
void round_to_bfloat16(const float* numbers, Line& rounded, Line& lost) {
  Line bits;
  memcpy(bits, numbers, sizeof(bits));
  for (int64_t row = 0; row < kPanel; row++) {
    const uint32_t size = bits[row] & 0x7fffffff;
    const uint32_t nearest = (bits[row] + 0x7fff + (bits[row] >> 16 & 1)) >> 16;
    rounded[row] = size > 0x7f800000 ? bits[row] >> 16 | 0x40 : nearest;
    lost[row] += size < 0x7f800000 && (nearest & 0x7fff) == 0x7f80;
  }
}

int64_t pack_bfloat16(const PackArgs& part) {
  Line lost = {};
  each_tile(part, [&](const Tile& tile, int64_t k0, int64_t depth) {
    for (int64_t k = 0; k < depth; k += 2) {
      Line low, high;
      round_to_bfloat16(tile[k], low, lost);
      round_to_bfloat16(tile[k + 1], high, lost);
      for (int64_t row = 0; row < kPanel; row++) low[row] |= high[row] << 16;
      write_line(low, part, (k0 + k) / 2);
    }
  });
  int64_t all = 0;
  for (const uint32_t each : lost) all += each;
  return all;
}

// The largest number of each row is 127 times its scale. A row with a number that is none gets such a scale.
struct RowScales {
  float most[kPanel] = {}, poison[kPanel] = {};

  void include(const float* numbers) {
    for (int64_t row = 0; row < kPanel; row++) {
      const float size = __builtin_fabsf(numbers[row]);
      most[row] = size > most[row] ? size : most[row];
      poison[row] += numbers[row] * 0;
    }
  }

  // Divisors for which such rows, and those of zeros, become zeros.
  void divisors(float* found) const {
    for (int64_t row = 0; row < kPanel; row++)
      found[row] = most[row] > 0 && poison[row] == 0 ? most[row] : __builtin_inff();
  }
};

// 127ths of the divisor; nearest, ties to even, as the sum with 1.5 * 2^23 leaves it in its lowest bits. The
// product is rounded before the sum on every machine: the compiler does not see through memory.
void round_to_int8(const float* numbers, const float* divisors, Line& rounded, int32_t* sums) {
  float scaled[kPanel];
  for (int64_t row = 0; row < kPanel; row++) {
    const float ratio = numbers[row] / divisors[row];
    scaled[row] = (ratio == ratio ? ratio : 0) * 127;
  }
  asm volatile("" : : "r"(scaled) : "memory");
  for (int64_t row = 0; row < kPanel; row++) {
    const float shifted = scaled[row] + 12582912.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, 4);
    rounded[row] = bits & 0xff;
    sums[row] += static_cast<int32_t>(bits) - 0x4b400000;
  }
}

int64_t pack_int8(const PackArgs& part) {
  RowScales scales;
  each_tile(part, [&](const Tile& tile, int64_t, int64_t depth) {
    for (int64_t k = 0; k < depth; k++) scales.include(tile[k]);
  });
  float divisors[kPanel];
  scales.divisors(divisors);
  int32_t sums[kPanel] = {};
  each_tile(part, [&](const Tile& tile, int64_t k0, int64_t depth) {
    for (int64_t k = 0; k < depth; k += 4) {
      Line units = {};
      for (int64_t place = 0; place < 4; place++) {
        Line rounded;
        round_to_int8(tile[k + place], divisors, rounded, sums);
        for (int64_t row = 0; row < kPanel; row++) units[row] |= rounded[row] << (8 * place);
      }
      write_line(units, part, (k0 + k) / 4);
    }
  });
  char* tail = part.panel + padded_depth(part.depth, kInt8) * kPanel;
  auto* factors = reinterpret_cast<float*>(tail) + part.column;
  auto* offsets = reinterpret_cast<int32_t*>(tail) + kPanel + part.column;
  for (int64_t row = 0; row < part.count; row++) {
    factors[row] = scales.most[row] / 127 + scales.poison[row];
    offsets[row] = 128 * sums[row];
  }
  return 0;
}
