#include "evaluate/attention_bench.h"

#include <gtest/gtest.h>

#include "evaluate/bandwidth.h"
#include "simd/cpu.h"

namespace kvant {
namespace {

TEST(AttentionBench, TimesEveryFormatAndItsPeers) {
  ThreadPool threads(2);
  const AttentionShape shape{
      .heads = 4, .kv_heads = 2, .dim = 64, .tokens = 300, .queries = 1, .layers = 2};
  const std::vector<FormatPair> pairs = {{"f32", "f32"}, {"int8_channel_z", "int8_token"}};
  const auto report = bench_attention(shape, pairs, true, 3, threads, [](double) {});
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->rows.size(), 7u) << report->notes;
  EXPECT_LT(report->rows[0].error, 1e-5);
  EXPECT_GT(report->rows[1].error, 1e-5);
  for (const AttentionTiming& row : report->rows) {
    EXPECT_GT(row.ms, 0) << row.name;
    EXPECT_GT(row.bandwidth_share, 0) << row.name;
    EXPECT_LT(row.error, 0.2) << row.name;
  }
}

TEST(AttentionBench, PrefillIsCausalForUsAndForPeers) {
  ThreadPool threads(2);
  const AttentionShape shape{
      .heads = 2, .kv_heads = 2, .dim = 32, .tokens = 100, .queries = 70, .layers = 1};
  const auto report = bench_attention(shape, std::vector<FormatPair>{{"f32", "f32"}}, true, 3,
                                      threads, [](double) {});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_LT(report->rows[0].error, 1e-5);
  EXPECT_LT(report->rows[1].error, 1e-2) << "ggml/f16";
}

TEST(AttentionBench, AStepMayEndAPage) {
  ThreadPool threads(1);
  for (int queries : {1, 64}) {
    const AttentionShape shape{
        .heads = 2, .kv_heads = 1, .dim = 32, .tokens = 256 - queries, .queries = queries};
    const auto report =
        bench_attention(shape, std::vector<FormatPair>{{"int8_token", "int8_token"}}, false, 3,
                        threads, [](double) {});
    EXPECT_TRUE(report.ok()) << report.status().message();
  }
}

TEST(AttentionBench, HeadsMustShareEvenly) {
  ThreadPool threads(1);
  const AttentionShape shape{.heads = 5, .kv_heads = 2, .dim = 64, .tokens = 100};
  EXPECT_EQ(bench_attention(shape, {}, false, 3, threads, [](double) {}).status().code(),
            Code::kInvalidArgument);
}

TEST(Bandwidth, IsPlausible) {
  ThreadPool threads(2);
  BandwidthMeter meter(threads, 8u << 20);
  const double bytes_per_second = meter.measure();
  EXPECT_GT(bytes_per_second, 1e8);
  EXPECT_LT(bytes_per_second, 1e13);
}

}  // namespace
}  // namespace kvant
