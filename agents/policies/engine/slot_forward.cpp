// The embedded engine's forward pass and sampling for models like Llama, float32, one thread.
//
// Tokens of all requests are computed in one ragged list: no padding, no mask. Each token attends to the tokens of its
// own slot only. Every number is computed by the same operations in the same order whatever else is in the list, so
// results do not depend on the batch to the last bit.
//
// A packed matrix is [panels][depth][columns of a panel]: `multiply` reads it front to back. Keys of a slot are packed
// with positions as columns, values with positions as depth, so that attention is two calls of `multiply`.
//
// Python calls the `extern "C"` functions through ctypes: cpp_forward.py holds the layouts of the other side.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int64_t LANES = 16, PANEL_VECTORS = 4;  // 6 rows x 4 vectors: 24 of 32 registers hold sums
#else
constexpr int64_t LANES = 8, PANEL_VECTORS = 2;  // 12 of 16
#endif
constexpr int64_t PANEL = LANES * PANEL_VECTORS;
constexpr int64_t TILE_ROWS = 6;
constexpr int64_t BLOCK_ROWS = 48;      // tokens whose activations stay in the second cache
constexpr int64_t ATTENTION_ROWS = 24;  // queries that share one reading of keys and values
constexpr int64_t DRAW_BLOCK = 64;      // tokens whose probabilities are summed at once

typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t IntVec __attribute__((vector_size(LANES * 4)));
typedef float Half __attribute__((vector_size(32), aligned(4)));  // 8 lanes: heads can be this small

inline Vec fill(float value) { return value - Vec{}; }
inline Vec load(const float* at) { return *reinterpret_cast<const Vec*>(at); }
inline void store(float* at, Vec value) { *reinterpret_cast<Vec*>(at) = value; }
inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// e^x to about 1e-7, by the polynomial of Cephes; x is cut to the range of normal floats, NaN stays NaN.
inline Vec exponential(Vec x) {
  const Vec low = fill(-87.3f), high = fill(88.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vec scaled = x * 1.44269504f;
  const IntVec power = __builtin_convertvector(scaled + (scaled < Vec{} ? fill(-0.5f) : fill(0.5f)), IntVec);
  const Vec whole = __builtin_convertvector(power, Vec);
  const Vec rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vec sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  const IntVec bits = (power + 127) << 23;
  return sum * (Vec)bits;
}

struct Packed {
  const float* data;
  int64_t depth;         // rows of the matrix that are multiplied
  int64_t panels;
  int64_t vectors;       // per panel: 1, 2 or PANEL_VECTORS
  int64_t panel_stride;  // floats
};

// rows x depth times one panel. ADD: onto what `out` holds.
template <int ROWS, int VECTORS, bool ADD>
inline void tile(int64_t depth, const float* const* left, const float* panel, float* const* out, int64_t column) {
  Vec sum[ROWS][VECTORS] = {};
  for (int64_t k = 0; k < depth; k++) {
    Vec right[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) right[v] = load(panel + (k * VECTORS + v) * LANES);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      const Vec one = fill(left[r][k]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) sum[r][v] += one * right[v];
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < VECTORS; v++) {
      float* at = out[r] + column + v * LANES;
      store(at, ADD ? load(at) + sum[r][v] : sum[r][v]);
    }
}

template <int VECTORS, bool ADD>
void multiply_panel(int64_t rows, int64_t depth, const float* const* left, const float* panel, float* const* out,
                    int64_t column) {
  for (int64_t r = 0; r < rows; r += TILE_ROWS) {
    switch (std::min(TILE_ROWS, rows - r)) {
      case 1: tile<1, VECTORS, ADD>(depth, left + r, panel, out + r, column); break;
      case 2: tile<2, VECTORS, ADD>(depth, left + r, panel, out + r, column); break;
      case 3: tile<3, VECTORS, ADD>(depth, left + r, panel, out + r, column); break;
      case 4: tile<4, VECTORS, ADD>(depth, left + r, panel, out + r, column); break;
      case 5: tile<5, VECTORS, ADD>(depth, left + r, panel, out + r, column); break;
      default: tile<6, VECTORS, ADD>(depth, left + r, panel, out + r, column);
    }
  }
}

// out [rows][panels * columns] = left [rows][depth] x right; rows are given by pointers.
template <bool ADD = false>
void multiply(int64_t rows, const float* const* left, const Packed& right, float* const* out) {
  for (int64_t p = 0; p < right.panels; p++) {
    const float* panel = right.data + p * right.panel_stride;
    const int64_t column = p * right.vectors * LANES;
    switch (right.vectors) {
      case 1: multiply_panel<1, ADD>(rows, right.depth, left, panel, out, column); break;
      case 2: multiply_panel<2, ADD>(rows, right.depth, left, panel, out, column); break;
      default: multiply_panel<PANEL_VECTORS, ADD>(rows, right.depth, left, panel, out, column);
    }
  }
}

Packed weight(const float* data, int64_t depth, int64_t columns) {
  return {data, depth, round_up(columns, PANEL) / PANEL, PANEL_VECTORS, depth * PANEL};
}

int64_t value_vectors(int64_t head_size) {
  const int64_t needed = round_up(head_size, LANES) / LANES;
  return needed <= 2 ? needed : PANEL_VECTORS;
}

inline float root_mean_square(int64_t size, const float* x, float eps) {
  Half sums = {};
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const Half part = *reinterpret_cast<const Half*>(x + i);
    sums += part * part;
  }
  float sum = ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
  for (; i < size; i++) sum += x[i] * x[i];
  return 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
}

