// The file that calibration leaves beside a model.
#include "calibrate/sidecar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "files/fingerprint.h"
#include "files/temp_file.h"

namespace kvant {
namespace {

using testing::HasSubstr;

std::vector<LayerTransforms> some_layers() {
  Rng rng(1);
  std::vector<LayerTransforms> layers(3);  // the second has none
  for (const size_t l : {0u, 2u}) {
    layers[l].dim = 32;
    for (int h = 0; h < 2; ++h) {
      std::vector<float>& matrices = layers[l].matrices.emplace_back();
      for (int i = 0; i < 2 * 32 * 32; ++i) matrices.push_back(static_cast<float>(rng.below(100)));
      layers[l].balanced.push_back(matrices);
      layers[l].balanced.back()[0] += 1000;
      layers[l].bits["tc4"].emplace_back(32, 4);
      layers[l].bits["tc2"].emplace_back(32, 2);
      layers[l].bits["bal3"].emplace_back(32, 3);
    }
  }
  return layers;
}

SidecarFacts some_facts(const std::string& model) {
  return {.model = model, .data = "d1", .command = "kvant calibrate x", .tokens = 77, .seed = 3};
}

TEST(Sidecar, ComesBackAsItWasMade) {
  const std::vector<LayerTransforms> layers = some_layers();
  const TempFile file(make_sidecar(some_facts("m1"), layers), ".safetensors");
  const auto sidecar = Sidecar::open(file.path());
  ASSERT_TRUE(sidecar.ok()) << sidecar.status().message();
  EXPECT_EQ(sidecar->facts().model, "m1");
  EXPECT_EQ(sidecar->facts().command, "kvant calibrate x");
  EXPECT_EQ(sidecar->facts().tokens, 77);
  EXPECT_EQ(sidecar->facts().seed, 3u);
  const std::vector<std::string> all = {"bal3", "tc2", "tc4"};
  EXPECT_EQ(sidecar->all_formats(), all);
  for (int l = 0; l < 4; ++l)
    EXPECT_EQ(sidecar->formats(l, 2, 32), l == 0 || l == 2 ? all : std::vector<std::string>()) << l;
  EXPECT_TRUE(sidecar->formats(0, 3, 32).empty());
  EXPECT_TRUE(sidecar->formats(0, 2, 64).empty());
  const auto artifacts = sidecar->artifacts(2, "tc2", 2, 32);
  const auto balanced = sidecar->artifacts(2, "bal3", 2, 32);
  ASSERT_NE(artifacts, nullptr);
  ASSERT_NE(balanced, nullptr);
  for (size_t h = 0; h < 2; ++h) {
    std::vector<float> want = layers[2].matrices[h];
    want.insert(want.end(), 32, 2.0f);
    EXPECT_EQ((*artifacts)[h], want);
    want = layers[2].balanced[h];
    want.insert(want.end(), 32, 3.0f);
    EXPECT_EQ((*balanced)[h], want);
  }
  EXPECT_EQ(sidecar->artifacts(2, "tc3", 2, 32), nullptr);
  EXPECT_EQ(sidecar->artifacts(1, "tc2", 2, 32), nullptr);
}

TEST(Sidecar, AnotherModelsIsRefused) {
  const TempFile model("weights", ".gguf"), other("other weights", ".gguf");
  const std::string fingerprint = model_fingerprint(model.path()).value();
  const TempFile file(make_sidecar(some_facts(fingerprint), some_layers()), ".safetensors");
  const auto sidecar = Sidecar::open(file.path());
  EXPECT_TRUE(sidecar->check_model(model.path()).ok());
  EXPECT_THAT(sidecar->check_model(other.path()).message(),
              HasSubstr("was made for another model"));
}

TEST(Sidecar, WhatIsntOneIsRefusedByName) {
  const auto said = [](const std::string& bytes) {
    const TempFile file(bytes, ".safetensors");
    return Sidecar::open(file.path()).status().message();
  };
  EXPECT_THAT(said(""), HasSubstr("ends in the header"));
  const std::string whole = make_sidecar(some_facts("m"), some_layers());
  EXPECT_THAT(said(whole.substr(0, whole.size() - 5)), HasSubstr("safetensors"));
  std::string old = whole;
  old.replace(old.find("\"kvant.version\":\"1\""), 19, "\"kvant.version\":\"9\"");
  EXPECT_THAT(said(old), HasSubstr("kvant.version is '9', wanted 1"));
  std::string strange = whole;
  strange.replace(strange.find("[2,2,32,32]"), 11, "[4,1,32,32]");
  EXPECT_THAT(said(strange), HasSubstr("layers.0.k.transform"));
  EXPECT_EQ(Sidecar::open("/nowhere").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace kvant
