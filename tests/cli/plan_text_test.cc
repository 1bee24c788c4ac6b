// What kvant plan prints for people.
#include <gmock/gmock.h>

#include <sstream>

#include "plan_runs.h"

namespace kvant::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Words kLoad = {"--device-memory", "24G",           "--prompt", "2k:8k", "--output",
                     "300:1k",          "--concurrency", "16",       "--kv",  "bf16,int4"};

TEST(PlanText, TheHeaderSaysWhatALayerKeeps) {
  const auto header = [](const char* name) {
    return unwrapped(plan(published(name), {"--kv", "bf16", "--tokens", "4k"}));
  };
  EXPECT_THAT(header("llama-3.1-8b"), HasSubstr("8 KV heads of 128 (hidden size 4096 / 32 heads)"));
  EXPECT_THAT(header("llama-3.1-8b"), Not(HasSubstr("note: head_dim")));
  EXPECT_THAT(header("deepseek-v3"), HasSubstr("latents of 576, up to"));
  EXPECT_THAT(header("deepseek-v4-flash"),
              AllOf(HasSubstr("21 sliding + compressed + indexer + state"),
                    HasSubstr("sliding 1 × 512, compressed 1 × 512, indexer 1 × 128")));
  EXPECT_THAT(header("t5-small"), HasSubstr("6 full + cross"));
  EXPECT_THAT(header("gemma-4-26b-a4b"), HasSubstr("sliding 8 × 256, full 2 × 512"));
}

TEST(PlanText, AWorkloadsAnswerLeadsAndUnaskedLengthsAreLeftOut) {
  const std::string model = published("llama-3.1-8b");
  const std::string out = unwrapped(plan(model, kLoad));
  EXPECT_LT(out.find("int4 is the first format in order of quality"), out.find("format"));
  EXPECT_THAT(out, Not(HasSubstr("sealed K/V")));
  Words words = kLoad;
  words.insert(words.end(), {"--tokens", "4k"});
  const std::string both = unwrapped(plan(model, words));
  EXPECT_LT(both.find("average needs"), both.find("sealed K/V"));
  EXPECT_EQ(plan_json(model, kLoad)["rows"].size(), 0u);
  EXPECT_EQ(plan_json(model, kLoad)["workload"].size(), 2u);
}

TEST(PlanText, ADevicesMemoryIsSaidInItsOwnUnitsAndAddsUp) {
  const Words kDevice = {"--device-memory", "24G", "--workspace", "1000000000", "--kv", "int4",
                         "--tokens",        "4k"};
  EXPECT_THAT(unwrapped(plan(published("llama-3.1-8b"), kDevice)),
              AllOf(HasSubstr("device 24 GiB (25.8 GB): weights 16.1 GB (estimated, 8030261248 "
                              "parameters × 16 / 8), workspace 1.00 GB; 8.71 GB left"),
                    HasSubstr("needs")));
  EXPECT_THAT(unwrapped(plan_of(small(), {"--device-memory", "24GB", "--parameters", "1B"})),
              HasSubstr("device 24.0 GB: weights 2.00 GB"));
  EXPECT_THAT(unwrapped(plan(tiny_model("llama"), {"--device-memory", "1G"})),
              HasSubstr("(of the files)"));
}

TEST(PlanText, WhatMultipliesTheRowsStandsAboveThem) {
  EXPECT_THAT(
      unwrapped(plan_of(small(), {"--batch", "3", "--beams", "2", "--shared-prefix", "64"})),
      HasSubstr("batch 3, 2 beams each, a shared prefix of 64 tokens format"));
  EXPECT_THAT(plan_of(small(), {}).out, Not(HasSubstr("batch")));
}

TEST(PlanText, AModelOfConstantStateHasNoBitsAndNoFirstFormat) {
  Words words = kLoad;
  words.insert(words.end(), {"--parameters", "7.3B", "--tokens", "4k"});
  const std::string out = unwrapped(plan(published("mamba-codestral-7b"), words));
  EXPECT_THAT(out, AllOf(HasSubstr("constant state alone, the same in every format: 16 sequences"),
                         Not(HasSubstr("first format")), HasSubstr(" -/- - 0 0 B ")));
}

TEST(PlanText, LinesAreNoWiderThanATerminal) {
  for (const char* name : {"deepseek-v4-flash", "llama-3.1-8b", "gemma-3-27b-it"}) {
    Words words = kLoad;
    words.insert(words.end(), {"--parameters", "8B", "--tokens", "4k,128k"});
    std::istringstream out(plan(published(name), words).out);
    for (std::string line; std::getline(out, line);) EXPECT_LE(line.size(), 125u) << line;
  }
}

TEST(PlanText, HelpHasEveryHeadingOnce) {
  const std::string help = run_program({"plan", "--help"}).out;
  for (const char* title : {"\nOutput\n", "\nPlan\n", "\nDevice\n"})
    EXPECT_EQ(help.find(title), help.rfind(title)) << title;
}

}  // namespace
}  // namespace kvant::cli