inline void normalise(int64_t size, const float* x, const float* scale, float eps, float* out) {
  const float factor = root_mean_square(size, x, eps);
  for (int64_t i = 0; i < size; i++) out[i] = scale[i] * (x[i] * factor);
}

inline void rotate(int64_t half, const float* cosine, const float* sine, float factor, float* x) {
  for (int64_t i = 0; i < half; i++) {
    const float first = x[i], second = x[i + half];
    x[i] = (first * cosine[i] - second * sine[i]) * factor;
    x[i + half] = (second * cosine[i] + first * sine[i]) * factor;
  }
}

// The largest of `size` numbers, which is a multiple of LANES.
inline float largest_of(const float* numbers, int64_t size) {
  Vec largest = load(numbers);
  for (int64_t at = LANES; at < size; at += LANES) {
    const Vec part = load(numbers + at);
    largest = part > largest ? part : largest;
  }
  float most = largest[0];
  for (int64_t i = 1; i < LANES; i++) most = std::max(most, largest[i]);
  return most;
}

// e^(score - most), and exactly 0 for a score of minus infinity.
inline Vec soft(Vec score, float most) { return score == fill(-INFINITY) ? Vec{} : exponential(score - most); }

// scores[0, own) -> e^(score - largest), zeros up to `end`; the sum of them is returned.
inline float soften(float* scores, int64_t own, int64_t end) {
  std::fill(scores + own, scores + round_up(end, LANES), -INFINITY);
  const int64_t padded = round_up(own, LANES);
  const float most = largest_of(scores, padded);
  Vec sums = {};
  for (int64_t p = 0; p < padded; p += LANES) {
    const Vec value = soft(load(scores + p), most);
    sums += value;
    store(scores + p, value);
  }
  if (padded < end) std::fill(scores + padded, scores + end, 0.0f);
  float sum = 0;
  for (int64_t i = 0; i < LANES; i++) sum += sums[i];
  return sum;
}

}  // namespace

