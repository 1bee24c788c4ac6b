// kvant plan as a user types it.
#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "plan_runs.h"

namespace kvant::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::set<std::string> keys_of(const json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// --- Teaching ---

TEST(Plan, WithoutArgumentsItTeaches) {
  const ProgramRun run = run_program({"plan"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, AllOf(HasSubstr("kvant plan config.json"), HasSubstr("bytes = 2 (K and V)"),
                             HasSubstr("effective bits"), HasSubstr("pages of 64 tokens")));
  const ProgramRun forgotten = run_program({"plan", "--tokens", "4k"});
  EXPECT_EQ(forgotten.exit_code, 2);
  EXPECT_THAT(forgotten.err, HasSubstr("MODEL is missing"));
}

TEST(Plan, HelpShowsEveryOptionAndAnExample) {
  const std::string help = run_program({"plan", "--help"}).out;
  EXPECT_THAT(help, AllOf(HasSubstr("Example\n  kvant plan "), HasSubstr("Effective bits are")));
  for (const char* option : {"--tokens",
                             "--batch",
                             "--beams",
                             "--kv ",
                             "--all-formats",
                             "--kv-layers",
                             "--sinks",
                             "--exact-window",
                             "--device-memory",
                             "--weights-dtype",
                             "--parameters",
                             "--workspace",
                             "--activation",
                             "--prompt",
                             "--output",
                             "--concurrency",
                             "--shared-prefix",
                             "--source-tokens",
                             "--tp",
                             "--pp",
                             "--cp",
                             "--explain",
                             "--layers",
                             "--bytes",
                             "--strict",
                             "--json",
                             "--csv"}) {
    EXPECT_THAT(help, HasSubstr(option));
  }
}

// --- Models ---

TEST(Plan, AConfigADirectoryAGgufAndStandardInputGiveTheSameNumbers) {
  const std::string folder = tiny_model("gemma3");
  const json expected = plan_json(folder, {})["rows"];
  const json gguf = plan_json(folder + "/model.gguf", {});
  for (const json& row : gguf["rows"]) EXPECT_THAT(expected, ::testing::Contains(row));
  EXPECT_EQ(plan_json(folder + "/config.json", {})["rows"], expected);
  EXPECT_EQ(plan_json("-", {}, slurp(folder + "/config.json"))["rows"], expected);
}

TEST(Plan, TheModelsFilesTellTheWeights) {
  const json directory = plan_json(tiny_model("llama"), {});
  EXPECT_GT(directory["weight_bytes"], 0);
  EXPECT_EQ(directory["rows"][0]["fits"], json()) << "no device was given";
}

// --- Output ---

TEST(Plan, JsonHasTheNamedKeys) {
  const json out = plan_json(published("gemma-3-1b"), {"--kv", "k8v4", "--tokens", "4k"});
  EXPECT_EQ(keys_of(out),
            (std::set<std::string>{"model", "architecture", "max_positions", "parameters",
                                   "head_dim_from", "weight_calculation", "weight_bytes",
                                   "layers_format", "layers", "rows", "notes"}));
  EXPECT_EQ(keys_of(out["layers"][0]),
            (std::set<std::string>{"index", "kind", "kv_heads", "k_dim", "v_dim", "window",
                                   "bytes_per_token", "fixed_bytes"}));
  EXPECT_EQ(keys_of(out["rows"][0]),
            (std::set<std::string>{
                "format", "k_format", "v_format", "tokens", "batch", "beams", "kv_bytes",
                "bytes_per_token", "bytes_per_token_long", "nominal_bits", "sealed_bits",
                "effective_bits", "fits", "max_sequences", "max_context", "ideal_kv_bytes",
                // and ours
                "state_bytes", "needed_bytes", "device_bytes", "device_needed_bytes",
                "k_sealed_bits", "v_sealed_bits", "available_bytes", "spare_bytes"}));
  EXPECT_EQ(out["layers"].size(), 26u);
  EXPECT_EQ(out["layers"][0]["kind"], "sliding");
  EXPECT_EQ(out["layers"][0]["window"], 512);
  const json& row = out["rows"][0];
  EXPECT_EQ(row["nominal_bits"], 6);
  EXPECT_DOUBLE_EQ(row["effective_bits"],
                   16 * row["kv_bytes"].get<double>() / row["ideal_kv_bytes"].get<double>());
  EXPECT_LT(row["bytes_per_token_long"], row["bytes_per_token"]);
}

TEST(Plan, CsvHasARowPerFormatAndLength) {
  const ProgramRun run = plan_of(small(), {"--kv", "bf16,int8", "--tokens", "64,1k,4k", "--csv"});
  const std::vector<std::string> lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 1u + 6);
  EXPECT_TRUE(lines[0].starts_with("format,k_format,v_format,tokens,batch,beams,kv_bytes,"));
  EXPECT_TRUE(lines[1].starts_with("bf16,bf16,bf16,64,1,1,32768,")) << lines[1];
  const auto commas = [](const std::string& line) {
    return std::count(line.begin(), line.end(), ',');
  };
  for (const std::string& line : lines) EXPECT_EQ(commas(line), commas(lines[0])) << line;
}

TEST(Plan, CsvHasTheWorkloadsRowsToo) {
  const ProgramRun run =
      plan_of(small(), {"--kv", "bf16,int8", "--tokens", "4k", "--csv", "--prompt", "1k:2k",
                        "--output", "64", "--device-memory", "1G", "--parameters", "1M"});
  const std::vector<std::string> lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 1u + 2 + 4);
  EXPECT_TRUE(lines[0].ends_with(",row,cache_share,compression,expected_gain,exact_gain"));
  EXPECT_THAT(lines[1], HasSubstr(",tokens,,,,"));
  EXPECT_THAT(lines[4], HasSubstr(",2112,1,1,")) << lines[4];
  EXPECT_THAT(lines[5], HasSubstr(",average,"));
  EXPECT_THAT(lines[6], HasSubstr(",p95,"));
  EXPECT_THAT(run.err, HasSubstr("note: num_key_value_heads isn't given"));
}

