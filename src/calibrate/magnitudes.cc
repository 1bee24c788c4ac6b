#include "calibrate/magnitudes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/float_types.h"

namespace kvant {
namespace {

// The bfloat16 code of 2^-24; its counter is the first after that of zero.
constexpr int kFirstCode = (127 - 24) << 7;

float value_of(size_t counter) {
  return counter == 0 ? 0.0f : bf16_to_f32(static_cast<uint16_t>(kFirstCode - 1 + counter));
}

}  // namespace

void Magnitudes::add(float x) {
  const int code = (f32_to_bf16(x) & 0x7fff) - kFirstCode + 1;
  ++counters_[static_cast<size_t>(std::clamp(code, 0, kCounters - 1))];
}

void Magnitudes::merge(const Magnitudes& other) {
  for (size_t i = 0; i < counters_.size(); ++i) counters_[i] += other.counters_[i];
}

int64_t Magnitudes::count() const {
  return std::accumulate(counters_.begin(), counters_.end(), int64_t{0});
}

float Magnitudes::largest() const {
  for (size_t i = counters_.size(); i-- > 0;) {
    if (counters_[i] > 0) return value_of(i);
  }
  return 0;
}

float Magnitudes::percentile(double percent) const {
  const double wanted = percent / 100 * static_cast<double>(count());
  int64_t passed = 0;
  for (size_t i = 0; i < counters_.size(); ++i) {
    passed += counters_[i];
    if (passed > 0 && static_cast<double>(passed) >= wanted) return value_of(i);
  }
  return 0;
}

int64_t Magnitudes::beyond(float limit) const {
  int64_t n = 0;
  for (size_t i = counters_.size(); i-- > 0 && value_of(i) > limit;) n += counters_[i];
  return n;
}

std::vector<MagnitudeCount> Magnitudes::occurring() const {
  std::vector<MagnitudeCount> out;
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (counters_[i] > 0) out.push_back({value_of(i), counters_[i]});
  }
  return out;
}

double Magnitudes::sum(const std::function<double(float)>& error) const {
  double total = 0;
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (counters_[i] > 0) total += static_cast<double>(counters_[i]) * error(value_of(i));
  }
  return total;
}

}  // namespace kvant