extern "C" {

struct Shape {
  int64_t layers, hidden, intermediate, heads, key_heads, head_size, vocabulary;
  int64_t head_norms;  // 1 if queries and keys are normalised
  double eps, scaling;
};

struct Layer {
  const float *norm, *qkv, *query_norm, *key_norm, *out, *mlp_norm, *gate_up, *down;
};

struct Weights {
  const float *embedding, *norm, *head;
  const Layer* layers;
};

struct Cache {
  float* keys;    // [layers][slots][key heads][capacity / PANEL][head size][PANEL]
  float* values;  // [layers][slots][key heads][value panels][capacity][value columns]
  int64_t slots, capacity;
  const float *cosine, *sine;  // [capacity][head size / 2]
};

// One chunk of tokens per row, at positions from `start` on in `slot`.
struct Batch {
  int64_t rows;
  const int64_t *slot, *start, *count;
  const int64_t* ids;
};

int64_t gymcp_panel() { return PANEL; }

int64_t gymcp_value_columns(int64_t head_size) { return value_vectors(head_size) * LANES; }
}

namespace {

struct Sizes {
  int64_t hidden, queries, qkv, gate, value_columns, value_panels, group;

  explicit Sizes(const Shape& shape)
      : hidden(round_up(shape.hidden, PANEL)),
        queries(shape.heads * shape.head_size),
        qkv(round_up(queries + 2 * shape.key_heads * shape.head_size, PANEL)),
        gate(round_up(shape.intermediate, PANEL)),
        value_columns(gymcp_value_columns(shape.head_size)),
        value_panels(round_up(shape.head_size, value_columns) / value_columns),
        group(shape.heads / shape.key_heads) {}
};

// Buffers that live as long as their thread: getting megabytes from the system at every call would cost page faults.
struct Scratch {
  std::vector<float> x, queries, normed, wide, gates, scores, attended;
  std::vector<int64_t> position, slot, active;
};

class Forward {
 public:
  Forward(const Shape& shape, const Weights& weights, const Cache& cache, const Batch& batch, Scratch& scratch)
      : shape_(shape), size_(shape), weights_(weights), cache_(cache), batch_(batch), s_(scratch) {
    for (int64_t row = 0; row < batch.rows; row++) tokens_ += batch.count[row];
    s_.x.assign(tokens_ * size_.hidden, 0.0f);
    s_.queries.resize(tokens_ * size_.queries);
    s_.normed.resize(BLOCK_ROWS * size_.hidden);
    s_.wide.resize(BLOCK_ROWS * size_.qkv);
    s_.gates.resize(BLOCK_ROWS * 2 * size_.gate);
    s_.scores.resize(ATTENTION_ROWS * cache.capacity);
    s_.attended.resize(ATTENTION_ROWS * size_.value_panels * size_.value_columns);
    s_.position.resize(tokens_);
    s_.slot.resize(tokens_);
    s_.active.resize(tokens_);
  }

  void run(float* logits) {
    embed();
    for (int64_t layer = 0; layer < shape_.layers; layer++) {
      for (int64_t first = 0; first < tokens_; first += BLOCK_ROWS)
        project(layer, first, std::min(BLOCK_ROWS, tokens_ - first));
      const bool last = layer + 1 == shape_.layers;
      choose_active(last);  // after the last layer, only the last token of each row is needed
      for (int64_t row = 0; row < batch_.rows; row++) attend(layer, row, last ? batch_.count[row] - 1 : 0);
      for (int64_t first = 0; first < active_; first += BLOCK_ROWS)
        transform(layer, first, std::min(BLOCK_ROWS, active_ - first));
    }
    predict(logits);
  }

 private:
  float* x(int64_t token) { return s_.x.data() + token * size_.hidden; }
  float* queries(int64_t token) { return s_.queries.data() + token * size_.queries; }

  void embed() {
    int64_t token = 0;
    for (int64_t row = 0; row < batch_.rows; row++)
      for (int64_t at = 0; at < batch_.count[row]; at++, token++) {
        s_.slot[token] = batch_.slot[row];
        s_.position[token] = batch_.start[row] + at;
        std::memcpy(x(token), weights_.embedding + batch_.ids[token] * shape_.hidden, shape_.hidden * 4);
      }
  }

