// Buffers of exact size on the heap, calls of the library's entry points, and the comparison of what they wrote.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "program.h"
#include "settings.h"

using Shape = std::vector<int64_t>;

inline std::string planted;  // the buffer that is one element short, for proof that the sanitizer sees it
inline std::string running;  // the case, for messages

inline void require(bool holds, const std::string& fault) {
  if (holds) return;
  std::fprintf(stderr, "FAULT: %s: %s\n", running.c_str(), fault.c_str());
  std::exit(1);
}

struct Random {
  uint64_t state;
  uint64_t next() { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; }
  int64_t between(int64_t low, int64_t high) { return low + static_cast<int64_t>(next() % (high - low + 1)); }
  template <class T>
  T one_of(const std::vector<T>& all) { return all[next() % all.size()]; }
};

// `memory` is what the kernel gets; `values` is what the reference reads: as they were before the call.
template <class T>
struct Buffer {
  std::string name;
  Shape shape;
  std::vector<T> values;
  size_t size;  // of `memory`
  T* memory;

  Buffer(const std::string& name, const Shape& shape, const std::vector<T>& values)
      : name(name), shape(shape), values(values), size(values.size() - (name == planted && !values.empty())) {
    memory = static_cast<T*>(std::malloc(size * sizeof(T)));
    if (size) std::memcpy(memory, values.data(), size * sizeof(T));
  }
  ~Buffer() { std::free(memory); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  bool unchanged() const { return std::memcmp(memory, values.data(), values.size() * sizeof(T)) == 0; }
};
using Floats = Buffer<float>;
using Ints = Buffer<int32_t>;

inline int64_t size_of(const Shape& shape) {
  int64_t size = 1;
  for (const int64_t side : shape) size *= side;
  return size;
}

inline std::vector<float> numbers(Random& random, int64_t count) {
  std::vector<float> found(static_cast<size_t>(count));
  for (float& each : found) each = static_cast<float>(random.between(-1000, 1000)) / 500.0f;
  return found;
}

inline Floats drawn(Random& random, const std::string& name, const Shape& shape) {
  return Floats(name, shape, numbers(random, size_of(shape)));
}

// A kernel's output before it is written.
inline Floats empty(const std::string& name, const Shape& shape) {
  const float nothing = std::numeric_limits<float>::quiet_NaN();
  return Floats(name, shape, std::vector<float>(static_cast<size_t>(size_of(shape)), nothing));
}

inline float from_bits(int32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }
inline int32_t bits_of(float value) { int32_t bits; std::memcpy(&bits, &value, 4); return bits; }

// Writes a struct of settings.h to words, as kernels/settings.py does.
struct WordWriter {
  std::vector<int32_t> words;

  template <class... Parts>
  void operator()(Parts&... parts) { (write(parts), ...); }

  template <class T>
  void write(T& part) {
    if constexpr (std::is_class_v<T>) part.visit(*this);
    else words.push_back(static_cast<int32_t>(part));
  }
  void write(float& part) { words.push_back(bits_of(part)); }
  template <class T>
  void write(mindbatch::Numbers<T>& part) {
    words.push_back(static_cast<int32_t>(part.count));
    for (int64_t i = 0; i < part.count; i++) {
      T number = part[i];
      write(number);
    }
  }
  template <class T>
  void write(std::optional<T>& part) {
    words.push_back(part.has_value());
    if (part) write(*part);
  }
};

template <class Settings>
Ints words_of(const std::string& name, Settings settings) {
  WordWriter writer;
  settings.visit(writer);
  return Ints(name, {static_cast<int64_t>(writer.words.size())}, writer.words);
}

template <class T>
mindbatch::Numbers<T> numbers_of(const std::vector<T>& values) { return {values.data(), static_cast<int64_t>(values.size())}; }

struct Tensor {
  void* data;
  Shape shape;
  template <class T>
  Tensor(const Buffer<T>& buffer) : data(buffer.memory), shape(buffer.shape) {}
};

using Operator = int (*)(int, void**, int*, int64_t**, const char**, void*, void*);

// Calls an entry point as MindSpore does; returns what it returns.
inline int call(Operator op, std::vector<Tensor> tensors) {
  std::vector<void*> data;
  std::vector<int> ndims;
  std::vector<int64_t*> shapes;
  for (Tensor& each : tensors) {
    data.push_back(each.data);
    ndims.push_back(static_cast<int>(each.shape.size()));
    shapes.push_back(each.shape.data());
  }
  return op(static_cast<int>(data.size()), data.data(), ndims.data(), shapes.data(), nullptr, nullptr, nullptr);
}

// Every element is the expected one, to 1e-4 of its size and of `scale`, the size of what was added up.
inline void compare(const Floats& found, const std::vector<double>& expected, double scale = 1) {
  require(found.values.size() == expected.size(), found.name + ": the reference has another size");
  for (size_t i = 0; i < expected.size(); i++) {
    const double limit = 1e-4 * (std::fabs(expected[i]) + scale);
    require(std::fabs(found.memory[i] - expected[i]) <= limit,
            found.name + "[" + std::to_string(i) + "] is " + std::to_string(found.memory[i]) + ", not " +
                std::to_string(expected[i]));
  }
}

extern "C" {
int mb_linear(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_causal_convolution(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_gated_delta(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_group_norm(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_tempered(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_gated(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_router_logits(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_experts(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_expert_products(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_expert_sum(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_square_sums(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_head_products(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_columns(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_latent_heads(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_adapted_products(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_adapted_sum(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_adapted_embedding(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_embedding(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_xielu(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_capped(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_attention(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_attention_bfloat16(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_distance_attention(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_distance_attention_bfloat16(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_cross_attention(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_cross_attention_bfloat16(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_write_cache(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_write_cache_bfloat16(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_rotary(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_norm(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_add_norm(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_activation(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_rotary_angles(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_table_rows(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_ids_from(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_scaled(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_sum(int, void**, int*, int64_t**, const char**, void*, void*);
int64_t mb_run_program(const mindbatch::Program*);
int mb_norm_linear(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_add_norm_linear(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_activation_linear(int, void**, int*, int64_t**, const char**, void*, void*);
int64_t mb_pack(int, int, const char*, int64_t, int64_t, int64_t, int64_t, char*, int64_t, int64_t);
void mb_likeliest(const float*, const float*, int64_t, int64_t, int64_t*, double*);
void mb_choose(const float*, const float*, const float* const*, const void*, const double*, const int64_t*, int64_t, int64_t,
               int64_t*, double*, int64_t*);
int mb_head(int, void**, int*, int64_t**, const char**, void*, void*);
int mb_set_variant(const char*);
}
