// What configurations may say, and what is answered to those that say nonsense: edits of the tiny
// models' config.json, and damaged copies of their weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "../files/temp_file.h"
#include "model/families.h"
#include "model_harness.h"
#include "tiny_models.h"

namespace kvant {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
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

// The meaning of a tiny model's configuration after an edit.
Result<DecoderSpec> edited_spec(const std::string& name, const std::function<void(json&)>& edit) {
  json config = config_of(name);
  edit(config);
  return spec_of(config);
}

std::string message_of(const json& config) {
  const auto spec = spec_of(config);
  EXPECT_FALSE(spec.ok()) << config;
  return spec.status().message();
}

// Gives `to` the value of `from`, which goes.
void rename_field(json& config, const char* from, const char* to) {
  config[to] = config.at(from);
  config.erase(from);
}

TEST(CaseA1, ADeclaredHeadDimWins) {
  json config = small_config();
  config["head_dim"] = 16;
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 256);
  config["head_dim"] = nullptr;
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 192);
  config["head_dim"] = 0;
  EXPECT_EQ(bytes_per_token(spec_of(config).value()), 192);
  config["head_dim"] = 256;  // the case's own proportions: 256 where 3584 / 16 is 224
  config["hidden_size"] = 3584;
  config["num_attention_heads"] = 16;
  EXPECT_EQ(spec_of(config)->layers[0].key_dim, 256);
}

TEST(CaseA1, NonsenseIsAnErrorThatNamesTheField) {
  for (const json& head_dim : {json("16"), json(-16), json(16.5), json(true), json(1 << 21)}) {
    json config = small_config();
    config["head_dim"] = head_dim;
    EXPECT_THAT(message_of(config), HasSubstr("config.json: head_dim")) << head_dim;
  }
  json config = small_config();
  config["num_attention_heads"] = 0;
  EXPECT_THAT(message_of(config), HasSubstr("config.json: num_attention_heads: 0"));
  config = small_config();
  config["num_attention_heads"] = 5;
  config["num_key_value_heads"] = 5;
  EXPECT_THAT(message_of(config), HasSubstr("hidden_size: 48 isn't a multiple"));
}

void use_gpt2_names(json& config) {
  rename_field(config, "hidden_size", "n_embd");
  rename_field(config, "num_attention_heads", "n_head");
  rename_field(config, "num_hidden_layers", "n_layer");
  rename_field(config, "max_position_embeddings", "n_positions");
  rename_field(config, "intermediate_size", "n_inner");
}

TEST(CaseA2, AbsentKvHeadsAreAsManyAsQueryHeadsUnderEveryName) {
  for (const bool older : {false, true}) {
    json config = config_of("llama");
    config["num_hidden_layers"] = 2;
    if (older) use_gpt2_names(config);
    EXPECT_EQ(bytes_per_token(spec_of(config).value()), 256);
    json other = config;
    rename_field(other, "num_key_value_heads", "n_head_kv");
    EXPECT_EQ(bytes_per_token(spec_of(other).value()), 256);
    config.erase("num_key_value_heads");
    EXPECT_EQ(bytes_per_token(spec_of(config).value()), 512);
    config["multi_query"] = true;
    EXPECT_EQ(bytes_per_token(spec_of(config).value()), 128);
    config["multi_query"] = false;
    EXPECT_EQ(bytes_per_token(spec_of(config).value()), 512);
    EXPECT_EQ(spec_of(config)->max_positions, 256);
    EXPECT_EQ(spec_of(config)->layers[0].ffn_size, 96);
  }
}

TEST(CaseA2, TwoNamesWithTwoValuesAreRefused) {
  json config = config_of("llama");
  config["n_embd"] = 64;
  EXPECT_TRUE(spec_of(config).ok()) << "both say the same";
  config["n_embd"] = 48;
  EXPECT_THAT(message_of(config), HasSubstr("n_embd: 48, but hidden_size is 64"));
  config = config_of("llama");
  config["multi_query"] = true;
  EXPECT_THAT(message_of(config), HasSubstr("multi_query: true, but num_key_value_heads is 2"));
  config = config_of("llama");
  config["num_key_value_heads"] = 3;
  EXPECT_THAT(message_of(config), HasSubstr("num_key_value_heads: 3, wanted a divisor of the 4"));
}