  void choose_active(bool last) {
    active_ = last ? batch_.rows : tokens_;
    int64_t end = 0;
    for (int64_t at = 0; at < active_; at++) s_.active[at] = last ? (end += batch_.count[at]) - 1 : at;
  }

  float* keys_of(int64_t layer, int64_t slot, int64_t head) {
    const int64_t index = (layer * cache_.slots + slot) * shape_.key_heads + head;
    return cache_.keys + index * cache_.capacity * shape_.head_size;
  }

  float* values_of(int64_t layer, int64_t slot, int64_t head) {
    const int64_t index = (layer * cache_.slots + slot) * shape_.key_heads + head;
    return cache_.values + index * size_.value_panels * cache_.capacity * size_.value_columns;
  }

  // Queries, keys and values of a block of tokens; keys and values go to the cache.
  void project(int64_t layer, int64_t first, int64_t count) {
    const Layer& w = weights_.layers[layer];
    const float eps = static_cast<float>(shape_.eps);
    const float* left[BLOCK_ROWS];
    float* out[BLOCK_ROWS];
    for (int64_t r = 0; r < count; r++) {
      left[r] = s_.normed.data() + r * size_.hidden;
      out[r] = s_.wide.data() + r * size_.qkv;
      normalise(shape_.hidden, x(first + r), w.norm, eps, s_.normed.data() + r * size_.hidden);
    }
    multiply(count, left, weight(w.qkv, shape_.hidden, size_.qkv), out);
    for (int64_t r = 0; r < count; r++) place(layer, first + r, out[r]);
  }

  void place(int64_t layer, int64_t token, float* qkv) {
    const Layer& w = weights_.layers[layer];
    const int64_t size = shape_.head_size, half = size / 2, position = s_.position[token];
    const float *cosine = cache_.cosine + position * half, *sine = cache_.sine + position * half;
    for (int64_t head = 0; head < shape_.heads + shape_.key_heads; head++) {
      float* at = qkv + head * size;
      const bool query = head < shape_.heads;
      if (shape_.head_norms)
        normalise(size, at, query ? w.query_norm : w.key_norm, static_cast<float>(shape_.eps), at);
      rotate(half, cosine, sine, query ? static_cast<float>(shape_.scaling) : 1.0f, at);
    }
    std::memcpy(queries(token), qkv, size_.queries * 4);
    for (int64_t head = 0; head < shape_.key_heads; head++) {
      const float *key = qkv + size_.queries + head * size, *value = key + shape_.key_heads * size;
      float* keys = keys_of(layer, s_.slot[token], head) + position / PANEL * PANEL * size + position % PANEL;
      for (int64_t i = 0; i < size; i++) keys[i * PANEL] = key[i];
      float* values = values_of(layer, s_.slot[token], head) + position * size_.value_columns;
      for (int64_t i = 0; i < size; i += size_.value_columns, values += cache_.capacity * size_.value_columns)
        std::memcpy(values, value + i, std::min(size_.value_columns, size - i) * 4);
    }
  }

  // Replaces the queries of a row's tokens, from its token `from` on, by what they attend to.
  void attend(int64_t layer, int64_t row, int64_t from) {
    int64_t before = 0;
    for (int64_t earlier = 0; earlier < row; earlier++) before += batch_.count[earlier];
    const int64_t queries_per_head = (batch_.count[row] - from) * size_.group;
    for (int64_t head = 0; head < shape_.key_heads; head++)
      for (int64_t first = 0; first < queries_per_head; first += ATTENTION_ROWS)
        attend_block(layer, head, before + from, first, std::min(ATTENTION_ROWS, queries_per_head - first));
  }

