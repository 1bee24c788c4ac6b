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

std::string fresh_folder(const std::string& name) {
  std::filesystem::remove_all(scratch() / name);
  return (scratch() / name).string();
}

nlohmann::json inspect(const std::string& path) {
  const ProgramRun run = run_program({"inspect", path, "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return run.json()["calibration"];
}

// What was printed is what the file keeps, to the bit.
TEST(SensitivityOut, KeepsWhatWasMeasured) {
  const std::string out = fresh_folder("kept");
  const ProgramRun run = sensitivity({"--kv", "int8,int4/int2_token", "--out", out, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json json = run.json(), kept = inspect(out)["sensitivities"];
  EXPECT_EQ(json["path"], out + "/kvant-cache.safetensors");
  EXPECT_THAT(kept["command"].get<std::string>(), HasSubstr("--kv int8,int4/int2_token"));
  EXPECT_EQ(kept["data"].get<std::string>().size(), 32u);
  EXPECT_EQ(kept["tokens"], 250);
  EXPECT_EQ(kept["proposal"]["kv"], json["proposal"]["kv"]);
  EXPECT_EQ(kept["proposal"]["kld"], json["proposal"]["kld"]);
  ASSERT_EQ(kept["formats"].size(), 2u);
  for (size_t f = 0; f < 2; ++f) {
    const nlohmann::json &a = kept["formats"][f], &b = json["formats"][f];
    EXPECT_EQ(a["format"], b["format"]);
    ASSERT_EQ(a["layers"].size(), b["layers"].size());
    for (size_t l = 0; l < a["layers"].size(); ++l) {
      for (const char* key : {"layer", "scores", "outputs", "kld", "kld_error", "heads"})
        EXPECT_EQ(a["layers"][l][key], b["layers"][l][key]) << l << " " << key;
    }
  }
  const ProgramRun text = run_program({"inspect", out, "--per-head"});
  for (const char* part : {"nothing but sensitivities", "int4/int2_token scores", "0.0 ", "mix of"})
    EXPECT_THAT(text.out, HasSubstr(part));
  // It is no calibration: presets mean what they mean without.
  const ProgramRun plain = run_program({"perplexity", tiny_chat_model("qwen3"), "--text",
                                        test_text(), "--context", "250", "--kv", "int4", "--json"});
  const ProgramRun used =
      run_program({"perplexity", tiny_chat_model("qwen3"), "--text", test_text(), "--context",
                   "250", "--kv", "int4", "--calibration", out, "--json"});
  ASSERT_EQ(used.exit_code, 0) << used.err;
  EXPECT_EQ(used.json()["digest"], plain.json()["digest"]);
}

TEST(SensitivityOut, CalibrationsGoAlongOrStayWhereTheyAre) {
  const std::string model = tiny_chat_model("qwen3"), calibration = fresh_folder("calibration");
  ASSERT_EQ(run_program({"calibrate", model, "--data", test_text(), "--max-length", "200", "--out",
                         calibration})
                .exit_code,
            0);
  const nlohmann::json before = inspect(calibration);
  const ProgramRun refused = sensitivity({"--kv", "int8,int2", "--out", calibration});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("is a calibration that this run doesn't use"));
  for (const std::string& out : {calibration, fresh_folder("both")}) {
    const ProgramRun run =
        sensitivity({"--kv", "int8,int2", "--calibration", calibration, "--out", out});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    nlohmann::json after = inspect(out);
    EXPECT_FALSE(after["sensitivities"].is_null());
    after["sensitivities"] = nullptr;
    after["path"] = before["path"];
    EXPECT_EQ(after, before);
  }
  // Calibrating anew leaves none of the old measurements, and says so.
  const ProgramRun again = run_program(
      {"calibrate", model, "--data", test_text(), "--max-length", "200", "--out", calibration});
  EXPECT_THAT(again.out, HasSubstr("sensitivities"));
  EXPECT_TRUE(inspect(calibration)["sensitivities"].is_null());
}

TEST(SensitivityOut, AnotherModelsFileIsRefused) {
  const std::string out = fresh_folder("others");
  ASSERT_EQ(sensitivity({"--kv", "int8,int2", "--out", out}).exit_code, 0);
  const ProgramRun run = run_program({"sensitivity", tiny_chat_model(), "--text", test_text(),
                                      "--context", "250", "--kv", "int8,int2", "--out", out});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("was made for another model"));
}

TEST(Sensitivity, OffersNothingThatItRefuses) {
  EXPECT_THAT(run_program({"sensitivity", "--help"}).out,
              testing::Not(HasSubstr("--kv-layers LIST")));
}

TEST(Sensitivity, RefusesWhatCantBe) {
  struct Case {
    Words words;
    const char* message;
  };
  const Case cases[] = {
      {{"--kv", "int8,int4", "--budget", "1"}, "take at least"},
      {{"--budget", "0"}, "--budget 0"},
      {{"--kv-layers", "0=bf16"}, "--kv-layers"},
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
