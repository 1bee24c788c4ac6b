// kvant plan on what broke other planners, and on input that is wrong.
#include <gmock/gmock.h>

#include "plan_runs.h"

namespace kvant::cli {
namespace {

using ::testing::HasSubstr;

// --- Cases ---

TEST(Plan, CaseA1_ADeclaredHeadDimWins) {
  json config = with(small(), {{"hidden_size", 48}, {"num_key_value_heads", 2}, {"head_dim", 16}});
  EXPECT_EQ(bytes_per_token(config), 256);
  EXPECT_THAT(unwrapped(plan_of(config, {})),
              HasSubstr("2 KV heads of 16 (declared, not hidden size 48"));
  config = with(small(), {{"hidden_size", 3584}, {"num_attention_heads", 16}, {"head_dim", 256}});
  EXPECT_EQ(bytes_per_token(config), 2 * 2 * 16 * 256 * 2);
  config["head_dim"] = nullptr;
  EXPECT_EQ(bytes_per_token(config), 2 * 2 * 16 * 224 * 2);
  EXPECT_THAT(unwrapped(plan_of(config, {})), HasSubstr("of 224 (hidden size 3584 / 16 heads)"));
}

TEST(Plan, CaseA2_HeadsUnderEveryName) {
  EXPECT_EQ(bytes_per_token(small()), 512);
  EXPECT_EQ(bytes_per_token(with(small(), {{"num_key_value_heads", 2}})), 256);
  EXPECT_EQ(bytes_per_token(with(small(), {{"multi_query", true}})), 128);
  EXPECT_EQ(
      bytes_per_token({{"model_type", "gpt2"}, {"n_embd", 64}, {"n_head", 4}, {"n_layer", 2}}),
      512);
}

TEST(Plan, CaseA3_ALatentIsStoredOnce) {
  const json config = with(small(), {{"model_type", "deepseek_v2"},
                                     {"num_hidden_layers", 3},
                                     {"kv_lora_rank", 32},
                                     {"qk_rope_head_dim", 8},
                                     {"qk_nope_head_dim", 16},
                                     {"v_head_dim", 16}});
  EXPECT_EQ(bytes_per_token(config), 240);
  EXPECT_EQ(json_of(config, {})["layers"][0]["kind"], "latent");
}

json mixed() {
  return with(
      small(),
      {{"model_type", "gemma3_text"},
       {"num_hidden_layers", 4},
       {"num_key_value_heads", 2},
       {"head_dim", 16},
       {"sliding_window", 8},
       {"layer_types",
        {"sliding_attention", "sliding_attention", "sliding_attention", "full_attention"}}});
}

TEST(Plan, CaseA4_SlidingLayersHoldTheirWindowInWholePages) {
  const json row = first_row(mixed(), {"--kv", "bf16", "--tokens", "64"});
  EXPECT_EQ(row["ideal_kv_bytes"], 11264);
  EXPECT_EQ(row["kv_bytes"], 32768) << "a page holds 64 tokens";
  EXPECT_EQ(first_row(mixed(), {"--kv", "bf16", "--tokens", "640"})["kv_bytes"],
            (3 + 10) * 64 * 128);
}

TEST(Plan, CaseA6_LayersThatShareAreCountedOnce) {
  const json config = with(small(), {{"num_hidden_layers", 6}, {"num_kv_shared_layers", 2}});
  EXPECT_EQ(bytes_per_token(config), 4 * 256);
  EXPECT_EQ(json_of(config, {})["layers"][5]["shares"], 3);
  EXPECT_EQ(plan_of(with(config, {{"num_kv_shared_layers", 6}}), {}).exit_code, 2);
}

TEST(Plan, CaseA8_AWindowThatIsSwitchedOffIsNone) {
  const json config = with(small(), {{"model_type", "qwen2"}});
  const json expected = json_of(config, {})["rows"];
  for (const json& window : {json(nullptr), json(0), json(-1)})
    EXPECT_EQ(json_of(with(config, {{"sliding_window", window}}), {})["rows"], expected) << window;
  EXPECT_EQ(
      json_of(with(config, {{"use_sliding_window", false}, {"sliding_window", 8}}), {})["rows"],
      expected);
}

TEST(Plan, CaseA10_PositionsAreScaledOnce) {
  const auto positions = [](const json& fields) {
    return json_of(with(small(), fields), {})["max_positions"].get<int64_t>();
  };
  const json scaling = {
      {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 32}};
  EXPECT_EQ(positions({{"max_position_embeddings", 128}, {"rope_scaling", scaling}}), 128);
  EXPECT_EQ(positions({{"max_position_embeddings", 32}, {"rope_scaling", scaling}}), 128);
  EXPECT_THAT(
      plan_of(with(small(), {{"max_position_embeddings", 128}}), {"--tokens", "128,129"}).out,
      HasSubstr("note: 129 tokens are more than the 128 that the model is made for"));
}

TEST(Plan, CaseA11_AutoIsWhatTheCheckpointDeclares) {
  const json fp8 = {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}};
  const auto format = [](const json& quantization) {
    const json row =
        first_row(with(small(), {{"quantization_config", quantization}}), {"--kv", "auto"});
    return row["k_format"].get<std::string>();
  };
  EXPECT_EQ(format({{"quant_method", "compressed-tensors"}, {"kv_cache_scheme", fp8}}), "fp8_e4m3");
  EXPECT_EQ(format({{"quant_method", "compressed-tensors"}, {"kv_cache_scheme", nullptr}}), "bf16");
  EXPECT_EQ(format({{"quant_method", "fp8"}}), "bf16");
}

TEST(Plan, CaseA11_WhatContradictsAGivenScaleIsRefusedByName) {
  const auto said = [](const char* key, const json& value) {
    json scheme = {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}};
    scheme[key] = value;
    return plan_of(with(small(), {{"quantization_config", {{"kv_cache_scheme", scheme}}}}), {}).err;
  };
  EXPECT_THAT(said("dynamic", true), HasSubstr("kv_cache_scheme.dynamic: true, wanted false"));
  EXPECT_THAT(said("symmetric", false), HasSubstr("kv_cache_scheme.symmetric: false, wanted true"));
  EXPECT_THAT(said("strategy", "token"),
              HasSubstr("kv_cache_scheme.strategy: 'token', wanted tensor or attn_head"));
  EXPECT_EQ(said("strategy", "attn_head"), "");
  EXPECT_EQ(said("dynamic", nullptr), "");
}

