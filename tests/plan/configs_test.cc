// All configurations of tests/data/configs: each gives an answer or a refusal, and what is answered
// is what expected.json has from the models' own code.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "shapes.h"
#include "slow_build.h"

namespace kvant {
namespace {

namespace fs = std::filesystem;

const fs::path kConfigs = fs::path(KVANT_TEST_DATA) / "configs";

const std::set<std::string> kOthers = {"by_hand.json", "expected.json", "expected_variants.json",
                                       "variants.json"};

std::vector<fs::path> config_files() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kConfigs)) {
    if (kOthers.count(entry.path().filename()) == 0 && entry.path().extension() == ".json")
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

StreamKind kind_of(const std::string& name) {
  for (int k = 0; k <= static_cast<int>(StreamKind::kCross); ++k) {
    if (stream_kind_name(static_cast<StreamKind>(k)) == name) return static_cast<StreamKind>(k);
  }
  ADD_FAILURE() << "kind " << name;
  return StreamKind::kFull;
}

// What a group of expected.json adds to one of its layers; `owner` is the last layer before it with
// a cache of its own.
void add_group(const json& group, int owner, ModelLayer& layer) {
  const std::string kind = group.at("kind");
  if (kind == "none") return;
  if (kind == "shared") {
    layer.shares = group.at("shares");  // −1: the last layer before it that has a cache
    if (layer.shares < 0) layer.shares = owner;
    return;
  }
  if (kind == "ssm" || kind == "linear" || kind == "conv" || kind == "recurrent") {
    layer.state.recurrent_elements = group.value("recurrent", int64_t{0});
    layer.state.conv_elements = group.value("conv", int64_t{0});
    layer.state.recurrent_bytes = group.value("recurrent_dtype", "float32") == "float32" ? 4 : 2;
    return;
  }
  CacheStream stream{.kind = kind_of(kind),
                     .heads = group.at("kv_heads"),
                     .k_dim = group.at("k_dim"),
                     .v_dim = group.at("v_dim"),
                     .window = group.value("window", int64_t{0}),
                     .tokens_per_entry = group.value("tokens_per_entry", 1)};
  if (stream.kind == StreamKind::kLatent && stream.window > 0) stream.kind = StreamKind::kSliding;
  layer.streams.push_back(stream);
  layer.state.recurrent_elements += group.value("buffer", int64_t{0});
  if (group.contains("indexer")) {
    layer.streams.push_back({.kind = StreamKind::kIndexer,
                             .heads = 1,
                             .k_dim = group.at("indexer").at("dim"),
                             .tokens_per_entry = stream.tokens_per_entry});
  }
}

std::map<int, ModelLayer> expected_layers(const json& expected) {
  std::map<int, ModelLayer> layers;
  for (const json& group : expected.at("layers")) {
    const std::vector<int> members = group.at("layers");
    for (const int layer : members) {
      int owner = layer - 1;
      while (std::find(members.begin(), members.end(), owner) != members.end()) --owner;
      add_group(group, owner, layers[layer]);
    }
  }
  return layers;
}

TEST(AllConfigs, GiveAnAnswerOrARefusal) {
  const std::vector<fs::path> files = config_files();
  ASSERT_EQ(files.size(), 102u);
  for (const fs::path& file : files) {
    const Result<ModelShape> shape = read_model_shape(file);
    if (!shape.ok()) {
      ADD_FAILURE() << shape.status().message();
      continue;
    }
    EXPECT_FALSE(shape->layers.empty()) << file;
    EXPECT_THAT(notes_of(*shape), Not(::testing::HasSubstr("isn't known"))) << file;
    EXPECT_TRUE(planner_of(*shape, "bf16").ok()) << file;
    EXPECT_TRUE(planner_of(*shape, "int4").ok()) << file;
  }
}

json read_json(const fs::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}

void expect_layers(const Result<ModelShape>& shape, const json& answer, const std::string& name) {
  ASSERT_TRUE(shape.ok()) << name << ": " << shape.status().message();
  std::map<int, ModelLayer> layers = expected_layers(answer);
  std::string differences;
  for (size_t i = 0; i < shape->layers.size(); ++i) {
    const std::string got = described(shape->layers[i]);
    const std::string want = described(layers[static_cast<int>(i)]);
    if (got != want && differences.size() < 400)
      differences += "  layer " + std::to_string(i) + ": " + got + "wanted " + want + "\n";
  }
  EXPECT_EQ(differences, "") << name;
  EXPECT_EQ(layers.size(), shape->layers.size()) << name;
}

TEST(AllConfigs, AreWhatTheModelsOwnCodeCaches) {
  const json expected = read_json(kConfigs / "expected.json");
  EXPECT_EQ(expected.size(), 102u);
  for (const auto& [name, answer] : expected.items())
    expect_layers(read_model_shape(kConfigs / name), answer, name);
}

TEST(AllConfigs, AbsentAndNullFieldsMeanWhatTheModelsOwnCodeTakesThemFor) {
  const json expected = read_json(kConfigs / "expected_variants.json");
  const json variants = read_json(kConfigs / "variants.json").at("variants");
  EXPECT_EQ(expected.size(), variants.size());
  for (const json& variant : variants) {
    const std::string base = variant.at("base");
    const std::string name =
        base.substr(0, base.rfind('.')) + ":" + variant.at("name").get<std::string>();
    const json config = read_json(kConfigs / base).patch(variant.at("patch"));
    expect_layers(shape_of(config), expected.at(name), name);
  }
}

using Fields = std::set<std::pair<std::string, std::string>>;  // model type and name

// One field after another is made nonsense, also inside a wrapper's decoder, once for every type.
void expect_sentences(const json& config, const json::json_pointer& object, Fields& seen) {
  const std::string type = config.at(object).value("model_type", "");
  const json nonsense = {nullptr, -1, 1e300, "x", {1, "x"}, std::numeric_limits<int64_t>::max()};
  for (const auto& [key, value] : config.at(object).items()) {
    if (value.is_object() && key.ends_with("_config")) expect_sentences(config, object / key, seen);
    if (!seen.insert({type, key}).second) continue;
    for (const json& bad : nonsense) {
      json damaged = config;
      damaged[object / key] = bad;
      const auto shape = shape_of(damaged);
      if (shape.ok()) {
        const auto planner = planner_of(*shape, "bf16");
        EXPECT_TRUE(!planner.ok() || planner->bytes({.tokens = 1000}).ok()) << key << bad;
        continue;
      }
      const std::string message = shape.status().message();
      EXPECT_TRUE(message.starts_with("config.json: ") && message.size() < 300 &&
                  message.find('\n') == std::string::npos)
          << message;
    }
  }
}

TEST(AllConfigs, NonsenseInAnyFieldIsOneSentence) {
  Fields seen;
  size_t count = 0;
  for (const fs::path& file : config_files()) {
    if (kSlowBuild && count++ % 3 != 0) continue;
    SCOPED_TRACE(file);
    std::ifstream in(file);
    json config = json::parse(in, nullptr, /*allow_exceptions=*/false);
    if (config.is_discarded()) continue;  // one has Python's Infinity
    for (const char* bulky : {"quantization_config", "vision_config", "id2label", "label2id"})
      config.erase(bulky);
    expect_sentences(config, json::json_pointer(), seen);
  }
}

}  // namespace
}  // namespace kvant
