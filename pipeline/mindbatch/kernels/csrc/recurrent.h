// Layers that keep a state of each sequence: a convolution of single channels, and the gated delta rule (Yang et al., 2024).
// Every token is computed from the state behind the one before it, so that no step's borders show in a result.

constexpr int64_t kChannelsOfTask = 1024;

// y[t] = sum over j of weights[j] * inputs[t + j], where inputs are the state's and then the step's.
inline void convolve(const ConvolutionArgs& a, const StateSpan& span, int64_t first, int64_t count) {
  const int64_t before = a.kernel - 1;
  float* state = a.state + span.slot * before * a.channels;
  // Input j of the span, counted from the oldest of the state; null for zeros.
  const auto input = [&](int64_t j) -> const float* {
    if (j >= before) return a.x + (span.first + j - before) * a.width;
    return span.is_fresh ? nullptr : state + j * a.channels;
  };
  for (int64_t t = 0; t < span.stop - span.first; t++) {
    float* y = a.y + (span.first + t) * a.channels;
    each_vector(count, [&](int64_t i, int lanes) {
      Vec sum{};
      for (int64_t j = 0; j <= before; j++)
        if (const float* x = input(t + j))
          sum = fma(load_part(a.weights + j * a.channels + first + i, lanes), load_part(x + first + i, lanes), sum);
      if (a.bias) sum = sum + load_part(a.bias + first + i, lanes);
      if (a.is_activated) activate<1>(&sum, kSilu);
      store_part(y + first + i, sum, lanes);
    });
  }
  for (int64_t j = 0; j < before; j++) {  // in rising order: what is read stands behind what is written
    const float* x = input(span.kept + j);
    float* to = state + j * a.channels;
    each_vector(count, [&](int64_t i, int lanes) {
      store_part(to + first + i, x ? load_part(x + first + i, lanes) : Vec{}, lanes);
    });
  }
}

void convolution(const ConvolutionArgs& a) {
  const int64_t blocks = (a.channels + kChannelsOfTask - 1) / kChannelsOfTask;
  auto body = [&](int64_t task, int) {
    const int64_t first = task % blocks * kChannelsOfTask, left = a.channels - first;
    convolve(a, a.spans[task / blocks], first, left < kChannelsOfTask ? left : kChannelsOfTask);
  };
  parallel_for(a.num_spans * blocks, body);
}

constexpr int kStateVectors = kStatePanel / kLanes, kStateChains = 4;

// One token and one panel of a head's matrix S [key_dim, kStatePanel]:
// S = shrink * S, then S += key (beta * (value - key S))^T; the output is query S.
inline void delta_token(const float* query, const float* key, int64_t key_dim, const Vec* value, float shrink, float beta,
                        float* panel, Vec* out) {
  Vec sums[kStateChains][kStateVectors] = {};
  const auto at = [&](int64_t i, int n) { return panel + i * kStatePanel + n * kLanes; };
  int64_t i = 0;
  for (; i + kStateChains <= key_dim; i += kStateChains)
    for (int c = 0; c < kStateChains; c++)
      for_each<kStateVectors>([&](int n) { sums[c][n] = fma(load(at(i + c, n)), splat(key[i + c]), sums[c][n]); });
  for (; i < key_dim; i++) for_each<kStateVectors>([&](int n) { sums[0][n] = fma(load(at(i, n)), splat(key[i]), sums[0][n]); });
  Vec change[kStateVectors], outs[kStateChains][kStateVectors] = {};
  for_each<kStateVectors>([&](int n) {
    change[n] = fma(splat(-shrink), (sums[0][n] + sums[1][n]) + (sums[2][n] + sums[3][n]), value[n]) * beta;
  });
  const auto step = [&](int64_t row, int c) {
    for_each<kStateVectors>([&](int n) {
      const Vec state = fma(splat(key[row]), change[n], load(at(row, n)) * shrink);
      store(at(row, n), state);
      outs[c][n] = fma(state, splat(query[row]), outs[c][n]);
    });
  };
  for (i = 0; i + kStateChains <= key_dim; i += kStateChains)
    for (int c = 0; c < kStateChains; c++) step(i + c, c);
  for (; i < key_dim; i++) step(i, 0);
  for_each<kStateVectors>([&](int n) { out[n] = (outs[0][n] + outs[1][n]) + (outs[2][n] + outs[3][n]); });
}