// A device that holds some tokens: one switch from fits to not, and the length that is named is the
// last before it.
TEST(Plan, CaseA13_FittingIsMonotoneAndTheNamedLengthIsTheLast) {
  std::string lengths = "1";
  for (int tokens = 2; tokens <= 300; ++tokens) lengths += "," + std::to_string(tokens);
  for (const char* format : {"bf16", "int8", "int4"}) {
    for (const int memory : {0, 1, 20'000, 100'000, 10'000'000}) {
      const std::string workspace = std::to_string(20'000'000 - 2 - memory);
      const json rows =
          json_of(mixed(), {"--kv", format, "--tokens", lengths, "--device-memory", "20MB",
                            "--workspace", workspace, "--parameters", "1"})["rows"];
      int64_t longest = 0;
      for (const json& row : rows) {
        const int64_t tokens = row["tokens"];
        EXPECT_EQ(row["fits"].get<bool>(), row["spare_bytes"].get<int64_t>() >= 0);
        EXPECT_EQ(row["fits"].get<bool>(), row["max_sequences"].get<int64_t>() >= 1);
        if (!row["fits"].get<bool>()) continue;
        EXPECT_EQ(longest, tokens - 1) << format << " in " << memory;
        longest = tokens;
      }
      for (const json& row : rows)
        EXPECT_EQ(std::min<int64_t>(300, row["max_context"]), longest)
            << format << " in " << memory;
    }
  }
}

TEST(Plan, CaseA13_AMisfitSaysWhatIsNeededWhatIsThereWhatFitsAndWhichOptionsHelp) {
  const Words kTight = {"--kv", "bf16",    "--tokens",        "4k",     "--parameters",
                        "1000", "--bytes", "--device-memory", "1002000"};
  EXPECT_THAT(unwrapped(plan_of(small(), kTight)),
              HasSubstr("bf16: 1 sequence of 4096 tokens needs 2097152 on a device that has "
                        "1000000 of 1002000 left, 1097152 short; 1 sequence of up to 1920 tokens "
                        "fits (--tokens"));
  EXPECT_THAT(unwrapped(plan_of(small(), {"--device-memory", "1MB", "--parameters", "1M"})),
              HasSubstr("not even one token fits"));
}

