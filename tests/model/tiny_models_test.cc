// Every tiny model of tests/data/models against what Transformers computed, in both file layouts,
// in float32.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "model/families.h"
#include "model_harness.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = fs::path(KVANT_TEST_DATA) / "models";

struct Prompt {
  std::vector<int32_t> ids;
  std::vector<size_t> rows;  // whose logits are kept
  std::vector<int32_t> greedy;
  std::vector<float> logits;  // [rows][vocabulary]
};

// float32 values of a two-dimensional .npy file.
std::vector<float> read_npy(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const size_t start = 10 + static_cast<size_t>(static_cast<unsigned char>(bytes[8])) +
                       256 * static_cast<size_t>(static_cast<unsigned char>(bytes[9]));
  std::vector<float> out((bytes.size() - start) / sizeof(float));
  std::memcpy(out.data(), bytes.data() + start, out.size() * sizeof(float));
  return out;
}

std::vector<Prompt> read_goldens(const fs::path& directory, size_t vocabulary) {
  std::ifstream in(directory / "goldens.json");
  const nlohmann::json json = nlohmann::json::parse(in);
  const std::vector<float> all = read_npy(directory / "goldens.npy");
  std::vector<Prompt> out;
  size_t at = 0;
  for (const auto& p : json.at("prompts")) {
    Prompt prompt{p.at("ids"), p.at("rows"), p.at("greedy"), {}};
    const size_t size = prompt.rows.size() * vocabulary;
    prompt.logits.assign(all.begin() + static_cast<long>(at),
                         all.begin() + static_cast<long>(at + size));
    at += size;
    out.push_back(std::move(prompt));
  }
  EXPECT_EQ(at, all.size());
  return out;
}

bool has_known_family(const fs::path& directory) {
  auto config = JsonDocument::open(directory / "config.json");
  return config.ok() && read_spec(config->root(), 0).status().code() != Code::kUnsupported;
}

std::vector<fs::path> model_files() {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(kModels)) {
    if (!entry.is_directory() || !has_known_family(entry.path())) continue;
    out.push_back(entry.path());
    if (fs::exists(entry.path() / "model.gguf")) out.push_back(entry.path() / "model.gguf");
  }
  std::sort(out.begin(), out.end());
  return out;
}

class TinyModel : public ::testing::TestWithParam<fs::path> {
 protected:
  fs::path directory() const {
    return fs::is_directory(GetParam()) ? GetParam() : GetParam().parent_path();
  }
  static double spread(const std::vector<float>& x) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    return static_cast<double>(*high) - *low;
  }
};

TEST_P(TinyModel, HasTransformersLogitsInFloat32) {
  TestModel model(GetParam(), {.weights = WeightType::kF32});
  ASSERT_TRUE(model.ok());
  for (const Prompt& prompt : read_goldens(directory(), model.vocabulary())) {
    auto cache = model.cache("f32");
    const std::vector<float> hidden =
        model.feed(*cache, cache->create_sequence().value(), prompt.ids);
    for (size_t i = 0; i < prompt.rows.size(); ++i) {
      const std::vector<float> got =
          model.logits(hidden.data() + prompt.rows[i] * model.hidden_size(), 1);
      const float* want = prompt.logits.data() + i * model.vocabulary();
      double worst = 0;
      for (size_t c = 0; c < got.size(); ++c)
        worst = std::max(worst, std::fabs(static_cast<double>(got[c]) - want[c]));
      ASSERT_LT(worst, 1e-4 * spread(prompt.logits))
          << "row " << prompt.rows[i] << " of a prompt of " << prompt.ids.size() << " tokens";
    }
  }
}

TEST_P(TinyModel, ContinuesGreedilyAsTransformers) {
  TestModel model(GetParam(), {.weights = WeightType::kF32});
  ASSERT_TRUE(model.ok());
  for (const Prompt& prompt : read_goldens(directory(), model.vocabulary())) {
    EXPECT_EQ(model.greedy(prompt.ids, prompt.greedy.size(), "f32"), prompt.greedy);
  }
}

std::string test_name(const ::testing::TestParamInfo<fs::path>& info) {
  const bool is_gguf = info.param.extension() == ".gguf";
  std::string name = (is_gguf ? info.param.parent_path() : info.param).filename().string();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name + (is_gguf ? "_gguf" : "");
}

INSTANTIATE_TEST_SUITE_P(All, TinyModel, ::testing::ValuesIn(model_files()), test_name);

}  // namespace
}  // namespace kvant
