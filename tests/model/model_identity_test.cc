// Which runs may share what they computed.
#include "model/model_identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/threads.h"

namespace kvant {
namespace {

class ModelIdentityTest : public testing::Test {
 protected:
  std::string identity(const std::filesystem::path& path, ModelOptions options = {}) {
    Result<std::unique_ptr<Model>> model = Model::load(path, options, threads_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    Result<std::string> id = model_identity(path, (*model)->info(), options);
    EXPECT_TRUE(id.ok()) << id.status().message();
    EXPECT_EQ(id->size(), 32u);
    return *id;
  }
  ThreadPool threads_{1};
};

TEST_F(ModelIdentityTest, CaseC15_ChangesWithWhatChangesTheBits) {
  const std::filesystem::path models = std::filesystem::path(KVANT_TEST_DATA) / "models";
  std::set<std::string> seen;
  EXPECT_TRUE(seen.insert(identity(models / "llama")).second);
  EXPECT_FALSE(seen.insert(identity(models / "llama")).second) << "the same again";
  EXPECT_TRUE(seen.insert(identity(models / "qwen2")).second);
  EXPECT_TRUE(seen.insert(identity(models / "qwen2" / "model.gguf")).second);
  EXPECT_TRUE(seen.insert(identity(models / "llama", {.weights = WeightType::kF32})).second);
  EXPECT_TRUE(seen.insert(identity(models / "llama", {.invariant = true})).second);
  EXPECT_TRUE(seen.insert(identity(models / "llama", {.context = 64})).second);
}

TEST_F(ModelIdentityTest, ADirectorysConfigurationCounts) {
  const std::filesystem::path from = std::filesystem::path(KVANT_TEST_DATA) / "models" / "qwen2";
  const std::filesystem::path copy =
      std::filesystem::path(testing::TempDir()) / ("kvant-identity-" + std::to_string(getpid()));
  std::filesystem::copy(from, copy);
  EXPECT_EQ(identity(copy), identity(from)) << "the place doesn't";
  std::ifstream in(copy / "config.json");
  std::string config{std::istreambuf_iterator<char>(in), {}};
  const std::string field = "\"rope_theta\": ";
  const size_t at = config.find(field);
  ASSERT_NE(at, std::string::npos);
  config.insert(at + field.size(), "1");
  std::ofstream(copy / "config.json") << config;
  EXPECT_NE(identity(copy), identity(from));
  std::filesystem::remove_all(copy);
}

}  // namespace
}  // namespace kvant
