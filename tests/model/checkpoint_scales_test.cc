// Scales that checkpoints carry: every name, every shape, every lack.
#include "model/checkpoint_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "files/safetensors_writer.h"
#include "files/temp_file.h"

namespace kvant {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct TestScale {
  std::string name;
  std::vector<float> values;
  std::vector<uint64_t> shape;
};

class Checkpoint {
 public:
  explicit Checkpoint(const std::vector<TestScale>& scales)
      : file_(bytes_of(scales), ".safetensors") {}

  Result<std::vector<CheckpointScale>> read() const {
    KVANT_ASSIGN(const auto files, Safetensors::open_file(file_.path()));
    return read_checkpoint_scales(*files);
  }
  // Of a model of two layers with two KV heads.
  Result<UsableScales> use(bool declared = true) const {
    KVANT_ASSIGN(const auto found, read());
    const int heads[] = {2, 2};
    return usable_scales(found, heads, declared ? *find_format("fp8_e4m3") : nullptr);
  }

 private:
  static std::string bytes_of(const std::vector<TestScale>& scales) {
    SafetensorsWriter writer;
    for (const TestScale& scale : scales) writer.add(scale.name, "F32", scale.shape, scale.values);
    return writer.finish({});
  }
  TempFile file_;
};

TestScale one(const std::string& name, float value) { return {name, {value}, {1}}; }
std::string in_layer(int l, const std::string& rest) {
  return "model.layers." + std::to_string(l) + "." + rest;
}

TEST(CheckpointScales, CaseE2_EveryKnownNameIsRead) {
  for (const auto& [k, v] :
       {std::pair<std::string, std::string>{"self_attn.k_scale", "self_attn.v_scale"},
        {"attn.k_scale", "attn.v_scale"},
        {"self_attn.attn.k_scale", "self_attn.attn.v_scale"},
        {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"},
        {"self_attn.qkv_proj.k_scale", "self_attn.qkv_proj.v_scale"},
        {"self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"},
        {"self_attn.k_cache.scale", "self_attn.v_cache.scale"}}) {
    for (const std::string prefix : {"", "language_model.", "model.language_model."}) {
      std::vector<TestScale> scales;
      for (int l = 0; l < 2; ++l) {
        const std::string at = prefix + in_layer(l, "");
        scales.push_back({at + k, {0.03f + static_cast<float>(l)}, {}});
        scales.push_back({at + v, {0.07f + static_cast<float>(l)}, {1}});
      }
      const auto used = Checkpoint(scales).use();
      ASSERT_TRUE(used.ok()) << k << used.status().message();
      EXPECT_THAT(used->layers[1].key, ElementsAre(1.03f)) << k;
      EXPECT_THAT(used->layers[0].value, ElementsAre(0.07f)) << v;
      EXPECT_EQ(used->format->name, "fp8_e4m3_tensor");
      EXPECT_TRUE(used->notes.empty());
    }
  }
}

TEST(CheckpointScales, CaseE2_OtherNamesAreLeftToTheWeights) {
  for (const char* name :
       {"model.layers.0.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight_scale",
        "model.layers.0.self_attn.k_proj.weight_scale", "k_scale",
        "model.layers.x.self_attn.k_scale", "model.layers.0.self_attn.cache_scale",
        "model.sublayers.0.self_attn.k_scale"}) {
    EXPECT_FALSE(belongs_to_cache(name)) << name;
  }
  EXPECT_TRUE(belongs_to_cache("model.layers.0.self_attn.k_zero_point"));
  EXPECT_TRUE(belongs_to_cache("model.layers.11.self_attn.attn.prob_scale"));
}

TEST(CheckpointScales, CaseE1_OneRuleForWhatIsMissing) {
  const auto k0 = one(in_layer(0, "self_attn.k_scale"), 0.5f),
             v0 = one(in_layer(0, "self_attn.v_scale"), 0.25f);
  const auto k1 = one(in_layer(1, "self_attn.k_scale"), 2),
             v1 = one(in_layer(1, "self_attn.v_scale"), 4);
  const auto old0 = one(in_layer(0, "self_attn.kv_scale"), 8),
             old1 = one(in_layer(1, "self_attn.kv_scale"), 9);

  const auto both = Checkpoint({k0, v0, k1, v1}).use();
  EXPECT_TRUE(both->notes.empty());
  const auto only_k = Checkpoint({k0, k1}).use();
  EXPECT_THAT(only_k->layers[0].value, ElementsAre(1));
  EXPECT_THAT(only_k->notes, ElementsAre(HasSubstr("no scale for V of layers 0-1: 1 is taken")));
  const auto only_v = Checkpoint({v0, v1}).use();
  EXPECT_THAT(only_v->layers[0].key, ElementsAre(1));
  EXPECT_THAT(only_v->layers[0].value, ElementsAre(0.25f));
  const auto mixed = Checkpoint({k0, v0, v1}).use();
  EXPECT_THAT(mixed->notes, ElementsAre(HasSubstr("no scale for K of layers 1")));
  const auto neither = Checkpoint({one("model.norm.weight", 1)}).use();
  EXPECT_EQ(neither->format, nullptr);
  EXPECT_THAT(neither->notes, ElementsAre(HasSubstr("carries no scales: 1 is taken for all")));
  const auto old = Checkpoint({old0, old1, k1}).use();
  EXPECT_THAT(old->layers[0].key, ElementsAre(8));
  EXPECT_THAT(old->layers[0].value, ElementsAre(8));
  EXPECT_THAT(old->layers[1].key, ElementsAre(2)) << "its own comes before that of both";
  EXPECT_THAT(old->layers[1].value, ElementsAre(9));
  // Where nothing is declared, nothing is made up.
  const auto undeclared = Checkpoint({k0, v0, k1}).use(false);
  EXPECT_TRUE(undeclared->layers[1].value.empty());
  EXPECT_TRUE(undeclared->notes.empty());
}

TEST(CheckpointScales, AHeadsScalesAreReadInTheirShapes) {
  const std::vector<TestScale> scales = {
      {in_layer(0, "self_attn.k_scale"), {0.1f, 0.2f}, {2, 1, 1}},
      {in_layer(0, "self_attn.v_scale"), {0.3f, 0.4f}, {2}},
      {in_layer(0, "self_attn.q_scale"), {1, 2, 3, 4}, {4, 1, 1}},
      one(in_layer(1, "self_attn.k_scale"), 0.5f),
      {in_layer(1, "self_attn.v_scale"), {0.6f, 0.7f}, {2, 1, 1}}};
  const auto used = Checkpoint(scales).use();
  ASSERT_TRUE(used.ok()) << used.status().message();
  EXPECT_EQ(used->format->name, "fp8_e4m3_head");
  EXPECT_THAT(used->layers[0].key, ElementsAre(0.1f, 0.2f));
  EXPECT_THAT(used->layers[1].key, ElementsAre(0.5f, 0.5f)) << "one for all is one for each";
  const auto three = Checkpoint({{in_layer(1, "self_attn.k_scale"), {1, 2, 3}, {3}}}).use();
  EXPECT_THAT(three.status().message(),
              HasSubstr("3 scales, wanted 1 or one for each of 2 KV heads"));
}

TEST(CheckpointScales, CaseE6_WhatCantBeAScaleIsNamed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad :
       {0.0f, -1.0f, std::nanf(""), kInfinity, 1e-30f, 1e30f, static_cast<float>(1e-50)}) {
    const auto used = Checkpoint({one(in_layer(1, "self_attn.v_scale"), bad)}).use();
    EXPECT_THAT(used.status().message(),
                HasSubstr("'model.layers.1.self_attn.v_scale': the scale"));
  }
  EXPECT_THAT(Checkpoint({one(in_layer(2, "self_attn.v_scale"), 1)}).use().status().message(),
              HasSubstr("the model has 2 layers"));
  EXPECT_THAT(
      Checkpoint({one(in_layer(0, "self_attn.k_scale"), 1), one(in_layer(0, "attn.k_scale"), 1)})
          .read()
          .status()
          .message(),
      HasSubstr("are scales of the same"));
}

}  // namespace
}  // namespace kvant
