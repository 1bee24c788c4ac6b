// What was asked for and what is in effect: every difference is said, --strict refuses it, no pair
// of options ends in anything but an answer or a sentence, and what the help shows runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "model/random_model.h"
#include "run_program.h"
#include "slow_build.h"
#include "tiny_chat_model.h"

namespace kvant::cli {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Words perplexity(const std::string& model, const Words& more) {
  Words words = {"perplexity", model, "--ids-file",    ids_file(150, 64),
                 "--context",  "150", "--no-baseline", "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string line_of(const Words& words) {
  std::string line;
  for (const std::string& word : words) line += word + " ";
  return line;
}

// Configurations in which something can't be as asked, and what is said of it.
TEST(Effective, CaseH3_EveryDifferenceIsSaidAndStrictRefusesIt) {
  const RandomModel narrow(
      {.hidden = 48, .head_dim = 16});  // rows of 48 aren't whole blocks of q8_0
  const std::string latent = tiny_model("deepseek_v2"), llama = tiny_model("llama");
  const std::filesystem::path declares = scratch() / "latent-declares";
  std::filesystem::copy(latent, declares);
  std::ofstream(declares / "hf_quant_config.json") << R"({"kv_cache_quant_algo": "FP8"})";
  struct Case {
    std::string model;
    Words words;
    const char* said;
    bool formats_differ;
  };
  const Case cases[] = {
      {latent, {"--kv", "int8"}, ": K uses bf16 instead of int8_channel", true},
      {latent, {"--kv", "bf16/int8"}, ": V uses bf16 instead of int8_token", true},
      {latent, {"--kv-layers", "1=fp8"}, "layer 1: K uses bf16 instead of fp8_e4m3", true},
      {declares.string(), {}, ": K uses bf16 instead of fp8_e4m3", true},
      {llama, {"--kv", "kivi4"}, "layers 0-2: V uses bf16 instead of int4_g32_z", true},
      {llama, {"--kv", "int8/kivi2"}, "layers 0-2: V uses bf16 instead of int2_g32_z", true},
      {llama, {"--kv", "int8", "--kv-layers", "-1=kivi4"}, "layer 2: V uses bf16", true},
      {llama, {"--kv", "nf4_token"}, "nf4_token has no kernel", false},
      {narrow.path().string(), {"--weights", "q8_0"}, "stored as BF16, not as q8_0", false},
      {narrow.path().string(), {"--weights", "q4_0", "--kv", "int8"}, "BF16, not as q4_0", false},
  };
  for (const Case& c : cases) {
    Words words = perplexity(c.model, c.words);
    const ProgramRun loose = run_program(words);
    ASSERT_EQ(loose.exit_code, 0) << loose.err;
    EXPECT_THAT(loose.err, HasSubstr("note     "));
    EXPECT_THAT(loose.err, HasSubstr(c.said));
    EXPECT_EQ(loose.err.find("; asked ") != std::string::npos, c.formats_differ) << loose.err;
    EXPECT_EQ(loose.json()["requested"] != loose.json()["effective"], c.formats_differ);
    words.push_back("--strict");
    const ProgramRun strict = run_program(words);
    EXPECT_EQ(strict.exit_code, 2) << line_of(words);
    EXPECT_EQ(strict.err_lines(), 1u) << strict.err;
    EXPECT_EQ(strict.out, "");
  }
}

TEST(Effective, CaseH3_WhereAllIsAsAskedNothingIsNotedAndStrictAgrees) {
  const std::string llama = tiny_model("llama");
  for (const Words& words : {Words{},
                             {"--kv", "int8"},
                             {"--kv", "k8v4"},
                             {"--kv", "int2"},
                             {"--kv", "fp8"},
                             {"--kv", "int8_token/f16"},
                             {"--kv", "int4", "--kv-layers", "0=bf16"},
                             {"--weights", "q8_0"},
                             {"--weights", "f32", "--invariant", "--chunk", "7"}}) {
    const ProgramRun loose = run_program(perplexity(llama, words));
    ASSERT_EQ(loose.exit_code, 0) << loose.err;
    EXPECT_EQ(loose.err.find("note "), std::string::npos) << loose.err;
    Words strict = words;
    strict.push_back("--strict");
    const ProgramRun same = run_program(perplexity(llama, strict));
    ASSERT_EQ(same.exit_code, 0) << same.err;
    EXPECT_EQ(same.json()["digest"], loose.json()["digest"]);
  }
}

// --decode-pages measures the formats without their kernels: the same pages, nearly the same
// figures, other bits. It is said.
TEST(Effective, PagesAreDecodedOnRequest) {
  const std::string llama = tiny_model("llama");
  const ProgramRun kernels = run_program(perplexity(llama, {"--kv", "int4", "--weights", "f32"}));
  const ProgramRun decoded =
      run_program(perplexity(llama, {"--kv", "int4", "--weights", "f32", "--decode-pages"}));
  ASSERT_EQ(kernels.exit_code, 0) << kernels.err;
  ASSERT_EQ(decoded.exit_code, 0) << decoded.err;
  EXPECT_THAT(decoded.err, HasSubstr("from decoded pages"));
  EXPECT_EQ(decoded.json()["decode_pages"], true);
  EXPECT_EQ(kernels.json()["decode_pages"], false);
  EXPECT_NE(decoded.json()["digest"], kernels.json()["digest"]);
  EXPECT_EQ(decoded.json()["cache_bytes"], kernels.json()["cache_bytes"]);
  const double with = kernels.json()["perplexity"], exact = decoded.json()["perplexity"];
  // The random model's wide logits (a perplexity of 5e5) make much of little.
  EXPECT_NEAR(with, exact, 5e-3 * exact);
}

// The block and the JSON give, layer by layer, what runs: formats, kernels, types, version.
TEST(Effective, CaseG1_CaseH3_TheResolvedTableIsPrinted) {
  const ProgramRun run = run_program(
      perplexity(tiny_model("llama"), {"--kv", "int8", "--kv-layers", "1=nf4_token/bf16", "-v"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json json = run.json();
  ASSERT_EQ(json["kernels"].size(), 3u);
  EXPECT_EQ(json["effective"][1], "nf4_token/bf16");
  EXPECT_EQ(json["kernels"][1]["k"], "nf4_token/rows");
  for (const int layer : {0, 2}) {
    const std::string kernel = json["kernels"][layer]["k"];
    EXPECT_EQ(kernel, "int8_channel_z/" + json["isa"].get<std::string>() + "+hadamard");
    EXPECT_THAT(run.err, HasSubstr(kernel));
  }
  EXPECT_TRUE(json["version"].is_string());
  EXPECT_GT(json["weight_types"].size(), 0u);
}

// Options that can't stand together, by a word of each; the command line's others can.
struct Conflict {
  std::string one, other;
};

// Runs a command with every pair of options, each with a good value: an answer, or one sentence
// that names two that can't go together. How many were refused.
size_t run_pairs(const Words& command, const std::vector<Words>& options,
                 const std::vector<Conflict>& conflicts) {
  size_t refused = 0;
  for (size_t a = 0; a < options.size(); ++a) {
    // A third of the pairs in slow builds, with every option among them.
    for (size_t b = a + 1; b < options.size(); b += kSlowBuild ? 3 : 1) {
      Words words = command;
      words.insert(words.end(), options[a].begin(), options[a].end());
      words.insert(words.end(), options[b].begin(), options[b].end());
      const std::string line = line_of(words);
      const ProgramRun run = run_program(words);
      const bool wrong = std::any_of(conflicts.begin(), conflicts.end(), [&](const Conflict& c) {
        return line.find(c.one) != line.npos && line.find(c.other) == line.npos;
      });
      const bool twice = options[a][0] == options[b][0];
      EXPECT_EQ(run.exit_code, wrong || twice ? 2 : 0) << line << run.err;
      if (run.exit_code == 0) continue;
      ++refused;
      EXPECT_EQ(run.err_lines(), 1u) << line << run.err;
      const bool named = std::any_of(conflicts.begin(), conflicts.end(), [&](const Conflict& c) {
        return run.err.find(c.one.substr(0, c.one.find(' '))) != run.err.npos &&
               run.err.find(c.other) != run.err.npos;
      });
      EXPECT_TRUE(named || twice) << line << run.err;
    }
  }
  return refused;
}

TEST(Effective, CaseH2_NoPairOfOptionsEndsInASignal) {
  const std::vector<Words> cache = {{"--kv", "k8v4"},         {"--kv-layers", "0=f32;1=int4_token"},
                                    {"--sinks", "0"},         {"--exact-window", "64"},
                                    {"--rotation-seed", "7"}, {"--strict"},
                                    {"--weights", "q4_0"},    {"--threads", "1"}};
  std::vector<Words> measure = cache;
  measure.insert(measure.end(), {{"--invariant"},
                                 {"--context", "140"},
                                 {"--chunk", "64"},
                                 {"--chunk", "100"},
                                 {"--no-baseline"},
                                 {"--json"}});
  const size_t refused =
      run_pairs({"perplexity", tiny_model("llama"), "--ids-file", ids_file(150, 64)}, measure,
                {{"--chunk 100", "--invariant"}});
  if (!kSlowBuild) {
    EXPECT_EQ(refused, measure.size() - 2) << "--chunk 100 with everything but --invariant";
  }
  std::vector<Words> generate(cache.begin(), cache.begin() + 3);
  generate.insert(generate.end(), {{"--temperature", "0.7"},
                                   {"--top-k", "5"},
                                   {"--top-p", "0.9"},
                                   {"--min-p", "0.1"},
                                   {"--repeat-penalty", "1.1"},
                                   {"--stop", "zz"},
                                   {"--chat"},
                                   {"--ignore-end"}});
  EXPECT_EQ(run_pairs({"generate", tiny_chat_model(), "-p", "Why?", "-n", "4"}, generate, {}), 0u);
}

// Case A10: a longer context than the model's is an error, never a silent cut.
TEST(Effective, CaseA10_AContextBeyondTheModelIsAnErrorInEveryCommand) {
  const std::string model = tiny_chat_model();
  for (const Words& command : {Words{"generate", model, "-p", "x"},
                               {"chat", model},
                               {"perplexity", model, "--ids-file", ids_file(400, 64)},
                               {"compare", model, "--ids-file", ids_file(400, 64)}}) {
    Words words = command;
    words.insert(words.end(), {"--context", "257"});
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.exit_code, 2) << line_of(words);
    EXPECT_THAT(run.err, HasSubstr("--context 257"));
    EXPECT_THAT(run.err, HasSubstr("at most 256 tokens"));
  }
}

// What follows `begin` in the lines of a text that start with it; a line that ends in a backslash
// goes on in the next.
std::vector<std::string> lines_after(const std::string& begin, const std::string& text) {
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(begin)) continue;
    out.push_back(line.substr(begin.size()));
    while (out.back().ends_with('\\') && std::getline(lines, line)) {
      out.back().pop_back();
      out.back() += line;
    }
  }
  return out;
}

// What the help and the README show runs, with a tiny model and less work in the place of the
// example's.
TEST(Effective, CaseH1_WhatIsShownRuns) {
  const std::filesystem::path folder = scratch() / "examples";
  std::filesystem::create_directories(folder / "data");
  std::ofstream(folder / "data/wikitext2-test.txt") << std::string(8000, 'k');
  for (const char* file : {"chat.jsonl", "data/calibration.jsonl"})
    std::ofstream(folder / file) << nlohmann::json{{"text", std::string(200, 'c')}};
  for (const char* file : {"data/alice.txt", "novels.txt"})
    std::ofstream(folder / file) << std::string(400, 'n');
  for (const char* file : {"question.txt", "notes.txt"}) std::ofstream(folder / file) << "Why?";
  const std::string model = quoted(tiny_chat_model());
  const std::pair<std::string, std::string> replacements[] = {
      {"SmolLM2-135M-Instruct.Q4_1.gguf", model},
      {"./Qwen3-0.6B", model},
      {"tests/data/configs/", KVANT_TEST_DATA "/configs/"},
      {"./Llama-3.1-8B", model},
      {"./Llama-3.2-1B", model},
      {"model.gguf", model},
      {"$MODEL", model},
      {"--context 2048", "--context 200"},
      {"--context 512", "--context 200"},
      {"--budget 4", "--budget 8"},        // whose scales take more bits in narrow heads
      {"int4_g32_rot", "int4_token_rot"},  // the tiny model's heads are narrower than a group
      {"--targets --only decode/9x3x64", "--tokens 256 --repeats 3"},  // program_test runs that
      {"--tokens 8192", "--tokens 256 --repeats 3"}};
  std::vector<std::string> examples =
      lines_after("build/kvant ", slurp(KVANT_TEST_DATA "/../../README.md"));
  EXPECT_GE(examples.size(), 4u);
  std::filesystem::copy(KVANT_TEST_DATA "/configs/llama-3.1-8b.json", folder / "config.json");
  for (const char* command :
       {"plan", "calibrate", "compare", "perplexity", "sensitivity", "bench", "generate", "chat",
        "logits", "inspect", "formats", "tokenize", "detokenize", "doctor"}) {
    const std::vector<std::string> shown =
        lines_after("  kvant ", run_program({command, "--help"}).out);
    EXPECT_FALSE(shown.empty()) << command;
    examples.insert(examples.end(), shown.begin(), shown.end());
  }
  for (std::string& example : examples) {
    // A server, and what asks one: serve_test.cc runs both.
    if (example.starts_with("serve ") || example.starts_with("load ")) continue;
    for (const auto& [from, to] : replacements) {
      if (const size_t at = example.find(from); at != example.npos)
        example.replace(at, from.size(), to);
    }
    const std::string shell = "cd " + quoted(folder.string()) + " && " + quoted(KVANT_PROGRAM) +
                              " " + example + " </dev/null >out 2>err";
    EXPECT_EQ(std::system(shell.c_str()), 0) << example << "\n" << slurp(folder / "err");
  }
}

// Case B11: two layers with a huge key bias, named by the comparison together with what keeps them.
TEST(Effective, CaseB11_AComparisonNamesTheLayersThatAHugeKeyBiasRuins) {
  const RandomModel model({.layers = 8, .head_dim = 32, .biased_layers = {0, 7}});
  Words words = {"compare",    model.path().string(),
                 "--ids-file", ids_file(300, 64),
                 "--context",  "300",
                 "--kv",       "bf16,int4_token",
                 "--max-kld",  "1e-9",
                 "--no-speed", "--weights",
                 "f32"};
  const ProgramRun run = run_program(words);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("int4_token: attention of layers 0,7 is"));
  EXPECT_THAT(run.out, HasSubstr("--kv-layers \"0,7=bf16\" keeps them exact"));
  words.push_back("--json");
  const nlohmann::json weak = run_program(words).json()["weak_layers"];
  ASSERT_EQ(weak.size(), 1u) << weak;
  EXPECT_EQ(weak[0]["layers"], (nlohmann::json{0, 7}));
  words.insert(words.end(), {"--kv-layers", "0,7=bf16"});
  EXPECT_EQ(run_program(words).json()["weak_layers"].size(), 0u);
}

}  // namespace
}  // namespace kvant::cli
