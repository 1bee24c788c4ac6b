// What parse_model_shape reads from configurations made here, case by case, and what it refuses.
#include <gmock/gmock.h>

#include <filesystem>
#include <limits>
#include <utility>

#include "../files/temp_file.h"
#include "shapes.h"

namespace kvant {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Hidden 64, 4 heads, 2 layers.
json small() {
  return {{"model_type", "llama"},
          {"hidden_size", 64},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 2}};
}

json with(json config, const json& fields) {
  config.update(fields);
  return config;
}

std::vector<int64_t> windows_of(const json& config) {
  std::vector<int64_t> windows;
  const auto shape = shape_of(config);
  EXPECT_TRUE(shape.ok()) << shape.status().message();
  if (!shape.ok()) return windows;
  for (const ModelLayer& layer : shape->layers) windows.push_back(layer.streams[0].window);
  return windows;
}

TEST(CaseA1, ADeclaredHeadDimWinsAndIsSaid) {
  json config = with(small(), {{"hidden_size", 48}, {"num_key_value_heads", 2}});
  config["head_dim"] = 16;
  EXPECT_EQ(bytes_per_token(*shape_of(config)), 256);
  EXPECT_THAT(shape_of(config)->head_dim_from, HasSubstr("declared, not hidden size 48 / 4"));
  for (const json& nothing : {json(nullptr), json(0)}) {
    config["head_dim"] = nothing;
    EXPECT_EQ(bytes_per_token(*shape_of(config)), 192);
    EXPECT_EQ(shape_of(config)->head_dim_from, "hidden size 48 / 4 heads");
  }
  config = with(small(), {{"head_dim", 256}, {"hidden_size", 3584}, {"num_attention_heads", 16}});
  EXPECT_EQ(shape_of(config)->layers[0].streams[0].k_dim, 256);
}

TEST(CaseA1, NonsenseIsAnErrorThatNamesTheField) {
  for (const json& value : {json("16"), json(-16), json(16.5), json(true), json(1 << 21),
                            json(1e300), json(std::numeric_limits<uint64_t>::max())}) {
    EXPECT_THAT(refusal(with(small(), {{"head_dim", value}})), HasSubstr("config.json: head_dim: "))
        << value;
  }
  EXPECT_THAT(refusal(with(small(), {{"num_attention_heads", 0}})),
              HasSubstr("config.json: num_attention_heads: 0, wanted 1 to 4096"));
  EXPECT_THAT(refusal(with(small(), {{"num_attention_heads", 5}})),
              HasSubstr("hidden_size: 64 isn't a multiple of num_attention_heads 5"));
}

TEST(CaseA2, AbsentKvHeadsAreAsManyAsQueryHeadsUnderEveryName) {
  const json older = {
      {"model_type", "gpt2"}, {"n_embd", 64}, {"n_head", 4}, {"n_layer", 2}, {"n_positions", 256}};
  for (const json& config : {small(), older}) {
    EXPECT_EQ(bytes_per_token(*shape_of(config)), 512);
    EXPECT_THAT(notes_of(*shape_of(config)), HasSubstr("as many as the 4 attention heads"));
    EXPECT_EQ(bytes_per_token(*shape_of(with(config, {{"num_key_value_heads", 2}}))), 256);
    EXPECT_EQ(bytes_per_token(*shape_of(with(config, {{"n_head_kv", 2}}))), 256);
    EXPECT_EQ(bytes_per_token(*shape_of(with(config, {{"multi_query", true}}))), 128);
    EXPECT_EQ(bytes_per_token(*shape_of(with(config, {{"multi_query", false}}))), 512);
  }
  EXPECT_EQ(shape_of(older)->max_positions, 256);
}

TEST(CaseA2, NullKvHeadsAreSaidToBeAbsent) {
  EXPECT_THAT(notes_of(*shape_of(with(small(), {{"num_key_value_heads", nullptr}}))),
              HasSubstr("num_key_value_heads isn't given: as many as the 4 attention heads"));
}

