// Magnitudes of channels, and where they end, against definitions written out.
#include "calibrate/clips.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/float_types.h"
#include "base/rng.h"
#include "calibrate/channel_magnitudes.h"

namespace kvant {
namespace {

constexpr uint64_t kSeeds[] = {1, 2, 3, 4, 5, 6};

// Of very different sizes, so that the window of octaves has to rise.
std::vector<float> some_numbers(uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out(500 + 700 * seed);
  for (float& x : out) {
    const auto octave = static_cast<int>(rng.below(20)) - 12;
    x = rng.below(9) == 0 ? 0.0f : bf16_to_f32(f32_to_bf16(std::ldexp(rng.normal(), octave)));
  }
  return out;
}

ChannelMagnitudes magnitudes_of(std::span<const float> numbers) {
  ChannelMagnitudes out;
  for (const float x : numbers) out.add(x);
  return out;
}

std::map<float, int64_t> as_map(const std::vector<MagnitudeCount>& counts) {
  std::map<float, int64_t> out;
  for (const MagnitudeCount& one : counts) out[one.magnitude] += one.count;
  return out;
}

TEST(ChannelMagnitudes, CountWhatLiesWithinTwelveOctaves) {
  for (const uint64_t seed : kSeeds) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<float> numbers = some_numbers(seed);
    float most = 0;
    for (const float x : numbers) most = std::max(most, std::fabs(x));
    const float least = std::ldexp(1.0f, std::ilogb(most) - 11);
    std::map<float, int64_t> want;
    for (const float x : numbers) ++want[std::fabs(x) < least ? 0 : std::fabs(x)];
    EXPECT_EQ(as_map(magnitudes_of(numbers).occurring()), want);
    // The order of numbers changes nothing.
    std::sort(numbers.begin(), numbers.end());
    EXPECT_EQ(as_map(magnitudes_of(numbers).occurring()), want);
    std::reverse(numbers.begin(), numbers.end());
    EXPECT_EQ(as_map(magnitudes_of(numbers).occurring()), want);
  }
}

TEST(ChannelMagnitudes, TheEndsOfTheRange) {
  EXPECT_TRUE(ChannelMagnitudes().occurring().empty());
  EXPECT_EQ(as_map(magnitudes_of(std::vector{0.0f, -0.0f}).occurring()),
            (std::map<float, int64_t>{{0.0f, 2}}));
  const std::vector<float> far = {0x1p-126f, 0x1p-149f, 0x1p-130f};
  EXPECT_EQ(as_map(magnitudes_of(far).occurring()), (std::map<float, int64_t>{{0.0f, 3}}));
  const std::vector<float> jump = {0x1p-100f, -0x1p100f};
  EXPECT_EQ(as_map(magnitudes_of(jump).occurring()),
            (std::map<float, int64_t>{{0.0f, 1}, {0x1p100f, 1}}));
}

TEST(Clips, AreWhatTheirNamesSay) {
  for (const uint64_t seed : kSeeds) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<float> numbers = some_numbers(seed);
    std::vector<float> sorted;
    for (const float x : numbers) sorted.push_back(std::fabs(x));
    std::sort(sorted.begin(), sorted.end());
    const Clips clips = find_clips(magnitudes_of(numbers).occurring());
    for (const auto& [which, percent] : {std::pair{0u, 99.0}, {1u, 99.9}, {2u, 99.99}}) {
      const auto rank =
          static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(sorted.size())));
      EXPECT_EQ(clips[which], sorted[rank - 1]) << percent;
    }
    for (const auto& [which, levels] : {std::pair{3u, 127.0f}, {4u, 7.0f}}) {
      const auto error = [&, levels = levels](float clip) {
        const float scale = clip / levels;
        double sum = 0;
        for (const float x : numbers) {
          const float code = std::nearbyint(std::clamp(x / scale, -levels, levels));
          sum += (double{code * scale} - double{x}) * (double{code * scale} - double{x});
        }
        return sum;
      };
      for (int i = 0; i < 80; ++i) {
        const float candidate = sorted.back() * static_cast<float>(100 - i) / 100;
        EXPECT_LE(error(clips[which]), error(candidate) * (1 + 1e-9)) << levels << " " << i;
      }
    }
  }
  EXPECT_EQ(find_clips({}), Clips());
  EXPECT_EQ(find_clips(std::vector<MagnitudeCount>{{0.0f, 9}}), Clips());
}

}  // namespace
}  // namespace kvant
