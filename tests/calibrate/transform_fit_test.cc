// The fit of a transform: its two matrices, its bits, and statistics that tell too little.
#include "calibrate/transform_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace kvant {
namespace {

constexpr int kDim = 64;
constexpr auto kD = static_cast<size_t>(kDim);

double uniform(Rng& rng) { return static_cast<double>(rng.below(20001)) / 10000 - 1; }

// Lower halves of sums over vectors whose channels differ in size and hang together.
HeadMoments random_moments(uint64_t seed) {
  Rng rng(seed);
  HeadMoments moments;
  moments.query.assign(kD * kD, 0);
  moments.key.assign(kD * kD, 0);
  moments.num_queries = moments.num_keys = 500;
  for (int n = 0; n < 500; ++n) {
    for (std::vector<double>* sums : {&moments.query, &moments.key}) {
      const double common = uniform(rng);
      std::vector<double> x(kD);
      for (size_t i = 0; i < kD; ++i)
        x[i] = (uniform(rng) + common) * std::exp2(-static_cast<double>(i) / 10);
      for (size_t i = 0; i < kD; ++i) {
        for (size_t j = 0; j <= i; ++j) (*sums)[i * kD + j] += x[i] * x[j];
      }
    }
  }
  return moments;
}

// q'·k' = q·k, of matrices as an artifact has them.
void expect_kept_products(std::span<const float> matrices) {
  Rng rng(2);
  for (int n = 0; n < 20; ++n) {
    std::vector<double> q(kD), k(kD);
    for (size_t i = 0; i < kD; ++i) q[i] = uniform(rng), k[i] = uniform(rng);
    double plain = 0, turned = 0, size = 0;
    for (size_t i = 0; i < kD; ++i) {
      plain += q[i] * k[i];
      double stored = 0, asked = 0;
      for (size_t j = 0; j < kD; ++j) {
        stored += double{matrices[i * kD + j]} * k[j];
        asked += double{matrices[kD * kD + i * kD + j]} * q[j];
      }
      turned += stored * asked;
      size += std::fabs(stored * asked);
    }
    EXPECT_NEAR(turned, plain, 1e-5 * size);
  }
}

TEST(TransformFit, ProductsAreKept) {
  const auto fit = fit_transform(random_moments(1), kDim);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  expect_kept_products(fit->matrices);
}

// Stored channels don't hang together, and their variances fall.
TEST(TransformFit, StoredChannelsAreUncorrelated) {
  const HeadMoments moments = random_moments(1);
  const auto fit = fit_transform(moments, kDim);
  const auto key = [&](size_t i, size_t j) {
    return moments.key[std::max(i, j) * kD + std::min(i, j)] / 500;
  };
  const float* a = fit->matrices.data();
  for (size_t i = 0; i < kD; i += 7) {
    for (size_t j = 0; j < kD; j += 5) {
      double covariance = 0;
      for (size_t r = 0; r < kD; ++r) {
        for (size_t c = 0; c < kD; ++c)
          covariance += double{a[i * kD + r]} * key(r, c) * double{a[j * kD + c]};
      }
      EXPECT_NEAR(covariance, i == j ? fit->variances[i] : 0, 1e-4 * fit->variances[0]);
    }
  }
  EXPECT_TRUE(std::is_sorted(fit->variances.rbegin(), fit->variances.rend()));
}

TEST(BalancedFit, ProductsAreKept) {
  const auto fit = fit_balanced(random_moments(1), kDim);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  expect_kept_products(*fit);
}

// A = H·M with M² = C' # S^-1. With T = M² = AᵀA, the geometric mean is the one positive T with
// T·S·T = C', and A·M^-1 is orthonormal: A·S·Aᵀ and A^-T·C'·A^-1 are then the same matrix.
TEST(BalancedFit, KeysVaryAsQueriesWeightThem) {
  const HeadMoments moments = random_moments(1);
  const std::vector<float> fit = fit_balanced(moments, kDim, 0.1).value();
  using Square = Eigen::Matrix<double, kDim, kDim, Eigen::RowMajor>;
  const auto symmetric = [](const std::vector<double>& sums) {
    Square lower = Eigen::Map<const Square>(sums.data()) / 500;
    return Square(lower.selfadjointView<Eigen::Lower>());
  };
  const Square keys = symmetric(moments.key);
  Square queries = symmetric(moments.query);
  queries = queries / (queries.trace() / kDim) + 0.1 * Square::Identity();
  using Floats = Eigen::Matrix<float, kDim, kDim, Eigen::RowMajor>;
  const Square a = Eigen::Map<const Floats>(fit.data()).cast<double>();
  const Square a_inverse_t = Eigen::Map<const Floats>(fit.data() + kD * kD).cast<double>();
  const Square t = a.transpose() * a;
  EXPECT_LT((t * keys * t - queries).norm(), 1e-4 * queries.norm());
  const Square seen = a * keys * a.transpose();
  const Square weights = a_inverse_t * queries * a_inverse_t.transpose();
  EXPECT_LT((seen - weights).norm(), 1e-4 * weights.norm());
  // What is left of A without H is symmetric.
  Square hadamard;
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j)
      hadamard(i, j) = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 0.125 : -0.125;
  }
  const Square m = hadamard * a;
  EXPECT_LT((m - m.transpose()).norm(), 1e-5 * m.norm());
}

