#include "model/elementwise.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "simd/clones.h"

namespace kvant {
namespace {

constexpr int kLanes = 16;  // independent sums, as many as the widest vector of floats

// e^x to 2 ulp, in operations that compilers vectorize: x = n·ln2 + r with |r| <= ln2/2, a
// polynomial for e^r (the coefficients of Cephes' expf), and 2^n through the exponent bits. Below
// −87 the result is e^−87, small enough for every use here, and above 88 e^88.
inline float exp_approx(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  constexpr float kRound =
      12582912.0f;  // 1.5·2^23: adding it leaves the nearest integer in the low bits
  const float n = (x * 1.44269504f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r * r + r) + 1.0f;
  const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

inline float silu(float x) { return x / (1.0f + exp_approx(-x)); }
// x·(1 + tanh(u))/2 with u = sqrt(2/pi)·(x + 0.044715·x³), and (1 + tanh(u))/2 = 1/(1 + e^−2u).
inline float gelu_tanh(float x) {
  const float twice_u = 1.5957691216f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exp_approx(-twice_u));
}

float sum_of_squares(const float* x, int n) {
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) lanes[l] += x[i + l] * x[i + l];
  }
  for (; i < n; ++i) lanes[i % kLanes] += x[i] * x[i];
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

KVANT_CLONES void activate_silu(float* gate, const float* up, int n) {
  for (int i = 0; i < n; ++i) gate[i] = silu(gate[i]) * up[i];
}
KVANT_CLONES void activate_gelu_tanh(float* gate, const float* up, int n) {
  for (int i = 0; i < n; ++i) gate[i] = gelu_tanh(gate[i]) * up[i];
}

using ActivateRow = void (*)(float*, const float*, int);
constexpr ActivateRow kActivations[] = {activate_silu, activate_gelu_tanh};

}  // namespace

void rms_norm(const float* x, const float* weight, int n, float epsilon, float* out) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  if (weight == nullptr) {
    for (int i = 0; i < n; ++i) out[i] = x[i] * scale;
  } else {
    for (int i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
  }
}

void activate(Activation activation, float* gate, const float* up, int n) {
  kActivations[static_cast<size_t>(activation)](gate, up, n);
}

void soft_cap(float* x, float cap, int n) {
  // tanh(u) = 1 − 2/(e^2u + 1): absolute error 1e-7, which the cap multiplies.
  for (int i = 0; i < n; ++i) {
    const float u = x[i] / cap;
    x[i] = cap * (1.0f - 2.0f / (exp_approx(2.0f * u) + 1.0f));
  }
}

void add(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] += x[i];
}

void softmax(float* x, int n) {
  const float max = *std::max_element(x, x + n);
  float sum = 0;
  for (int i = 0; i < n; ++i) {
    x[i] = exp_approx(x[i] - max);
    sum += x[i];
  }
  for (int i = 0; i < n; ++i) x[i] /= sum;
}

}  // namespace kvant
