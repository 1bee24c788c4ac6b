#include "evaluate/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "base/rng.h"

namespace kvant {
namespace {

double divergence(const std::vector<float>& p, const std::vector<float>& q) {
  return kl_divergence(p, log_sum_exp(p), q, log_sum_exp(q));
}

TEST(Metrics, LogSumExpOfKnownRows) {
  EXPECT_NEAR(log_sum_exp(std::vector<float>(1000, 2.5f)), 2.5 + std::log(1000), 1e-12);
  EXPECT_NEAR(log_sum_exp(std::vector<float>{30000, 30000}), 30000 + std::numbers::ln2, 1e-9)
      << "no overflow";
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(log_sum_exp(std::vector<float>{-inf, 0}), 0);
}

// Against std::exp, over the sizes that leave lanes empty.
TEST(Metrics, LogSumExpIsThatOfTheLibrary) {
  Rng rng(3);
  for (size_t size = 1; size < 40; ++size) {
    std::vector<float> row(size);
    for (float& x : row) x = 15 * rng.normal();
    const double top = double{*std::max_element(row.begin(), row.end())};
    double sum = 0;
    for (float x : row) sum += std::exp(double{x} - top);
    EXPECT_NEAR(log_sum_exp(row), top + std::log(sum), 1e-14 * std::max(1.0, std::abs(top)))
        << "seed 3, size " << size;
  }
}

TEST(Metrics, LikelihoodOfAUniformRowIsTheLogOfItsSize) {
  const std::vector<float> row(512, -3);
  EXPECT_NEAR(negative_log_likelihood(row, log_sum_exp(row), 17), std::log(512), 1e-12);
}

// Two Bernoulli distributions: Σ p ln(p/q).
TEST(Metrics, DivergenceOfTwoCoins) {
  const double p = 0.75, q = 0.5;
  const std::vector<float> a = {static_cast<float>(std::log(3.0)), 0}, b = {0, 0};
  EXPECT_NEAR(divergence(a, b), p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q)), 1e-7);
}

// A softmax row with one logit raised by δ: KL(base ‖ raised) = log(1 + p(e^δ − 1)) − pδ.
TEST(Metrics, DivergenceOfOneRaisedLogit) {
  Rng rng(1);
  std::vector<float> base(5000);
  for (float& x : base) x = 3 * rng.normal();
  for (float delta : {1e-3f, 0.5f, 4.0f}) {
    std::vector<float> other = base;
    other[7] = base[7] + delta;
    const double exact_delta = static_cast<double>(other[7]) - base[7];
    const double p = std::exp(base[7] - log_sum_exp(base));
    EXPECT_NEAR(divergence(base, other), std::log1p(p * std::expm1(exact_delta)) - p * exact_delta,
                1e-13)
        << "seed 1, δ " << delta;
  }
}

TEST(Metrics, EqualRowsDivergeByExactlyZero) {
  Rng rng(2);
  std::vector<float> row(50000);
  for (float& x : row) x = 20 * rng.normal();
  EXPECT_EQ(divergence(row, row), 0.0);
}

TEST(Metrics, AShiftOfAllLogitsChangesNothing) {
  Rng rng(3);
  std::vector<float> a(1000), b(1000);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = std::round(64 * rng.normal()) / 16;
    b[i] = a[i] + 256;  // exact in float
  }
  EXPECT_LT(divergence(a, b), 1e-12);
}

TEST(Metrics, WhereOnlyTheOtherIsZeroTheDivergenceIsInfinite) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(divergence({0, 0}, {0, -inf}), static_cast<double>(inf));
  EXPECT_NEAR(divergence({0, -inf}, {0, 0}), std::numbers::ln2, 1e-12);
}

TEST(Metrics, BestTokenIsTheLowestAmongEquals) {
  EXPECT_EQ(best_token(std::vector<float>{1, 5, 5}), 1);
}

TEST(Metrics, SummaryOfAKnownSeries) {
  std::vector<double> series(1000);
  for (size_t i = 0; i < series.size(); ++i) series[i] = static_cast<double>(i + 1);
  const SeriesSummary s = summarize(series);
  EXPECT_DOUBLE_EQ(s.mean, 500.5);
  EXPECT_EQ(s.p99, 990);
  EXPECT_EQ(s.max, 1000);
}

TEST(Metrics, TheStandardErrorKnowsThatNeighboursAreAlike) {
  // 64 blocks of 64 equal values: as good as 64 independent ones, not 4,096.
  Rng rng(4);
  std::vector<double> series, blocks;
  for (int b = 0; b < 64; ++b) {
    blocks.push_back(rng.normal());
    series.insert(series.end(), 64, blocks.back());
  }
  double mean = 0, squares = 0;
  for (double x : blocks) mean += x / 64;
  for (double x : blocks) squares += (x - mean) * (x - mean);
  EXPECT_NEAR(summarize(series).standard_error, std::sqrt(squares / 63 / 64), 1e-12) << "seed 4";
  EXPECT_EQ(summarize(std::vector<double>(64, 1.0)).standard_error, 0);
}

TEST(Metrics, AnEmptySeriesIsAllZero) { EXPECT_EQ(summarize({}).mean, 0); }

// 400 independent normal groups: 95 % of means lie within 1.96 standard errors.
TEST(Metrics, TheBootstrapFindsTheErrorOfAMean) {
  Rng rng(7);
  std::vector<double> groups(400);
  double mean = 0;
  for (double& x : groups) mean += (x = rng.normal()) / 400;
  const Interval interval = bootstrap_interval(groups);
  EXPECT_NEAR(interval.low, mean - 1.96 / 20, 0.012) << "seed 7";
  EXPECT_NEAR(interval.high, mean + 1.96 / 20, 0.012) << "seed 7";
  const std::vector<double> one = {3};
  EXPECT_EQ(bootstrap_interval(one).low, 3);
  EXPECT_EQ(bootstrap_interval(one).high, 3);
  EXPECT_EQ(bootstrap_interval({}).high, 0);
}

}  // namespace
}  // namespace kvant
