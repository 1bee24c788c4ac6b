// The file that calibration leaves beside a model.
#include "calibrate/sidecar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <sstream>

#include "base/rng.h"
#include "files/checksum.h"
#include "files/fingerprint.h"
#include "files/temp_file.h"
#include "slow_build.h"

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

std::string sidecar_of(const std::string& model) {
  SidecarContents contents;
  contents.facts = some_facts(model);
  contents.transforms = some_layers();
  return make_sidecar(contents);
}

TEST(Sidecar, ComesBackAsItWasMade) {
  const std::vector<LayerTransforms> layers = some_layers();
  const TempFile file(sidecar_of("m1"), ".safetensors");
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
  const TempFile file(sidecar_of(fingerprint), ".safetensors");
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
  const std::string whole = sidecar_of("m");
  EXPECT_THAT(said(whole.substr(0, whole.size() - 5)), HasSubstr("safetensors"));
  std::string old = whole;
  old.replace(old.find("\"kvant.version\":\"2\""), 19, "\"kvant.version\":\"9\"");
  EXPECT_THAT(said(old), HasSubstr("kvant.version is '9', wanted 2 or 1"));
  std::string strange = whole;
  strange.replace(strange.find("[2,2,32,32]"), 11, "[4,1,32,32]");
  EXPECT_THAT(said(with_checksum(strange)), HasSubstr("layers.0.k.transform"));
  EXPECT_EQ(Sidecar::open("/nowhere").status().code(), Code::kNotFound);
}

// What the files hold: one layer of one head. Clips and sensitivities are new in version 2.
SidecarContents golden_contents() {
  constexpr int kDim = 16;
  SidecarContents out;
  out.facts = some_facts("m1");
  out.facts.lines = {5, 9};
  LayerTransforms& layer = out.transforms.emplace_back();
  layer.dim = kDim;
  for (int i = 0; i < 2 * kDim * kDim; ++i) {
    if (i == 0) layer.matrices.emplace_back();
    layer.matrices[0].push_back(static_cast<float>(i % 97));
  }
  layer.bits["tc4"].emplace_back(kDim, 4);
  out.scales.source = "dataset";
  out.scales.method = "max";
  out.scales.checked_on = "d1";
  out.scales.checked_tokens = 77;
  LayerScales& scales = out.scales.layers.emplace_back();
  for (const auto& [side, scale] :
       {std::pair{&scales.query, 0.25f}, {&scales.key, 0.5f}, {&scales.value, 0.125f}}) {
    side->scales["int8_head"] = {scale};
    side->beyond["int8_head"] = {2};
    side->dim = kDim;
    side->low.emplace_back();
    side->high.emplace_back();
    side->clips = {.tensor = {1, 2, 3, 4, 5}, .heads = {{5, 4, 3, 2, 1}}, .channels = {{}}};
    for (int i = 0; i < kDim; ++i) {
      side->clips.channels[0].push_back({static_cast<float>(i), 1, 1, 1, 0.5f});
      side->low[0].push_back(-1 - static_cast<float>(i) / 8);
      side->high[0].push_back(1 + static_cast<float>(i) / 4);
    }
  }
  out.sensitivities = {.data = "d2",
                       .command = "kvant sensitivity x",
                       .tokens = 64,
                       .formats = {{.format = "int8/bf16",
                                    .layers = {{.layer = 0,
                                                .scores = 0.5,
                                                .outputs = 0.25,
                                                .kld = 0.125,
                                                .kld_error = 1e-5,
                                                .heads = {{0.75, 0.0625}}}}}},
                       .proposal = {.kv = "int8",
                                    .kv_layers = "0=int4",
                                    .budget = 4.5,
                                    .sealed_bits = 4.25,
                                    .kld = 0.01,
                                    .kld_error = 0.001}};
  return out;
}

std::string golden_path(const std::string& name) {
  return KVANT_TEST_DATA "/sidecars/" + name + ".safetensors";
}

void expect_golden(const SidecarContents& got, bool has_news) {
  const SidecarContents want = golden_contents();
  EXPECT_EQ(got.facts.model, want.facts.model);
  EXPECT_EQ(got.facts.lines, want.facts.lines);
  ASSERT_EQ(got.transforms.size(), 1u);
  EXPECT_EQ(got.transforms[0].matrices, want.transforms[0].matrices);
  EXPECT_EQ(got.transforms[0].bits, want.transforms[0].bits);
  ASSERT_EQ(got.scales.layers.size(), 1u);
  for (const auto side : {&LayerScales::query, &LayerScales::key, &LayerScales::value}) {
    const SideScales &a = got.scales.layers[0].*side, &b = want.scales.layers[0].*side;
    EXPECT_EQ(a.scales, b.scales);
    EXPECT_EQ(a.beyond, b.beyond);
    EXPECT_EQ(a.low, b.low);
    EXPECT_EQ(a.high, b.high);
    EXPECT_EQ(a.clips.tensor, has_news ? b.clips.tensor : Clips());
    EXPECT_EQ(a.clips.heads, has_news ? b.clips.heads : std::vector<Clips>());
    EXPECT_EQ(a.clips.channels, has_news ? b.clips.channels : std::vector<std::vector<Clips>>());
  }
  EXPECT_EQ(got.sensitivities, has_news ? want.sensitivities : Sensitivities());
}

// These files never change: what was written once is read for ever.
TEST(Sidecar, FilesOfEveryVersionAreRead) {
  for (const auto& [name, has_news] : {std::pair{"version1", false}, {"version2", true}}) {
    SCOPED_TRACE(name);
    const auto sidecar = Sidecar::open(golden_path(name));
    ASSERT_TRUE(sidecar.ok()) << sidecar.status().message();
    expect_golden(sidecar->contents(), has_news);
  }
}

TEST(Sidecar, TheBytesAreThoseOfTheGolden) {
  const std::string bytes = make_sidecar(golden_contents());
  if (std::getenv("KVANT_UPDATE_GOLDENS") != nullptr && !std::ifstream(golden_path("version2")))
    std::ofstream(golden_path("version2"), std::ios::binary) << bytes;
  std::stringstream golden;
  golden << std::ifstream(golden_path("version2"), std::ios::binary).rdbuf();
  EXPECT_EQ(bytes, golden.str());
}

TEST(Sidecar, EveryFlippedBitIsNoticed) {
  std::string bytes = make_sidecar(golden_contents());
  const MemoryFile file;
  const std::string path = file.write(bytes);
  ASSERT_TRUE(Sidecar::open(path).ok());
  int sums = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    const int first = kSlowBuild ? static_cast<int>(at % 8) : 0;  // there, one bit of a byte
    for (int bit = first; bit < (kSlowBuild ? first + 1 : 8); ++bit) {
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << bit);
      file.write(bytes);
      const Status status = Sidecar::open(path).status();
      ASSERT_EQ(status.code(), Code::kCorrupt) << "byte " << at << ", bit " << bit;
      ASSERT_THAT(status.message(), HasSubstr(path)) << "byte " << at << ", bit " << bit;
      sums += status.message().find("is damaged: its bytes sum up to") != std::string::npos;
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << bit);
    }
  }
  constexpr int kLeastData =
      (kSlowBuild ? 1 : 8) * 2 * 16 * 16 * 4;  // bits of the two matrices alone
  EXPECT_GE(sums, kLeastData) << "most bits are data, where nothing but the sum can tell";
}

}  // namespace
}  // namespace kvant