TEST(TransformFit, TheSameStatisticsGiveTheSameBits) {
  EXPECT_EQ(fit_transform(random_moments(4), kDim)->matrices,
            fit_transform(random_moments(4), kDim)->matrices);
}

TEST(TransformFit, StatisticsThatTellNothingAreRefused) {
  const auto said = [](const HeadMoments& moments) {
    const std::string message = fit_transform(moments, kDim).status().message();
    EXPECT_EQ(fit_balanced(moments, kDim).status().message(), message);
    return message;
  };
  HeadMoments none = random_moments(1);
  none.num_keys = 0;
  EXPECT_THAT(said(none), testing::HasSubstr("no whole page"));
  HeadMoments alike = random_moments(1);
  std::fill(alike.key.begin(), alike.key.end(), 0.0);
  EXPECT_THAT(said(alike), testing::HasSubstr("keys of every page are all alike"));
  HeadMoments silent = random_moments(1);
  std::fill(silent.query.begin(), silent.query.end(), 0.0);
  EXPECT_THAT(said(silent),
              testing::HasSubstr("no query pays attention to a page after the first"));
}

// Queries and keys that never leave a few directions: the rest is kept apart by lambda.
TEST(TransformFit, DeficientStatisticsGiveFiniteNumbers) {
  HeadMoments flat = random_moments(1);
  for (size_t i = 0; i < kD; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      if (i > 3) flat.query[i * kD + j] = 0;
      if (i > 5) flat.key[i * kD + j] = 0;
    }
  }
  const auto fit = fit_transform(flat, kDim);
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  for (const float x : fit->matrices) ASSERT_TRUE(std::isfinite(x));
  const auto balanced = fit_balanced(flat, kDim);
  ASSERT_TRUE(balanced.ok()) << balanced.status().message();
  for (const float x : *balanced) ASSERT_LT(std::fabs(x), 1e4f);
}

double error_of(std::span<const double> variances, std::span<const int> bits) {
  double error = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    const double factor = bits[i] == 1 ? 1.6 : bits[i] == 2 ? 1.3 : 1;
    error += variances[i] * factor * std::pow(4.0, -bits[i]);
  }
  return error;
}

// All ways to give 64 channels their bits, beside the one that is found.
TEST(AllocateBits, FindsTheLeastErrorOfAllMeans) {
  Rng rng(5);
  for (int n = 0; n < 20; ++n) {
    std::vector<double> variances;
    double variance = 1;
    for (size_t i = 0; i < kD; ++i) {
      variances.push_back(variance);
      variance *= 0.8 + 0.2 * std::fabs(uniform(rng));
    }
    for (const int mean : {2, 3, 4}) {
      const BitOptions options{.mean_bits = mean, .widths = {1, 2, 3, 4, 5, 6, 8}};
      const std::vector<int> bits = allocate_bits(variances, options);
      ASSERT_EQ(bits.size(), kD);
      EXPECT_EQ(std::accumulate(bits.begin(), bits.end(), 0), mean * kDim);
      double least = std::numeric_limits<double>::infinity();
      const std::function<void(std::vector<int>)> extend = [&](std::vector<int> some) {
        if (some.size() == kD) {
          if (std::accumulate(some.begin(), some.end(), 0) == mean * kDim)
            least = std::min(least, error_of(variances, some));
          return;
        }
        for (const int width : options.widths) {
          if (!some.empty() && width > some.back()) continue;
          std::vector<int> more = some;
          more.insert(more.end(), width % 2 == 0 ? 16 : 32, width);
          if (more.size() <= kD) extend(more);
        }
      };
      extend({});
      EXPECT_NEAR(error_of(variances, bits), least, 1e-12 * least) << mean;
    }
  }
}

TEST(AllocateBits, SaysWhereNoWidthsGiveTheMean) {
  const std::vector<double> variances(kD, 1.0);
  EXPECT_TRUE(allocate_bits(variances, {.mean_bits = 3, .widths = {4, 8}}).empty());
}

}  // namespace
}  // namespace kvant
