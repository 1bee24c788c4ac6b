// Presets and pairs: what a user may write, and what it stands for.
#include <gtest/gtest.h>

#include "kvant/format.h"

namespace kvant {
namespace {

constexpr ModelTraits kPlain = {.qk_norm = false};
constexpr ModelTraits kNormed = {.qk_norm = true};

TEST(Presets, ExpandToRegisteredFormatsForEveryModel) {
  for (const Preset& preset : all_presets()) {
    EXPECT_TRUE(is_preset(preset.name));
    EXPECT_FALSE(find_format(preset.name).ok()) << preset.name << " is a format too";
    for (const ModelTraits& traits : {kPlain, kNormed}) {
      const auto pair = parse_format_pair(preset.name, traits);
      ASSERT_TRUE(pair.ok()) << preset.name;
      EXPECT_TRUE(find_format(pair->key).ok()) << pair->key;
      EXPECT_TRUE(find_format(pair->value).ok()) << pair->value;
      EXPECT_EQ(*parse_format_pair(pair->name(), traits), *pair);
    }
  }
}

TEST(Presets, RotateKeysOnlyWithoutNorms) {
  EXPECT_EQ(parse_format_pair("int4", kPlain)->key, "int4_channel_z_rot");
  EXPECT_EQ(parse_format_pair("int4", kNormed)->key, "int4_channel_z_norm");
  EXPECT_EQ(parse_format_pair("int2", kPlain)->key, "int2_channel_z_norm_rot");
  EXPECT_EQ(parse_format_pair("int2", kNormed)->key, "int2_channel_z_norm");
  EXPECT_EQ(parse_format_pair("int8", kPlain)->key, "int8_channel_z_rot");
  EXPECT_EQ(parse_format_pair("int8", kNormed)->key, "int8_channel_z");
  EXPECT_EQ(parse_format_pair("kivi4", kPlain)->key, parse_format_pair("kivi4", kNormed)->key);
}

TEST(Presets, GroupTheValuesOfWideHeads) {
  for (const int dim : {0, 64, 80, 96}) {
    EXPECT_EQ(parse_format_pair("k8v4", {.value_dim = dim})->value, "int4_token_z_lsq_rot") << dim;
  }
  for (const int dim : {128, 192, 256}) {
    EXPECT_EQ(parse_format_pair("k8v4", {.value_dim = dim})->value, "int4_g64_z_lsq_rot") << dim;
    EXPECT_EQ(parse_format_pair("int2", {.value_dim = dim})->value, "int2_g64_z_lsq_rot") << dim;
    EXPECT_EQ(parse_format_pair("int8", {.value_dim = dim})->value, "int8_token") << dim;
    EXPECT_EQ(parse_format_pair("kivi4", {.value_dim = dim})->value, "int4_g32_z") << dim;
  }
}

TEST(Presets, CaseA11_AutoIsWhatTheCheckpointDeclares) {
  EXPECT_EQ(parse_format_pair("auto", kPlain)->name(), "bf16");
  const ModelTraits declares = {.declared = *find_format("fp8_e4m3")};
  EXPECT_EQ(parse_format_pair("auto", declares)->name(), "fp8_e4m3");
  EXPECT_EQ(parse_format_pair("bf16/auto", declares)->name(), "bf16/fp8_e4m3");
  EXPECT_EQ(parse_format_pair("int8_token", declares)->name(), "int8_token");
}

TEST(Pairs, ParseOneFormatTwoFormatsAndSidesOfPresets) {
  EXPECT_EQ(parse_format_pair("bf16", kPlain)->name(), "bf16");
  EXPECT_EQ(parse_format_pair("int8_token/int4_token_z_rot", kPlain)->name(),
            "int8_token/int4_token_z_rot");
  const auto mixed = parse_format_pair("int8/int4_g32", kPlain);
  EXPECT_EQ(mixed->key, parse_format_pair("int8", kPlain)->key);
  EXPECT_EQ(mixed->value, "int4_g32");
}

TEST(Pairs, RefuseWhatIsNoPairInOneSentence) {
  for (const char* text : {"", "/", "bf16/", "/bf16", "bf16/bf16/bf16", "int9", "INT8", "int4 ",
                           "int4_token_rot_z", "bf16\n", "\xff\xfe"}) {
    const auto pair = parse_format_pair(text, kPlain);
    ASSERT_FALSE(pair.ok()) << text;
    const std::string message = pair.status().message();
    EXPECT_LT(message.size(), 200u);
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  const auto huge = parse_format_pair(std::string(1 << 20, 'i'), kPlain);
  EXPECT_LT(huge.status().message().size(), 300u);
}

}  // namespace
}  // namespace kvant
