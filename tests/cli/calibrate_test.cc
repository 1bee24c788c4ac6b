// kvant calibrate as a user types it, and what the other commands make of its file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tiny_chat_model.h"

namespace kvant::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

std::string write_file(const std::string& name, const std::string& bytes) {
  std::ofstream(scratch() / name, std::ios::binary) << bytes;
  return (scratch() / name).string();
}

// Documents of 200 letters.
std::string some_text() {
  std::string out;
  for (int line = 0; line < 20; ++line) {
    for (int i = 0; i < 200; ++i) out += static_cast<char>('a' + (i * (line + 3) + i / 7) % 26);
    out += "\n";
  }
  return out;
}
std::string text_file() {
  static const std::string path = write_file("calibration.txt", some_text());
  return path;
}

// Heads of 32 channels: two sections.
std::string wide_model() { return tiny_chat_model("qwen3"); }

// The same without a chat template.
std::string templateless_model() {
  const fs::path folder = scratch() / "templateless-model";
  if (fs::exists(folder)) return folder.string();
  fs::copy(wide_model(), folder);
  nlohmann::json config = nlohmann::json::parse(slurp(folder / "tokenizer_config.json"));
  config.erase("chat_template");
  std::ofstream(folder / "tokenizer_config.json") << config;
  return folder.string();
}

std::string out_folder(const std::string& name) {
  fs::create_directories(scratch() / name);
  return (scratch() / name).string();
}

ProgramRun calibrate(const std::string& model, Words words) {
  words.insert(words.begin(), {"calibrate", model, "--max-length", "200"});
  return run_program(words);
}

ProgramRun perplexity(Words words) {
  const std::string text = write_file("test.txt", some_text().substr(1000));
  words.insert(words.begin(),
               {"perplexity", wide_model(), "--text", text, "--context", "250", "--json"});
  return run_program(words);
}

