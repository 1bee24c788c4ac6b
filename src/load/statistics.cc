#include "load/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvant::load {

double percentile(const std::vector<double>& sorted, double q) {
  const double h = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(std::floor(h));
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (h - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Spread spread_of(std::vector<double> samples) {
  Spread spread;
  spread.count = static_cast<int64_t>(samples.size());
  if (samples.empty()) return spread;
  std::sort(samples.begin(), samples.end());
  spread.mean =
      std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
  spread.p50 = percentile(samples, 0.50);
  spread.p95 = percentile(samples, 0.95);
  spread.p99 = percentile(samples, 0.99);
  spread.min = samples.front();
  spread.max = samples.back();
  return spread;
}

}  // namespace kvant::load