TEST(CaseA2, AModelUnderOlderNamesIsTheSameModel) {
  const std::vector<Golden> goldens = read_goldens(models_dir() / "llama");
  const EditedModel edited("llama", use_gpt2_names);
  EXPECT_EQ(edited.greedy(long_golden(goldens).ids), long_golden(goldens).greedy);
}

TEST(CaseA3, ALatentIsStoredOnce) {
  const auto spec = edited_spec("deepseek_v2-lite", [](json& c) {
    c["num_hidden_layers"] = 3;
    c["kv_lora_rank"] = 32;
    c["qk_rope_head_dim"] = 8;
  });
  EXPECT_EQ(bytes_per_token(spec.value()), 240);
  // The cache that the engine makes of a latent model charges the same.
  TestModel model(models_dir() / "deepseek_v2-lite", {}, 1);
  ASSERT_TRUE(model.ok());
  auto cache = model.cache("bf16");
  model.feed(*cache, cache->create_sequence().value(), std::vector<int32_t>(70, 5));
  EXPECT_EQ(cache->usage().ideal_bytes, 70u * 3 * (32 + 16) * 2);
}

// Latents, shared layers and side caches in a family that doesn't have them: refused, never sized
// and run as ordinary K and V.
TEST(CaseA3_CaseA6, AnUnknownKindOfCacheIsRefusedByItsField) {
  const std::pair<const char*, const char*> kFields[] = {
      {"llama", "kv_lora_rank"},         {"llama", "q_lora_rank"},
      {"qwen3", "qk_rope_head_dim"},     {"gemma3", "num_kv_shared_layers"},
      {"qwen2", "shared_kv_layers"},     {"deepseek_v2", "num_kv_shared_layers"},
      {"deepseek_v2", "index_head_dim"},
  };
  for (const auto& [name, field] : kFields) {
    json config = config_of(name);
    for (const json& nothing : {json(nullptr), json(0)}) {
      config[field] = nothing;
      EXPECT_TRUE(spec_of(config).ok()) << name << " " << field;
    }
    config[field] = 2;
    EXPECT_THAT(message_of(config), HasSubstr(std::string("config.json: ") + field + ": 2 means"));
  }
  json only_queries = config_of("deepseek_v2");
  only_queries.erase("kv_lora_rank");
  EXPECT_THAT(message_of(only_queries), HasSubstr("kv_lora_rank is missing"));
}

// Layers [s, s, s, f], window 8, 64 tokens of 128 bytes a layer: 11,264 bytes are needed. The pool
// holds whole pages, so a sliding layer keeps one page here and two at most.
TEST(CaseA4, SlidingLayersAreChargedTheirWindowByPlanAndPool) {
  const EditedModel edited("qwen2-yarn-sliding", [](json& c) {
    c["sliding_window"] = 8;
    c["layer_types"] = {"sliding_attention", "sliding_attention", "full_attention"};
  });
  TestModel model(edited.path(), {}, 1);
  ASSERT_TRUE(model.ok());
  auto cache = model.cache("bf16");
  const SequenceId sequence = cache->create_sequence().value();
  for (const int64_t length : {int64_t{64}, int64_t{100}, int64_t{135}}) {
    const auto more = static_cast<size_t>(length - cache->length(sequence).value());
    model.feed(*cache, sequence, std::vector<int32_t>(more, 7));
    const CacheUsage usage = cache->usage();
    const auto tokens = static_cast<uint64_t>(length);
    EXPECT_EQ(usage.ideal_bytes, (2 * 8 + tokens) * 128) << "the case's minimum, one s less";
    EXPECT_EQ(usage.live_bytes, plan_cache(cache->options(), {&length, 1})->total_bytes());
    const uint64_t pages = (tokens + 63) / 64;
    EXPECT_LE(usage.live_bytes, (2 * std::min<uint64_t>(pages, 2) + pages) * 64 * 128);
  }
}