TEST(Unused, AWindowThatTheClassIgnoresIsSaid) {
  const json config = with(small(), {{"sliding_window", 128}});
  EXPECT_THAT(notes_of(*shape_of(config)),
              HasSubstr("sliding_window is 128, but no layer of this architecture uses it"));
  EXPECT_THAT(notes_of(*shape_of(with(config, {{"model_type", "mistral"}}))),
              Not(HasSubstr("uses it")));
  EXPECT_THAT(notes_of(*shape_of(with(config, {{"use_sliding_window", false}}))),
              Not(HasSubstr("uses it")));
}

TEST(Unused, AWindowLongerThanTheModelNeverBinds) {
  const json config =
      with(small(),
           {{"model_type", "mistral"}, {"sliding_window", 128}, {"max_position_embeddings", 128}});
  const auto shape = shape_of(config);
  EXPECT_THAT(notes_of(*shape), HasSubstr("the window of 128 tokens never binds"));
  EXPECT_EQ(planner_of(*shape, "bf16")->bytes_per_token_long(), 512);
  const auto longer = shape_of(with(config, {{"max_position_embeddings", 129}}));
  EXPECT_THAT(notes_of(*longer), Not(HasSubstr("never binds")));
  EXPECT_EQ(planner_of(*longer, "bf16")->bytes_per_token_long(), 0);
}

