#include "evaluate/seal_bench.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

constexpr int kRepeats = 3;
const AttentionShape kShape{.heads = 4, .kv_heads = 2, .dim = 64, .tokens = {200}};

TEST(SealBench, TimesEncodersAndTheirShareOfDecoding) {
  ThreadPool threads(1);
  const auto timing = bench_seal({"int8_channel_z", "int4_token_z"}, kShape, kRepeats, threads);
  ASSERT_TRUE(timing.ok()) << timing.status().message();
  EXPECT_GT(timing->key_rate.value(), 0);
  EXPECT_GT(timing->value_rate.value(), 0);
  EXPECT_GT(timing->append_rate, 0);
  EXPECT_GT(timing->decode_share, 0);
  EXPECT_LT(timing->decode_share, 1);
}

// One of each family and need: what calibration would give is stood in for.
TEST(SealBench, RoundTripsOfEveryKindOfFormatAreWhatTheyShouldBe) {
  ThreadPool threads(1);
  for (const char* name : {"fp8_e4m3_tensor", "int8_tensor", "nf4_g64", "nvfp4", "kvarn4"}) {
    const Result<const FormatInfo*> format = find_format(name);
    ASSERT_TRUE(format.ok()) << format.status().message();
    const auto timing = bench_seal({name, name}, kShape, kRepeats, threads);
    EXPECT_TRUE(timing.ok()) << timing.status().message();
  }
  for (const char* name : {"tc4", "tc3", "tc2", "bal4"}) {
    const auto timing = bench_seal({name, "bf16"}, kShape, kRepeats, threads);
    ASSERT_TRUE(timing.ok()) << timing.status().message();
    EXPECT_FALSE(timing->value_rate.has_value()) << "bf16 is never sealed";
  }
}

TEST(SealBench, ScalarFormatsAreThoseOfComputedGrids) {
  for (const char* name : {"int8_token", "int4_g32_z", "fp8_e4m3", "int4_token_z_rot"})
    EXPECT_TRUE(is_scalar(**find_format(name))) << name;
  for (const char* name : {"int4_token_z_lsq", "int4_token_z_hqq_rot", "tc4", "bf16", "kvarn4"})
    EXPECT_FALSE(is_scalar(**find_format(name))) << name;
}

}  // namespace
}  // namespace kvant