const std::vector<std::function<void(json&)>> kNoWindow = {
    [](json& c) { c["use_sliding_window"] = false, c["sliding_window"] = 8; },
    [](json& c) { c["sliding_window"] = nullptr; },
    [](json& c) { c["sliding_window"] = 0; },
    [](json& c) { c["sliding_window"] = -1; },
};

TEST(CaseA8, ASlidingWindowThatIsOffIsOffInEverySpelling) {
  const std::vector<int32_t> prompt = long_golden(read_goldens(models_dir() / "mistral")).ids;
  const EditedModel none("mistral", [](json& c) { c.erase("sliding_window"); });
  const std::vector<int32_t> want = none.greedy(prompt);
  ASSERT_EQ(want.size(), 16u);
  for (const auto& spelling : kNoWindow) {
    EXPECT_EQ(EditedModel("mistral", spelling).greedy(prompt), want);
  }
  EXPECT_NE(EditedModel("mistral", [](json& c) { c["sliding_window"] = 8; }).greedy(prompt), want);
}

TEST(CaseA8, EveryFamilyWithWindowsCanHaveNone) {
  for (const char* name : {"mistral", "mixtral", "phi3", "phi3-partial", "qwen2",
                           "qwen2-yarn-sliding", "qwen3", "qwen3_moe", "gemma2", "gemma3"}) {
    const auto slides = [](const DecoderSpec& spec) {
      return std::any_of(spec.layers.begin(), spec.layers.end(),
                         [](const LayerSpec& layer) { return layer.window > 0; });
    };
    for (const auto& spelling : kNoWindow) {
      const auto spec = edited_spec(name, spelling);
      ASSERT_TRUE(spec.ok()) << spec.status().message();
      EXPECT_FALSE(slides(*spec)) << name;
    }
    const auto on = edited_spec(name, [](json& c) {
      c["sliding_window"] = 8;
      c["use_sliding_window"] = true;
      c["max_window_layers"] = 0;
    });
    EXPECT_TRUE(slides(on.value())) << name;
    for (const json& nonsense : {json(-2), json("8"), json(8.5), json(int64_t{1} << 40)}) {
      const auto spec = edited_spec(name, [&](json& c) { c["sliding_window"] = nonsense; });
      EXPECT_THAT(spec.status().message(), HasSubstr("config.json: sliding_window")) << nonsense;
    }
  }
}

TEST(CaseA8, MaxWindowLayersCountsFromTheFirstSlidingLayer) {
  for (const char* name : {"qwen2-yarn-sliding", "qwen3"}) {
    for (int first = 0; first <= 4; ++first) {
      const auto spec = edited_spec(name, [&](json& c) {
        c["use_sliding_window"] = true;
        c["sliding_window"] = 8;
        c["max_window_layers"] = first;
      });
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(spec->layers[static_cast<size_t>(i)].window, i >= first ? 8 : 0)
            << name << " max_window_layers " << first << " layer " << i;
      }
    }
    const auto spec = edited_spec(name, [](json& c) { c["max_window_layers"] = -1; });
    EXPECT_THAT(spec.status().message(), HasSubstr("max_window_layers: -1"));
  }
}

TEST(CaseA10, AScaledLengthIsNeverScaledAgain) {
  const auto length = [](const char* kind, const char* field, const char* type, int64_t positions,
                         std::optional<int> original) {
    json config = config_of("llama-rope3");
    config.erase("rope_scaling");
    config[field] = {{type, kind}, {"factor", 4}, {"rope_theta", 10000}};
    if (original) config[field]["original_max_position_embeddings"] = *original;
    config["max_position_embeddings"] = positions;
    return spec_of(config)->max_positions;
  };
  for (const auto& [field, type] : {std::pair{"rope_scaling", "rope_type"},
                                    {"rope_scaling", "type"},
                                    {"rope_parameters", "rope_type"}}) {
    for (const char* kind : {"linear", "llama3", "yarn"}) {
      EXPECT_EQ(length(kind, field, type, 128, 32), 128) << kind;
      EXPECT_EQ(length(kind, field, type, 32, 32), 128) << kind;
    }
    // These change no frequency, so they reach no further.
    for (const char* kind : {"dynamic", "default"}) {
      EXPECT_EQ(length(kind, field, type, 32, 32), 32) << kind;
    }
    // Without an original length the declared one is final.
    for (const char* kind : {"linear", "yarn", "dynamic"}) {
      EXPECT_EQ(length(kind, field, type, 32, std::nullopt), 32) << kind;
    }
  }
}

