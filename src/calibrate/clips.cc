#include "calibrate/clips.h"

#include <algorithm>
#include <cmath>

namespace kvant {
namespace {

constexpr int kShares = 80;  // of the largest magnitude, in steps of a hundredth

float percentile(std::span<const MagnitudeCount> occurring, double percent) {
  int64_t count = 0, passed = 0;
  for (const MagnitudeCount& one : occurring) count += one.count;
  const double wanted = percent / 100 * static_cast<double>(count);
  for (const MagnitudeCount& one : occurring) {
    passed += one.count;
    if (static_cast<double>(passed) >= wanted) return one.magnitude;
  }
  return 0;
}

// Nearest integer of 0 ≤ x < 2^22, ties to even: an addition that leaves no bits behind the point.
// std::nearbyint is a call where SSE4.1 can't be counted on, and this is most of a fit.
float nearest(float x) {
  constexpr float kNoFraction = 0x1.8p23f;
  return (x + kNoFraction) - kNoFraction;
}

double squared_error(std::span<const MagnitudeCount> occurring, float scale, float levels) {
  double sum = 0;
  for (const MagnitudeCount& one : occurring) {
    const float code = nearest(std::min(one.magnitude / scale, levels));
    const double error = double{code * scale} - double{one.magnitude};
    sum += static_cast<double>(one.count) * error * error;
  }
  return sum;
}

float least_error_clip(std::span<const MagnitudeCount> occurring, int bits) {
  const float largest = occurring.back().magnitude;
  const auto levels = static_cast<float>((1 << (bits - 1)) - 1);
  float best = 0;
  double least = 0;
  for (int i = 0; i < kShares; ++i) {
    const float clip = largest * static_cast<float>(100 - i) / 100;
    const double error = squared_error(occurring, clip / levels, levels);
    if (i == 0 || error < least) {
      least = error;
      best = clip;
    }
  }
  return best;
}

}  // namespace

Clips find_clips(std::span<const MagnitudeCount> occurring) {
  if (occurring.empty() || occurring.back().magnitude == 0) return {};
  return {percentile(occurring, 99), percentile(occurring, 99.9), percentile(occurring, 99.99),
          least_error_clip(occurring, 8), least_error_clip(occurring, 4)};
}

}  // namespace kvant
