// Rows of norms and activations: each computed by the thread that needs it, alone or as the input of a product.

// What is summed over a row, in four sums, for one would wait for each of its additions.
// add: (sum, offset, lanes) -> the sum and those numbers of the row.
template <class Add>
inline float sum_of_row(int64_t width, Add add) {
  constexpr int kVectors = kAtOnce * kSumVecs;
  Vec sums[kVectors] = {};
  int64_t first = 0;
  for (; first + kVectors * kLanes <= width; first += kVectors * kLanes)
    for_each<kVectors>([&](int n) { sums[n] = add(sums[n], first + n * kLanes, kLanes); });
  each_vector(width - first, [&](int64_t i, int lanes) {
    Vec& sum = sums[Sums::vector_of(i)];
    sum = add(sum, first + i, lanes);
  });
  Sums whole;
  for_each<kSumVecs>([&](int v) {
    whole.lanes[v] = (sums[v] + sums[kSumVecs + v]) + (sums[2 * kSumVecs + v] + sums[3 * kSumVecs + v]);
  });
  return whole.total();
}

// Welford is not needed: rows are short and float32, and the mean is taken out before squaring.
inline void normalise(const float* x, const float* weight, const float* bias, int64_t width, float epsilon,
                      float* y) {
  float mean = 0;
  if (bias) {
    const float sum = sum_of_row(width, [&](Vec s, int64_t i, int lanes) { return s + load_part(x + i, lanes); });
    mean = sum / static_cast<float>(width);
  }
  const float squares = sum_of_row(width, [&](Vec sum, int64_t i, int lanes) {
    Vec centred = load_part(x + i, lanes) - mean;
    for (int l = lanes; l < kLanes; l++) centred[l] = 0;
    return fma(centred, centred, sum);
  });
  const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + epsilon);
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

inline Vec erf_gelu(Vec x) { return 0.5f * x * (1.0f + verf(x * 0.70710678f)); }

// x / (1 + exp(-factor * x))
template <int N>
inline void sigmoid_gate(Vec* x, float factor) {
  Vec power[N];
  for_each<N>([&](int n) { power[n] = -factor * x[n]; });
  vexp<N>(power, power);
  for_each<N>([&](int n) { x[n] = x[n] * reciprocal(1.0f + power[n]); });
}

// 1 / (1 + exp(-x))
template <int N>
inline void sigmoid(Vec* x) {
  for_each<N>([&](int n) { x[n] = -x[n]; });
  vexp<N>(x, x);
  for_each<N>([&](int n) { x[n] = reciprocal(1.0f + x[n]); });
}

// Hendrycks and Gimpel, 2016: the tanh form that GPT-2 uses; tanh(z) as of `vtanh`.
template <int N>
inline void tanh_gelu(Vec* x) {
  Vec power[N];
  for_each<N>([&](int n) { power[n] = 0.7978845608f * fma(0.044715f * x[n] * x[n], x[n], x[n]) * 2.0f; });
  vexp<N>(power, power);
  for_each<N>([&](int n) { power[n] = reciprocal(power[n] + 1.0f); });
  for_each<N>([&](int n) { x[n] = 0.5f * x[n] * (1.0f + (1.0f - 2.0f * power[n])); });
}

template <int N>
inline void activate(Vec* x, Activation kind) {
  switch (kind) {
    case kGeluTanh: return tanh_gelu<N>(x);
    case kGelu: return for_each<N>([&](int n) { x[n] = erf_gelu(x[n]); });
    case kSilu: return sigmoid_gate<N>(x, 1.0f);
    case kRelu: return for_each<N>([&](int n) { x[n] = vmax(x[n], Vec{}); });
    case kQuickGelu: return sigmoid_gate<N>(x, 1.702f);
    case kSigmoid: return sigmoid<N>(x);
    case kIdentity: return;
  }
}

__attribute__((noinline)) void activate_row(const ActivationArgs& a, int64_t r, float* y) {
  const float* x = a.x + r * a.width * (a.gated ? 2 : 1);
  const float* factors = a.gated ? x + a.width : nullptr;
  int64_t first = 0;
  for (; first + kAtOnce * kLanes <= a.width; first += kAtOnce * kLanes) {
    Vec value[kAtOnce];
    for_each<kAtOnce>([&](int n) { value[n] = load(x + first + n * kLanes); });
    activate<kAtOnce>(value, a.kind);
    for_each<kAtOnce>([&](int n) {
      const int64_t i = first + n * kLanes;
      store(y + i, factors ? value[n] * load(factors + i) : value[n]);
    });
  }
  each_vector(a.width - first, [&](int64_t i, int lanes) {
    Vec value = load_part(x + first + i, lanes);
    activate<1>(&value, a.kind);
    if (factors) value = value * load_part(factors + first + i, lanes);
    store_part(y + first + i, value, lanes);
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
