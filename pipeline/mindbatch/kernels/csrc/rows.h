// Rows of norms and activations: each computed by the thread that needs it, alone or as the input of a product.

// Welford is not needed: rows are short and float32, and the mean is taken out before squaring.
inline void normalise(const float* x, const float* weight, const float* bias, int64_t width, float epsilon,
                      float* y) {
  Vec sum{};
  float mean = 0;
  if (bias) {
    each_vector(width, [&](int64_t i, int lanes) { sum = sum + load_part(x + i, lanes); });
    mean = sum_lanes(sum) / static_cast<float>(width);
  }
  Vec square{};
  each_vector(width, [&](int64_t i, int lanes) {
    Vec centred = load_part(x + i, lanes) - mean;
    for (int l = lanes; l < kLanes; l++) centred[l] = 0;
    square = square + centred * centred;
  });
  const float scale = 1.0f / __builtin_sqrtf(sum_lanes(square) / static_cast<float>(width) + epsilon);
  each_vector(width, [&](int64_t i, int lanes) {
    Vec value = (load_part(x + i, lanes) - mean) * scale * load_part(weight + i, lanes);
    if (bias) value = value + load_part(bias + i, lanes);
    store_part(y + i, value, lanes);
  });
}

// Not inlined: a row is the same bits wherever it is computed.
__attribute__((noinline)) void norm_row(const NormArgs& a, int64_t r, float* y) {
  const float* x = a.x + r * a.width;
  if (a.sum) {
    float* sum = a.sum + r * a.width;
    const float* residual = a.residual ? a.residual + r * a.width : nullptr;
    each_vector(a.width, [&](int64_t i, int lanes) {
      const Vec value = load_part(x + i, lanes);
      store_part(sum + i, residual ? value + load_part(residual + i, lanes) : value, lanes);
    });
    x = sum;
  }
  normalise(x, a.weight, a.bias, a.width, a.epsilon, y);
}

inline Vec activate(Vec x, Activation kind) {
  switch (kind) {
    case kGeluTanh:  // Hendrycks and Gimpel, 2016: the tanh form that GPT-2 uses
      return 0.5f * x * (1.0f + vtanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case kGelu: {
      Vec y = x;
      for (int l = 0; l < kLanes; l++) y[l] = 0.5f * x[l] * (1.0f + __builtin_erff(x[l] * 0.70710678f));
      return y;
    }
    case kSilu:
      return x * reciprocal(1.0f + vexp(-x));
    case kRelu:
      return vmax(x, Vec{});
    case kQuickGelu:
      return x * reciprocal(1.0f + vexp(-1.702f * x));
  }
  return x;
}

__attribute__((noinline)) void activate_row(const ActivationArgs& a, int64_t r, float* y) {
  const float* x = a.x + r * a.width * (a.gated ? 2 : 1);
  each_vector(a.width, [&](int64_t i, int lanes) {
    Vec value = activate(load_part(x + i, lanes), a.kind);
    if (a.gated) value = value * load_part(x + a.width + i, lanes);
    store_part(y + i, value, lanes);
  });
}

// Row r of a product's input: as it stands in memory, or computed now and written to `made`.
inline const float* row_of(const LinearArgs& a, int64_t r, float* made) {
  if (a.norm) norm_row(*a.norm, r, made);
  else if (a.activation) activate_row(*a.activation, r, made);
  else return a.x + r * a.depth;
  return made;
}

// Calls body(row, thread) for every row, some neighbours after one another where there are many.
template <class Body>
inline void each_row(int64_t rows, Body body) {
  const int64_t some = rows < 16 * num_threads() ? 1 : 4;
  auto chunk = [&](int64_t c, int thread) {
    for (int64_t r = c * some; r < rows && r < (c + 1) * some; r++) body(r, thread);
  };
  parallel_for((rows + some - 1) / some, chunk);
}
