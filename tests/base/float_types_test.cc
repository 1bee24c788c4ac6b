// The 16-bit conversions are the ground that every format stands on, so they are tested over all
// 65,536 codes.
#include "base/float_types.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvant {
namespace {

TEST(FloatTypes, EveryBf16CodeRoundTrips) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = bf16_to_f32(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
    } else {
      EXPECT_EQ(f32_to_bf16(value), code);
    }
  }
}

TEST(FloatTypes, EveryF16CodeRoundTripsAndMatchesTheCompiler) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = f16_to_f32(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
      continue;
    }
    EXPECT_EQ(f32_to_f16(value), code);
    const int exponent = (code >> 10) & 0x1f;
    if (exponent != 0x1f) {
      const double mantissa = (exponent == 0 ? 0.0 : 1024.0) + (code & 0x3ff);
      const double magnitude = std::ldexp(mantissa, (exponent == 0 ? 1 : exponent) - 25);
      EXPECT_EQ(static_cast<double>(std::fabs(value)), magnitude);
    }
  }
}

// Between two neighbouring f16 values the midpoint goes to the even code, and anything beyond it to
// the nearer one.
TEST(FloatTypes, F16RoundsToNearestEven) {
  for (uint32_t code = 0; code < 0x7bff; ++code) {
    const float low = f16_to_f32(static_cast<uint16_t>(code));
    const float high = f16_to_f32(static_cast<uint16_t>(code + 1));
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(f32_to_f16(middle), (code & 1) ? code + 1 : code);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, low)), code);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, high)), code + 1);
  }
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16_saturated(1e9f), 0x7bff);
  EXPECT_EQ(f32_to_f16_saturated(-1e9f), 0xfbff);
}

}  // namespace
}  // namespace kvant