TEST(Plan, SizesAreReadInAnyCaseAndAPrefixOfNothingIsNone) {
  const Words kOne = {"--tokens", "4k", "--parameters", "1M", "--device-memory"};
  const auto row = [&](const char* memory) {
    Words words = kOne;
    words.push_back(memory);
    return first_row(small(), words);
  };
  EXPECT_EQ(row("24g"), row("24G"));
  EXPECT_EQ(row("24gib"), row("24G"));
  EXPECT_EQ(row("24gb"), row("24GB"));
  EXPECT_EQ(first_row(small(), {"--shared-prefix", "0"}), first_row(small(), {}));
}

TEST(Plan, JsonAndCsvGoToFilesBesideTheTable) {
  const std::string json_file = (scratch() / "plan.json").string(),
                    csv_file = (scratch() / "plan.csv").string();
  const ProgramRun run = plan_of(small(), {"--json=" + json_file, "--csv=" + csv_file});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("bf16 ideal"));
  EXPECT_EQ(json::parse(slurp(json_file))["rows"].size() + 1, lines_of(slurp(csv_file)).size());
}

TEST(Plan, BytesAreExactWhenAskedFor) {
  EXPECT_THAT(unwrapped(plan_of(small(), {"--kv", "bf16", "--tokens", "4k"})),
              HasSubstr("2.10 MB"));
  EXPECT_THAT(unwrapped(plan_of(small(), {"--kv", "bf16", "--tokens", "4k", "--bytes"})),
              AllOf(HasSubstr("2097152"), Not(HasSubstr("MB"))));
}

TEST(Plan, BytesPerTokenHaveNoExponent) {
  EXPECT_THAT(unwrapped(plan(published("command-r-35b-v01"), {"--kv", "bf16", "--tokens", "4k"})),
              HasSubstr(" 1310720 "));
}

TEST(Plan, LayersAreListedOneByOne) {
  const std::string out = plan(published("gemma-3n-e4b-it"), {"--layers"}).out;
  EXPECT_THAT(out, AllOf(HasSubstr("\n0      "), HasSubstr("sliding"), HasSubstr(" reads ")));
  json config = with(small(), {{"num_key_value_heads", {1, 4}}});
  const std::vector<std::string> lines =
      lines_of(plan_of(config, {"--layers", "--kv", "bf16"}).out);
  EXPECT_TRUE(std::regex_match(lines[lines.size() - 2], std::regex("0 +full +1 +16 +16 +- +64 +-")))
      << lines[lines.size() - 2];
  EXPECT_TRUE(std::regex_match(lines.back(), std::regex("1 +full +4 +16 +16 +- +256 +-")))
      << lines.back();
}

// --- Options that change the numbers ---