// --- Bad input ---

void expect_refusal(const ProgramRun& run, const std::string& part, const std::string& what) {
  EXPECT_EQ(run.exit_code, 2) << what << "\n" << run.err;
  EXPECT_EQ(run.out, "") << what;
  EXPECT_TRUE(run.err.starts_with("kvant: ")) << what << "\n" << run.err;
  EXPECT_EQ(run.err_lines(), 1u) << what << "\n" << run.err;
  EXPECT_LT(run.err.size(), 400u) << what << "\n" << run.err;
  EXPECT_THAT(run.err, HasSubstr(part)) << what;
}

TEST(Plan, WhatIsNoConfigurationIsRefused) {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += "{\"a\":";
    return text + "1" + std::string(static_cast<size_t>(depth), '}');
  };
  const std::pair<std::string, std::string> kTexts[] = {
      {"", "is empty"},
      {"\n\n", "is empty"},
      {"{\n  \"model_type\": llama", "not valid JSON at line 2, column 17"},
      {"hello", "not valid JSON"},
      {"{\"model_type\": \"llama\"", "not valid JSON"},
      {std::string("\0\0\0\0", 4), "not valid JSON"},
      {"[]", "wanted an object"},
      {"17", "wanted an object"},
      {"null", "wanted an object"},
      {"{}", "is missing"},
      {"{\"name\": \"package\", \"version\": \"1.0\"}", "is missing"},
      {nested(10000), "nested"},
      {std::string(10000, '['), "nested"},
      {std::string(100'000'000, ' '), "bytes, wanted at most"}};
  for (const auto& [text, part] : kTexts) {
    const std::string what = text.substr(0, 40);
    expect_refusal(plan("-", {}, text), part, what);
    expect_refusal(plan(write_file("bad.json", text), {}), part, what);
  }
  expect_refusal(plan("-", {}, "GGUF\3"), "standard input holds a GGUF file", "GGUF");
  for (const std::string& path : {std::string("/nowhere.json"), scratch().string(),
                                  std::string("/dev/null"), write_file("bad.gguf", "GGUF\3")}) {
    expect_refusal(plan(path, {}), path, path);
  }
}

TEST(Plan, NumbersOfAConfigurationThatAreNoneAreRefusedByName) {
  for (const char* field : {"hidden_size", "num_attention_heads", "num_hidden_layers",
                            "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const char* value :
         {"\"16\"", "-16", "1e300", "16.5", "true", "NaN", "9223372036854775808", "1e18"}) {
      json config = small();
      config[field] = "VALUE";
      std::string text = config.dump();
      text.replace(text.find("\"VALUE\""), 7, value);
      expect_refusal(plan("-", {}, text), field, text);
    }
  }
  for (const char* field : {"num_attention_heads", "num_hidden_layers"})
    expect_refusal(plan_of(with(small(), {{field, 0}}), {}), field, "0");
  expect_refusal(plan_of(with(small(), {{"num_attention_heads", 5}}), {}), "isn't a multiple", "5");
  expect_refusal(plan_of(with(small(), {{"num_key_value_heads", 3}}), {}), "divisor", "3 of 4");
}

