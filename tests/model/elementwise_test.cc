#include "model/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "base/rng.h"
#include "model/rope.h"

namespace kvant {
namespace {

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

TEST(Activate, IsAccurateOverTheWholeRange) {
  for (float x = -30; x < 30; x += 0.00371f) {
    float s = x;
    float g = x;
    const float one = 1;
    activate(Activation::kSilu, &s, &one, 1);
    activate(Activation::kGeluTanh, &g, &one, 1);
    EXPECT_NEAR(s, silu(x), 4e-7 * std::fabs(silu(x)) + 1e-12) << x;
    // Far to the left 1 + tanh cancels in the reference and e^2u underflows to nothing that
    // matters.
    EXPECT_NEAR(g, gelu_tanh(x), 2e-6 * std::fabs(gelu_tanh(x)) + 1e-9) << x;
  }
}

TEST(Activate, KeepsExtremesFinite) {
  for (float x : {-1e30f, -200.0f, 200.0f, 1e4f}) {
    for (Activation a : {Activation::kSilu, Activation::kGeluTanh}) {
      float y = x;
      const float one = 1;
      activate(a, &y, &one, 1);
      EXPECT_TRUE(std::isfinite(y)) << x;
      EXPECT_NEAR(y, x > 0 ? x : 0.0f, 1e-6f * std::fabs(x)) << x;
    }
  }
}

TEST(RmsNorm, MatchesTheFormulaForEveryLength) {
  Rng rng(1);
  for (int n = 1; n < 70; ++n) {
    std::vector<float> x(static_cast<size_t>(n));
    std::vector<float> w(x.size());
    for (float& v : x) v = 3 * rng.normal();
    for (float& v : w) v = rng.normal();
    std::vector<float> out(x.size());
    rms_norm(x.data(), w.data(), n, 1e-5f, out.data());
    double squares = 0;
    for (float v : x) squares += static_cast<double>(v) * v;
    const double scale = 1 / std::sqrt(squares / n + 1e-5);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(out[i], x[i] * scale * w[i], 2e-6) << "n = " << n;
  }
}

TEST(SoftCap, IsTheScaledTangent) {
  for (float x = -300; x < 300; x += 0.731f) {
    float y = x;
    soft_cap(&y, 30, 1);
    EXPECT_NEAR(y, 30 * std::tanh(x / 30.0), 1e-5) << x;
  }
}

TEST(Softmax, SumsToOneAndKeepsRatios) {
  std::vector<float> x = {1, 2, 3, -1e30f};
  softmax(x.data(), 4);
  EXPECT_NEAR(x[0] + x[1] + x[2] + x[3], 1, 1e-6);
  EXPECT_NEAR(x[2] / x[1], std::exp(1.0), 1e-5);
  EXPECT_NEAR(x[3], 0, 1e-30);
}

TEST(Rope, RotatesEveryPairByItsAngle) {
  const Rope rope = make_rope(8, 10000, {}).value();
  std::vector<float> row(8);
  fill_rope_row(rope, 5, row.data());
  std::vector<float> head = {1, 2, 3, 4, 5, 6, 7, 8};
  rotate(rope, row.data(), head.data());
  for (int j = 0; j < 4; ++j) {
    const double angle = 5 * std::pow(10000, -j / 4.0);
    const auto p = static_cast<size_t>(j);
    EXPECT_NEAR(head[p], (j + 1) * std::cos(angle) - (j + 5) * std::sin(angle), 1e-5);
    EXPECT_NEAR(head[p + 4], (j + 5) * std::cos(angle) + (j + 1) * std::sin(angle), 1e-5);
  }
}

TEST(Rope, NeighbouringPairsBecomeHalvesAndTheRestStays) {
  Rope rope = make_rope(6, 10000, {}).value();
  rope.pairing = RopePairing::kNeighbours;
  std::vector<float> head = {0, 1, 2, 3, 4, 5, 6, 7};
  float scratch[6];
  to_halves(rope, head.data(), scratch);
  EXPECT_EQ(head, (std::vector<float>{0, 2, 4, 1, 3, 5, 6, 7}));
}

TEST(Rope, OddOrEmptyWidthsAreRefused) {
  EXPECT_FALSE(make_rope(7, 10000, {}).ok());
  EXPECT_FALSE(make_rope(0, 10000, {}).ok());
  EXPECT_FALSE(make_rope(8, 0, {}).ok());
  EXPECT_FALSE(make_rope(8, 10000, {.kind = "longrope", .original_positions = 8}).ok());
}

}  // namespace
}  // namespace kvant
