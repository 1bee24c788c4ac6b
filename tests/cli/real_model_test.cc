// The commands that need a tokenizer and a template, on SmolLM2 where it is installed
// (tools/setup.sh model).

#include <gtest/gtest.h>

#include "run_program.h"

namespace kvant::cli {
namespace {

std::string smollm2() {
  const auto folder = []() -> std::filesystem::path {
    if (const char* cache = std::getenv("KVANT_CACHE")) return cache;
    if (const char* xdg = std::getenv("XDG_CACHE_HOME"))
      return std::filesystem::path(xdg) / "kvant";
    return std::filesystem::path(std::getenv("HOME")) / ".cache/kvant";
  };
  return (folder() / "models/SmolLM2-135M-Instruct.Q4_1.gguf").string();
}

class RealModel : public testing::Test {
 protected:
  void SetUp() override {
    if (*KVANT_SANITIZED) GTEST_SKIP() << "the tiny models go this way under " << KVANT_SANITIZED;
    if (!std::filesystem::exists(smollm2())) GTEST_SKIP() << smollm2() << " isn't there";
  }
};

TEST_F(RealModel, TokenizeAndDetokenizeAreInverse) {
  const std::string text = "Grüße, 世界! \xf0\x9f\x98\x80 12345";
  const ProgramRun run = run_program({"tokenize", smollm2(), "--text", text, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["ids"].size(), run.json()["pieces"].size());
  const ProgramRun back =
      run_program({"detokenize", smollm2(), "--ids", run.json()["ids"].dump(), "--json"});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.json()["text"], text);
}

TEST_F(RealModel, GenerateAnswersTheSameEveryTime) {
  const std::vector<std::string> words = {
      "generate", smollm2(), "-p", "The capital of France is", "-n", "8", "--json"};
  const ProgramRun one = run_program(words);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_NE(one.json()["text"].get<std::string>().find("Paris"), std::string::npos) << one.out;
  EXPECT_EQ(run_program(words).json()["tokens"], one.json()["tokens"]);
  EXPECT_EQ(one.json()["finish_reason"], "length");
  EXPECT_GT(one.json()["cache_bytes"], 0);
}

TEST_F(RealModel, ChatGoesOnFromTurnToTurn) {
  const ProgramRun run = run_program({"chat", smollm2(), "-n", "12", "--kv", "int8"},
                                     "My name is Ada.\nWhat is my name?\n");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_GE(std::count(run.out.begin(), run.out.end(), '\n'), 2);
  EXPECT_NE(run.err.find("of them cached"), std::string::npos) << run.err;
}

TEST_F(RealModel, GenerateStopsAtAStopString) {
  const ProgramRun run = run_program(
      {"generate", smollm2(), "-p", "One, two, three,", "-n", "24", "--stop", "six", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["text"].get<std::string>().find("six"), std::string::npos) << run.out;
}

TEST_F(RealModel, CompareOfTheHousePresets) {
  const ProgramRun run = run_program({"compare", smollm2(), "--context", "384", "--kv",
                                      "bf16,int8,int4,int2", "--no-speed", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = run.json()["rows"];
  EXPECT_EQ(rows[0]["kld"], 0.0);
  EXPECT_EQ(rows[0]["kld_p99"], 0.0);
  EXPECT_EQ(rows[0]["top1"], 1.0);
  EXPECT_LT(rows[1]["kld"], 5e-4);
  EXPECT_GT(rows[1]["sealed_read_share"], 0.2);
  EXPECT_GT(rows[3]["kld"], rows[2]["kld"]);
}

}  // namespace
}  // namespace kvant::cli