TEST(Plan, OptionsThatAreWrongAreRefusedByName) {
  const std::pair<Words, std::string> kBad[] = {
      {{"--tokens", "0"}, "--tokens 0: wanted"},
      {{"--tokens", "-1"}, "--tokens"},
      {{"--tokens", "9223372036854775808"}, "from 1 to 2^40"},
      {{"--tokens", "1e300"}, "from 1 to 2^40"},
      {{"--tokens", "nan"}, "from 1 to 2^40"},
      {{"--tokens", ","}, "--tokens ,: wanted"},
      {{"--tokens", "4k,"}, "--tokens 4k,: wanted"},
      {{"--tokens", ""}, "--tokens is empty"},
      {{"--batch", "0"}, "--batch 0"},
      {{"--batch", "1.5"}, "--batch 1.5"},
      {{"--beams", "-2"}, "--beams -2"},
      {{"--batch", "1099511627776", "--beams", "2"}, "wanted at most 1099511627776 sequences"},
      {{"--batch", "1099511627776", "--tokens", "1048576M"}, "takes more than 2^62 bytes"},
      {{"--shared-prefix", "-1"}, "--shared-prefix -1"},
      {{"--source-tokens", "0"}, "--source-tokens 0"},
      {{"--kv", "int9"}, "the closest are"},
      {{"--kv", "int8,,int4"}, "an item is empty"},
      {{"--kv", "int8,int8"}, "there twice"},
      {{"--kv", "int8_g64"}, "16 channels"},
      {{"--kv", "int8", "--all-formats"}, "wanted one of them"},
      {{"--kv-layers", "0-9=int8"}, "leave the model"},
      {{"--kv-layers", "sliding=int8"}, "no such layer"},
      {{"--sinks", "63"}, "a multiple of 64"},
      {{"--exact-window", "1"}, "a multiple of 64"},
      {{"--prompt", "2k:8k"}, "wanted --output beside it"},
      {{"--output", "2k"}, "wanted --prompt beside it"},
      {{"--prompt", "8k:2k", "--output", "1"}, "95th percentile is below the average"},
      {{"--prompt", "1:2:3", "--output", "1"}, "wanted AVG:P95"},
      {{"--prompt", ":", "--output", "1"}, "--prompt :"},
      {{"--concurrency", "4"}, "wanted --prompt and --output beside it"},
      {{"--prompt", "1", "--output", "1", "--concurrency", "0"}, "--concurrency 0"},
      {{"--device-memory", "-5G"}, "--device-memory -5G"},
      {{"--device-memory", "1e30"}, "--device-memory"},
      {{"--device-memory", "lots"}, "such as 24G"},
      {{"--device-memory", "0"}, "wanted at least 1 MB"},
      {{"--device-memory", "24", "--parameters", "1"}, "24 bytes are no device's memory"},
      {{"--shared-prefix", "5k", "--tokens", "4k,8k"}, "longer than the 4096 of a sequence"},
      {{"--shared-prefix", "3k", "--prompt", "2k", "--output", "4k", "--tokens", "8k"},
       "longer than the 2048 of an average prompt"},
      {{"--source-tokens", "100"}, "llama has no cross attention"},
      {{"--device-memory", "1G", "--workspace", "-1"}, "--workspace -1"},
      {{"--device-memory", "1G", "--parameters", "0"}, "--parameters 0"},
      {{"--device-memory", "1G", "--parameters", "9000000000B"}, "up to 1000T"},
      {{"--device-memory", "1G", "--parameters", "1", "--weights-dtype", "int5"}, "wanted one of"},
      {{"--workspace", "1G"}, "wanted --device-memory beside it"},
      {{"--parameters", "7B"}, "--parameters: wanted --device-memory beside it"},
      {{"--weights-dtype", "fp8"}, "--weights-dtype: wanted --device-memory beside it"},
      {{"--tp", "3"}, "sizes that work: 1, 2, 4"},
      {{"--tp", "0"}, "--tp 0"},
      {{"--pp", "3"}, "the model has 2 layers; sizes that work: 1, 2"},
      {{"--cp", "-1"}, "--cp -1"},
      {{"--json", "--csv"}, "--json and --csv"},
      {{"--nosuch"}, "kvant plan has no option --nosuch"},
      {{"--token", "4k"}, "the closest are --tokens"},
      {{"again"}, "one word too many"},
  };
  for (const auto& [words, part] : kBad) {
    std::string line;
    for (const std::string& word : words) line += word + " ";
    expect_refusal(plan_of(small(), words), part, line);
  }
}

TEST(Plan, AnOutputThatCannotBeWrittenOrThatIsTheInputIsRefused) {
  const std::string config = write_file("config.json", small().dump());
  for (const char* option : {"--json=", "--csv="}) {
    const ProgramRun run = plan(config, {option + std::string("/nodir/x")});
    EXPECT_EQ(run.exit_code, 1) << "io";
    EXPECT_EQ(run.err_lines(), 1u);
    EXPECT_THAT(run.err, HasSubstr("/nodir/x"));
    EXPECT_EQ(run.out, "");
    expect_refusal(plan(config, {option + config}), "would overwrite what MODEL reads", option);
  }
  EXPECT_EQ(slurp(config), small().dump());
  const std::string folder = tiny_model("llama");
  expect_refusal(plan(folder, {"--json=" + folder + "/config.json"}), "a file of the model", "");
}

}  // namespace
}  // namespace kvant::cli