TEST(Calibrate, MakesAFileThatPresetsUse) {
  const std::string out = out_folder("calibrated");
  const ProgramRun run =
      calibrate(wide_model(), {"--data", text_file(), "--samples", "3", "--out", out, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["notes"], nlohmann::json::array());
  EXPECT_EQ(run.json()["path"], out + "/kvant-cache.safetensors");
  EXPECT_EQ(run.json()["documents"], 3);
  EXPECT_GT(run.json()["tokens"], 500);

  const ProgramRun plain = perplexity({"--kv", "int4"});
  for (const std::string& path : {out, out + "/kvant-cache.safetensors"}) {
    const ProgramRun used = perplexity({"--kv", "int4", "--calibration", path});
    ASSERT_EQ(used.exit_code, 0) << used.err;
    EXPECT_EQ(used.json()["effective"][0], "tc4/int4_token_z_lsq_rot");
    EXPECT_EQ(used.json()["calibration"]["data"], run.json()["data"]);
    EXPECT_NE(used.json()["digest"], plain.json()["digest"]);
    EXPECT_LE(used.json()["cache_bytes"], plain.json()["cache_bytes"]) << "no factors per token";
    EXPECT_THAT(used.err, HasSubstr("learned"));
  }
  for (const char* kv : {"tc3/bf16", "tc2/int2_token", "int2", "int3"})
    EXPECT_EQ(perplexity({"--kv", kv, "--calibration", out}).exit_code, 0) << kv;
}

// What will run is what is planned: the calibrated formats, to the byte.
TEST(Calibrate, PlansCountWhatItMakesOfPresets) {
  const std::string out = out_folder("planned");
  ASSERT_EQ(calibrate(wide_model(),
                      {"--data", text_file(), "--for", "tc,int8_tensor,nvfp4_tensor", "--out", out})
                .exit_code,
            0);
  const auto planned = [&](const std::string& model, Words words) {
    words.insert(words.begin(), {"plan", model, "--tokens", "250", "--json"});
    return run_program(words);
  };
  for (const char* kv : {"int4", "int3", "int2", "tc3/bf16", "int8_tensor", "nvfp4_tensor"}) {
    const ProgramRun plan = planned(wide_model(), {"--kv", kv, "--calibration", out});
    ASSERT_EQ(plan.exit_code, 0) << plan.err;
    const ProgramRun used = perplexity({"--kv", kv, "--calibration", out, "--no-baseline"});
    ASSERT_EQ(used.exit_code, 0) << used.err;
    const nlohmann::json row = plan.json()["rows"][0];
    EXPECT_EQ(row["kv_bytes"], used.json()["cache_bytes"]) << kv;
    const std::string key = row["k_format"], value = row["v_format"];
    const std::string pair = key == value ? key : key + "/" + value;
    const std::string effective = used.json()["effective"][0];
    EXPECT_EQ(pair, effective);
  }
  const ProgramRun without = planned(wide_model(), {"--kv", "int4"});
  EXPECT_NE(without.json()["rows"][0]["k_format"], "tc4");
  EXPECT_EQ(planned(wide_model(), {"--kv", "int8_tensor"}).exit_code, 2);
  EXPECT_THAT(planned(tiny_model("llama"), {"--calibration", out}).err,
              HasSubstr("was made for another model"));
  // Of a configuration alone nothing can tell.
  const std::string config =
      write_file("config-alone.json", slurp(fs::path(wide_model()) / "config.json"));
  const ProgramRun alone = planned(config, {"--kv", "int4", "--calibration", out});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(alone.json()["rows"][0]["k_format"], "tc4");
  EXPECT_THAT(alone.json()["notes"].dump(), HasSubstr("can't be told"));
  // A model's directory brings its own along, as where it runs.
  const fs::path folder = scratch() / "planned-model";
  fs::copy(wide_model(), folder);
  fs::copy(fs::path(out) / "kvant-cache.safetensors", folder);
  EXPECT_EQ(planned(folder.string(), {"--kv", "int4"}).json()["rows"][0]["k_format"], "tc4");
  EXPECT_NE(planned(folder.string(), {"--kv", "int4", "--calibration", "none"})
                .json()["rows"][0]["k_format"],
            "tc4");
}

// Beside a directory's own files, which stay what they are.
TEST(Calibrate, TheFileMayLieBesideTheModel) {
  const fs::path folder = scratch() / "with-sidecar";
  fs::copy(wide_model(), folder);
  const std::string model = folder.string();
  ASSERT_EQ(calibrate(model, {"--data", text_file()}).exit_code, 0);
  ASSERT_EQ(calibrate(model, {"--data", text_file()}).exit_code, 0) << "again";
  const ProgramRun run = run_program(
      {"generate", model, "-p", "x", "-n", "2", "--kv", "int4", "--calibration", model});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const ProgramRun plan = run_program({"plan", model, "--json", "--tokens", "64"});
  EXPECT_EQ(plan.json()["weight_bytes"],
            run_program({"plan", wide_model(), "--json", "--tokens", "64"}).json()["weight_bytes"]);
}

// K2: a seed, whatever the threads and chunks, gives the same file.
TEST(Calibrate, TheSameTextGivesTheSameBytes) {
  std::string first;
  for (const Words& words : {Words{"--threads", "1"}, {"--threads", "2", "--chunk", "64"}, {}}) {
    const std::string out = out_folder("again");
    Words all = {"--data", text_file(), "--samples", "6", "--seed", "5", "--out", out};
    all.insert(all.end(), words.begin(), words.end());
    ASSERT_EQ(calibrate(wide_model(), all).exit_code, 0);
    const std::string bytes = slurp(fs::path(out) / "kvant-cache.safetensors");
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
  const std::string out = out_folder("other");
  ASSERT_EQ(calibrate(wide_model(),
                      {"--data", text_file(), "--samples", "6", "--seed", "6", "--out", out})
                .exit_code,
            0);
  EXPECT_NE(slurp(fs::path(out) / "kvant-cache.safetensors"), first);
}

TEST(Calibrate, ReadsChatsThroughTheModelsTemplate) {
  std::string lines;
  for (int i = 0; i < 4; ++i) {
    lines += nlohmann::json{{"messages",
                             {{{"role", "user"}, {"content", some_text().substr(0, 90)}},
                              {{"role", "assistant"}, {"content", some_text().substr(300, 90)}}}}}
                 .dump() +
             "\n";
  }
  lines += nlohmann::json{{"text", "short"}}.dump() + "\n";
  const std::string file = write_file("chats.jsonl", lines + "nonsense\n");
  const std::string out = out_folder("chats");
  const ProgramRun strict = calibrate(wide_model(), {"--data", file, "--out", out});
  EXPECT_EQ(strict.exit_code, 2);
  EXPECT_THAT(strict.err, HasSubstr("chats.jsonl: line 6"));
  const ProgramRun run =
      calibrate(wide_model(), {"--data", file, "--out", out, "--skip-bad", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["skipped_lines"], 1);
  EXPECT_EQ(run.json()["too_short"], 1);
  EXPECT_EQ(run.json()["documents"], 5);
}

// The model has no chat template.
TEST(Calibrate, ADocumentThatTheModelCantReadIsSkippedWhereAskedFor) {
  const nlohmann::json chat = {{"messages", {{{"role", "user"}, {"content", some_text()}}}}};
  const nlohmann::json text = {{"text", some_text()}};
  const std::string file = write_file("mixed.jsonl", text.dump() + "\n" + chat.dump() + "\n");
  const std::string out = out_folder("mixed");
  const ProgramRun strict = calibrate(templateless_model(), {"--data", file, "--out", out});
  EXPECT_EQ(strict.exit_code, 2);
  EXPECT_THAT(strict.err, HasSubstr("mixed.jsonl: line 2: the model has no chat template"));
  const ProgramRun run =
      calibrate(templateless_model(), {"--data", file, "--out", out, "--skip-bad", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["skipped_lines"], 0);
  EXPECT_EQ(run.json()["skipped_documents"], 1);
}

// Another basis in the same file, for the formats that name it.
TEST(Calibrate, BalancedFormatsHaveABasisOfTheirOwn) {
  const std::string out = out_folder("balanced");
  const Words data = {"--data", text_file(), "--samples", "8", "--out", out, "--for"};
  for (const char* formats : {"bal4,bal3,bal2,bal8", "tc4,bal4"}) {
    Words words = data;
    words.push_back(formats);
    ASSERT_EQ(calibrate(wide_model(), words).exit_code, 0) << formats;
    const ProgramRun run = perplexity({"--kv", "bal4/int8_token", "--calibration", out});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.json()["effective"][0], "bal4/int8_token");
  }
  EXPECT_THAT(perplexity({"--kv", "bal3/bf16", "--calibration", out}).err,
              HasSubstr("needs to be calibrated"));
}

TEST(Calibrate, WhatCantBeIsOneSentence) {
  const std::string out = out_folder("refused");
  const auto said = [&](Words words) {
    words.insert(words.end(), {"--out", out});
    const ProgramRun run = calibrate(wide_model(), words);
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_EQ(run.err_lines(), 1u) << run.err;
    EXPECT_FALSE(fs::exists(fs::path(out) / "kvant-cache.safetensors"));
    return run.err;
  };
  EXPECT_THAT(said({}), HasSubstr("--data"));
  EXPECT_THAT(said({"--data", "/nowhere.txt"}), HasSubstr("/nowhere.txt"));
  EXPECT_THAT(said({"--data", write_file("empty.txt", "")}), HasSubstr("holds no document"));
  EXPECT_THAT(said({"--data", text_file(), "--for", "int4"}), HasSubstr("--for int4"));
  EXPECT_THAT(said({"--data", text_file(), "--samples", "0"}), HasSubstr("--samples 0"));
}

// An option that a run would pass over isn't passed over in silence.
TEST(Calibrate, OptionsThatDontGoTogetherAreRefused) {
  const fs::path out = scratch() / "apart" / "deeper";
  const auto said = [&](Words words) {
    words.insert(words.begin(), {"calibrate", wide_model()});
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.exit_code, 2) << run.err;
    EXPECT_EQ(run.err_lines(), 1u) << run.err;
    return run.err;
  };
  const auto on_text = [&](Words words) {
    words.insert(words.end(), {"--data", text_file()});
    return said(words);
  };
  for (const Words& words :
       {Words{"--method", "mse"}, {"--held-out", text_file()}, {"--sinks", "64"}}) {
    EXPECT_THAT(on_text(words), HasSubstr(words[0] + " doesn't go with --for tc4,tc3,tc2: "));
  }
  EXPECT_THAT(on_text({"--buckets", "64,128", "--max-length", "64", "--for", "int8_head"}),
              HasSubstr("--max-length doesn't go with --buckets"));
  EXPECT_THAT(on_text({"--stability", "--for", "tc4"}),
              HasSubstr("--stability: tc4 has no scales"));
  EXPECT_THAT(on_text({"--stability", "--resume"}), HasSubstr("--resume doesn't go with"));
  EXPECT_THAT(on_text({"--stability", "--out", out.string()}), HasSubstr("--out doesn't go with"));
  for (const Words& words : {Words{"--method", "mse"}, {"--samples", "3"}, {"--resume"}}) {
    Words fixed = words;
    fixed.insert(fixed.end(), {"--source", "fixed", "--for", "int8_head"});
    EXPECT_THAT(said(fixed), HasSubstr(words[0] + " doesn't go with --source fixed"));
  }
  EXPECT_THAT(said({"--stability", "--source", "fixed", "--for", "int8_head"}),
              HasSubstr("--stability doesn't go with --source fixed"));
  EXPECT_THAT(on_text({"--for", "int8_head,nvfp4_tensor", "--method", "mse"}),
              HasSubstr("--method mse: nvfp4_tensor rounds whole blocks"));
  EXPECT_THAT(said({"--source", "random", "--skip-bad"}),
              HasSubstr("--skip-bad doesn't go with --source random"));
  EXPECT_THAT(on_text({"--for", "tc,tc4"}), HasSubstr("tc4 is named twice"));
  EXPECT_THAT(on_text({"--for", "int8_head,int8_head"}), HasSubstr("int8_head is there twice"));
  EXPECT_THAT(on_text({"--resume", "--out", out.string()}), HasSubstr("nothing to resume"));
}

// A failed run leaves no directory behind, whenever it fails.
TEST(Calibrate, NothingFoundIsAnErrorAndNoFile) {
  const fs::path out = scratch() / "nothing" / "deeper";
  const auto said = [&](Words words) {
    words.insert(words.begin(), {"calibrate", wide_model(), "--out", out.string()});
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.exit_code, 2) << run.out;
    EXPECT_FALSE(fs::exists(out.parent_path()));
    return run.err;
  };
  EXPECT_THAT(said({"--data", text_file(), "--samples", "2", "--max-length", "128"}),
              HasSubstr("no document that the model can read has 129 tokens"));
  EXPECT_THAT(
      said({"--data", text_file(), "--max-length", "192", "--sinks", "192", "--for", "int8_head"}),
      HasSubstr("nothing was found to write: layers 0-2 get no scales: no document has a "
                "token behind the first 192"));
  EXPECT_THAT(
      said({"--source", "random", "--samples", "1", "--max-length", "32", "--for", "int8_head"}),
      HasSubstr("random tokens of seed 0: 32 tokens in all"));
  EXPECT_THAT(said({"--data", "/nowhere.txt"}), HasSubstr("/nowhere.txt"));
  const ProgramRun latent =
      run_program({"calibrate", tiny_model("deepseek_v2"), "--source", "random", "--samples", "2",
                   "--max-length", "96", "--for", "int8_head", "--out", out.string()});
  EXPECT_EQ(latent.exit_code, 2);
  EXPECT_THAT(latent.err, HasSubstr("nothing was found to write: no layer keeps a K and a V"));
}

TEST(Calibrate, ChatsNeedAChatTemplate) {
  const fs::path model = scratch() / "no-template";
  fs::copy(wide_model(), model);
  std::ofstream(model / "tokenizer_config.json") << R"({"bos_token": "<s>"})";
  const std::string chats =
      write_file("chat.jsonl", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  const ProgramRun run = calibrate(model.string(), {"--data", chats});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("chat.jsonl: line 1: the model has no chat template; wanted a "
                                 "chat model, or documents with \"text\""));
}

TEST(Calibrate, DocumentsShorterThanTwoPagesAreRefused) {
  const ProgramRun run = calibrate(
      wide_model(),
      {"--data", write_file("short.txt", "A few words.\n"), "--out", out_folder("short")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("no document that the model can read has 129 tokens"));
}

TEST(Calibrate, AFileOfAnotherModelIsRefused) {
  const std::string out = out_folder("mine");
  ASSERT_EQ(calibrate(wide_model(), {"--data", text_file(), "--out", out}).exit_code, 0);
  const ProgramRun run = run_program({"perplexity", tiny_model("llama"), "--ids-file",
                                      write_file("ids.txt", "1 2 3 4 5 6 7 8"), "--context", "8",
                                      "--kv", "int4", "--calibration", out});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("was made for another model"));
  EXPECT_THAT(perplexity({"--kv", "tc4/bf16"}).err, HasSubstr("needs to be calibrated"));
  EXPECT_EQ(perplexity({"--kv", "int4", "--calibration", "/nowhere"}).exit_code, 2);
}

}  // namespace
}  // namespace kvant::cli
