#include "evaluate/sensitivity.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/toy_model.h"
#include "slow_build.h"

namespace kvant {
namespace {

// scipy.stats.spearmanr of the same series.
TEST(RankCorrelation, IsSpearmans) {
  const std::vector<double> a = {1, 2, 3, 4, 5}, b = {5, 6, 7, 8, 7};
  EXPECT_NEAR(rank_correlation(a, b), 0.8207826816681233, 1e-15);
  EXPECT_EQ(rank_correlation(a, a), 1);
  const std::vector<double> falling = {9, 1e-3, 1e-5, -1, -7}, constant(5, 2.0);
  EXPECT_EQ(rank_correlation(a, falling), -1);
  EXPECT_EQ(rank_correlation(a, constant), 0);
  EXPECT_EQ(rank_correlation({}, {}), 0);
}

struct Tried {
  double harm = 1e300;
  uint64_t bytes = 0;
};

Tried cost_of(const std::vector<std::vector<LayerCost>>& layers, const std::vector<int>& mix) {
  Tried sum{0, 0};
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerCost& cost = layers[l][static_cast<size_t>(mix[l])];
    sum.harm += cost.harm;
    sum.bytes += cost.bytes;
  }
  return sum;
}

// All mixes.
Tried best_of_all(const std::vector<std::vector<LayerCost>>& layers, uint64_t budget) {
  Tried best;
  std::vector<int> mix(layers.size(), 0);
  for (;;) {
    const Tried cost = cost_of(layers, mix);
    const bool better =
        cost.harm < best.harm || (cost.harm == best.harm && cost.bytes < best.bytes);
    if (cost.bytes <= budget && better) best = cost;
    size_t l = 0;
    while (l < mix.size() && ++mix[l] == static_cast<int>(layers[l].size())) mix[l++] = 0;
    if (l == mix.size()) return best;
  }
}

TEST(LeastHarmfulMix, IsTheBestOfAll) {
  Rng rng(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<LayerCost>> layers(1 + rng.next() % 6);
    for (std::vector<LayerCost>& formats : layers) {
      for (int f = 0; f < 3; ++f) {
        // Whole numbers, so that sums don't depend on their order; layers without pages take none.
        const bool none = layers.size() > 3 && &formats == &layers[1];
        formats.push_back({none ? 0 : 64 * (1 + rng.next() % 9),
                           none ? 0 : static_cast<double>(rng.next() % 50)});
      }
    }
    const uint64_t budget = 64 * (rng.next() % 60);
    const std::vector<int> mix = least_harmful_mix(layers, budget);
    const Tried best = best_of_all(layers, budget);
    ASSERT_EQ(mix.empty(), best.harm == 1e300) << "round " << round;
    if (mix.empty()) continue;
    const Tried found = cost_of(layers, mix);
    EXPECT_EQ(found.harm, best.harm) << "round " << round;
    EXPECT_EQ(found.bytes, best.bytes) << "round " << round;
  }
}

// Every layer is a run of all layers, of which three do for slow builds.
constexpr int kLayers = kSlowBuild ? 3 : 5;

class SensitivityTest : public testing::Test {
 protected:
  std::vector<std::vector<SeriesSummary>> harms(const std::vector<EvaluatedRun>& runs) {
    auto result = harms_by_layer(model_, threads_, tokens_, runs, options_);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : std::vector<std::vector<SeriesSummary>>();
  }
  EvaluatedRun run_in(const char* format) const {
    return {format, toy::cache_options(model_, {format, format})};
  }

  ThreadPool threads_{2};
  toy::ToyModel model_{{.layers = kLayers, .sharpness = 0.03f}};
  std::vector<int32_t> tokens_ = toy::random_tokens(400, 5);
  EvaluationOptions options_ = {.chunk = 128};
};

TEST_F(SensitivityTest, AHarmIsThatOfTheLayerAlone) {
  const auto found = harms({run_in("bf16"), run_in("int4_token"), run_in("int4_channel_z")});
  ASSERT_EQ(found.size(), 3u);
  for (size_t l = 0; l < kLayers; ++l) {
    EXPECT_EQ(found[0][l].mean, 0) << l;
    EvaluatedRun alone = run_in("bf16");
    alone.cache.layers[l].formats = {"int4_token", "int4_token"};
    const auto one = evaluate(model_, threads_, tokens_, {&alone, 1}, options_);
    ASSERT_TRUE(one.ok()) << one.status().message();
    EXPECT_EQ(found[1][l].mean, (*one)[0].kld.mean) << l;
    EXPECT_GT(found[1][l].mean, 0) << l;
  }
}

TEST_F(SensitivityTest, CoarserFormatsDoMoreHarmInEveryLayer) {
  const auto found = harms({run_in("int8_channel_z"), run_in("int2_channel_z")});
  for (size_t l = 0; l < kLayers; ++l) EXPECT_GT(found[1][l].mean, 3 * found[0][l].mean) << l;
}

TEST_F(SensitivityTest, WhatFailsNamesLayerAndFormat) {
  EvaluatedRun run = run_in("int8_tensor");  // which wants a scale
  const auto result = harms_by_layer(model_, threads_, tokens_, {&run, 1}, options_);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("layer 0 in int8_tensor"), std::string::npos)
      << result.status().message();
}

}  // namespace
}  // namespace kvant
