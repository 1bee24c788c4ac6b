// What configurations may say, and what is answered to those that say nonsense: edits of the tiny
// models' config.json, and damaged copies of their weights.
#include <gtest/gtest.h>

#include <functional>

#include "../files/temp_file.h"
#include "model/families.h"
#include "model_harness.h"
#include "tiny_models.h"

namespace kvant {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

json config_of(const std::string& name) {
  return json::parse(read_file(models_dir() / name / "config.json"));
}

// What the configuration means, no weights involved.
Result<DecoderSpec> spec_of(const json& config, int64_t context = 0) {
  const auto document = JsonDocument::parse(config.dump(), "config.json");
  if (!document.ok()) return document.status();
  return read_spec(document->root(), context);
}

// Cache bytes a token takes in a 16-bit type.
int64_t bytes_per_token(const DecoderSpec& spec) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : spec.layers) {
    const int values = layer.attention == AttentionKind::kLatent ? 0 : layer.value_dim;
    bytes += 2 * layer.num_kv_heads * (layer.key_dim + values);
  }
  return bytes;
}

json small_config() {
  json config = config_of("llama");
  config["hidden_size"] = 48;
  config["num_hidden_layers"] = 2;
  return config;
}

// A copy of a tiny directory with its configuration edited.
class EditedModel {
 public:
  EditedModel(const std::string& name, const std::function<void(json&)>& edit) {
    for (const auto& entry : fs::directory_iterator(models_dir() / name)) {
      fs::copy(entry.path(), folder_.path() / entry.path().filename());
    }
    json config = config_of(name);
    edit(config);
    folder_.write("config.json", config.dump());
  }
  const fs::path& path() const { return folder_.path(); }
  const TempFolder& folder() const { return folder_; }

  std::vector<int32_t> greedy(const std::vector<int32_t>& prompt) const {
    TestModel model(path(), {.weights = WeightType::kF32}, 1);
    return model.ok() ? model.greedy(prompt, 16, "f32") : std::vector<int32_t>();
  }
  Status status() const {
    ThreadPool threads(1);
    return open_decoder(path(), {}, threads).status();
  }

 private:
  TempFolder folder_;
};

const Golden& long_golden(const std::vector<Golden>& goldens) { return goldens.back(); }

TEST(CaseA1, ADeclaredHeadDimWins) {
  json config = small_config();
  config["head_dim"] = 16;
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 256);
  config["head_dim"] = nullptr;
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 192);
  config["head_dim"] = 0;
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 192);
}

TEST(CaseA1, NonsenseIsAnErrorThatNamesTheField) {
  json config = small_config();
  config["head_dim"] = "16";
  EXPECT_NE(spec_of(config).status().message().find("head_dim"), std::string::npos);
  config = small_config();
  config["num_attention_heads"] = 0;
  EXPECT_NE(spec_of(config).status().message().find("num_attention_heads"), std::string::npos);
}

TEST(CaseA2, AbsentKvHeadsAreAsManyAsQueryHeads) {
  json config = config_of("llama");
  config["num_hidden_layers"] = 2;
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 256);
  config.erase("num_key_value_heads");
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 512);
}

TEST(CaseA3, ALatentIsStoredOnce) {
  json config = config_of("deepseek_v2-lite");
  config["num_hidden_layers"] = 3;
  config["kv_lora_rank"] = 32;
  config["qk_rope_head_dim"] = 8;
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 240);
}

TEST(CaseA8, ASlidingWindowThatIsOffIsOffInEverySpelling) {
  const std::vector<int32_t> prompt = long_golden(read_goldens(models_dir() / "mistral")).ids;
  const EditedModel none("mistral", [](json& c) { c.erase("sliding_window"); });
  const std::vector<int32_t> want = none.greedy(prompt);
  ASSERT_EQ(want.size(), 16u);
  const std::vector<std::function<void(json&)>> spellings = {
      [](json& c) { c["use_sliding_window"] = false, c["sliding_window"] = 8; },
      [](json& c) { c["sliding_window"] = nullptr; },
      [](json& c) { c["sliding_window"] = 0; },
      [](json& c) { c["sliding_window"] = -1; },
  };
  for (const auto& spelling : spellings) {
    EXPECT_EQ(EditedModel("mistral", spelling).greedy(prompt), want);
  }
  EXPECT_NE(EditedModel("mistral", [](json& c) { c["sliding_window"] = 8; }).greedy(prompt), want);
}

TEST(CaseA8, ANonsensicalWindowNamesTheField) {
  json config = config_of("mistral");
  config["sliding_window"] = -2;
  EXPECT_NE(spec_of(config).status().message().find("sliding_window"), std::string::npos);
}

TEST(CaseA10, AScaledLengthIsNeverScaledAgain) {
  json config = config_of("llama-rope3");
  json& scaling = config["rope_scaling"];
  scaling["factor"] = 4;
  scaling["original_max_position_embeddings"] = 32;
  config["max_position_embeddings"] = 128;
  EXPECT_EQ(spec_of(config)->max_positions, 128);
  config["max_position_embeddings"] = 32;
  EXPECT_EQ(spec_of(config)->max_positions, 128);
  scaling.erase("original_max_position_embeddings");
  EXPECT_NE(spec_of(config).status().message().find("original_max_position_embeddings"),
            std::string::npos);
  scaling = {{"type", "linear"}, {"factor", 4}};
  EXPECT_EQ(spec_of(config)->max_positions, 32) << "without an original length the length is final";
}