TEST(CaseA10, AnOriginalLengthThatIsNeededOrNonsenseIsNamed) {
  json config = config_of("llama-rope3");
  config["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_THAT(message_of(config), HasSubstr("original_max_position_embeddings"));
  for (const json& nonsense : {json(0), json(-32), json("32")}) {
    config["rope_scaling"]["original_max_position_embeddings"] = nonsense;
    EXPECT_THAT(message_of(config), HasSubstr("original_max_position_embeddings")) << nonsense;
  }
}

TEST(CaseA10, AnUnknownScalingIsRefusedByName) {
  json config = config_of("llama-rope3");
  config["rope_scaling"]["rope_type"] = "spiral";
  const Status status = spec_of(config).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("spiral"), HasSubstr("yarn")));
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

// `auto` in the words that planner, engine and program use, or the refusal.
std::string format_of_auto(const std::function<void(json&)>& edit, const char* beside = nullptr) {
  EditedModel model("qwen2", edit);
  if (beside != nullptr) model.folder().write("hf_quant_config.json", beside);
  ThreadPool threads(1);
  const auto opened = open_decoder(model.path(), {}, threads);
  if (!opened.ok()) return opened.status().message();
  return parse_format_pair("auto", opened->decoder->info().traits)->name();
}

void declare(json& config, const json& scheme) {
  config["quantization_config"]["kv_cache_scheme"] = scheme;
}

TEST(CaseA11, AutoFollowsWhatTheCheckpointDeclares) {
  const auto as_is = [](json&) {};
  EXPECT_EQ(format_of_auto(as_is), "bf16");
  EXPECT_EQ(format_of_auto(as_is, R"({"quantization": {"kv_cache_quant_algo": "FP8"}})"),
            "fp8_e4m3");
  EXPECT_EQ(format_of_auto(as_is, R"({"kv_cache_quant_algo": "FP8"})"), "fp8_e4m3");
  EXPECT_EQ(format_of_auto([](json& c) {
              declare(c, {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}});
            }),
            "fp8_e4m3");
}

TEST(CaseA11, AbsentAndNullMeanTheModelsOwnType) {
  const auto as_is = [](json&) {};
  EXPECT_EQ(format_of_auto(as_is, R"({"quantization": {"kv_cache_quant_algo": null}})"), "bf16");
  EXPECT_EQ(format_of_auto(as_is, R"({"quantization": {"quant_algo": "W4A16"}})"), "bf16");
  EXPECT_EQ(format_of_auto([](json& c) { declare(c, nullptr); }), "bf16");
  for (const char* method : {"compressed-tensors", "modelopt", "fp8"}) {
    const auto weights_only = [&](json& c) { c["quantization_config"]["quant_method"] = method; };
    EXPECT_EQ(format_of_auto(weights_only), "bf16") << method;
  }
}

TEST(CaseA11, AnUnknownDeclarationIsNamed) {
  const auto as_is = [](json&) {};
  EXPECT_THAT(format_of_auto(as_is, R"({"quantization": {"kv_cache_quant_algo": "NVFP9"}})"),
              AllOf(HasSubstr("kv_cache_quant_algo"), HasSubstr("NVFP9")));
  EXPECT_THAT(format_of_auto([](json& c) {
                declare(c, {{"num_bits", 4}, {"type", "int"}});
              }),
              AllOf(HasSubstr("kv_cache_scheme"), HasSubstr("4 of type 'int'")));
  EXPECT_THAT(format_of_auto([](json& c) {
                declare(c, {{"num_bits", 8}, {"type", "int"}});
              }),
              HasSubstr("8 of type 'int'"));
  EXPECT_THAT(format_of_auto([](json& c) { declare(c, "fp8"); }), HasSubstr("kv_cache_scheme"));
  EXPECT_THAT(format_of_auto(as_is, "{"), HasSubstr("hf_quant_config.json"));
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
