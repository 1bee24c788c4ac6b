// Magnitudes: how often every magnitude occurs among many numbers, rounded to bfloat16.
//
// One counter for each bfloat16 from 2^-24 to below 2^16; what is smaller counts as 0 and what is
// larger as the largest, 65,280. K and V are stored as bfloat16 before they are quantized, so that
// everything here is exact for them within that range; of other numbers it is off by what rounding
// to bfloat16 is, 2^-9 of the value. Counting doesn't depend on order.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvant {

// A magnitude, and how many numbers have it.
struct MagnitudeCount {
  float magnitude = 0;
  int64_t count = 0;
};

class Magnitudes {
 public:
  static constexpr int kCounters = 1 + 40 * 128;  // zero; 40 exponents of 128 values each

  Magnitudes() : counters_(kCounters) {}
  explicit Magnitudes(std::vector<int64_t> counters) : counters_(std::move(counters)) {}

  void add(float x);  // finite
  void merge(const Magnitudes& other);

  std::span<const int64_t> counters() const { return counters_; }
  int64_t count() const;
  float largest() const;  // 0 where all are zero, or none was added
  // The least magnitude that at least `percent` % of the numbers don't pass (nearest rank; NumPy's
  // percentile with method="inverted_cdf").
  float percentile(double percent) const;
  int64_t beyond(float limit) const;              // numbers whose magnitude passes it
  std::vector<MagnitudeCount> occurring() const;  // those that occur, rising
  // Σ count·error(magnitude) over the magnitudes that occur.
  double sum(const std::function<double(float magnitude)>& error) const;

 private:
  std::vector<int64_t> counters_;
};

}  // namespace kvant