TEST(CaseA10, AnUnknownScalingIsRefusedByName) {
  json config = config_of("llama-rope3");
  config["rope_scaling"]["rope_type"] = "spiral";
  const Status status = spec_of(config).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("spiral"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("yarn"), std::string::npos) << status.message();
}

TEST(CaseA10, RopeParametersMeanWhatRopeScalingMeans) {
  const std::vector<Golden> goldens = read_goldens(models_dir() / "gemma3");
  const EditedModel edited("gemma3", [](json& c) {
    c["rope_parameters"] = {
        {"full_attention",
         {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", c["rope_theta"]}}},
        {"sliding_attention",
         {{"rope_type", "default"}, {"rope_theta", c["rope_local_base_freq"]}}}};
    c.erase("rope_theta");
    c.erase("rope_local_base_freq");
    c.erase("rope_scaling");
    c["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention",
                        "sliding_attention", "sliding_attention", "full_attention"};
    c.erase("sliding_window_pattern");
  });
  EXPECT_EQ(edited.greedy(long_golden(goldens).ids), long_golden(goldens).greedy);
}

TEST(CaseA11, TheDeclaredKvFormatIsReported) {
  const auto declared = [](const std::function<void(json&)>& edit, const char* beside) {
    EditedModel model("qwen2", edit);
    if (beside != nullptr) model.folder().write("hf_quant_config.json", beside);
    ThreadPool threads(1);
    const auto opened = open_decoder(model.path(), {}, threads);
    return opened.ok() ? opened->decoder->info().declared_kv : opened.status().message();
  };
  const auto as_is = [](json&) {};
  EXPECT_EQ(declared(as_is, nullptr), "");
  EXPECT_EQ(declared(as_is, R"({"quantization": {"kv_cache_quant_algo": "FP8"}})"), "fp8_e4m3");
  EXPECT_EQ(declared(as_is, R"({"quantization": {"kv_cache_quant_algo": null}})"), "");
  EXPECT_EQ(
      declared([](json& c) { c["quantization_config"]["kv_cache_scheme"] = nullptr; }, nullptr),
      "");
  EXPECT_EQ(
      declared(
          [](json& c) {
            c["quantization_config"]["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
          },
          nullptr),
      "fp8_e4m3");
  EXPECT_NE(declared(as_is, R"({"quantization": {"kv_cache_quant_algo": "NVFP9"}})").find("NVFP9"),
            std::string::npos);
}

TEST(UnknownFamily, IsRefusedByNameWithTheKnownOnes) {
  const EditedModel model("llama", [](json& c) { c["model_type"] = "mammoth"; });
  const Status status = model.status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.message().find("mammoth"), std::string::npos) << status.message();
  for (const Family* family : all_families()) {
    for (std::string_view type : family->hf_types) {
      EXPECT_NE(status.message().find(type), std::string::npos) << status.message();
    }
  }
}

// A directory or GGUF file in which one tensor has another name of the same length.
TEST(MissingTensor, IsNamedInEveryFamilyAndFileFormat) {
  for (const TinyModel& tiny : tiny_models()) {
    const bool is_gguf = tiny.path.extension() == ".gguf";
    const std::string wanted = is_gguf ? "blk.1.attn_norm" : "layers.1.input_layernorm";
    TempFolder folder;
    const fs::path from = is_gguf ? tiny.path.parent_path() : tiny.path;
    for (const auto& entry : fs::directory_iterator(from)) {
      std::string bytes = read_file(entry.path());
      const size_t at = bytes.find(wanted);
      if (at != std::string::npos) bytes[at + wanted.size() - 1] = 'n';
      folder.write(entry.path().filename().string(), bytes);
    }
    ThreadPool threads(1);
    const Status status =
        open_decoder(is_gguf ? folder.path() / "model.gguf" : folder.path(), {}, threads).status();
    EXPECT_FALSE(status.ok()) << tiny.name;
    EXPECT_NE(status.message().find(wanted), std::string::npos) << status.message();
  }
}

TEST(WrongShape, NamesTheTensorTheShapeSeenAndTheShapeWanted) {
  const EditedModel model("qwen2", [](json& c) { c["intermediate_size"] = 32; });
  const std::string message = model.status().message();
  EXPECT_NE(message.find("mlp.gate_proj.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("[96, 64]"), std::string::npos) << message;
  EXPECT_NE(message.find("[32, 64]"), std::string::npos) << message;
}

TEST(UntiedEmbeddings, NeedAnOutputMatrix) {
  const EditedModel model("qwen2", [](json& c) { c["tie_word_embeddings"] = false; });
  EXPECT_NE(model.status().message().find("lm_head.weight"), std::string::npos);
}

TEST(LatentAttention, IsCachedExactlyWhateverIsAsked) {
  ThreadPool threads(1);
  const auto opened = open_decoder(models_dir() / "deepseek_v2-lite", {}, threads);
  ASSERT_TRUE(opened.ok());
  for (const LayerShape& shape : opened->decoder->info().layer_shapes) {
    EXPECT_FALSE(shape.quantizable);
    EXPECT_EQ(shape.value_dim, 0) << "values are a part of the keys' stream";
  }
}

}  // namespace
}  // namespace kvant
