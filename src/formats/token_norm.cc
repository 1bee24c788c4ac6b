#include "formats/token_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/bytes.h"
#include "formats/stored_scale.h"
#include "kvant/format.h"

namespace kvant {
namespace {

constexpr size_t kT = kPageTokens;
constexpr size_t kLanes = 16;
constexpr int kSteps = 2;

// 1 / the mean square of each channel over the rows, each row's squares times its weight; 0 for
// channels of zeros.
void channel_weights(const float* rows, size_t dim, const std::array<float, kT>& row_weights,
                     float* weights) {
  std::fill_n(weights, dim, 0.0f);
  for (size_t t = 0; t < kT; ++t) {
    for (size_t i = 0; i < dim; ++i) {
      const float x = rows[t * dim + i];
      weights[i] += x * x * row_weights[t];
    }
  }
  for (size_t i = 0; i < dim; ++i) weights[i] = weights[i] > 0 ? kT / weights[i] : 0.0f;
}

// Mean of x² · weights.
float weighted_square(const float* row, size_t dim, const float* weights) {
  std::array<float, kLanes> sum{};
  for (size_t i = 0; i < dim; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) sum[l] += row[i + l] * row[i + l] * weights[i + l];
  }
  return std::accumulate(sum.begin(), sum.end(), 0.0f) / static_cast<float>(dim);
}

}  // namespace

void token_factors(const float* rows, size_t dim, uint8_t* factors) {
  AlignedArray<float> weights(dim);
  std::array<float, kT> squares;  // of the factors
  std::array<float, kT> inverse;
  inverse.fill(1.0f);
  for (int step = 0; step < kSteps; ++step) {
    channel_weights(rows, dim, inverse, weights.data());
    for (size_t t = 0; t < kT; ++t) {
      squares[t] = weighted_square(rows + t * dim, dim, weights.data());
      inverse[t] = squares[t] > 0 ? 1.0f / squares[t] : 0.0f;
    }
  }
  float mean = 0;
  for (const float square : squares) mean += std::sqrt(square) / kT;
  for (size_t t = 0; t < kT; ++t) {
    factors[t] = store_factor(mean > 0 ? std::sqrt(squares[t]) / mean : 1.0f);
  }
}

}  // namespace kvant
