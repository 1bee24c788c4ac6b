// Shapes from GGUF metadata.
#include <gmock/gmock.h>

#include "../files/gguf_builder.h"
#include "../files/temp_file.h"
#include "shapes.h"

namespace kvant {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two layers, hidden 64, 4 heads.
GgufBuilder small(const std::string& architecture) {
  GgufBuilder b;
  b.string("general.architecture", architecture);
  for (const auto& [key, value] : {std::pair{"embedding_length", 64u},
                                   {"attention.head_count", 4u},
                                   {"block_count", 2u},
                                   {"context_length", 256u}}) {
    b.u32(architecture + "." + key, value);
  }
  return b;
}

Result<ModelShape> shape_of(const GgufBuilder& builder) {
  const TempFolder folder;
  return read_model_shape(folder.write("m.gguf", builder.bytes()));
}

std::vector<std::string> layers_of(const GgufBuilder& builder) {
  const auto shape = shape_of(builder);
  EXPECT_TRUE(shape.ok()) << shape.status().message();
  std::vector<std::string> layers;
  if (!shape.ok()) return layers;
  for (const ModelLayer& layer : shape->layers) layers.push_back(described(layer));
  return layers;
}

using Layers = std::vector<std::string>;

TEST(GgufShape, HeadsAndWidths) {
  EXPECT_EQ(layers_of(small("llama")), Layers(2, "full 4x16+16; "));
  EXPECT_EQ(layers_of(small("llama").u32("llama.attention.head_count_kv", 2)),
            Layers(2, "full 2x16+16; "));
  EXPECT_EQ(layers_of(small("qwen3")
                          .u32("qwen3.attention.key_length", 32)
                          .u32("qwen3.attention.value_length", 48)),
            Layers(2, "full 4x32+48; "));
  EXPECT_EQ(layers_of(small("llama").array<uint32_t>("llama.attention.head_count_kv", 4, {1, 4})),
            (Layers{"full 1x16+16; ", "full 4x16+16; "}));
  EXPECT_EQ(shape_of(small("llama"))->max_positions, 256);
  EXPECT_EQ(shape_of(small("llama"))->architecture, "llama");
}

TEST(GgufShape, WindowsAreTheArchitectures) {
  const auto sliding = [](const std::string& name) {
    return small(name).u32(name + ".attention.sliding_window", 8);
  };
  EXPECT_EQ(layers_of(sliding("gemma2")), (Layers{"sliding 4x16+16 window 8; ", "full 4x16+16; "}));
  EXPECT_EQ(layers_of(sliding("phi3")), Layers(2, "sliding 4x16+16 window 8; "));
  EXPECT_EQ(layers_of(sliding("llama")), Layers(2, "full 4x16+16; "));
}

TEST(GgufShape, LatentsUnderOldAndNewWidths) {
  GgufBuilder b = small("deepseek2");
  b.u32("deepseek2.attention.kv_lora_rank", 32)
      .u32("deepseek2.rope.dimension_count", 8)
      .u32("deepseek2.attention.key_length", 24)
      .u32("deepseek2.attention.value_length", 16);
  EXPECT_EQ(layers_of(b), Layers(2, "latent 1x40+0; "));
  EXPECT_EQ(layers_of(b.u32("deepseek2.attention.head_count_kv", 1)), Layers(2, "latent 1x40+0; "));
}

TEST(GgufShape, LayersWithoutHeadsKeepState) {
  GgufBuilder b = small("granitehybrid");
  b.u32("granitehybrid.ssm.inner_size", 128)
      .u32("granitehybrid.ssm.state_size", 16)
      .u32("granitehybrid.ssm.conv_kernel", 4)
      .u32("granitehybrid.ssm.group_count", 1)
      .u32("granitehybrid.ssm.time_step_rank", 8)
      .array<uint32_t>("granitehybrid.attention.head_count_kv", 4, {0, 2});
  EXPECT_EQ(layers_of(b), (Layers{"state 2048 of 4 conv 480; ", "full 2x16+16; "}));
  GgufBuilder nemotron = small("nemotron_h");
  nemotron.u32("nemotron_h.ssm.inner_size", 128)
      .u32("nemotron_h.ssm.state_size", 16)
      .u32("nemotron_h.ssm.conv_kernel", 4)
      .u32("nemotron_h.ssm.group_count", 1)
      .u32("nemotron_h.ssm.time_step_rank", 8)
      .u32("nemotron_h.attention.key_length", 32)
      .array<uint32_t>("nemotron_h.attention.head_count_kv", 4, {0, 2})
      .array<uint32_t>("nemotron_h.feed_forward_length", 4, {0, 0});
  EXPECT_EQ(layers_of(nemotron), (Layers{"state 2048 of 4 conv 480; ", "full 2x32+32; "}));
}

TEST(GgufShape, TensorsAreCounted) {
  const auto shape =
      shape_of(small("llama").tensor("token_embd.weight", 0, {8, 4}, std::string(128, '\0')));
  EXPECT_EQ(shape->num_parameters, 32);
  EXPECT_EQ(shape->weight_bytes, 128u);
}

TEST(GgufShape, WhatIsMissingOrOfAnotherTypeIsNamed) {
  const auto refusal = [](const GgufBuilder& b) { return shape_of(b).status().message(); };
  EXPECT_THAT(refusal(GgufBuilder()), HasSubstr("m.gguf: general.architecture is missing"));
  GgufBuilder missing;
  missing.string("general.architecture", "llama");
  EXPECT_THAT(refusal(missing),
              AllOf(HasSubstr("m.gguf"), HasSubstr("num_hidden_layers is missing")));
  missing.string("llama.block_count", "2");
  EXPECT_THAT(refusal(missing), HasSubstr("m.gguf: llama.block_count: of another type"));
  EXPECT_THAT(refusal(small("llama").u32("llama.attention.head_count_kv", 3)),
              HasSubstr("num_key_value_heads: 3, wanted a divisor of the 4"));
  EXPECT_THAT(refusal(small("bert")), HasSubstr("encoder"));
  EXPECT_THAT(refusal(small("rwkv9").u32("rwkv9.ssm.state_size", 16)),
              HasSubstr("ssm_state_size: 16 means"));
  EXPECT_THAT(notes_of(*shape_of(small("novel"))), HasSubstr("the model type novel isn't known"));
}

}  // namespace
}  // namespace kvant
