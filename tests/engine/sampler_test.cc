#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace kvant {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::map<int32_t, double> shares(const SamplingParams& params, std::span<const float> logits,
                                 int draws, std::span<const int32_t> history = {}) {
  Sampler sampler(params);
  std::map<int32_t, double> out;
  for (int i = 0; i < draws; ++i) {
    const Result<int32_t> id = sampler.sample(logits, history);
    EXPECT_TRUE(id.ok());
    out[*id] += 1.0 / draws;
  }
  return out;
}

const std::vector<float> kHalving = {std::log(0.5f), std::log(0.25f), std::log(0.125f),
                                     std::log(0.0625f), std::log(0.0625f)};

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  Sampler sampler({});
  EXPECT_EQ(*sampler.sample(std::vector<float>{1, 3, 3, 2}, {}), 1);
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  const auto s = shares({.temperature = 1, .seed = 7}, kHalving, 40000);
  for (size_t i = 0; i < kHalving.size(); ++i) {
    const double p = std::exp(kHalving[i]);
    EXPECT_NEAR(s.at(static_cast<int32_t>(i)), p, 4 * std::sqrt(p * (1 - p) / 40000))
        << "seed 7, token " << i;
  }
}

TEST(Sampler, TemperatureRaisesProbabilitiesToItsInverse) {
  const auto s = shares({.temperature = 0.5, .seed = 3},
                        std::vector<float>{std::log(0.75f), std::log(0.25f)}, 40000);
  EXPECT_NEAR(s.at(0), 0.9, 0.006) << "seed 3";  // 0.75² / (0.75² + 0.25²)
}

TEST(Sampler, TopKKeepsTheKBest) {
  const auto s = shares({.temperature = 1, .top_k = 2, .seed = 1}, kHalving, 4000);
  EXPECT_EQ(s.size(), 2u);
  EXPECT_NEAR(s.at(0), 2.0 / 3, 0.03) << "seed 1";
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.5, .seed = 1}, kHalving, 1000).size(), 1u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 0.51, .seed = 1}, kHalving, 1000).size(), 2u);
  EXPECT_EQ(shares({.temperature = 1, .top_p = 1e-9, .seed = 1}, kHalving, 1000).size(), 1u);
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  EXPECT_EQ(shares({.temperature = 1, .min_p = 0.3, .seed = 1}, kHalving, 1000).size(), 2u);
  EXPECT_EQ(shares({.temperature = 1, .min_p = 0.6, .seed = 1}, kHalving, 1000).size(), 1u);
}

TEST(Sampler, RepeatPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  const std::vector<int32_t> seen = {0, 0, 2};
  Sampler sampler({.repeat_penalty = 2});
  EXPECT_EQ(*sampler.sample(std::vector<float>{3, 2, 1}, seen), 1);
  EXPECT_EQ(*sampler.sample(std::vector<float>{-1, -1.5, -0.9f}, seen), 1);
  EXPECT_EQ(*sampler.sample(std::vector<float>{3, 1, 1}, std::vector<int32_t>{-1, 99}), 0)
      << "ids outside are ignored";
}

TEST(Sampler, SameSeedSameTokens) {
  Sampler a({.temperature = 1, .seed = 5}), b({.temperature = 1, .seed = 5}),
      c({.temperature = 1, .seed = 6});
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const int32_t x = *a.sample(kHalving, {});
    EXPECT_EQ(x, *b.sample(kHalving, {}));
    differs |= x != *c.sample(kHalving, {});
  }
  EXPECT_TRUE(differs);
}

TEST(Sampler, NoProbabilityForMinusInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(shares({.temperature = 1, .seed = 2}, std::vector<float>{-inf, 0, -inf, 0}, 500).size(),
            2u);
}

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
  Sampler sampler({});
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(sampler.sample(std::vector<float>{1, nan}, {}).status().code(), Code::kInternal);
  EXPECT_EQ(sampler.sample(std::vector<float>{-inf, -inf}, {}).status().code(), Code::kInternal);
}

TEST(Sampler, CaseD6_EveryBadParameterIsNamed) {
  struct Bad {
    SamplingParams params;
    const char* field;
  };
  const Bad kBad[] = {{{.temperature = kNan}, "temperature"},
                      {{.temperature = kInf}, "temperature"},
                      {{.temperature = -3}, "temperature"},
                      {{.top_k = 0}, "top_k"},
                      {{.top_k = -1}, "top_k"},
                      {{.top_p = 0}, "top_p"},
                      {{.top_p = 7}, "top_p"},
                      {{.top_p = kNan}, "top_p"},
                      {{.min_p = -0.1}, "min_p"},
                      {{.min_p = 1}, "min_p"},
                      {{.min_p = kNan}, "min_p"},
                      {{.repeat_penalty = 0}, "repeat_penalty"},
                      {{.repeat_penalty = kNan}, "repeat_penalty"},
                      {{.repeat_penalty = kInf}, "repeat_penalty"}};
  for (const Bad& bad : kBad) {
    const Status status = validate(bad.params);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << bad.field;
    EXPECT_NE(status.message().find(bad.field), std::string::npos) << status.message();
  }
  EXPECT_TRUE(
      validate({.temperature = 1, .top_k = 1, .top_p = 1, .min_p = 0, .repeat_penalty = 1.1}).ok());
}

}  // namespace
}  // namespace kvant