  // Queries are counted token by token, and inside a token over the heads that share this key head.
  void attend_block(int64_t layer, int64_t head, int64_t base, int64_t first, int64_t count) {
    const int64_t width = size_.value_panels * size_.value_columns, size = shape_.head_size;
    float* asked[ATTENTION_ROWS];
    float *scores[ATTENTION_ROWS], *out[ATTENTION_ROWS];
    float total[ATTENTION_ROWS];
    for (int64_t r = 0; r < count; r++) {
      const int64_t at = first + r;
      asked[r] = queries(base + at / size_.group) + (head * size_.group + at % size_.group) * size;
      scores[r] = s_.scores.data() + r * cache_.capacity;
      out[r] = s_.attended.data() + r * width;
    }
    const int64_t slot = s_.slot[base], end = s_.position[base + (first + count - 1) / size_.group] + 1;
    const Packed keys = {keys_of(layer, slot, head), size, round_up(end, PANEL) / PANEL, PANEL_VECTORS, size * PANEL};
    multiply(count, asked, keys, scores);
    for (int64_t r = 0; r < count; r++)
      total[r] = soften(scores[r], s_.position[base + (first + r) / size_.group] + 1, end);
    const int64_t stride = cache_.capacity * size_.value_columns;
    const Packed values = {values_of(layer, slot, head), end, size_.value_panels, size_.value_columns / LANES, stride};
    multiply(count, scores, values, out);
    for (int64_t r = 0; r < count; r++)
      for (int64_t i = 0; i < size; i++) asked[r][i] = out[r][i] / total[r];
  }

  // The rest of the layer, for a block of the active tokens.
  void transform(int64_t layer, int64_t first, int64_t count) {
    const Layer& w = weights_.layers[layer];
    const float* attended[BLOCK_ROWS];
    const float *normed[BLOCK_ROWS], *gated[BLOCK_ROWS];
    float *stream[BLOCK_ROWS], *gates[BLOCK_ROWS];
    for (int64_t r = 0; r < count; r++) {
      attended[r] = queries(s_.active[first + r]);
      stream[r] = x(s_.active[first + r]);
      normed[r] = s_.normed.data() + r * size_.hidden;
      gated[r] = gates[r] = s_.gates.data() + r * 2 * size_.gate;
    }
    multiply<true>(count, attended, weight(w.out, size_.queries, size_.hidden), stream);
    for (int64_t r = 0; r < count; r++)
      normalise(shape_.hidden, stream[r], w.mlp_norm, static_cast<float>(shape_.eps),
                s_.normed.data() + r * size_.hidden);
    multiply(count, normed, weight(w.gate_up, shape_.hidden, 2 * size_.gate), gates);
    for (int64_t r = 0; r < count; r++)
      for (int64_t i = 0; i < size_.gate; i += LANES) {
        const Vec gate = load(gates[r] + i), up = load(gates[r] + size_.gate + i);
        store(gates[r] + i, gate / (1.0f + exponential(-gate)) * up);
      }
    multiply<true>(count, gated, weight(w.down, shape_.intermediate, size_.hidden), stream);
  }

  void predict(float* logits) {
    const int64_t stride = round_up(shape_.vocabulary, PANEL);
    for (int64_t first = 0; first < batch_.rows; first += BLOCK_ROWS) {
      const int64_t count = std::min(BLOCK_ROWS, batch_.rows - first);
      const float* left[BLOCK_ROWS];
      float* out[BLOCK_ROWS];
      for (int64_t r = 0; r < count; r++) {
        left[r] = s_.normed.data() + r * size_.hidden;
        out[r] = logits + (first + r) * stride;
        normalise(shape_.hidden, x(s_.active[first + r]), weights_.norm, static_cast<float>(shape_.eps),
                  s_.normed.data() + r * size_.hidden);
      }
      multiply(count, left, weight(weights_.head, shape_.hidden, shape_.vocabulary), out);
    }
  }