TEST(Plan, TokensBatchAndBeamsMultiply) {
  const json rows = json_of(
      small(), {"--kv", "bf16", "--tokens", "64,1k,1M", "--batch", "3", "--beams", "2"})["rows"];
  ASSERT_EQ(rows.size(), 3u);
  for (const json& row : rows) {
    EXPECT_EQ(row["kv_bytes"], 6 * 512 * row["tokens"].get<int64_t>());
    EXPECT_EQ(row["batch"], 3);
    EXPECT_EQ(row["beams"], 2);
  }
}

TEST(Plan, ASharedPrefixIsHeldOnce) {
  const json row = first_row(
      small(), {"--kv", "bf16", "--tokens", "4k", "--batch", "4", "--shared-prefix", "1k"});
  EXPECT_EQ(row["kv_bytes"], 512 * (4 * 4096 - 3 * 1024));
}

TEST(Plan, SinksAndTheExactWindowStayInSixteenBits) {
  const auto bytes = [](Words words) {
    words.insert(words.end(), {"--kv", "int8", "--tokens", "4k"});
    return first_row(small(), words)["kv_bytes"].get<double>();
  };
  const double sealed = bytes({"--sinks", "0"});
  const double gain = bytes({"--sinks", "64"}) - sealed;  // of one page
  EXPECT_GT(gain, 0);
  EXPECT_EQ(bytes({"--sinks", "256"}) - sealed, 4 * gain);
  EXPECT_EQ(bytes({"--sinks", "0", "--exact-window", "128"}) - sealed, 2 * gain);
}

TEST(Plan, KvLayersGiveSomeLayersAnotherFormat) {
  const double bf16 = first_row(small(), {"--kv", "bf16"})["kv_bytes"];
  const double int8 = first_row(small(), {"--kv", "int8"})["kv_bytes"];
  const double mixed = first_row(small(), {"--kv", "int8", "--kv-layers", "0=bf16"})["kv_bytes"];
  EXPECT_EQ(2 * mixed, bf16 + int8);
  const json layers = json_of(small(), {"--kv", "int8", "--kv-layers", "0=bf16"})["layers"];
  EXPECT_EQ(layers[0]["bytes_per_token"], 256);
  EXPECT_LT(layers[1]["bytes_per_token"], 256);
}

TEST(Plan, AllFormatsPlansWhatTheHeadsCanTakeAndNamesTheRest) {
  const json out = json_of(small(), {"--all-formats", "--tokens", "4k"});
  std::set<std::string> formats;
  for (const json& row : out["rows"]) formats.insert(row["format"]);
  EXPECT_GT(formats.size(), 50u);
  EXPECT_TRUE(formats.contains("int8_token"));
  EXPECT_FALSE(formats.contains("int8_g64")) << "heads have 16 channels";
  EXPECT_THAT(out["notes"].dump(), HasSubstr("more are left out: layer 0 K: int8_g32 can't"));
  EXPECT_LT(out["notes"].size(), 10u) << out["notes"].dump(1);
  const json latent = plan_json(published("deepseek-v3"), {"--all-formats", "--tokens", "4k"});
  EXPECT_LT(latent["notes"].size(), 10u) << latent["notes"].dump(1);
  EXPECT_EQ(plan_of(small(), {"--all-formats", "--kv", "int8"}).exit_code, 2);
}

TEST(Plan, ShardingIsPerDevice) {
  const std::string model = published("llama-3.1-8b");
  const Words kOne = {"--kv", "bf16", "--tokens", "4k"};
  const double whole = plan_json(model, kOne)["rows"][0]["kv_bytes"];
  const auto row = [&](Words words) {
    words.insert(words.end(), kOne.begin(), kOne.end());
    return plan_json(model, words)["rows"][0];
  };
  EXPECT_EQ(row({"--tp", "8"})["device_bytes"], whole / 8);
  EXPECT_EQ(row({"--pp", "4"})["device_bytes"], whole / 4);
  EXPECT_EQ(row({"--pp", "3"})["device_bytes"], whole * 11 / 32) << "uneven: 11, 11 and 10 layers";
  EXPECT_EQ(row({"--cp", "2"})["device_bytes"], whole / 2);
  EXPECT_EQ(row({"--tp", "4", "--pp", "2", "--cp", "2"})["device_bytes"], whole / 16);
  EXPECT_EQ(row({"--tp", "16"})["device_bytes"], whole / 8) << "8 KV heads: replicated";
  EXPECT_THAT(unwrapped(plan(model, {"--tp", "16"})), HasSubstr("heads are replicated"));
  EXPECT_THAT(unwrapped(plan(model, {"--tp", "2"})), HasSubstr("a device"));
}

