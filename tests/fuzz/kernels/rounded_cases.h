// Products with weights in bfloat16 and int8: packed by the library, and compared with what was packed.
#pragma once
#include "dense_cases.h"

struct Kind {
  std::string name;
  mindbatch::WeightKind number;
  int64_t depth_unit, bytes, tail;
};
inline const std::vector<Kind> kKinds = {
    {"bfloat16", mindbatch::kBfloat16, 32, 2, 0},
    {"int8", mindbatch::kInt8, 64, 1, 256},
};

// The kinds of numbers that files store: mb_pack's `stored`.
inline const std::vector<int> kStored = {0, 1, 2};

// The numbers as a file has them; `values` become what they are there.
struct StoredRows {
  int stored;
  Buffer<char> bytes;

  StoredRows(const std::string& name, int stored, std::vector<float>& values)
      : stored(stored), bytes(name, {}, as_stored(stored, values)) {}
  const char* from(int64_t number) const { return bytes.memory + number * (stored == 0 ? 4 : 2); }

  static std::vector<char> as_stored(int stored, std::vector<float>& values) {
    std::vector<char> found(values.size() * (stored == 0 ? 4 : 2));
    for (size_t i = 0; i < values.size(); i++) {
      const uint32_t bits = static_cast<uint32_t>(bits_of(values[i])), exponent = bits >> 23 & 0xff;
      if (stored == 0) { std::memcpy(&found[4 * i], &bits, 4); continue; }
      // Cut off, not rounded; a half of normal size, or zero.
      const uint32_t half = exponent < 113 ? 0 : (bits >> 13 & 0x3ff) | (exponent - 112) << 10;
      const auto cut = static_cast<uint16_t>(stored == 1 ? bits >> 16 : (bits >> 16 & 0x8000) | half);
      std::memcpy(&found[2 * i], &cut, 2);
      const uint32_t kept = stored == 1 ? bits & 0xffff0000 : (half ? bits & 0xffffe000 : 0);
      values[i] = from_bits(static_cast<int32_t>(kept));
    }
    return found;
  }
};

struct Packed {
  const Kind& kind;
  int64_t depth, segments, segment_depth, segment_bytes;
  Buffer<int8_t> bytes;

  Packed(Random& random, const Kind& kind, int64_t outputs, int64_t depth)
      : kind(kind), depth(depth), segments(some_segments(random, depth)), segment_depth(depth / segments),
        segment_bytes((segment_depth + kind.depth_unit - 1) / kind.depth_unit * kind.depth_unit * kind.bytes * kPanelWidth +
                      kind.tail),
        bytes(kind.name + ".weights", {panels(outputs), segments, segment_bytes},
              std::vector<int8_t>(static_cast<size_t>(panels(outputs) * segments * segment_bytes))) {
    std::vector<float> values = numbers(random, outputs * depth);
    const StoredRows rows(kind.name + ".rows", random.one_of(kStored), values);
    char* packed = reinterpret_cast<char*>(bytes.memory);
    const int64_t first = outputs / 2;  // in two calls, as the parts of a fused matrix are packed
    require(mb_pack(kind.number, rows.stored, rows.from(0), first, depth, depth, 1, packed, 0, segments) == 0,
            "numbers are lost");
    require(mb_pack(kind.number, rows.stored, rows.from(first * depth), outputs - first, depth, depth, 1, packed,
                    first, segments) == 0, "numbers are lost");
    for (int64_t output = 0; output < outputs; output++)
      for (int64_t k = 0; k < depth; k++) {
        const double step = kind.bytes == 2 ? std::fabs(at(output, k)) / 128 : scale(output, k);
        require(std::fabs(at(output, k) - values[output * depth + k]) <= step * 0.5001,
                "a weight is further than half a step from what it was");
      }
  }

  // Of the segment that has an input.
  const int8_t* panel(int64_t output, int64_t k) const {
    return bytes.memory + (output / kPanelWidth * segments + k / segment_depth) * segment_bytes;
  }
  double scale(int64_t output, int64_t k) const {
    float found;
    std::memcpy(&found, panel(output, k) + segment_bytes - kind.tail + output % kPanelWidth * 4, 4);
    return found;
  }
  double at(int64_t output, int64_t k) const {
    const int64_t group = 4 / kind.bytes, column = output % kPanelWidth;
    const int64_t within = k % segment_depth;
    const int8_t* number =
        panel(output, k) + ((within / group * kPanelWidth + column) * group + within % group) * kind.bytes;
    if (kind.bytes == 1) return *number * scale(output, k);
    uint16_t half;
    std::memcpy(&half, number, 2);
    return from_bits(static_cast<int32_t>(uint32_t{half} << 16));
  }
};

