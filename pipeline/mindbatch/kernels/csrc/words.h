// Reads the structs of settings.h from the int32 words that kernels/settings.py makes of an operation's settings.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace mindbatch {

// Numbers of a setting, where the words have them.
template <class T>
struct Numbers {
  static_assert(sizeof(T) == sizeof(int32_t), "each is a word");
  const T* data;
  int64_t count;

  T operator[](int64_t i) const { return data[i]; }
};

// Takes the words of one part after another, in the order in which a struct's `visit` names them.
class WordReader {
 public:
  explicit WordReader(const void* words) : next_(static_cast<const int32_t*>(words)) {}

  template <class... Parts>
  void operator()(Parts&... parts) {
    (read(parts), ...);
  }

 private:
  template <class T>
  void read(T& part) {
    if constexpr (std::is_class_v<T>) part.visit(*this);
    else part = static_cast<T>(*next_++);
  }
  void read(float& part) { std::memcpy(&part, next_++, sizeof part); }
  template <class T>
  void read(Numbers<T>& part) {
    part.count = *next_++;
    part.data = reinterpret_cast<const T*>(next_);
    next_ += part.count;
  }
  template <class T>
  void read(std::optional<T>& part) {
    if (*next_++) read(part.emplace());
  }

  const int32_t* next_;
};

template <class Settings>
Settings read_settings(const void* words) {
  Settings settings;
  WordReader reader(words);
  settings.visit(reader);
  return settings;
}

}  // namespace mindbatch
