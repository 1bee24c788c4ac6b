// Scales of a model's layers, in a sidecar and in a checkpoint.
#include "calibrate/cache_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "calibrate/checkpoint.h"
#include "calibrate/sidecar.h"
#include "files/temp_file.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// Two KV heads and four query heads of 16 channels in three layers; head 1 twice as large.
std::vector<LayerRanges> some_ranges() {
  Rng rng(1);
  std::vector<LayerRanges> layers(3);
  for (LayerRanges& layer : layers) {
    for (const auto& [side, heads] :
         {std::pair{&layer.query, 4}, {&layer.key, 2}, {&layer.value, 2}}) {
      side->dim = 16;
      side->heads.resize(static_cast<size_t>(heads));
      for (size_t h = 0; h < side->heads.size(); ++h) {
        HeadRange& head = side->heads[h];
        head.low.assign(16, -static_cast<float>(h + 1));
        head.high.assign(16, static_cast<float>(h + 1));
        for (int i = 0; i < 1600; ++i)
          head.magnitudes.add(static_cast<float>(h + 1) *
                              (i == 0 ? 1 : static_cast<float>(rng.uniform())));
      }
    }
  }
  return layers;
}

ScaleRequest request_for(std::initializer_list<const char*> names) {
  ScaleRequest request;
  for (const char* name : names) request.formats.push_back(find_scaled_format(name));
  return request;
}

CacheScales some_scales(std::vector<LayerRanges> ranges, std::vector<int>& without) {
  ThreadPool threads(2);
  CacheScales scales =
      fit_scales({ranges, {}}, request_for({"fp8_e4m3_tensor", "fp8_e4m3_head"}), threads, without);
  scales.source = "dataset";
  scales.method = "max";
  return scales;
}

CacheScales some_scales() {
  std::vector<int> without;
  return some_scales(some_ranges(), without);
}

TEST(CacheScales, AreOnePerTensorOrOnePerHead) {
  const CacheScales scales = some_scales();
  for (int l = 0; l < 3; ++l) {
    EXPECT_THAT(*scales.find(l, Side::kKey, "fp8_e4m3_tensor"), ElementsAre(2.0f / 448));
    EXPECT_THAT(*scales.find(l, Side::kValue, "fp8_e4m3_head"),
                ElementsAre(1.0f / 448, 2.0f / 448));
    EXPECT_EQ(scales.layers[static_cast<size_t>(l)].query.scales.at("fp8_e4m3_head").size(), 4u);
    EXPECT_THAT(scales.formats(l, 2), ElementsAre("fp8_e4m3_tensor", "fp8_e4m3_head"));
    EXPECT_THAT(scales.formats(l, 3), ElementsAre("fp8_e4m3_tensor"));
  }
  EXPECT_EQ(scales.find(0, Side::kKey, "int8_head"), nullptr);
  EXPECT_EQ(scales.find(3, Side::kKey, "fp8_e4m3_head"), nullptr);
}

TEST(CacheScales, CaseE3_ALayerWithoutNumbersGetsNoScale) {
  std::vector<LayerRanges> ranges = some_ranges();
  ranges[1].value.heads[1].magnitudes = Magnitudes();
  for (int i = 0; i < 100; ++i) ranges[1].value.heads[1].magnitudes.add(0);
  for (HeadRange& head : ranges[2].key.heads) head.magnitudes = Magnitudes();
  std::vector<int> without;
  const CacheScales scales = some_scales(ranges, without);
  EXPECT_THAT(without, ElementsAre(1, 2));
  EXPECT_THAT(scales.formats(1, 2), ElementsAre("fp8_e4m3_tensor")) << "head 0 has numbers";
  EXPECT_TRUE(scales.formats(2, 2).empty());
  EXPECT_TRUE(scales.check("f").ok()) << "no zero is ever written";
}

