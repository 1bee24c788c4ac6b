// `--kv` and `--kv-layers`: which layer gets which format, and what is refused before a model is
// loaded.
#include <gtest/gtest.h>

#include "formats/codec.h"
#include "kvant/format.h"

namespace kvant {
namespace {

constexpr ModelTraits kPlain = {};

std::vector<LayerShape> plain_layers(size_t count, int dim = 64) {
  return std::vector<LayerShape>(count,
                                 LayerShape{.num_kv_heads = 2, .key_dim = dim, .value_dim = dim});
}

// The K formats of a resolution, or its error.
std::string keys_of(std::string_view kv, std::string_view overrides,
                    const std::vector<LayerShape>& layers) {
  const auto resolved = resolve_formats(kv, overrides, layers, kPlain, false);
  if (!resolved.ok()) return resolved.status().message();
  std::string out;
  for (const FormatPair& pair : resolved->effective) out += (out.empty() ? "" : " ") + pair.key;
  return out;
}

TEST(CaseH5_LayerOverrides, NameRangesIndicesAndKinds) {
  auto layers = plain_layers(4);
  EXPECT_EQ(keys_of("bf16", "0-1=fp8_e4m3;2-3=int4_token", layers),
            "fp8_e4m3 fp8_e4m3 int4_token int4_token");
  EXPECT_EQ(keys_of("int8_token", "-1=bf16", layers), "int8_token int8_token int8_token bf16");
  EXPECT_EQ(keys_of("int8_token", "0,-2--1=bf16", layers), "bf16 int8_token bf16 bf16");
  EXPECT_EQ(keys_of("int8_token", " 1 = f16 ; 2 = f32 ", layers), "int8_token f16 f32 int8_token");
  layers[1].window = layers[2].window = 128;
  EXPECT_EQ(keys_of("int8_token", "sliding=bf16", layers), "int8_token bf16 bf16 int8_token");
  EXPECT_EQ(keys_of("int8_token", "full=bf16;1=f16", layers), "bf16 f16 int8_token bf16");
}

TEST(CaseH5_LayerOverrides, RefuseOverlapsReversalsAndStrangers) {
  const auto layers = plain_layers(4);
  for (const char* bad : {"0-2=fp8_e4m3;2-3=int4_token",
                          "3-1=fp8_e4m3",
                          "0-9=fp8_e4m3",
                          "4=bf16",
                          "-5=bf16",
                          "1,1=bf16",
                          "0-1",
                          "=bf16",
                          "x=bf16",
                          "0-x=bf16",
                          "0-=bf16",
                          "1.5=bf16",
                          "0=int9",
                          "0=",
                          ";",
                          "0=bf16;",
                          "sliding=bf16",
                          "99999999999999999999=bf16",
                          "0-1-2=bf16",
                          "+1=bf16"}) {
    const auto resolved = resolve_formats("int8", bad, layers, kPlain, false);
    EXPECT_FALSE(resolved.ok()) << bad;
    EXPECT_LT(resolved.status().message().size(), 200u);
  }
}

TEST(CaseB1_Resolve, NamedFormatsFailAndPresetsStepDown) {
  const auto layers = plain_layers(2, 80);
  const auto named = resolve_formats("int4_g64", "", layers, kPlain, false);
  ASSERT_FALSE(named.ok());
  EXPECT_NE(named.status().message().find("layer 0 K"), std::string::npos);
  const auto preset = resolve_formats("kivi4", "", layers, kPlain, false);
  ASSERT_TRUE(preset.ok());
  EXPECT_EQ(preset->effective[0].name(), "int4_channel_z/bf16");
  EXPECT_EQ(preset->requested[0].name(), "int4_channel_z/int4_g32_z");
  ASSERT_EQ(preset->notes.size(), 1u) << "one for both layers";
  EXPECT_EQ(preset->fallbacks.at(0).layers, (std::vector<int>{0, 1}));
}

// A preset is a default choice: on every width it steps down to something that the width can have,
// and says so; strict allows exactly those that need no step.
TEST(CaseB1_Resolve, EveryPresetServesEveryWidth) {
  for (const Preset& preset : all_presets()) {
    for (const int dim : {16, 40, 48, 80, 96, 100, 112, 192, 256}) {
      const auto layers = plain_layers(2, dim);
      const auto loose = resolve_formats(preset.name, "", layers, kPlain, false);
      ASSERT_TRUE(loose.ok()) << preset.name << " " << dim << loose.status().message();
      EXPECT_EQ(loose->notes.empty(), loose->requested == loose->effective) << preset.name;
      EXPECT_EQ(resolve_formats(preset.name, "", layers, kPlain, true).ok(), loose->notes.empty())
          << preset.name << " " << dim;
      for (const Side side : {Side::kKey, Side::kValue}) {
        const FormatPair& pair = loose->effective[1];
        const FormatInfo& info = **find_format(side == Side::kKey ? pair.key : pair.value);
        EXPECT_TRUE(info.exact || sealed_bits(info, side, dim).ok()) << info.name << " " << dim;
      }
    }
  }
}

TEST(CaseH3_Resolve, StrictAllowsNoDifference) {
  const auto layers = plain_layers(2, 80);
  EXPECT_FALSE(resolve_formats("kivi4", "", layers, kPlain, true).ok());
  const auto same = resolve_formats("int4", "", layers, kPlain, true);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->requested, same->effective);
  EXPECT_TRUE(same->notes.empty());
}

TEST(CaseB12_Resolve, StreamsThatStayExactAreNoted) {
  auto layers = plain_layers(2);
  layers[1] = {.num_kv_heads = 1, .key_dim = 40, .value_dim = 0, .window = 0, .quantizable = false};
  const auto resolved = resolve_formats("int8_token", "", layers, kPlain, false);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->effective[0].name(), "int8_token");
  EXPECT_EQ(resolved->effective[1].name(), "bf16");
  EXPECT_FALSE(resolved->notes.empty());
  EXPECT_FALSE(resolve_formats("int8_token", "", layers, kPlain, true).ok());
  EXPECT_EQ(resolve_formats("f32", "", layers, kPlain, true)->effective[1].name(), "f32");
}

