#include "evaluate/lockstep.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/toy_model.h"
#include "evaluate/recommend.h"

namespace kvant {
namespace {

const FormatPair kBf16 = {"bf16", "bf16"}, kInt8 = {"int8_token", "int8_token"},
                 kInt2 = {"int2_token_z", "int2_token_z"};

class LockstepTest : public testing::Test {
 protected:
  std::vector<EvaluationResult> run(const std::vector<FormatPair>& formats, size_t tokens,
                                    EvaluationOptions options = {}, int sinks = 64) {
    std::vector<EvaluatedRun> runs;
    for (const FormatPair& pair : formats)
      runs.push_back({pair.name(), toy::cache_options(*model_, pair, sinks)});
    const std::vector<int32_t> ids = toy::random_tokens(tokens, 5);
    auto results = evaluate(*model_, threads_, ids, runs, options);
    EXPECT_TRUE(results.ok()) << results.status().message();
    return results.ok() ? *results : std::vector<EvaluationResult>(formats.size());
  }

  ThreadPool threads_{2};
  std::unique_ptr<toy::ToyModel> model_ =
      std::make_unique<toy::ToyModel>(toy::ToyOptions{.sharpness = 2});
};

TEST_F(LockstepTest, Bf16DivergesFromItsBaselineByExactlyZero) {
  const EvaluationResult r = run({kBf16}, 333)[0];
  EXPECT_EQ(r.kld.max, 0.0);
  EXPECT_EQ(r.top1, 1.0);
  EXPECT_EQ(r.nll_change.mean, 0.0);
  EXPECT_EQ(r.scored_tokens, 332);
}

TEST_F(LockstepTest, FewerBitsDivergeMore) {
  const auto r = run({kInt8, {"int4_token_z", "int4_token_z"}, kInt2}, 512);
  EXPECT_GT(r[0].kld.mean, 0);
  EXPECT_GT(r[1].kld.mean, 4 * r[0].kld.mean);
  EXPECT_GT(r[2].kld.mean, 2 * r[1].kld.mean);
  EXPECT_LT(r[0].effective_bits, 16);
  EXPECT_LT(r[2].usage.live_bytes, r[0].usage.live_bytes);
}

TEST_F(LockstepTest, CaseF5_TheQuantizedCacheIsReallyRead) {
  const EvaluationResult r = run({kInt2}, 512)[0];
  EXPECT_GT(r.sealed_read_share, 0.3);
  EXPECT_GT(r.kld.mean, 1e-3);
  const EvaluationResult kept =
      run({kInt2}, 512, {}, 512)[0];  // all of it a sink: nothing is sealed
  EXPECT_EQ(kept.sealed_read_share, 0);
  EXPECT_EQ(kept.kld.max, 0.0);
}

// A scale eight times too large leaves three bits less: it can only show if the pages are read.
TEST_F(LockstepTest, CaseF5_ABrokenScaleShows) {
  std::vector<EvaluatedRun> runs;
  for (const float scale : {0.15f, 8 * 0.15f}) {
    CacheOptions options = toy::cache_options(*model_, {"int8_tensor", "int8_tensor"});
    for (CacheLayer& layer : options.layers) layer.key_scale = layer.value_scale = scale;
    runs.push_back({"scale", options});
  }
  const auto r = evaluate(*model_, threads_, toy::random_tokens(512, 5), runs, {}).value();
  EXPECT_GT(r[1].kld.mean, 20 * r[0].kld.mean);
  EXPECT_GT(std::fabs(r[1].nll_change.mean), 2 * std::fabs(r[0].nll_change.mean));
  EXPECT_GT(r[1].sealed_read_share, 0.3);
}

TEST_F(LockstepTest, TheChunkDoesNotChangeOneBit) {
  std::vector<uint64_t> digests;
  for (int chunk : {64, 128, 512}) digests.push_back(run({kInt8}, 500, {.chunk = chunk})[0].digest);
  for (int chunk : {1, 7, 499})
    digests.push_back(run({kInt8}, 500, {.chunk = chunk, .invariant = true})[0].digest);
  for (uint64_t digest : digests) EXPECT_EQ(digest, digests[0]);  // the toy has one dense path
  EXPECT_NE(run({kInt2}, 500)[0].digest, digests[0]);
}

TEST_F(LockstepTest, ThreadsDoNotChangeOneBit) {
  const EvaluationResult two = run({kInt8}, 300)[0];
  ThreadPool one(1);
  const EvaluatedRun job{"int8", toy::cache_options(*model_, kInt8)};
  const auto r = evaluate(*model_, one, toy::random_tokens(300, 5), {&job, 1}, {});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ((*r)[0].digest, two.digest);
  EXPECT_EQ((*r)[0].kld.mean, two.kld.mean);
}

TEST_F(LockstepTest, WithoutABaselineThePerplexityIsTheSame) {
  const EvaluationResult with = run({kInt8}, 300)[0],
                         without = run({kInt8}, 300, {.baseline = false})[0];
  EXPECT_EQ(with.perplexity, without.perplexity);
  EXPECT_EQ(with.digest, without.digest);
}

TEST_F(LockstepTest, DecodeIsTimedAtTheEndOfTheContext) {
  const auto r = run({kBf16, kInt8}, 200, {.decode_steps = 5});
  for (const EvaluationResult& one : r) EXPECT_GT(one.decode_tok_s.value_or(0), 0);
  EXPECT_FALSE(run({kBf16}, 200)[0].decode_tok_s.has_value());
}

// N = 1 is the plain run; N = 2 what its two halves give when they are put together by hand.
TEST_F(LockstepTest, WindowsAreRunOnTheirOwnAndWeighedByToken) {
  const std::vector<int32_t> ids = toy::random_tokens(400, 5);
  const EvaluatedRun job{"int2", toy::cache_options(*model_, kInt2)};
  const auto evaluated = [&](std::span<const int32_t> tokens, int64_t windows) {
    const auto r = evaluate(*model_, threads_, tokens, {&job, 1},
                            {.chunk = 128, .windows = windows, .decode_steps = 1});
    EXPECT_TRUE(r.ok()) << r.status().message();
    return (*r)[0];
  };
  const EvaluationResult one = evaluated(ids, 1), plain = run({kInt2}, 400)[0];
  EXPECT_EQ(one.digest, plain.digest);
  EXPECT_EQ(one.kld.mean, plain.kld.mean);
  const EvaluationResult both = evaluated(ids, 2), a = evaluated(std::span(ids).first(200), 1),
                         b = evaluated(std::span(ids).last(200), 1);
  EXPECT_EQ(both.tokens, 400);
  EXPECT_EQ(both.scored_tokens, 398);
  EXPECT_NEAR(both.nll.mean, (a.nll.mean + b.nll.mean) / 2, 1e-12);
  EXPECT_NEAR(std::log(both.perplexity), std::log(a.perplexity * b.perplexity) / 2, 1e-12);
  EXPECT_NEAR(both.kld.mean, (a.kld.mean + b.kld.mean) / 2, 1e-12);
  EXPECT_NEAR(both.top1, (a.top1 + b.top1) / 2, 1e-12);
  EXPECT_EQ(both.kld.max, std::max(a.kld.max, b.kld.max));
  EXPECT_EQ(both.usage.live_bytes, b.usage.live_bytes);
  EXPECT_EQ(both.sealed_read_share, a.sealed_read_share);
  EXPECT_GT(both.decode_tok_s.value_or(0), 0);
}

// In windows of two tokens each scores one, so that the series itself can be seen.
TEST_F(LockstepTest, TheP99OfWindowsIsThatOfAllTokens) {
  const std::vector<int32_t> ids = toy::random_tokens(40, 5);
  const EvaluatedRun job{"f32", toy::cache_options(*model_, {"f32", "f32"})};
  std::vector<double> series;
  for (size_t i = 0; i < ids.size(); i += 2) {
    const auto r = evaluate(*model_, threads_, std::span(ids).subspan(i, 2), {&job, 1}, {});
    ASSERT_TRUE(r.ok());
    series.push_back((*r)[0].kld.mean);
  }
  const auto all = evaluate(*model_, threads_, ids, {&job, 1}, {.windows = 20});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ((*all)[0].kld.p99, summarize(series).p99);
  EXPECT_GT((*all)[0].kld.p99, 0);
  EXPECT_NEAR((*all)[0].kld.mean, summarize(series).mean, 1e-18);
}

TEST_F(LockstepTest, CaseF7_OneDamagedHeadInAHundredTokensIsRefused) {
  model_ = std::make_unique<toy::ToyModel>(
      toy::ToyOptions{.sharpness = 2, .damaged_head = 1, .damage_rate = 0.015f});
  const EvaluationResult r = run({kInt8}, 2000)[0];
  model_ = std::make_unique<toy::ToyModel>(toy::ToyOptions{.sharpness = 2});
  const EvaluationResult sound = run({kInt8}, 2000)[0];
  // Limits that the mean meets in both cases.
  const QualityLimits limits{.kld = 2 * r.kld.mean, .kld_p99 = 10 * sound.kld.p99, .top1 = 0};
  const auto choose = [&](const EvaluationResult& e) {
    const Candidate c{"int8", false, e.effective_bits, e.kld.mean, e.kld.p99, e.top1, 0};
    return recommend({&c, 1}, limits, 0).name;
  };
  EXPECT_EQ(choose(sound), "int8");
  EXPECT_EQ(choose(r), "bf16") << "mean " << r.kld.mean << " p99 " << r.kld.p99 << " against "
                               << sound.kld.p99;
}

TEST_F(LockstepTest, RefusesWhatItCannotScore) {
  const EvaluatedRun job{"int8", toy::cache_options(*model_, kInt8)};
  EXPECT_EQ(evaluate(*model_, threads_, std::vector<int32_t>{1}, {&job, 1}, {}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(evaluate(*model_, threads_, std::vector<int32_t>{1, 2}, {}, {}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(evaluate(*model_, threads_, std::vector<int32_t>{1, 2}, {&job, 1}, {.chunk = 100})
                .status()
                .code(),
            Code::kInvalidArgument);
  for (const int64_t windows : {0, 2, 3}) {
    const std::vector<int32_t> three = {1, 2, 3};
    EXPECT_EQ(evaluate(*model_, threads_, three, {&job, 1}, {.windows = windows}).status().code(),
              Code::kInvalidArgument)
        << windows;
  }
}

}  // namespace
}  // namespace kvant
