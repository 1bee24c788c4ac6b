// kvant sensitivity as a user types it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiny_chat_model.h"

namespace kvant::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

std::string test_text() {
  static const std::string path = [] {
    std::string text;
    for (int i = 0; i < 600; ++i) text += static_cast<char>('a' + (i * i / 3 + i / 5) % 26);
    const std::string file = (scratch() / "sensitivity.txt").string();
    std::ofstream(file) << text;
    return file;
  }();
  return path;
}

// What isn't given otherwise has a value that works.
ProgramRun sensitivity(Words words) {
  const auto add = [&](const std::string& option, const std::string& value) {
    if (std::find(words.begin(), words.end(), option) != words.end()) return;
    words.insert(words.end(), {option, value});
  };
  add("--text", test_text());
  add("--context", "250");
  words.insert(words.begin(), {"sensitivity", tiny_chat_model("qwen3")});
  return run_program(words);
}

TEST(Sensitivity, TellsEveryLayerAndHeadInEveryFormat) {
  const ProgramRun run = sensitivity({"--kv", "int8,int2", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json json = run.json();
  ASSERT_EQ(json["formats"].size(), 2u);
  const nlohmann::json fine = json["formats"][0], coarse = json["formats"][1];
  ASSERT_GT(fine["layers"].size(), 1u);
  for (size_t l = 0; l < fine["layers"].size(); ++l) {
    const nlohmann::json a = fine["layers"][l], b = coarse["layers"][l];
    EXPECT_LT(a["outputs"], b["outputs"]) << l;
    EXPECT_LT(a["scores"], b["scores"]) << l;
    EXPECT_GT(b["kld"], 0) << l;
    EXPECT_GT(a["page_bytes"], b["page_bytes"]) << l;
    ASSERT_FALSE(b["heads"].empty());
    for (const nlohmann::json& head : b["heads"]) EXPECT_GT(head["outputs"], 0);
  }
  EXPECT_GE(json["rank_correlation"], -1);
  EXPECT_LE(json["rank_correlation"], 1);
}

TEST(Sensitivity, ProposesAMixWithinTheBudgetThatCanBeTyped) {
  const ProgramRun run = sensitivity({"--kv", "int8,int4,int2", "--budget", "6", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json json = run.json(), mix = json["proposal"];
  EXPECT_LE(mix["sealed_bits"], 6);
  EXPECT_GT(mix["sealed_bits"], json["uniform"][2]["sealed_bits"]);
  Words words = {"perplexity", tiny_chat_model("qwen3"),
                 "--text",     test_text(),
                 "--context",  "250",
                 "--kv",       mix["kv"],
                 "--json"};
  if (!mix["kv_layers"].get<std::string>().empty())
    words.insert(words.end(), {"--kv-layers", mix["kv_layers"]});
  const ProgramRun typed = run_program(words);
  ASSERT_EQ(typed.exit_code, 0) << typed.err;
  EXPECT_EQ(typed.json()["kld"], mix["kld"]) << "what is proposed is what was measured";
}

TEST(Sensitivity, TheTextNamesTheMixAndItsFormats) {
  const ProgramRun run = sensitivity({"--kv", "int8,int2", "--budget", "16", "--per-head"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* part :
       {"int8 scores", "KLD alone", "Spearman", "0.0 ", "(--budget 16): --kv int8"})
    EXPECT_THAT(run.out, HasSubstr(part));
}

TEST(Sensitivity, RefusesWhatCantBe) {
  struct Case {
    Words words;
    const char* message;
  };
  const Case cases[] = {
      {{"--kv", "int8,int4", "--budget", "1"}, "take at least"},
      {{"--budget", "0"}, "--budget 0"},
      {{"--kv-layers", "0=bf16"}, "--kv-layers 0=bf16: sensitivity tries every layer"},
      {{"--kv", "int9"}, "int9"},
      {{"--kv", "tc4"}, "tc4 can't store V; wanted it beside another as K/V: tc4/int4_token"},
      {{"--sinks", "256"}, "no query of 250 tokens reads a quantized page"},
      {{"--context", "64"}, "--context 64"},
      {{"--text", "no-such-file"}, "no-such-file"},
  };
  for (const Case& c : cases) {
    const ProgramRun run = sensitivity(c.words);
    EXPECT_NE(run.exit_code, 0);
    EXPECT_THAT(run.err, HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace kvant::cli
