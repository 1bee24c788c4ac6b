#include "attention/softmax_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvant {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

void add_scaled(float* to, const float* from, float factor, int n) {
  for (int c = 0; c < n; ++c) to[c] += factor * from[c];
}

}  // namespace

size_t SoftmaxState::num_floats(int num_queries, int dim, bool coded) {
  return static_cast<size_t>(num_queries) * (2 + static_cast<size_t>(dim) * (coded ? 2 : 1));
}

SoftmaxState SoftmaxState::at(float* memory, int num_queries, int dim, bool coded) {
  const auto n = static_cast<size_t>(num_queries);
  const size_t accumulator = n * static_cast<size_t>(dim);
  // Accumulators first: they are what vectors load.
  return {.max = memory + accumulator * (coded ? 2 : 1),
          .sum = memory + accumulator * (coded ? 2 : 1) + n,
          .acc_exact = memory,
          .acc_coded = coded ? memory + accumulator : nullptr,
          .num_queries = num_queries,
          .dim = dim};
}

void SoftmaxState::clear() {
  const size_t accumulator = static_cast<size_t>(num_queries) * static_cast<size_t>(dim);
  std::fill_n(max, num_queries, kNothing);
  std::fill_n(sum, num_queries, 0.0f);
  std::fill_n(acc_exact, accumulator, 0.0f);
  if (acc_coded != nullptr) std::fill_n(acc_coded, accumulator, 0.0f);
}

void SoftmaxState::rescale(int i, float factor, const PageKernels& kernels) {
  const size_t row = static_cast<size_t>(i) * static_cast<size_t>(dim);
  sum[i] *= factor;
  kernels.scale_row(acc_exact + row, factor, dim);
  if (acc_coded != nullptr) kernels.scale_row(acc_coded + row, factor, dim);
}

std::array<float, SoftmaxState::kMostRows> SoftmaxState::add_scores(int first, int count,
                                                                    float* scores,
                                                                    const PageKernels& kernels) {
  std::array<float, kMostRows> page_max, added;
  kernels.row_max(scores, count, page_max.data());
  for (int row = 0; row < count; ++row) {
    const int i = first + row;
    const float larger = page_max[static_cast<size_t>(row)];
    if (!(larger > max[i])) continue;
    // The first page has nothing to rescale, and exp(−inf) would be 0 anyway.
    if (max[i] != kNothing) rescale(i, std::exp(max[i] - larger), kernels);
    max[i] = larger;
  }
  kernels.exp_and_sum(scores, count, max + first, added.data());
  for (int row = 0; row < count; ++row) sum[first + row] += added[static_cast<size_t>(row)];
  return added;
}

void SoftmaxState::merge(const SoftmaxState& later, const PageKernels& kernels) {
  for (int i = 0; i < num_queries; ++i) {
    if (later.max[i] == kNothing) continue;
    const size_t row = static_cast<size_t>(i) * static_cast<size_t>(dim);
    float weight = 1.0f;
    if (later.max[i] > max[i]) {
      rescale(i, max[i] == kNothing ? 0.0f : std::exp(max[i] - later.max[i]), kernels);
      max[i] = later.max[i];
    } else {
      weight = std::exp(later.max[i] - max[i]);
    }
    sum[i] += weight * later.sum[i];
    add_scaled(acc_exact + row, later.acc_exact + row, weight, dim);
    if (acc_coded != nullptr) add_scaled(acc_coded + row, later.acc_coded + row, weight, dim);
  }
}

}  // namespace kvant
