#include "evaluate/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"

namespace kvant {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kResamples = 2000;

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  float top = -std::numeric_limits<float>::infinity();
  for (float x : logits) top = std::max(top, x);
  if (!std::isfinite(top)) return top;
  double sums[4] = {};
  size_t i = 0;
  for (; i + 4 <= logits.size(); i += 4) {
    for (size_t lane = 0; lane < 4; ++lane)
      sums[lane] += std::exp(static_cast<double>(logits[i + lane]) - top);
  }
  for (; i < logits.size(); ++i) sums[0] += std::exp(static_cast<double>(logits[i]) - top);
  return top + std::log((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

double negative_log_likelihood(std::span<const float> logits, double log_sum, int32_t target) {
  return log_sum - static_cast<double>(logits[static_cast<size_t>(target)]);
}

double kl_divergence(std::span<const float> base, double base_log_sum, std::span<const float> other,
                     double other_log_sum) {
  // log p below this adds less than 2^18 · 750 · e^−70 < 1e-22 over any vocabulary, and exp() is
  // what costs here.
  constexpr double kNothing = -70;
  double sum = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double log_p = base[i] - base_log_sum;
    if (log_p < kNothing && std::isfinite(other[i])) continue;
    if (log_p == -std::numeric_limits<double>::infinity()) continue;
    sum += std::exp(log_p) * (log_p - (other[i] - other_log_sum));
  }
  return std::max(sum, 0.0);
}

int32_t best_token(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

SeriesSummary summarize(std::span<const double> series) {
  SeriesSummary s;
  if (series.empty()) return s;
  const auto n = static_cast<double>(series.size());
  for (double x : series) s.mean += x;
  s.mean /= n;
  std::vector<double> sorted(series.begin(), series.end());
  std::sort(sorted.begin(), sorted.end());
  s.p99 = sorted[static_cast<size_t>(std::ceil(0.99 * n)) - 1];
  s.max = sorted.back();

  std::vector<double> blocks;
  for (size_t first = 0; first + kBlock / 2 <= series.size(); first += kBlock) {
    const size_t count = std::min(kBlock, series.size() - first);
    double sum = 0;
    for (size_t i = 0; i < count; ++i) sum += series[first + i];
    blocks.push_back(sum / static_cast<double>(count));
  }
  const auto b = static_cast<double>(blocks.size());
  if (b < 2) return s;
  double mean = 0, squares = 0;
  for (double x : blocks) mean += x / b;
  for (double x : blocks) squares += (x - mean) * (x - mean);
  s.standard_error = std::sqrt(squares / (b - 1) / b);
  return s;
}

Interval bootstrap_interval(std::span<const double> groups, uint64_t seed) {
  if (groups.empty()) return {};
  const auto n = static_cast<double>(groups.size());
  Rng rng(seed);
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    for (size_t i = 0; i < groups.size(); ++i) mean += groups[rng.below(groups.size())] / n;
  }
  std::sort(means.begin(), means.end());
  return {means[kResamples / 40], means[kResamples - 1 - kResamples / 40]};
}

}  // namespace kvant