TEST(CacheScales, ComeBackFromASidecar) {
  std::vector<LayerRanges> ranges = some_ranges();
  CacheScales scales = some_scales();
  count_beyond({ranges, {}}, scales);
  EXPECT_EQ(scales.checked_tokens, 100);
  EXPECT_THAT(scales.layers[0].key.beyond.at("fp8_e4m3_head"), ElementsAre(0, 0));
  scales.layers[0].key.scales["fp8_e4m3_head"] = {0.1f / 448, 2.0f / 448};
  count_beyond({ranges, {}}, scales);
  EXPECT_GT(scales.layers[0].key.beyond.at("fp8_e4m3_head")[0], 1300);
  SidecarContents contents;
  contents.facts = {.model = "m", .data = "d", .command = "c", .lines = {3, 5}};
  contents.scales = scales;
  const TempFile file(make_sidecar(contents), ".safetensors");
  const auto sidecar = Sidecar::open(file.path());
  ASSERT_TRUE(sidecar.ok()) << sidecar.status().message();
  EXPECT_THAT(sidecar->facts().lines, ElementsAre(3, 5));
  const CacheScales& got = sidecar->scales();
  EXPECT_EQ(got.source, "dataset");
  EXPECT_EQ(got.checked_tokens, 100);
  ASSERT_EQ(got.layers.size(), 3u);
  EXPECT_EQ(got.layers[0].key.scales, scales.layers[0].key.scales);
  EXPECT_EQ(got.layers[2].query.scales, scales.layers[2].query.scales);
  EXPECT_EQ(got.layers[0].key.beyond, scales.layers[0].key.beyond);
  EXPECT_EQ(got.layers[1].value.low, scales.layers[1].value.low);
  const SideClips &clips = got.layers[1].key.clips, &written = scales.layers[1].key.clips;
  EXPECT_EQ(clips.tensor, written.tensor);
  EXPECT_EQ(clips.heads, written.heads);
  EXPECT_EQ(clips.channels, written.channels);
  EXPECT_GT(clips.heads[1][kClipMse8], 0);
  EXPECT_EQ(got.layers[1].value.largest(1), 2.0f);
}

TEST(CacheScales, CaseE6_ScalesThatCantBeUsedAreNamed) {
  for (const float bad : {0.0f, -1.0f, NAN, INFINITY, 1e-30f, 1e30f}) {
    CacheScales scales = some_scales();
    scales.layers[2].value.scales["fp8_e4m3_head"][1] = bad;
    EXPECT_THAT(scales.check("f").message(), HasSubstr("f: tensor layers.2.v.fp8_e4m3_head.scale"));
  }
}

TEST(CacheScales, FixedIsOne) {
  std::vector<CacheLayer> layers(2);
  layers[0].num_kv_heads = 2;
  const CacheScales scales = fixed_scales(layers, 4, request_for({"int8_head", "int8_tensor"}));
  EXPECT_THAT(*scales.find(0, Side::kKey, "int8_head"), ElementsAre(1, 1));
  EXPECT_THAT(*scales.find(0, Side::kValue, "int8_tensor"), ElementsAre(1));
  EXPECT_EQ(scales.find(1, Side::kKey, "int8_head"), nullptr);
}

// --- Checkpoints

fs::path tiny(const char* name) { return fs::path(KVANT_TEST_DATA) / "models" / name; }