TEST(Plan, ADeviceHoldsWeightsWorkspaceAndActivationsFirst) {
  const auto available = [](Words words) {
    words.insert(words.end(), {"--device-memory", "1G", "--parameters", "100M"});
    return first_row(small(), words)["available_bytes"].get<int64_t>();
  };
  constexpr int64_t kDevice = 1 << 30;
  EXPECT_EQ(available({}), kDevice - 200'000'000) << "bf16 unless it is said";
  for (const auto& [type, bytes] : {std::pair{"f32", 400'000'000},
                                    {"int8", 100'000'000},
                                    {"q8_0", 106'250'000},
                                    {"int4", 50'000'000}}) {
    EXPECT_EQ(available({"--weights-dtype", type}), kDevice - bytes) << type;
  }
  EXPECT_EQ(available({"--workspace", "100MB", "--activation", "1M"}),
            kDevice - 300'000'000 - (1 << 20));
  EXPECT_EQ(available({"--tp", "4"}), kDevice - 50'000'000);
  const json out = plan_json(tiny_model("llama"), {"--device-memory", "1G"});
  EXPECT_EQ(out["rows"][0]["available_bytes"], kDevice - out["weight_bytes"].get<int64_t>());
}

TEST(Plan, WeightsAreCountedAsTheConfigurationDeclares) {
  const std::string model = published("llama-3.1-405b-instruct-fp8");
  const Words kDevice = {"--device-memory", "640G"};
  EXPECT_NEAR(plan_json(model, kDevice)["weight_bytes"].get<double>(), 405.9e9 + 4.2e9, 1e9);
  EXPECT_THAT(unwrapped(plan(model, kDevice)), HasSubstr("weights are counted as fbgemm_fp8"));
  Words words = kDevice;
  words.insert(words.end(), {"--weights-dtype", "bf16"});
  EXPECT_NEAR(plan_json(model, words)["weight_bytes"].get<double>(), 811.7e9, 1e9);
  EXPECT_THAT(unwrapped(plan(model, words)), Not(HasSubstr("are counted as")));
}

TEST(Plan, AWorkloadIsAnsweredInSentencesAndNumbers) {
  const Words kLoad = {"--parameters",  "8B",
                       "--prompt",      "2k:8k",
                       "--output",      "300:1k",
                       "--concurrency", "16",
                       "--kv",          "bf16,int8,k8v4,int4",
                       "--tokens",      "4k"};
  const auto with_memory = [&](const char* memory) {
    Words words = kLoad;
    words.insert(words.end(), {"--device-memory", memory});
    return words;
  };
  const std::string model = published("llama-3.1-8b");
  const json out = plan_json(model, with_memory("24G"));
  ASSERT_EQ(out["workload"].size(), 4u);
  EXPECT_EQ(out["first_fit"], "k8v4");
  for (const json& row : out["workload"]) {
    EXPECT_EQ(row["average"]["tokens"], 2048 + 300);
    EXPECT_EQ(row["p95"]["tokens"], 8192 + 1024);
    EXPECT_EQ(row["p95"]["batch"], 16);
    EXPECT_EQ(row["p95"]["fits"], row["format"] == "k8v4" || row["format"] == "int4");
    const double beta = row["cache_share"], c = row["compression"];
    EXPECT_NEAR(row["expected_gain"], 1 / (1 - beta + beta / c), 1e-12);
  }
  EXPECT_EQ(out["workload"][0]["exact_gain"], 1);
  EXPECT_GT(out["workload"][3]["exact_gain"], 2);
  EXPECT_THAT(unwrapped(plan(model, with_memory("24G"))),
              AllOf(HasSubstr("k8v4 is the first format in order of quality that fits the 95th "
                              "percentile: 16 requests of 9216 tokens, "),
                    HasSubstr("Tried in this order: bf16, int8, k8v4, int4."),
                    HasSubstr("2348 tokens on average (2048 + 300)")));
  EXPECT_THAT(unwrapped(plan(model, with_memory("17G"))),
              AllOf(HasSubstr("None of these formats fits the 95th percentile"),
                    HasSubstr("short even in int4"), HasSubstr("--concurrency")));
  EXPECT_THAT(unwrapped(plan(model, kLoad)), Not(HasSubstr("gain")));
}

}  // namespace
}  // namespace kvant::cli
