#include "evaluate/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "simd/clones.h"

namespace kvant {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kResamples = 2000;

// e^x below this adds less than 2^18 · 750 · e^−70 < 1e-22 over any vocabulary.
constexpr double kNothing = -70;

// Sums run in so many lanes, which are then added pairwise: the same bits on every machine.
constexpr size_t kLanes = 8;
using Lanes = double[kLanes];

// e^x for x in [kNothing, 1]: 2^n · e^r by the Taylor series of e^r to r^13 / 13!, |r| <= ln(2) /
// 2; off by at most 4 in 10^16. A loop over it is vectorized, one over std::exp isn't, and the
// exponentials of a vocabulary are most of what a metric costs.
inline double exp_in_loop(double x) {
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0x1.62e42fefap-1,
                   kLn2Low = 0x1.cf79abc9e3b39p-40;
  constexpr double kRound = 0x1.8p52;  // added, it leaves the nearest integer in the low bits
  const double shifted = x * kLog2E + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  constexpr double kFactors[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                 1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                 1.0 / 120,        1.0 / 24,        1.0 / 6,        1.0 / 2};
  double series = kFactors[0];
  for (size_t i = 1; i < std::size(kFactors); ++i) series = series * r + kFactors[i];
  series = (series * r + 1) * r + 1;
  const uint64_t power = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  return series * std::bit_cast<double>(power);
}

double sum_of_lanes(const Lanes& sums) {
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// e^(x − top), top being the largest.
inline void add_exps(const float* x, double top, Lanes& sums) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const double log_e = double{x[lane]} - top;
    const bool counts = log_e > kNothing;
    const double e = exp_in_loop(counts ? log_e : kNothing);
    sums[lane] += counts ? e : 0;
  }
}

// p·(log p − log q) where log p is above kNothing.
inline void add_divergences(const float* p, double p_log_sum, const float* q, double q_log_sum,
                            Lanes& sums) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const double log_p = double{p[lane]} - p_log_sum, log_q = double{q[lane]} - q_log_sum;
    const bool counts = log_p > kNothing;
    const double e = exp_in_loop(counts ? log_p : kNothing);
    sums[lane] += counts ? e * (log_p - log_q) : 0;
  }
}

// The last few of a row, and lanes that count nothing.
struct PaddedLanes {
  PaddedLanes(const float* from, size_t count) {
    std::fill(std::begin(values), std::end(values), -std::numeric_limits<float>::infinity());
    std::copy_n(from, count, values);
  }
  float values[kLanes];
};

KVANT_CLONES double sum_of_exps(const float* x, size_t count, double top) {
  Lanes sums = {};
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) add_exps(x + i, top, sums);
  add_exps(PaddedLanes(x + whole, count - whole).values, top, sums);
  return sum_of_lanes(sums);
}

KVANT_CLONES double sum_of_divergences(const float* p, double p_log_sum, const float* q,
                                       double q_log_sum, size_t count) {
  Lanes sums = {};
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes)
    add_divergences(p + i, p_log_sum, q + i, q_log_sum, sums);
  add_divergences(PaddedLanes(p + whole, count - whole).values, p_log_sum,
                  PaddedLanes(q + whole, count - whole).values, q_log_sum, sums);
  return sum_of_lanes(sums);
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  float top = -std::numeric_limits<float>::infinity();
  for (float x : logits) top = std::max(top, x);
  if (!std::isfinite(top)) return top;
  return double{top} + std::log(sum_of_exps(logits.data(), logits.size(), double{top}));
}

double negative_log_likelihood(std::span<const float> logits, double log_sum, int32_t target) {
  return log_sum - static_cast<double>(logits[static_cast<size_t>(target)]);
}

double kl_divergence(std::span<const float> base, double base_log_sum, std::span<const float> other,
                     double other_log_sum) {
  return std::max(
      sum_of_divergences(base.data(), base_log_sum, other.data(), other_log_sum, base.size()), 0.0);
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