TEST(Unused, LayersThatPredictFurtherTokensAreSaidNotToBeCounted) {
  for (const char* field :
       {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"}) {
    EXPECT_THAT(notes_of(*shape_of(with(small(), {{field, 1}}))),
                HasSubstr("1 layer that predicts further tokens (MTP) isn't counted"));
    EXPECT_THAT(notes_of(*shape_of(with(small(), {{field, 0}}))), Not(HasSubstr("MTP")));
  }
}

TEST(CaseA2, ContradictionsAndHeadsThatDontDivideAreRefused) {
  EXPECT_TRUE(shape_of(with(small(), {{"n_embd", 64}})).ok());
  EXPECT_THAT(refusal(with(small(), {{"n_embd", 48}})),
              HasSubstr("n_embd: 48, but hidden_size is 64"));
  EXPECT_THAT(refusal(with(small(), {{"multi_query", true}, {"num_key_value_heads", 2}})),
              HasSubstr("multi_query: true, but num_key_value_heads is 2"));
  EXPECT_THAT(refusal(with(small(), {{"num_key_value_heads", 3}})),
              HasSubstr("num_key_value_heads: 3, wanted a divisor of the 4"));
  EXPECT_THAT(refusal(with(small(), {{"num_key_value_heads", 8}})),
              HasSubstr("num_key_value_heads: 8, wanted 1 to 4"));
  EXPECT_THAT(refusal(with(small(), {{"num_key_value_heads", {1, 2, 4}}})),
              HasSubstr("num_key_value_heads: 3 entries, wanted 2"));
}

TEST(CaseA2, HeadsMayDifferByLayer) {
  const auto shape = shape_of(with(small(), {{"num_key_value_heads", {1, 4}}}));
  EXPECT_EQ(bytes_per_token(*shape), 5 * 2 * 16 * 2);
}

json latent() {
  return with(small(), {{"model_type", "deepseek_v2"},
                        {"num_hidden_layers", 3},
                        {"kv_lora_rank", 32},
                        {"qk_rope_head_dim", 8},
                        {"qk_nope_head_dim", 16},
                        {"v_head_dim", 16}});
}

TEST(CaseA3, ALatentIsStoredOnceForAllHeads) {
  const auto shape = shape_of(latent());
  EXPECT_EQ(bytes_per_token(*shape), 240);
  EXPECT_EQ(planner_of(*shape, "bf16")->bytes({.tokens = 64})->kv(), 64u * 240);
  EXPECT_EQ(shape->layers[0].streams[0],
            (CacheStream{.kind = StreamKind::kLatent, .heads = 1, .k_dim = 40, .v_dim = 0}));
}

TEST(CaseA3, AnIndexersKeysAreAStreamOfTheirOwn) {
  const auto shape =
      shape_of(with(latent(), {{"model_type", "glm_moe_dsa"}, {"index_head_dim", 16}}));
  EXPECT_EQ(shape->layers[2].streams[1].kind, StreamKind::kIndexer);
  EXPECT_EQ(bytes_per_token(*shape), 240 + 3 * 16 * 2);
  json some = with(latent(), {{"model_type", "glm_moe_dsa"}, {"index_head_dim", 16}});
  some["indexer_types"] = {"full", "shared", "full"};
  EXPECT_EQ(bytes_per_token(*shape_of(some)), 240 + 2 * 16 * 2);
}

TEST(CaseA3, AVariantThatIsntKnownIsRefused) {
  json only_queries = latent();
  only_queries.erase("kv_lora_rank");
  EXPECT_THAT(refusal(only_queries), HasSubstr("config.json: kv_lora_rank is missing"));
  for (const char* field : {"kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "index_head_dim"}) {
    EXPECT_TRUE(shape_of(with(small(), {{field, nullptr}})).ok());
    EXPECT_TRUE(shape_of(with(small(), {{field, 0}})).ok());
    EXPECT_THAT(refusal(with(small(), {{field, 32}})),
                AllOf(HasSubstr(field), HasSubstr(": 32 means"), HasSubstr("llama")));
  }
  const auto unknown = shape_of(with(latent(), {{"model_type", "novel"}}));
  EXPECT_EQ(bytes_per_token(*unknown), 240);
  EXPECT_THAT(notes_of(*unknown), HasSubstr("assumed"));
}

TEST(CaseA4, SlidingLayersAreChargedWhatThePoolHolds) {
  const auto shape = shape_of(with(small(), {{"model_type", "gemma3_text"},
                                             {"num_hidden_layers", 4},
                                             {"num_key_value_heads", 2},
                                             {"head_dim", 16},
                                             {"sliding_window", 8},
                                             {"layer_types",
                                              {"sliding_attention", "sliding_attention",
                                               "sliding_attention", "full_attention"}}}));
  ASSERT_TRUE(shape.ok()) << shape.status().message();
  const auto planner = planner_of(*shape, "bf16");
  EXPECT_EQ(planner->bytes({.tokens = 64})->ideal, 11264u);
  EXPECT_EQ(planner->bytes({.tokens = 64})->kv(), 32768u) << "a page holds 64 tokens";
  EXPECT_EQ(planner->bytes({.tokens = 640})->ideal, (3u * 8 + 640) * 128);
  EXPECT_EQ(planner->bytes({.tokens = 640})->kv(), (3u + 10) * 64 * 128);
}

TEST(CaseA4, AListOfAnotherLengthOrKindIsRefused) {
  json config = with(small(), {{"model_type", "gemma2"}, {"sliding_window", 8}});
  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(refusal(config), HasSubstr("layer_types: 1 entries, wanted 2"));
  config["layer_types"] = {"full_attention", "sideways_attention"};
  EXPECT_THAT(refusal(config), HasSubstr("layer_types: 'sideways_attention', wanted"));
  config["layer_types"] = {"full_attention", "linear_attention"};
  EXPECT_THAT(refusal(config), HasSubstr("layer 1 is of a kind that isn't known of gemma2"));
  config["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_FALSE(shape_of(config).ok());
  config["num_nextn_predict_layers"] = 1;  // whose entry comes last
  EXPECT_EQ(windows_of(config), (std::vector<int64_t>{0, 8}));
}

TEST(CaseA6, LayersThatShareAreChargedOnce) {
  const json config = with(small(), {{"num_hidden_layers", 6}, {"num_key_value_heads", 2}});
  const auto shape = shape_of(with(config, {{"num_kv_shared_layers", 2}}));
  EXPECT_EQ(bytes_per_token(*shape), 4 * 128);
  EXPECT_EQ(shape->layers[4].shares, 3);
  EXPECT_EQ(shape->layers[5].shares, 3);
  EXPECT_EQ(planner_of(*shape, "bf16")->bytes({.tokens = 64})->kv(), 4u * 128 * 64);
  EXPECT_EQ(bytes_per_token(*shape_of(with(config, {{"shared_kv_layers", 2}}))), 4 * 128);
  for (const int shared : {6, 7, 1000000}) {
    EXPECT_THAT(refusal(with(config, {{"num_kv_shared_layers", shared}})),
                HasSubstr("num_kv_shared_layers: " + std::to_string(shared)));
  }
  EXPECT_THAT(refusal(with(config, {{"num_kv_shared_layers", -1}})), HasSubstr("-1, wanted 0 to"));
}

TEST(CaseA6, ALayerSharesWithTheLastOfItsKind) {
  json config = with(small(), {{"model_type", "gemma3n_text"},
                               {"num_hidden_layers", 6},
                               {"sliding_window", 8},
                               {"num_kv_shared_layers", 2}});
  config["layer_types"] = {"sliding_attention", "full_attention",    "sliding_attention",
                           "full_attention",    "sliding_attention", "full_attention"};
  EXPECT_EQ(shape_of(config)->layers[4].shares, 2);
  EXPECT_EQ(shape_of(config)->layers[5].shares, 3);
  config["layer_types"] = json::array();
  for (int i = 0; i < 6; ++i)
    config["layer_types"].push_back(i < 5 ? "full_attention" : "sliding_attention");
  EXPECT_THAT(refusal(config), HasSubstr("no layer that keeps its own cache is of the kind"));
}

TEST(CaseA8, ASlidingWindowThatIsOffIsOffInEverySpelling) {
  for (const char* type :
       {"mistral", "mixtral", "phi3", "qwen2", "qwen3", "gemma2", "gemma3_text", "starcoder2"}) {
    const json config = with(small(), {{"model_type", type}, {"head_dim", 16}});
    for (const json& off : {json{{"use_sliding_window", false}, {"sliding_window", 8}},
                            json{{"sliding_window", nullptr}}, json{{"sliding_window", 0}},
                            json{{"sliding_window", -1}}}) {
      EXPECT_EQ(windows_of(with(config, off)), (std::vector<int64_t>{0, 0})) << type << off;
    }
    const json on = {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 0}};
    EXPECT_EQ(windows_of(with(config, on))[0], 8) << type;
    for (const json& nonsense : {json(-2), json("8"), json(8.5), json(int64_t{1} << 40)}) {
      EXPECT_THAT(refusal(with(config, {{"sliding_window", nonsense}})),
                  HasSubstr("config.json: sliding_window: "))
          << type;
    }
  }
}

TEST(CaseA8, AnAbsentWindowIsTheClasss) {
  const std::pair<const char*, int64_t> kWindows[] = {{"mistral", 4096}, {"gemma2", 4096},
                                                      {"phi3", 0},       {"mixtral", 0},
                                                      {"qwen2", 0},      {"starcoder2", 0}};
  for (const auto& [type, window] : kWindows) {
    const json config = with(small(), {{"model_type", type}});
    EXPECT_EQ(windows_of(config)[0], window) << type;
    if (window == 0) continue;
    EXPECT_THAT(notes_of(*shape_of(config)), HasSubstr("sliding_window isn't given: 4096"));
  }
}

TEST(CaseA8, MaxWindowLayersCountsFromTheFirstSlidingLayer) {
  for (int first = 0; first <= 3; ++first) {
    const json config = with(small(), {{"model_type", "qwen2"},
                                       {"use_sliding_window", true},
                                       {"sliding_window", 8},
                                       {"max_window_layers", first}});
    EXPECT_EQ(windows_of(config), (std::vector<int64_t>{first <= 0 ? 8 : 0, first <= 1 ? 8 : 0}));
  }
}

TEST(CaseA10, AScaledLengthIsNeverScaledAgain) {
  const auto length = [](int64_t positions, const json& scaling) {
    const auto shape = shape_of(
        with(small(), {{"max_position_embeddings", positions}, {"rope_scaling", scaling}}));
    EXPECT_TRUE(shape.ok()) << shape.status().message();
    return shape->max_positions;
  };
  for (const char* kind : {"linear", "llama3", "yarn"}) {
    const json scaling = {
        {"rope_type", kind}, {"factor", 4}, {"original_max_position_embeddings", 32}};
    EXPECT_EQ(length(128, scaling), 128) << kind;
    EXPECT_EQ(length(32, scaling), 128) << kind;
    EXPECT_EQ(length(32, {{"type", kind}, {"factor", 4}}), 32) << "declared is final";
  }
  const auto published = [&](const char* kind, double factor, int original) {
    return json{{"type", kind}, {"factor", factor}, {"original_max_position_embeddings", original}};
  };
  EXPECT_EQ(length(131072, published("llama3", 32, 8192)), 131072) << "Llama 3.2 1B";
  EXPECT_EQ(length(40960, published("yarn", 4, 32768)), 131072) << "Qwen3, as its card says";
  EXPECT_EQ(length(32, nullptr), 32);
  const auto unknown =
      shape_of(with(small(), {{"max_position_embeddings", 32},
                              {"rope_scaling", {{"type", "spiral"}, {"factor", 4}}}}));
  EXPECT_EQ(unknown->max_positions, 32);
  EXPECT_THAT(notes_of(*unknown), HasSubstr("'spiral' isn't known"));
  EXPECT_EQ(shape_of(small())->max_positions, 0);
}

TEST(CaseA10, NonsenseIsNamed) {
  const auto scaled = [](const json& factor, const json& original) {
    return refusal(with(small(), {{"max_position_embeddings", 32},
                                  {"rope_scaling",
                                   {{"type", "yarn"},
                                    {"factor", factor},
                                    {"original_max_position_embeddings", original}}}}));
  };
  EXPECT_THAT(scaled(0, 32), HasSubstr("rope_scaling.factor: 0.0"));
  EXPECT_THAT(scaled(-4, 32), HasSubstr("rope_scaling.factor: -4"));
  EXPECT_THAT(scaled("4", 32), HasSubstr("rope_scaling.factor: \"4\""));
  EXPECT_THAT(scaled(1e300, 32), HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(scaled(4, 0), HasSubstr("rope_scaling.original_max_position_embeddings: 0"));
  EXPECT_THAT(refusal(with(small(), {{"max_position_embeddings", -4}})),
              HasSubstr("max_position_embeddings: -4"));
}

// The format of `auto`, or the refusal.
std::string format_of_auto(const json& config) {
  const auto shape = shape_of(config);
  if (!shape.ok()) return shape.status().message();
  return parse_format_pair("auto", shape->traits)->name();
}

json declares(const json& scheme) {
  return with(small(), {{"quantization_config", {{"kv_cache_scheme", scheme}}}});
}

TEST(CaseA11, AutoFollowsWhatTheCheckpointDeclares) {
  const json fp8 = {{"num_bits", 8}, {"type", "float"}};
  EXPECT_EQ(format_of_auto(small()), "bf16");
  EXPECT_EQ(format_of_auto(declares(nullptr)), "bf16");
  EXPECT_EQ(format_of_auto(declares(fp8)), "fp8_e4m3");
  EXPECT_EQ(format_of_auto({{"model_type", "llava"}, {"text_config", declares(fp8)}}), "fp8_e4m3");
  EXPECT_THAT(format_of_auto(declares({{"num_bits", 4}, {"type", "int"}})),
              AllOf(HasSubstr("kv_cache_scheme"), HasSubstr("4 of type 'int'")));
  const TempFolder folder;
  folder.write("config.json", small().dump());
  folder.write("hf_quant_config.json", R"({"quantization": {"kv_cache_quant_algo": "FP8"}})");
  EXPECT_EQ(read_model_shape(folder.path())->traits.declared->name, "fp8_e4m3");
  EXPECT_EQ(read_model_shape(folder.path() / "config.json")->traits.declared->name, "fp8_e4m3");
  folder.write("hf_quant_config.json", R"({"quantization": {"kv_cache_quant_algo": "NVFP9"}})");
  EXPECT_THAT(read_model_shape(folder.path()).status().message(), HasSubstr("NVFP9"));
}

TEST(Parameters, AreCountedWithinHalfAPercentOfThePublishedNumbers) {
  const std::pair<const char*, double> kPublished[] = {{"deepseek-v2-lite", 15.706e9},
                                                       {"deepseek-v3", 671.026e9},
                                                       {"chatglm3-6b", 6.2436e9},
                                                       {"dbrx-base", 131.597e9},
                                                       {"gemma-3-27b-it", 27.009e9},
                                                       {"gemma-3-4b-it", 3.880e9},
                                                       {"glm-4-9b-chat", 9.400e9},
                                                       {"internvl2-2b", 1.889e9},
                                                       {"kimi-k2.5", 1.026e12},
                                                       {"lfm2.5-vl-1.6b", 1.170e9},
                                                       {"llama-3.2-11b-vision", 9.775e9},
                                                       {"llama-4-scout-17b-16e", 107.77e9},
                                                       {"mimo-v2-flash", 309e9},
                                                       {"minicpm3-4b", 4.074e9},
                                                       {"ministral-3-3b", 3.43e9},
                                                       {"mpt-7b", 6.649e9},
                                                       {"qwen-7b-v1", 7.721e9},
                                                       {"qwen2.5-vl-7b", 7.616e9},
                                                       {"qwen3-next-80b-a3b", 79.67e9},
                                                       {"qwen3-vl-30b-a3b", 30.53e9},
                                                       {"t5-small", 60.51e6},
                                                       {"gemma-2-2b", 2.614e9},
                                                       {"gemma-2-9b", 9.242e9},
                                                       {"gemma-3-1b", 0.9999e9},
                                                       {"gemma-3-270m", 268.1e6},
                                                       {"gemma-7b", 8.538e9},
                                                       {"glm-5", 744e9},
                                                       {"gpt-j-6b", 6.053e9},
                                                       {"gpt-oss-120b", 116.83e9},
                                                       {"gpt-oss-20b", 20.91e9},
                                                       {"gpt2", 124.4e6},
                                                       {"internlm2-7b", 7.738e9},
                                                       {"kimi-k2-instruct", 1.026e12},
                                                       {"llama-2-7b-chat", 6.738e9},
                                                       {"llama-3.1-405b-instruct-fp8", 405.9e9},
                                                       {"llama-3.1-70b-instruct", 70.55e9},
                                                       {"llama-3.1-8b", 8.030e9},
                                                       {"llama-3.2-1b", 1.236e9},
                                                       {"mistral-7b-v0.1", 7.242e9},
                                                       {"mixtral-8x7b", 46.70e9},
                                                       {"olmo-2-7b", 7.299e9},
                                                       {"opt-125m", 125.2e6},
                                                       {"phi-2", 2.780e9},
                                                       {"phi-3-mini-4k-instruct", 3.821e9},
                                                       {"phi-3.5-moe", 41.87e9},
                                                       {"qwen1.5-moe-a2.7b", 14.316e9},
                                                       {"qwen2-7b", 7.616e9},
                                                       {"qwen2.5-0.5b", 494.0e6},
                                                       {"qwen3-0.6b", 596.0e6},
                                                       {"qwen3-235b-a22b", 235.09e9},
                                                       {"qwen3-30b-a3b", 30.53e9},
                                                       {"qwen3-8b", 8.191e9},
                                                       {"smollm2-135m", 134.5e6},
                                                       {"smollm3-3b", 3.075e9}};
  for (const auto& [name, count] : kPublished) {
    const auto shape = read_model_shape(std::filesystem::path(KVANT_TEST_DATA) / "configs" /
                                        (std::string(name) + ".json"));
    ASSERT_TRUE(shape.ok()) << shape.status().message();
    EXPECT_NEAR(static_cast<double>(shape->num_parameters) / count, 1, 0.005) << name;
  }
}

TEST(Parameters, AreNotGuessed) {
  EXPECT_EQ(shape_of(small())->num_parameters, 0)
      << "the width of the feed-forward part is missing";
  const json whole = with(small(), {{"vocab_size", 100}, {"intermediate_size", 96}});
  EXPECT_GT(shape_of(whole)->num_parameters, 0);
  EXPECT_EQ(shape_of(with(whole, {{"model_type", "novel"}}))->num_parameters, 0);
  const auto wrapped = shape_of({{"text_config", whole}});
  EXPECT_EQ(wrapped->num_parameters, shape_of(whole)->num_parameters);
  EXPECT_THAT(notes_of(*wrapped), HasSubstr("those of the language model alone"));
  EXPECT_EQ(shape_of(with(whole, {{"intermediate_size", "96"}}))->num_parameters, 0);
  EXPECT_EQ(shape_of(with(whole, {{"num_experts", 1 << 26},
                                  {"vocab_size", 1 << 26},
                                  {"intermediate_size", 1 << 26}}))
                ->num_parameters,
            0);
}

TEST(Wrappers, TheDecoderInsideIsRead) {
  const json inner = with(small(), {{"num_key_value_heads", 2}});
  for (const char* key : {"text_config", "language_config", "llm_config"}) {
    EXPECT_EQ(bytes_per_token(*shape_of({{"model_type", "outer"}, {key, inner}})), 256) << key;
  }
  const json thinker = {{"thinker_config", {{"text_config", inner}}}};
  EXPECT_EQ(bytes_per_token(*shape_of(thinker)), 256);
  const auto of_class =
      shape_of({{"model_type", "llava"}, {"text_config", {{"model_type", "llama"}}}});
  EXPECT_EQ(of_class->layers.size(), 32u);
  EXPECT_THAT(notes_of(*of_class), HasSubstr("num_hidden_layers isn't given: 32, as the class"));
  EXPECT_THAT(refusal({{"model_type", "llama"}}),
              HasSubstr("config.json: num_hidden_layers is missing"));
  EXPECT_THAT(refusal({{"text_config", 7}}), HasSubstr("text_config: 7, wanted an object"));
}

TEST(ModelType, IsTakenFromTheClassWhereItIsMissing) {
  json config = small();
  config.erase("model_type");
  config["architectures"] = {"Qwen3MoeForCausalLM"};
  const auto shape = shape_of(config);
  EXPECT_EQ(shape->architecture, "qwen3_moe");
  EXPECT_TRUE(shape->traits.qk_norm);
  config.erase("architectures");
  EXPECT_THAT(notes_of(*shape_of(config)), HasSubstr("assumed"));
}

TEST(ModelType, OneThatIsntKnownIsAssumedToBeStandard) {
  const json config = with(small(), {{"model_type", "novel"}});
  EXPECT_THAT(notes_of(*shape_of(config)),
              HasSubstr("the model type novel isn't known: its layers are assumed"));
  EXPECT_EQ(windows_of(with(config, {{"sliding_window", 8}})), (std::vector<int64_t>{0, 0}));
  EXPECT_THAT(notes_of(*shape_of(with(config, {{"sliding_window", 8}}))),
              HasSubstr("all are taken to see every token"));
  EXPECT_EQ(windows_of(with(config, {{"sliding_window", 8}, {"sliding_window_pattern", "LG"}})),
            (std::vector<int64_t>{8, 0}));
  EXPECT_EQ(shape_of(with(config, {{"model_type", "a\nb"}}))->architecture, "'a\\x0ab'");
  for (const char* field : {"ssm_state_size", "attn_layer_period", "linear_num_value_heads"}) {
    EXPECT_THAT(refusal(with(config, {{field, 4}})),
                AllOf(HasSubstr(field), HasSubstr(": 4 means"), HasSubstr("novel")));
  }
  EXPECT_THAT(refusal(with(config, {{"is_encoder_decoder", true}})),
              HasSubstr("is_encoder_decoder"));
  EXPECT_THAT(refusal({{"model_type", "bert"}}), HasSubstr("encoder"));
}

TEST(BadInput, IsOneSentence) {
  const auto message = [](const std::string& text) {
    const auto shape = parse_model_shape(text, "config.json");
    EXPECT_FALSE(shape.ok());
    return shape.status().message();
  };
  EXPECT_EQ(message(""), "config.json: is empty");
  EXPECT_EQ(message("llama"), "config.json: not valid JSON at line 1, column 1");
  EXPECT_EQ(message("[1]"), "config.json: [1], wanted an object");
  EXPECT_EQ(message("{}"), "config.json: num_hidden_layers is missing");
  EXPECT_EQ(message("\"" + std::string(1000, 'x') + "\"").size(), 94u);
  EXPECT_EQ(message(std::string(10000, '[') + std::string(10000, ']')),
            "config.json: nested more than 64 levels deep");
  EXPECT_THAT(message(std::string((64 << 20) + 1, ' ')),
              HasSubstr("67108865 bytes, wanted at most"));
}

TEST(BadInput, NumbersThatAreNoneAreShown) {
  for (const char* field :
       {"num_hidden_layers", "num_attention_heads", "hidden_size", "num_key_value_heads"}) {
    for (const json& value : {json("32"), json(-1), json(0), json(1e300), json(2.5), json(true),
                              json(int64_t{1} << 62), json::array({json::object()})}) {
      EXPECT_THAT(refusal(with(small(), {{field, value}})),
                  HasSubstr(std::string("config.json: ") + field))
          << value;
    }
    std::string text = with(small(), {{field, "NaN"}}).dump();
    text.replace(text.find("\"NaN\""), 5, "NaN");
    EXPECT_THAT(parse_model_shape(text, "config.json").status().message(),
                HasSubstr(std::string(field) + ": \"NaN\", wanted an integer"));
  }
}

TEST(BadInput, PythonsInfinityOfAFieldThatNothingReadsIsNoMatter) {
  std::string text = small().dump();
  text.insert(1, R"("time_step_limit":[0.0,Infinity,-Infinity,NaN],"said":"a \"NaN\"",)");
  EXPECT_TRUE(parse_model_shape(text, "config.json").ok());
}

TEST(Files, AMissingPathIsNotFound) {
  EXPECT_EQ(read_model_shape("/nonexistent").status().code(), Code::kNotFound);
  const TempFolder folder;
  EXPECT_EQ(read_model_shape(folder.path()).status().code(), Code::kNotFound);
}

TEST(Files, WeightsAreCountedWithoutTheirHeaders) {
  const TempFolder folder;
  folder.write("config.json", small().dump());
  EXPECT_EQ(read_model_shape(folder.path())->weight_bytes, 0u);
  folder.write("pytorch_model.bin", std::string(100, 'x'));
  EXPECT_EQ(read_model_shape(folder.path())->weight_bytes, 100u);
  const std::string header = std::string("\x02\0\0\0\0\0\0\0", 8) + "{}";
  folder.write("a.safetensors", header + std::string(30, 'x'));
  folder.write("b.safetensors", header + std::string(12, 'x'));
  EXPECT_EQ(read_model_shape(folder.path())->weight_bytes, 42u);
  folder.write("model.safetensors.index.json", R"({"weight_map": {"x": "b.safetensors"}})");
  EXPECT_EQ(read_model_shape(folder.path())->weight_bytes, 12u);
  folder.write("b.safetensors", "version https://git-lfs.github.com/spec/v1");
  EXPECT_EQ(read_model_shape(folder.path())->weight_bytes, 0u);
  EXPECT_THAT(notes_of(*read_model_shape(folder.path())),
              HasSubstr("b.safetensors is missing or no safetensors file: the files don't tell"));
}

TEST(Files, ShardsThatAreNotAllThereTellNothing) {
  const std::string shard = std::string("\x02\0\0\0\0\0\0\0", 8) + "{}" + std::string(30, 'x');
  for (const char* ending : {".safetensors", ".bin"}) {
    const TempFolder folder;
    folder.write("config.json", small().dump());
    folder.write(std::string("model-00001-of-00002") + ending, shard);
    for (const auto& path : {folder.path(), folder.path() / "config.json"}) {
      EXPECT_EQ(read_model_shape(path)->weight_bytes, 0u);
      EXPECT_THAT(notes_of(*read_model_shape(path)),
                  AllOf(HasSubstr("1 of the 2 shards of "), HasSubstr("which are estimated")));
    }
    folder.write(std::string("model-00002-of-00002") + ending, shard);
    EXPECT_GT(read_model_shape(folder.path() / "config.json")->weight_bytes, 0u);
  }
}

TEST(Files, AConfigOfAnotherNameHasNoWeightsBesideIt) {
  const TempFolder folder;
  folder.write("config.json", small().dump());
  folder.write("other.json", small().dump());
  folder.write("pytorch_model.bin", std::string(100, 'x'));
  EXPECT_EQ(read_model_shape(folder.path() / "config.json")->weight_bytes, 100u);
  EXPECT_EQ(read_model_shape(folder.path() / "other.json")->weight_bytes, 0u);
}

}  // namespace
}  // namespace kvant
