// What stands between the large products: norms, rotary positions and activations. One row at a time.

void norm(const NormArgs& a) {
  auto body = [&](int64_t r, int) { norm_row(a, r, a.y + r * a.width); };
  each_row(a.rows, body);
}

// Rotates the two halves of each head (the "NeoX" layout of Hugging Face checkpoints; Su et al., 2021). Only the
// first rotary_dim values of a head are rotated.
inline void rotate(const float* x, const float* cosine, const float* sine, int64_t head_dim, int64_t rotary_dim,
                   float* y) {
  const int64_t half = rotary_dim / 2;
  each_vector(half, [&](int64_t i, int lanes) {
    const Vec first = load_part(x + i, lanes), second = load_part(x + half + i, lanes);
    const Vec c = load_part(cosine + i, lanes), s = load_part(sine + i, lanes);
    store_part(y + i, fma(first, c, -(second * s)), lanes);
    store_part(y + half + i, fma(second, c, first * s), lanes);
  });
  for (int64_t i = rotary_dim; i < head_dim; i++) y[i] = x[i];
}

// The same of pairs of neighbours, as the paper has them.
inline void rotate_neighbours(const float* x, const float* cosine, const float* sine, int64_t head_dim,
                              int64_t rotary_dim, float* y) {
  for (int64_t i = 0; i < rotary_dim / 2; i++) {
    const float first = x[2 * i], second = x[2 * i + 1];
    y[2 * i] = first * cosine[i] - second * sine[i];
    y[2 * i + 1] = second * cosine[i] + first * sine[i];
  }
  for (int64_t i = rotary_dim; i < head_dim; i++) y[i] = x[i];
}

// The two halves of each head, each as `rotate` turns a whole one, by half of the angles.
inline void rotate_halves(const float* x, const float* cosine, const float* sine, int64_t head_dim, int64_t rotary_dim,
                          float* y) {
  const int64_t half = head_dim / 2, angles = rotary_dim / 4;
  rotate(x, cosine, sine, half, rotary_dim / 2, y);
  rotate(x + half, cosine + angles, sine + angles, half, rotary_dim / 2, y + half);
}

void rotary(const RotaryArgs& a) {
  const int64_t width = (a.heads + 2 * a.kv_heads) * a.head_dim;
  const auto rotated = a.pairs == kNeighbours ? rotate_neighbours : a.pairs == kInHalves ? rotate_halves : rotate;
  auto body = [&](int64_t t, int thread) {
    float* normal = scratch(1 + thread, (a.heads > a.kv_heads ? a.heads : a.kv_heads) * a.head_dim);
    const float *cosine = a.cos + t * (a.rotary_dim / 2), *sine = a.sin + t * (a.rotary_dim / 2);
    auto some = [&](int64_t first, int64_t heads, const float* weight) {
      const float* x = a.qkv + t * width + first * a.head_dim;
      float* y = a.out + t * width + first * a.head_dim;
      if (weight) {
        for (int64_t i = 0; i < heads * a.head_dim; i += a.head_dim)
          normalise(x + i, weight, nullptr, a.head_dim, a.epsilon, normal + i);
        x = normal;
      }
      for (int64_t i = 0; i < heads * a.head_dim; i += a.head_dim)
        rotated(x + i, cosine, sine, a.head_dim, a.rotary_dim, y + i);
    };
    some(0, a.heads, a.query_norm);
    some(a.heads, a.kv_heads, a.key_norm);
    const int64_t values = t * width + (a.heads + a.kv_heads) * a.head_dim;
    __builtin_memcpy(a.out + values, a.qkv + values, static_cast<size_t>(a.kv_heads * a.head_dim) * 4);
  };
  parallel_for(a.tokens, body);
}

void activation(const ActivationArgs& a) {
  auto body = [&](int64_t r, int) { activate_row(a, r, a.y + r * a.width); };
  each_row(a.rows, body);
}

void cap(const CapArgs& a) {
  constexpr int64_t kNumbers = 4096;
  auto body = [&](int64_t chunk, int) {
    const int64_t first = chunk * kNumbers, count = a.count - first < kNumbers ? a.count - first : kNumbers;
    each_vector(count, [&](int64_t i, int lanes) {
      store_part(a.y + first + i, vtanh(load_part(a.x + first + i, lanes) / a.cap) * a.cap, lanes);
    });
  };
  parallel_for((a.count + kNumbers - 1) / kNumbers, body);
}