// A span's tokens and one panel of a head. units: query and key of each token, see `delta`.
__attribute__((noinline)) void delta_panel(const DeltaArgs& a, const StateSpan& span, const float* units, int64_t head,
                                           int64_t panel, float* apart) {
  const int64_t panels = (a.value_dim + kStatePanel - 1) / kStatePanel, size = a.key_dim * kStatePanel;
  const int64_t keys = a.key_heads * a.key_dim, width = 2 * keys + a.value_heads * a.value_dim;
  const int64_t column = head * a.value_dim + panel * kStatePanel, left = a.value_dim - panel * kStatePanel;
  const int64_t key_head = head / (a.value_heads / a.key_heads) * a.key_dim;
  float* state = a.state + ((span.slot * a.value_heads + head) * panels + panel) * size;
  if (span.is_fresh) __builtin_memset(state, 0, static_cast<size_t>(size) * 4);
  for (int64_t t = span.first; t < span.stop; t++) {
    if (t == span.first + span.kept) {  // from here on tokens are drafted
      __builtin_memcpy(apart, state, static_cast<size_t>(size) * 4);
      state = apart;
    }
    const float *query = units + t * 2 * keys + key_head, *v = a.qkv + t * width + 2 * keys + column;
    Vec value[kStateVectors], out[kStateVectors];
    const auto lanes = [&](int n) {
      const int64_t some = left - n * kLanes;
      return static_cast<int>(some < 0 ? 0 : some < kLanes ? some : kLanes);
    };
    for_each<kStateVectors>([&](int n) { value[n] = load_part(v + n * kLanes, lanes(n)); });
    const int64_t gate = t * a.value_heads + head;
    delta_token(query, query + keys, a.key_dim, value, a.shrink[gate], a.beta[gate], state, out);
    float* y = a.y + t * a.value_heads * a.value_dim + column;
    for_each<kStateVectors>([&](int n) { store_part(y + n * kLanes, out[n], lanes(n)); });
  }
}

void delta(const DeltaArgs& a) {
  const int64_t keys = a.key_heads * a.key_dim, width = 2 * keys + a.value_heads * a.value_dim;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(a.key_dim));
  float* units = scratch(0, a.tokens * 2 * keys);  // heads of query and key of length 1, the query's times the scale
  auto unit = [&](int64_t t, int) {
    for (int64_t first = 0; first < 2 * keys; first += a.key_dim) {
      const float* x = a.qkv + t * width + first;
      const float squares = sum_of_row(a.key_dim, [&](Vec sum, int64_t i, int lanes) {
        const Vec value = load_part(x + i, lanes);
        return fma(value, value, sum);
      });
      const float by = (first < keys ? scale : 1.0f) / __builtin_sqrtf(squares + 1e-6f);
      each_vector(a.key_dim, [&](int64_t i, int lanes) {
        store_part(units + t * 2 * keys + first + i, load_part(x + i, lanes) * by, lanes);
      });
    }
  };
  each_row(a.tokens, unit);
  auto body = [&](int64_t task, int thread) {
    float* apart = scratch(1 + thread, a.key_dim * kStatePanel);
    for (int64_t panel = 0; panel * kStatePanel < a.value_dim; panel++)
      delta_panel(a, a.spans[task / a.value_heads], units, task % a.value_heads, panel, apart);
  };
  parallel_for(a.num_spans * a.value_heads, body);
}

void gated(const GatedArgs& a) {
  auto body = [&](int64_t r, int) {
    const float *x = a.x + r * a.x_stride, *gate = a.gate + r * a.gate_stride;
    float* y = a.y + r * a.width;
    if (a.weight) {
      for (int64_t i = 0; i < a.width; i += a.norm_width)
        normalise(x + i, a.weight, nullptr, a.norm_width, a.epsilon, y + i);
      x = y;
    }
    each_vector(a.width, [&](int64_t i, int lanes) {
      Vec factor = load_part(gate + i, lanes);
      activate<1>(&factor, a.kind);
      store_part(y + i, load_part(x + i, lanes) * factor, lanes);
    });
  };
  each_row(a.rows, body);
}
