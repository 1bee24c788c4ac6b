// Spread: how a quantity is distributed over all its samples. Nothing is binned or sampled.
#pragma once

#include <cstdint>
#include <vector>

namespace kvant::load {

struct Spread {
  int64_t count = 0;  // 0: the others mean nothing
  double mean = 0, p50 = 0, p95 = 0, p99 = 0, min = 0, max = 0;
};

// The value below which the share `q` of [0, 1] of the samples lies: with x_0 ≤ … ≤ x_(n-1) and
// h = q·(n − 1), x_⌊h⌋ + (h − ⌊h⌋)·(x_⌊h⌋+1 − x_⌊h⌋), as NumPy's percentile has it.
// REQUIRES: sorted, not empty.
double percentile(const std::vector<double>& sorted, double q);

Spread spread_of(std::vector<double> samples);

}  // namespace kvant::load
