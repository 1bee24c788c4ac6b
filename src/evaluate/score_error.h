// Errors of scores and outputs as attention_error.h defines them, piece by piece.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace kvant {

// Of squares.
struct Sums {
  double error = 0, size = 0;
  double ratio() const { return size > 0 ? std::sqrt(error / size) : 0; }
  Sums& operator+=(const Sums& other) {
    error += other.error;
    size += other.size;
    return *this;
  }
};

// q·k of one query over tokens [first, first + count), minus its mean.
inline std::vector<double> centred_scores(const float* q, const float* k, size_t stride,
                                          int64_t count, int dim) {
  std::vector<double> scores(static_cast<size_t>(count));
  double mean = 0;
  for (size_t t = 0; t < scores.size(); ++t) {
    float sum = 0;
    for (int c = 0; c < dim; ++c) sum += q[c] * k[t * stride + static_cast<size_t>(c)];
    scores[t] = double{sum};
    mean += scores[t] / static_cast<double>(count);
  }
  for (double& s : scores) s -= mean;
  return scores;
}

}  // namespace kvant