  const Shape& shape_;
  const Sizes size_;
  const Weights& weights_;
  const Cache& cache_;
  const Batch& batch_;
  Scratch& s_;
  int64_t tokens_ = 0, active_ = 0;
};

// Sets the probabilities that top-k, and then those that top-p excludes to 0.
void restrict(std::vector<float>& probs, int64_t top_k, double top_p, std::vector<int64_t>& order) {
  order.resize(probs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return probs[a] > probs[b]; });
  const int64_t kept = top_k ? std::min<int64_t>(top_k, order.size()) : order.size();
  double total = 0, before = 0;
  for (int64_t rank = 0; rank < kept; rank++) total += probs[order[rank]];
  for (int64_t rank = 0; rank < static_cast<int64_t>(order.size()); rank++) {
    float& prob = probs[order[rank]];
    const float own = prob;
    if (rank >= kept || before >= top_p * total) prob = 0;
    before += own;
  }
}

// The sum of `size` numbers, which is a multiple of LANES.
inline double sum_of(const float* numbers, int64_t size) {
  Vec sums = {};
  for (int64_t at = 0; at < size; at += LANES) sums += load(numbers + at);
  double sum = 0;
  for (int64_t i = 0; i < LANES; i++) sum += sums[i];
  return sum;
}

// The first token whose cumulative probability is above `uniform` of the total; the last one if numbers are NaN.
int64_t invert(const std::vector<float>& probs, double uniform, std::vector<double>& sums) {
  const int64_t size = static_cast<int64_t>(probs.size());
  sums.clear();
  double total = 0, below = 0;
  for (int64_t at = 0; at < size; at += DRAW_BLOCK)
    total += sums.emplace_back(sum_of(&probs[at], std::min(DRAW_BLOCK, size - at)));
  const double target = uniform * total;
  size_t block = 0;
  while (block + 1 < sums.size() && !(below + sums[block] > target)) below += sums[block++];
  int64_t chosen = size - 1;
  for (int64_t token = block * DRAW_BLOCK, end = std::min(size, token + DRAW_BLOCK); token < end; token++)
    if (probs[token] > 0) {  // the last such token if rounding leaves the block's sum below the target
      chosen = token;
      if ((below += probs[token]) > target) break;
    }
  return chosen;
}

}  // namespace

extern "C" {

// Logits [rows][vocabulary rounded up to panels] after the last token of each row. 1 if memory has run out, else 0.
int64_t gymcp_forward(const Shape* shape, const Weights* weights, const Cache* cache, const Batch* batch,
                      float* logits) {
  static thread_local Scratch scratch;
  try {
    Forward(*shape, *weights, *cache, *batch, scratch).run(logits);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

// One token per row, as sampler.draw: temperature 0 takes the likeliest. 1 if memory has run out, else 0.
int64_t gymcp_draw(int64_t rows, int64_t vocabulary, int64_t stride, const float* logits, const double* temperature,
                   const double* top_p, const int64_t* top_k, const double* uniform, int64_t* ids, double* logprobs) {
  static thread_local std::vector<float> scores, probs;
  static thread_local std::vector<int64_t> order;
  static thread_local std::vector<double> sums;
  try {
    const int64_t padded = round_up(vocabulary, LANES);
    for (int64_t row = 0; row < rows; row++) {
      const bool greedy = temperature[row] == 0;
      const float divisor = greedy ? 1.0f : static_cast<float>(temperature[row]);
      scores.assign(padded, -INFINITY);
      probs.assign(padded, 0.0f);
      for (int64_t token = 0; token < vocabulary; token++) scores[token] = logits[row * stride + token] / divisor;
      const float most = largest_of(scores.data(), padded);
      for (int64_t at = 0; at < padded; at += LANES) store(&probs[at], soft(load(&scores[at]), most));
      const double total = sum_of(probs.data(), padded);
      if (!greedy && (top_p[row] < 1.0 || (top_k[row] > 0 && top_k[row] < vocabulary)))
        restrict(probs, top_k[row], top_p[row], order);
      const int64_t likeliest = std::find(scores.begin(), scores.begin() + vocabulary - 1, most) - scores.begin();
      const int64_t chosen = greedy ? likeliest : std::min(invert(probs, uniform[row], sums), vocabulary - 1);
      ids[row] = chosen;
      logprobs[row] = static_cast<double>(scores[chosen]) - most - std::log(total);
    }
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}
}
