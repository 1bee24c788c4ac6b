// The calibration's statistics against NumPy's on the same dump, and its scales against
// llm-compressor's definitions on models that Transformers ran (tools/make_statistics_goldens.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "calibrate/resume.h"
#include "files/safetensors.h"

namespace kvant {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(KVANT_TEST_DATA) / "statistics";

nlohmann::json golden(const char* name) {
  std::ifstream in(kFolder / name);
  return nlohmann::json::parse(in);
}

// One layer whose rows are a file's.
struct Dump {
  explicit Dump(const Safetensors& file) {
    const SafetensorsTensor &k = *file.tensor("k"), &q = *file.tensor("q");
    CacheLayer& layer = info.cache_layers.emplace_back();
    layer.num_kv_heads = static_cast<int>(k.shape[1]);
    layer.key_dim = layer.value_dim = static_cast<int>(k.shape[2]);
    info.num_query_heads = static_cast<int>(q.shape[1]);
    const SafetensorsTensor& shares = *file.tensor("mass");
    mass.num_pages = static_cast<int>(shares.shape[2]);
    mass.mass = floats_of(shares);
  }

  static std::vector<float> floats_of(const SafetensorsTensor& tensor) {
    std::vector<float> out(tensor.data.size() / sizeof(float));
    std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
    return out;
  }

  // As a model would show them, in chunks of whole pages.
  void show(const Safetensors& file, const char* name, int chunk, RowObserver& to) const {
    const SafetensorsTensor& tensor = *file.tensor(name);
    const std::vector<float> all = floats_of(tensor);
    const auto total = static_cast<int>(tensor.shape[0]), heads = static_cast<int>(tensor.shape[1]);
    const auto width = static_cast<size_t>(tensor.shape[1] * tensor.shape[2]);
    for (int first = 0; first < total; first += chunk) {
      PageMass of_chunk{
          .mass = {mass.mass.begin() + first * heads * mass.num_pages, mass.mass.end()},
          .num_pages = mass.num_pages};
      const ObservedRows rows = {.first_position = first,
                                 .num_tokens = std::min(chunk, total - first),
                                 .num_heads = heads,
                                 .dim = info.cache_layers[0].key_dim,
                                 .rows = all.data() + static_cast<size_t>(first) * width,
                                 .mass = *name == 'q' ? &of_chunk : nullptr};
      if (*name == 'k') to.see_keys(rows);
      if (*name == 'v') to.see_values(rows);
      if (*name == 'q') to.see_queries(rows);
    }
  }

  ModelInfo info;
  PageMass mass;
};

// NumPy's are float64.
void expect_clips(const Clips& got, const nlohmann::json& want, const std::string& where) {
  for (size_t i = 0; i < kNumClips; ++i) {
    const double wanted = want[i];
    EXPECT_NEAR(double{got[i]}, wanted, 2e-7 * wanted) << where << " " << kClipNames[i];
  }
}

TEST(StatisticsGolden, RangesPercentilesAndClipsAreNumPys) {
  const auto file = Safetensors::open_file(kFolder / "statistics.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Dump dump(**file);
  const nlohmann::json want = golden("statistics.json");
  for (const int chunk : {64, 512}) {
    ThreadPool threads(2);
    RangeStatistics ranges(dump.info, {.channels = true}, threads);
    for (const char* name : {"k", "v", "q"}) dump.show(**file, name, chunk, ranges);
    ScaleRequest request;
    request.formats = {find_scaled_format("int8_head"), find_scaled_format("int8_tensor")};
    std::vector<int> without;
    const CacheScales scales =
        fit_scales({std::as_const(ranges).layers(), {}}, request, threads, without);
    const LayerScales& layer = scales.layers[0];
    for (const auto& [name, side] :
         {std::pair{"k", &layer.key}, {"v", &layer.value}, {"q", &layer.query}}) {
      const nlohmann::json& of = want[name];
      EXPECT_EQ(nlohmann::json(side->low), of["low"]) << name;
      EXPECT_EQ(nlohmann::json(side->high), of["high"]) << name;
      expect_clips(side->clips.tensor, of["tensor"], name);
      ASSERT_EQ(side->clips.channels.size(), of["heads"].size());
      for (size_t h = 0; h < side->clips.heads.size(); ++h) {
        const std::string head = name + std::string(" head ") + std::to_string(h);
        expect_clips(side->clips.heads[h], of["heads"][h], head);
        for (size_t c = 0; c < side->clips.channels[h].size(); ++c)
          expect_clips(side->clips.channels[h][c], of["channels"][h][c],
                       head + " channel " + std::to_string(c));
      }
    }
    // `--method mse` of int8 is the clip of 8 bits on its largest code.
    request.method = parse_scale_method("mse").value();
    const CacheScales fitted =
        fit_scales({std::as_const(ranges).layers(), {}}, request, threads, without);
    const double clip = want["k"]["heads"][1][kClipMse8];
    EXPECT_NEAR(double{fitted.find(0, Side::kKey, "int8_head")->at(1)}, clip / 127, 1e-6 * clip);
  }
}

void expect_products(const std::vector<double>& got, const nlohmann::json& want) {
  const size_t dim = want.size();
  double scale = 0;
  for (size_t i = 0; i < dim; ++i) scale = std::max(scale, std::fabs(want[i][i].get<double>()));
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j <= i; ++j)  // the lower half is what is kept
      EXPECT_NEAR(got[i * dim + j], want[i][j].get<double>(), 1e-12 * scale) << i << " " << j;
  }
}

