// estimate_weights: what a configuration declares, what is counted, and what is only said.
#include <gmock/gmock.h>

#include <filesystem>

#include "shapes.h"

namespace kvant {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// 100 x 64 embeddings, untied, and two small layers.
json counted() {
  return {{"model_type", "llama"},  {"hidden_size", 64}, {"num_attention_heads", 4},
          {"num_hidden_layers", 2}, {"vocab_size", 100}, {"intermediate_size", 96}};
}
constexpr int64_t kEnds = 2 * 100 * 64;

ModelShape declares(const json& quantization) {
  json config = counted();
  config["quantization_config"] = quantization;
  auto shape = shape_of(config);
  EXPECT_TRUE(shape.ok()) << shape.status().message();
  return *std::move(shape);
}

ModelShape published(const std::string& name) {
  auto shape =
      read_model_shape(std::filesystem::path(KVANT_TEST_DATA) / "configs" / (name + ".json"));
  EXPECT_TRUE(shape.ok()) << shape.status().message();
  return *std::move(shape);
}

TEST(Weights, AreBf16UnlessSomethingElseIsSaid) {
  const ModelShape shape = *shape_of(counted());
  const int64_t count = shape.num_parameters;
  EXPECT_EQ(estimate_weights(shape)->bytes, static_cast<uint64_t>(count) * 2);
  EXPECT_EQ(estimate_weights(shape, "int4")->bytes, static_cast<uint64_t>(count) / 2);
  EXPECT_EQ(estimate_weights(shape, "", 1000)->bytes, 2000u);
  EXPECT_THAT(estimate_weights(shape)->notes, IsEmpty());
  EXPECT_EQ(estimate_weights(shape)->ends.embeddings, 100u * 64 * 2);
  EXPECT_EQ(estimate_weights(shape, "int5").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(estimate_weights(*shape_of({{"model_type", "llama"},
                                        {"hidden_size", 64},
                                        {"num_attention_heads", 4},
                                        {"num_hidden_layers", 2}}))
                ->bytes,
            0u);
}

TEST(Weights, AreInTheBitsThatTheConfigurationDeclares) {
  const json groups = {{"group_0", {{"weights", {{"num_bits", 4}, {"group_size", 32}}}}}};
  const std::pair<json, double> kMethods[] = {
      {{{"quant_method", "fp8"}}, 8},
      {{{"quant_method", "fbgemm_fp8"}}, 8},
      {{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}}, 4 + 20.0 / 128},
      {{{"quant_method", "gptq"}, {"bits", 3}, {"group_size", -1}}, 3},
      {{{"quant_method", "awq"}, {"w_bit", 4}, {"q_group_size", 64}}, 4 + 20.0 / 64},
      {{{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}, 8},
      {{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}, 4.5},
      {{{"quant_method", "compressed-tensors"}, {"config_groups", groups}}, 4.5}};
  for (const auto& [quantization, bits] : kMethods) {
    const ModelShape shape = declares(quantization);
    const auto weights = estimate_weights(shape);
    ASSERT_TRUE(weights.ok());
    const auto rest = static_cast<double>(shape.num_parameters - kEnds);
    EXPECT_NEAR(static_cast<double>(weights->bytes), rest * bits / 8 + kEnds * 2, 1)
        << quantization;
    EXPECT_THAT(weights->notes, ElementsAre(HasSubstr("as quantization_config declares, embeddings "
                                                      "and output as bf16; --weights-dtype says "
                                                      "otherwise")));
    EXPECT_EQ(estimate_weights(shape, "bf16")->bytes,
              static_cast<uint64_t>(shape.num_parameters) * 2);
    EXPECT_THAT(estimate_weights(shape, "bf16")->notes, IsEmpty());
  }
}

TEST(Weights, OfAMethodThatIsNotKnownAreBf16WithANote) {
  for (const json& quantization :
       {json{{"quant_method", "novel"}}, json{{"quant_method", "gptq"}}, json{{"bits", 4}},
        json{{"quant_method", "bitsandbytes"}},
        json{{"quant_method", "compressed-tensors"}, {"config_groups", json::object()}},
        json{{"quant_method", "gptq"}, {"bits", "4"}}, json{{"quant_method", 4}},
        json{{"quant_method", "mxfp4"}}}) {
    const ModelShape shape = declares(quantization);
    const auto weights = estimate_weights(shape);
    EXPECT_EQ(weights->bytes, static_cast<uint64_t>(shape.num_parameters) * 2) << quantization;
    EXPECT_THAT(weights->notes, ElementsAre(HasSubstr("they are counted as bf16")));
  }
}

TEST(Weights, ExpertsAloneMayBeQuantized) {
  const ModelShape oss = published("gpt-oss-20b");
  const auto weights = estimate_weights(oss);
  // Published: 13.8 GB of safetensors.
  EXPECT_NEAR(static_cast<double>(weights->bytes) / 13.76e9, 1, 0.01);
  EXPECT_THAT(weights->notes,
              ElementsAre("experts are counted as mxfp4, as quantization_config declares, the rest "
                          "as bf16; --weights-dtype says otherwise"));
  EXPECT_TRUE(published("kimi-k2.5").declared_weights.experts_only);
  EXPECT_NEAR(static_cast<double>(estimate_weights(published("kimi-k2-instruct"))->bytes) / 1.03e12,
              1, 0.01);
}

}  // namespace
}  // namespace kvant
