#include "../model/models_folder.h"
#include "engine_shapes.h"

namespace kvant {
namespace {

class RealModelShape : public ::testing::TestWithParam<const char*> {};

TEST_P(RealModelShape, IsTheEngines) {
  const std::filesystem::path path = models_folder() / GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is missing (tools/setup.sh models)";
  expect_the_engines_shape(path);
}

INSTANTIATE_TEST_SUITE_P(Models, RealModelShape,
                         ::testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf",
                                           "gemma-3-270m-q4_k_m.gguf"),
                         [](const auto& info) { return "model" + std::to_string(info.index); });

}  // namespace
}  // namespace kvant
