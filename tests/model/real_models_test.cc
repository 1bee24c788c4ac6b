// SmolLM2 and Gemma 3 as tools/setup.sh brings them, against what Transformers computes with the
// same dequantized weights.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model_harness.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

fs::path models_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (!variable("KVANT_CACHE").empty()) return fs::path(variable("KVANT_CACHE")) / "models";
  if (!variable("XDG_CACHE_HOME").empty())
    return fs::path(variable("XDG_CACHE_HOME")) / "kvant" / "models";
  return fs::path(variable("HOME")) / ".cache" / "kvant" / "models";
}

class RealModel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::ifstream in(fs::path(KVANT_TEST_DATA) / "models" / (GetParam() + ".json"));
    goldens_ = nlohmann::json::parse(in);
    path_ = models_folder() / goldens_.at("model").get<std::string>();
    if (!fs::exists(path_)) GTEST_SKIP() << path_ << " is missing (tools/setup.sh models)";
  }
  nlohmann::json goldens_;
  fs::path path_;
};

TEST_P(RealModel, HasTransformersTopLogitsInFloat32) {
  TestModel model(path_, {.weights = WeightType::kF32});
  ASSERT_TRUE(model.ok());
  double worst = 0;  // over the row's spread
  for (const auto& prompt : goldens_.at("prompts")) {
    const std::vector<int32_t> ids = prompt.at("ids");
    auto cache = model.cache("f32");
    const std::vector<float> hidden = model.feed(*cache, cache->create_sequence().value(), ids);
    for (const auto& row : prompt.at("rows")) {
      const size_t position = row.at("position");
      const std::vector<float> got =
          model.logits(hidden.data() + position * model.hidden_size(), 1);
      const double bound = 1e-4 * row.at("spread").get<double>();
      const std::vector<size_t> top = row.at("ids");
      const std::vector<double> want = row.at("logits");
      for (size_t i = 0; i < top.size(); ++i) {
        worst = std::max(worst, std::fabs(got[top[i]] - want[i]) / row.at("spread").get<double>());
        ASSERT_NEAR(got[top[i]], want[i], bound)
            << prompt.at("name") << " position " << position << " token " << top[i];
      }
      const auto better =
          std::count_if(got.begin(), got.end(), [&](float x) { return x > want.back() + bound; });
      ASSERT_LT(better, static_cast<long>(top.size())) << "a token outside the top " << top.size();
    }
  }
  std::printf("deviation %-24s f32 weights, top logits %.1e\n", GetParam().c_str(), worst);
}

TEST_P(RealModel, ContinuesGreedilyAsTransformersInFloat32) {
  TestModel model(path_, {.weights = WeightType::kF32});
  ASSERT_TRUE(model.ok());
  for (const auto& prompt : goldens_.at("prompts")) {
    const std::vector<int32_t> want = prompt.at("greedy");
    EXPECT_EQ(model.greedy(prompt.at("ids"), want.size(), "f32"), want) << prompt.at("name");
  }
}

TEST_P(RealModel, NativeWeightsAreNotCopied) {
  TestModel model(path_, {});
  ASSERT_TRUE(model.ok());
  // What was loaded lies in the file: its size is the file's, but for the vocabulary and padding.
  EXPECT_LT(model.decoder().info().weight_bytes, fs::file_size(path_));
  const auto start = std::chrono::steady_clock::now();
  TestModel again(path_, {});
  const std::chrono::duration<double> warm = std::chrono::steady_clock::now() - start;
  EXPECT_LT(warm.count(), 1.0) << "a warm load in seconds";
}

INSTANTIATE_TEST_SUITE_P(Models, RealModel, ::testing::Values("smollm2-135m", "gemma-3-270m"),
                         [](const auto& info) {
                           return info.param.substr(0, info.param.find('-'));
                         });

}  // namespace
}  // namespace kvant
