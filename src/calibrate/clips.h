// Clips: where the magnitudes of a tensor, a head or a channel end, with and without their
// outliers.
//
// percentile:P is the magnitude that P % of the numbers don't pass, as scale_fit.h has it. A clip
// of B bits has the least squared error of symmetric integers of B bits: of 80 shares of the
// largest magnitude, 1 down to 0.21, the first best. All exact of numbers that are bfloat16s, but
// that of a channel what is below 2^-12 of its largest counts as 0 (channel_magnitudes.h).
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "calibrate/magnitudes.h"

namespace kvant {

inline constexpr size_t kNumClips = 5;
// In the order of Clips.
inline constexpr std::array<std::string_view, kNumClips> kClipNames = {
    "percentile:99", "percentile:99.9", "percentile:99.99", "mse:8", "mse:4"};
inline constexpr size_t kClip999 = 1, kClipMse8 = 3;  // those that tables show

using Clips = std::array<float, kNumClips>;

// `occurring`: rising; none, or zeros alone: clips of 0.
Clips find_clips(std::span<const MagnitudeCount> occurring);

// Of one side of a layer.
struct SideClips {
  Clips tensor = {};
  std::vector<Clips> heads;
  std::vector<std::vector<Clips>> channels;  // [head][dim]; empty where they weren't counted
};

}  // namespace kvant