nlohmann::json json_of(const fs::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

TEST(Checkpoint, HasTheNamesAndShapesOfCompressedTensors) {
  for (const char* name :
       {"llama", "llama-bias-linear"}) {  // two shards with an index, and one file
    for (const char* format : {"fp8_e4m3_tensor", "fp8_e4m3_head"}) {
      const TempFolder folder;
      const fs::path out = folder.path() / "out";
      const fs::path model = folder.path() / "model";
      fs::copy(tiny(name), model);
      ASSERT_TRUE(write_checkpoint({model, out, format, "sidecar"}, some_scales()).ok());
      const auto files = Safetensors::open_directory(out);
      ASSERT_TRUE(files.ok()) << files.status().message();
      const bool per_head = std::string(format).ends_with("_head");
      const auto shape_of = [&](const char* side) {
        const auto* tensor = (*files)->tensor(std::string("model.layers.2.self_attn.") + side);
        EXPECT_EQ(tensor->dtype, "F32");
        return tensor->shape;
      };
      EXPECT_EQ(shape_of("k_scale"),
                per_head ? std::vector<uint64_t>({2, 1, 1}) : std::vector<uint64_t>({1}));
      EXPECT_EQ(shape_of("q_scale"),
                per_head ? std::vector<uint64_t>({4, 1, 1}) : std::vector<uint64_t>({1}));
      const auto scheme = json_of(out / "config.json")["quantization_config"]["kv_cache_scheme"];
      EXPECT_EQ(scheme["num_bits"], 8);
      EXPECT_EQ(scheme["type"], "float");
      EXPECT_EQ(scheme["strategy"], per_head ? "attn_head" : "tensor");
      EXPECT_EQ(scheme["symmetric"], true);
      EXPECT_EQ(json_of(out / "config.json")["quantization_config"]["quant_method"],
                "compressed-tensors");
      const auto index = json_of(out / "model.safetensors.index.json");
      EXPECT_EQ(index["weight_map"]["model.layers.0.self_attn.v_scale"], kScalesName);
      EXPECT_EQ(index["weight_map"].size(), (*files)->tensors().size());
      // Weights are the model's own files, and nothing else lies about.
      for (const auto& entry : fs::directory_iterator(model)) {
        if (entry.path().extension() == ".safetensors") {
          EXPECT_TRUE(fs::equivalent(entry.path(), out / entry.path().filename()));
        }
      }
      for (const auto& entry : fs::directory_iterator(out))
        EXPECT_THAT(entry.path().filename().string(), testing::Not(HasSubstr("part")));
      EXPECT_TRUE(write_checkpoint({model, out, format, "sidecar"}, some_scales()).ok()) << "again";
      EXPECT_TRUE(check_checkpoint({out, folder.path() / "further", format, ""}).ok())
          << "our own scales are replaced";
    }
  }
}

TEST(Checkpoint, WhatItWouldDestroyOrCantSayIsRefused) {
  const TempFolder folder;
  const fs::path model = folder.path() / "model", other = folder.path() / "other";
  fs::copy(tiny("llama"), model);
  fs::copy(tiny("llama"), other);
  const auto said = [&](const fs::path& out) {
    return check_checkpoint({model, out, "fp8_e4m3_head", ""}).message();
  };
  EXPECT_THAT(said(model), HasSubstr("is the model's own directory"));
  EXPECT_THAT(said(other), HasSubstr("holds a checkpoint that calibration didn't write"));
  EXPECT_EQ(said(folder.path() / "new"), "");
  auto config = json_of(model / "config.json");
  config["quantization_config"] = {{"quant_method", "gptq"}};
  std::ofstream(model / "config.json") << config;
  EXPECT_THAT(said(folder.path() / "new"), HasSubstr("quant_method is 'gptq'"));
  EXPECT_FALSE(fs::exists(folder.path() / "new"));
}

TEST(Checkpoint, AFailureLeavesNothing) {
  const TempFolder folder;
  const fs::path model = folder.path() / "model", out = folder.path() / "out";
  fs::copy(tiny("llama"), model);
  fs::create_directory(out);
  fs::create_directory(out / "config.json");  // config.json can't take its place
  folder.write("out/kvant-scales.safetensors", "earlier");
  EXPECT_FALSE(write_checkpoint({model, out, "fp8_e4m3_head", "s"}, some_scales()).ok());
  for (const auto& entry : fs::directory_iterator(out))
    EXPECT_THAT(entry.path().filename().string(), testing::Not(HasSubstr("part")));
}

}  // namespace
}  // namespace kvant
