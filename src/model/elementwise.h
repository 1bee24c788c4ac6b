// The arithmetic between the dense layers, one row at a time. Sums run in a fixed order and nothing
// is contracted, so a row gives the same bits on every machine and in every batch.
#pragma once

#include <cstdint>

namespace kvant {

enum class Activation : uint8_t { kSilu, kGeluTanh };

// out = x / rms(x) · weight over n channels; weight may be null. In place is fine.
void rms_norm(const float* x, const float* weight, int n, float epsilon, float* out);

// gate[i] = activation(gate[i]) · up[i]
void activate(Activation activation, float* gate, const float* up, int n);

// x[i] = cap · tanh(x[i] / cap)
void soft_cap(float* x, float cap, int n);

// y[i] += x[i]
void add(const float* x, float* y, int n);

// x becomes its softmax.
void softmax(float* x, int n);

}  // namespace kvant
