// SmolLM2 and Gemma 3 as tools/setup.sh brings them, against what Transformers computes with the
// same dequantized weights.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "model_harness.h"
#include "models_folder.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

// A model in float32 and its prompts as it read them: seconds of work that several tests look at.
struct ExactReading {
  ExactReading(const fs::path& path, const nlohmann::json& goldens)
      : model(path, {.weights = WeightType::kF32}) {
    if (!model.ok()) return;
    cache = model.cache("f32");
    for (const auto& golden : goldens.at("prompts")) {
      const SequenceId sequence = cache->create_sequence().value();
      prompts.push_back({sequence, model.feed(*cache, sequence, golden.at("ids"))});
    }
  }

  TestModel model;
  std::unique_ptr<KvCache> cache;
  std::vector<TestModel::Prefix> prompts;  // in the order of the goldens
};

class RealModel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::ifstream in(fs::path(KVANT_TEST_DATA) / "models" / (GetParam() + ".json"));
    goldens_ = nlohmann::json::parse(in);
    path_ = models_folder() / goldens_.at("model").get<std::string>();
    if (!fs::exists(path_)) GTEST_SKIP() << path_ << " is missing (tools/setup.sh models)";
  }
  static void TearDownTestSuite() { readings_.clear(); }

  ExactReading& exact_reading() {
    std::unique_ptr<ExactReading>& reading = readings_[GetParam()];
    if (reading == nullptr) reading = std::make_unique<ExactReading>(path_, goldens_);
    return *reading;
  }

  nlohmann::json goldens_;
  fs::path path_;

 private:
  static inline std::map<std::string, std::unique_ptr<ExactReading>> readings_;
};

TEST_P(RealModel, HasTransformersTopLogitsInFloat32) {
  TestModel& model = exact_reading().model;
  ASSERT_TRUE(model.ok());
  double worst = 0;  // over the row's spread
  for (size_t p = 0; p < exact_reading().prompts.size(); ++p) {
    const auto& prompt = goldens_.at("prompts").at(p);
    const std::vector<float>& hidden = exact_reading().prompts[p].hidden;
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
  ExactReading& exact = exact_reading();
  ASSERT_TRUE(exact.model.ok());
  const auto& goldens = goldens_.at("prompts");
  const size_t count = goldens.at(0).at("greedy").size();
  const auto tokens = exact.model.greedy_after(*exact.cache, exact.prompts, count);
  for (size_t p = 0; p < tokens.size(); ++p)
    EXPECT_EQ(tokens[p], goldens.at(p).at("greedy").get<std::vector<int32_t>>())
        << goldens.at(p).at("name");
}

// Sum of p·(ln p − ln q) over one row of logits.
double divergence(const float* p, const float* q, size_t n) {
  const auto log_sum = [n](const float* row) {
    const double most = double{*std::max_element(row, row + n)};
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += std::exp(double{row[i]} - most);
    return most + std::log(sum);
  };
  const double p_sum = log_sum(p), q_sum = log_sum(q);
  double out = 0;
  for (size_t i = 0; i < n; ++i) {
    const double log_p = double{p[i]} - p_sum;
    out += std::exp(log_p) * (log_p - (double{q[i]} - q_sum));
  }
  return out;
}

// Native weights multiply activations of 8 or 16 bits: not what float32 gives, and bounded by the
// divergence from it. Two-sided: none at all would mean that float32 was compared with itself.
TEST_P(RealModel, NativeWeightsStayCloseToFloat32) {
  TestModel& exact = exact_reading().model;
  TestModel native(path_, {});
  ASSERT_TRUE(exact.ok() && native.ok());
  const auto& goldens = goldens_.at("prompts");
  const auto longest = std::max_element(
      goldens.begin(), goldens.end(),
      [](const auto& a, const auto& b) { return a.at("ids").size() < b.at("ids").size(); });
  std::vector<int32_t> ids = longest->at("ids");
  ids.resize(256);  // whole blocks
  const std::vector<float>& exact_hidden =
      exact_reading().prompts[static_cast<size_t>(longest - goldens.begin())].hidden;
  const auto cache = native.cache("f32");
  const std::vector<float> native_hidden =
      native.feed(*cache, cache->create_sequence().value(), ids);
  const size_t vocabulary = exact.vocabulary();
  const auto block_logits = [&](TestModel& model, const std::vector<float>& hidden, size_t first) {
    std::vector<float> out(64 * vocabulary);
    EXPECT_TRUE(model.decoder()
                    .logits(hidden.data() + first * model.hidden_size(), 64, Model::Dense::kBlock,
                            out.data())
                    .ok());
    return out;
  };
  double sum = 0;
  for (size_t first = 0; first < ids.size(); first += 64) {
    const std::vector<float> p = block_logits(exact, exact_hidden, first);
    const std::vector<float> q = block_logits(native, native_hidden, first);
    for (size_t row = 0; row < 64; ++row)
      sum += divergence(p.data() + row * vocabulary, q.data() + row * vocabulary, vocabulary);
  }
  const double mean = sum / static_cast<double>(ids.size());
  std::printf("native %-24s mean KLD to f32 weights over %zu tokens %.1e\n", GetParam().c_str(),
              ids.size(), mean);
  EXPECT_GT(mean, 1e-5);
  EXPECT_LT(mean, 5e-3);
}

TEST_P(RealModel, NativeWeightsAreNotCopied) {
  TestModel model(path_, {});
  ASSERT_TRUE(model.ok());
  // What was loaded lies in the file: its size is the file's, but for the vocabulary and padding.
  EXPECT_LT(model.decoder().info().weight_bytes, fs::file_size(path_));
  const auto start = std::chrono::steady_clock::now();
  TestModel again(path_, {});
  const std::chrono::duration<double> warm = std::chrono::steady_clock::now() - start;
  EXPECT_TRUE(again.ok());
  std::printf("load   %-24s warm %.3f s\n", GetParam().c_str(), warm.count());
}

INSTANTIATE_TEST_SUITE_P(Models, RealModel, ::testing::Values("smollm2-135m", "gemma-3-270m"),
                         [](const auto& info) {
                           return info.param.substr(0, info.param.find('-'));
                         });

}  // namespace
}  // namespace kvant