TEST(StatisticsGolden, ProductsOfKeysAndQueriesAreNumPys) {
  const auto file = Safetensors::open_file(kFolder / "statistics.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Dump dump(**file);
  const nlohmann::json want = golden("statistics.json");
  for (const int chunk : {64, 512}) {
    ThreadPool threads(2);
    KeyStatistics statistics(dump.info, threads);
    dump.show(**file, "k", chunk, statistics);
    dump.show(**file, "q", chunk, statistics);
    const std::span<const LayerMoments> layers = std::as_const(statistics).layers();
    ASSERT_EQ(layers[0].heads.size(), want["key_products"].size());
    for (size_t h = 0; h < layers[0].heads.size(); ++h) {
      expect_products(layers[0].heads[h].key, want["key_products"][h]);
      expect_products(layers[0].heads[h].query, want["query_products"][h]);
    }
  }
}

// Layer 0 sees what Transformers sees. Those behind it read keys and values that a BF16 cache
// rounded, where Transformers' are float32: their largest number may fall on the next bfloat16.
TEST(StatisticsGolden, ScalesAreLlmCompressors) {
  const nlohmann::json models = golden("scales.json");
  int first_layers = 0;
  for (const auto& [name, of] : models.items()) {
    ThreadPool threads(2);
    const auto model = Model::load(std::filesystem::path(KVANT_TEST_DATA) / "models" / name,
                                   {.weights = WeightType::kF32}, threads);
    ASSERT_TRUE(model.ok()) << model.status().message();
    RangeStatistics ranges((*model)->info(), {}, threads);
    RowObserver* const observer = &ranges;
    for (const nlohmann::json& document : of["documents"]) {
      const auto ids = document.get<std::vector<int32_t>>();
      ASSERT_TRUE(observe(**model, threads, ids, 128, {&observer, 1}).ok());
    }
    ScaleRequest request;
    const std::pair<const char*, const char*> formats[] = {
        {"fp8_e4m3_tensor", "tensor"}, {"fp8_e4m3_head", "heads"}, {"nvfp4_tensor", "nvfp4"}};
    for (const auto& [format, key] : formats) request.formats.push_back(find_scaled_format(format));
    std::vector<int> without;
    const CacheScales scales =
        fit_scales({std::as_const(ranges).layers(), {}}, request, threads, without);
    ASSERT_EQ(scales.layers.size(), of["layers"].size());
    for (size_t l = 0; l < scales.layers.size(); ++l) {
      for (const auto& [side, letter] : {std::pair{Side::kKey, "k"}, {Side::kValue, "v"}}) {
        for (const auto& [format, key] : formats) {
          const std::vector<float>& got = *scales.find(static_cast<int>(l), side, format);
          const auto want = of["layers"][l][letter][key].get<std::vector<float>>();
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < got.size(); ++i) {
            const float allowed = l == 0 ? 2e-7f : 0x1.01p-7f;
            EXPECT_NEAR(got[i] / want[i], 1, allowed) << name << " " << l << letter << format;
            first_layers += l == 0;
          }
        }
      }
    }
  }
  EXPECT_GE(first_layers, 3 * 2 * 4);
}

}  // namespace
}  // namespace kvant