TEST(CaseB12_Resolve, KeysAndValuesOfDifferentWidth) {
  std::vector<LayerShape> layers = {{.num_kv_heads = 2, .key_dim = 192, .value_dim = 128}};
  for (const FormatInfo& key : all_formats()) {
    const auto resolved = resolve_formats(key.name + "/int4_g128_z", "", layers, kPlain, false);
    const bool calibrated = key.scale_source == ScaleSource::kGiven || key.needs.artifacts;
    const bool fits = !calibrated && key.group != 128;
    EXPECT_EQ(resolved.ok(), fits) << key.name;
  }
}

// A format without a kernel is a slow path: said once, and refused under strict.
TEST(CaseG1_Resolve, SlowFormatsAreNamed) {
  const auto layers = plain_layers(3, 128);
  size_t slow = 0;
  const auto is_slow = [](const FormatInfo& info) {
    const Side side = info.for_keys ? Side::kKey : Side::kValue;
    return !bind_any(info, side, 128).value()->has_kernel();
  };
  for (const FormatInfo& info : all_formats()) {
    if (info.scale_source == ScaleSource::kGiven || info.needs.artifacts) continue;
    const auto resolved = resolve_formats(info.name, "", layers, kPlain, false);
    ASSERT_TRUE(resolved.ok()) << info.name;
    EXPECT_EQ(resolved->notes.empty(), info.exact || !is_slow(info)) << info.name;
    EXPECT_EQ(resolved->notes.empty(), resolve_formats(info.name, "", layers, kPlain, true).ok());
    if (resolved->notes.empty()) continue;
    ++slow;
    ASSERT_EQ(resolved->notes.size(), 1u) << "once, whatever the layers";
    EXPECT_TRUE(resolved->notes[0].starts_with(info.name + " has no kernel")) << info.name;
    const auto one_layer = resolve_formats("bf16", "1=" + info.name, layers, kPlain, false);
    EXPECT_EQ(one_layer->notes, resolved->notes);
  }
  EXPECT_GE(slow, 8u) << "four NF4 formats, plain and rotated, at least";
}

TEST(CaseH1_Resolve, EveryFormatIsServedOrRefusedInOneLine) {
  for (const int dim : {64, 80, 96, 256}) {
    const auto layers = plain_layers(3, dim);
    for (const FormatInfo& info : all_formats()) {
      const auto resolved = resolve_formats(info.name, "", layers, kPlain, false);
      if (resolved.ok()) {
        EXPECT_EQ(resolved->effective[2].name(), info.name);
      } else {
        EXPECT_EQ(resolved.status().message().find('\n'), std::string::npos);
        EXPECT_NE(resolved.status().message().find(info.name), std::string::npos);
      }
    }
  }
}

TEST(CaseH1_Resolve, NothingAskedMeansTheBaseline) {
  EXPECT_EQ(keys_of("", "", plain_layers(1)), "bf16");
}

}  // namespace
}  // namespace kvant
