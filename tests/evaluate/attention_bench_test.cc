#include "evaluate/attention_bench.h"

#include <gtest/gtest.h>

#include "evaluate/bandwidth.h"
#include "simd/cpu.h"

namespace kvant {
namespace {

Result<AttentionReport> bench(const AttentionShape& shape, std::vector<FormatPair> pairs,
                              std::vector<std::string> peers, std::span<ThreadPool* const> pools) {
  return bench_attention({shape, std::move(pairs), std::move(peers), 3}, pools, [](double) {});
}

const std::vector<std::string> kAllPeers(all_peers().begin(), all_peers().end());

TEST(AttentionBench, TimesEveryFormatAndItsPeers) {
  ThreadPool threads(2);
  ThreadPool* pools[] = {&threads};
  const AttentionShape shape{
      .heads = 4, .kv_heads = 2, .dim = 64, .tokens = {300}, .queries = 1, .layers = 2};
  const auto report =
      bench(shape, {{"f32", "f32"}, {"int8_channel_z", "int8_token"}}, kAllPeers, pools);
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
  ThreadPool* pools[] = {&threads};
  const AttentionShape shape{
      .heads = 2, .kv_heads = 2, .dim = 32, .tokens = {100}, .queries = 70, .layers = 1};
  const auto report = bench(shape, {{"f32", "f32"}}, kAllPeers, pools);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_LT(report->rows[0].error, 1e-5);
  EXPECT_LT(report->rows[1].error, 1e-2) << "ggml/f16";
}

TEST(AttentionBench, AStepMayEndAPage) {
  ThreadPool threads(1);
  ThreadPool* pools[] = {&threads};
  for (int queries : {1, 64}) {
    const AttentionShape shape{
        .heads = 2, .kv_heads = 1, .dim = 32, .tokens = {256 - queries}, .queries = queries};
    const auto report = bench(shape, {{"int8_token", "int8_token"}}, {}, pools);
    EXPECT_TRUE(report.ok()) << report.status().message();
  }
}

TEST(AttentionBench, ABatchIsCheckedSequenceBySequenceOnEveryNumberOfThreads) {
  ThreadPool one(1), two(2);
  ThreadPool* pools[] = {&one, &two};
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .dim = 64, .tokens = {200, 500, 90}};
  const auto report = bench(shape, {{"f32", "f32"}, {"tc4", "int8_tensor"}}, {"f16"}, pools);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->rows.size(), 4u);
  EXPECT_NE(report->notes.find("one sequence"), std::string::npos) << report->notes;
  ASSERT_EQ(report->bandwidths.size(), 2u);
  EXPECT_EQ(report->rows[0].threads, 1);
  EXPECT_EQ(report->rows[2].threads, 2);
  EXPECT_EQ(report->rows[0].error, report->rows[2].error) << "threads change no answer";
  EXPECT_LT(report->rows[0].error, 1e-5);
  // K and V of 790 tokens and three, in float32; pages are whole.
  EXPECT_GE(report->rows[0].bytes, 793.0 * 2 * 2 * 64 * 4);
}

TEST(AttentionBench, HeadsMustShareEvenly) {
  ThreadPool threads(1);
  ThreadPool* pools[] = {&threads};
  const AttentionShape shape{.heads = 5, .kv_heads = 2, .dim = 64, .tokens = {100}};
  EXPECT_EQ(bench(shape, {}, {}, pools).status().code(), Code::kInvalidArgument);
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