// Every sum is that of the numbers before x was rounded, but for half a step of x and what float32 rounds.
inline void rounded_linear_case(Random& random, const Kind& kind, int64_t rows, int64_t depth, int64_t columns,
                                bool biased) {
  running = kind.name + " " + std::to_string(rows) + "x" + std::to_string(depth) + "x" + std::to_string(columns);
  const Packed weights(random, kind, columns, depth);
  const Floats x = drawn(random, kind.name + ".x", {rows, depth});
  const Floats bias = drawn(random, kind.name + ".bias", {biased ? columns : 1});
  const Floats y = empty(kind.name + ".y", {rows, columns});
  const Ints settings = words_of(kind.name + ".settings", mindbatch::LinearSettings{columns, kind.number});
  require(call(mb_linear, {x, weights.bytes, bias, settings, y}) == 0, "failed");
  for (int64_t r = 0; r < rows; r++) {
    double largest = 0;
    for (int64_t k = 0; k < depth; k++) largest = std::max(largest, std::fabs(double{x.values[r * depth + k]}));
    for (int64_t c = 0; c < columns; c++) {
      double sum = bias.values.size() > 1 ? bias.values[c] : 0, limit = 1e-5 * static_cast<double>(depth) + 1e-5;
      for (int64_t k = 0; k < depth; k++) {
        const double number = x.values[r * depth + k], weight = weights.at(c, k);
        sum += number * weight;
        limit += 0.501 * std::fabs(weight) * (kind.bytes == 2 ? std::fabs(number) / 128 : largest / 127);
      }
      require(std::fabs(y.memory[r * columns + c] - sum) <= limit, "a sum is too far from what it should be");
    }
  }
  halves_case(random, kind.number, weights.bytes, rows, depth, columns);
}

inline void rounded_embed_case(Random& random, const Kind& kind, int64_t vocabulary, int64_t depth) {
  running = kind.name + " embedding " + std::to_string(vocabulary) + "x" + std::to_string(depth);
  const Packed weights(random, kind, vocabulary, depth);
  const int32_t last = static_cast<int32_t>(vocabulary) - 1;
  const std::vector<int32_t> values = {0, last, -1, INT32_MAX, INT32_MIN, last / 2};
  const Ints ids("embed.ids", {static_cast<int64_t>(values.size())}, values);
  const Floats y = empty(kind.name + ".rows_of", {static_cast<int64_t>(values.size()), depth});
  const Ints settings = words_of(kind.name + ".settings", mindbatch::EmbeddingSettings{depth, kind.number});
  require(call(mb_embedding, {ids, weights.bytes, settings, y}) == 0, "failed");
  std::vector<double> expected;
  for (const int32_t id : values)
    for (int64_t k = 0; k < depth; k++) expected.push_back(id < 0 || id > last ? 0 : weights.at(id, k));
  compare(y, expected);
}

inline void rounded_cases(Random& random) {
  for (const Kind& kind : kKinds) {
    for (const int64_t rows : {0, 1, 3, 4, 5, 17, 33})
      for (const int64_t depth : {1, 33, 65, 136})
        for (const int64_t columns : {1, 33}) rounded_linear_case(random, kind, rows, depth, columns, rows % 2);
    rounded_linear_case(random, kind, 33, 547, 64, true);  // AMX: several slices of a panel, with sums between them
    rounded_linear_case(random, kind, 29, 1090, 65, true);  // more than one slice of each kind
    for (const int64_t depth : {1, 20, 65}) rounded_embed_case(random, kind, 33, depth);
  }
}

inline void random_rounded_case(Random& random) {
  const Kind& kind = kKinds[random.next() % kKinds.size()];
  rounded_linear_case(random, kind, random.between(1, 40), random.between(1, 530), random.between(1, 100),
                      random.next() % 2);
  rounded_embed_case(random, kind, random.between(1, 100), random.between(1, 70));
}
