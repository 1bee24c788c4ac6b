// kvant calibrate for scales, inspect --scales, and what the other commands make of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "files/checksum.h"
#include "formats/codec.h"
#include "slow_build.h"
#include "tiny_chat_model.h"

namespace kvant::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

// Documents of 200 letters.
std::string letters(int lines) {
  std::string out;
  for (int line = 0; line < lines; ++line) {
    for (int i = 0; i < 200; ++i) out += static_cast<char>('a' + (i * (line + 3) + i / 7) % 26);
    out += "\n";
  }
  return out;
}
std::string text_file() { return write_file("scales.txt", letters(20)); }

// A model's directory of this test's own.
std::string model_copy(const std::string& name) {
  const fs::path folder = scratch() / name;
  fs::remove_all(folder);
  fs::copy(tiny_chat_model(), folder);
  return folder.string();
}

std::string out_folder(const std::string& name) {
  fs::remove_all(scratch() / name);
  return (scratch() / name).string();
}

ProgramRun calibrate(const std::string& model, Words words) {
  words.insert(words.begin(), {"calibrate", model, "--max-length", "200"});
  return run_program(words);
}

ProgramRun perplexity(const std::string& model, Words words) {
  words.insert(words.begin(),
               {"perplexity", model, "--text", write_file("test.txt", letters(9).substr(1100)),
                "--context", "250", "--json"});
  return run_program(words);
}

std::string sidecar_bytes(const std::string& folder) {
  return slurp(fs::path(folder) / "kvant-cache.safetensors");
}

TEST(CalibrateScales, MakesACheckpointThatIsUsedByItself) {
  const std::string model = model_copy("plain"), out = out_folder("with-scales");
  const ProgramRun run =
      calibrate(model, {"--data", text_file(), "--for", "fp8_e4m3_head,int8_head,int8_tensor,tc4",
                        "--out", out, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["checkpoint"], out);
  EXPECT_EQ(run.json()["scales"]["source"], "dataset");
  // Declared, so that auto takes it; the other formats' scales are there when they are asked for.
  const ProgramRun used = perplexity(out, {});
  ASSERT_EQ(used.exit_code, 0) << used.err;
  EXPECT_EQ(used.json()["declared_kv"], "fp8_e4m3_head");
  EXPECT_EQ(used.json()["effective"][1], "fp8_e4m3_head");
  EXPECT_THAT(used.err, HasSubstr("fp8_e4m3_head has calibrated scales, source dataset"));
  EXPECT_EQ(perplexity(out, {"--kv", "int8_tensor"}).exit_code, 0);
  // The checkpoint's own tensors are the same scales.
  const ProgramRun own = perplexity(out, {"--calibration", "none"});
  ASSERT_EQ(own.exit_code, 0) << own.err;
  EXPECT_THAT(own.err, HasSubstr("fp8_e4m3_head has the checkpoint's scales"));
  EXPECT_EQ(own.json()["digest"], used.json()["digest"]);
  // With the model in its old place and the calibration named it is the same again.
  const ProgramRun named = perplexity(model, {"--kv", "fp8_e4m3_head", "--calibration", out});
  EXPECT_EQ(named.json()["digest"], used.json()["digest"]);
  const ProgramRun dynamic = perplexity(model, {"--kv", "fp8_e4m3_head"});
  EXPECT_NE(dynamic.json()["digest"], used.json()["digest"]);
  EXPECT_THAT(dynamic.err, HasSubstr("scales found page by page"));
  EXPECT_THAT(perplexity(model, {"--kv", "fp8"}).err,
              HasSubstr("a scale fixed at 1, no calibration"));
}

// Whatever the registry has that wants a given scale can be calibrated for and then runs.
TEST(CalibrateScales, EveryFormatThatWantsAScaleGetsOne) {
  const std::string model = tiny_chat_model("qwen3"), out = out_folder("every");
  std::vector<std::string> must;
  std::string all;
  for (const FormatInfo& info : all_formats()) {
    if (!takes_given_scale(info)) continue;
    all += (all.empty() ? "" : ",") + info.name;
    if (info.scale_source == ScaleSource::kGiven) must.push_back(info.name);
  }
  ASSERT_GE(must.size(), 8u);
  const ProgramRun run = calibrate(model, {"--data", text_file(), "--for", all, "--out", out});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const std::string& format : must) {
    EXPECT_THAT(perplexity(model, {"--kv", format}).err, HasSubstr("none was given"));
    const ProgramRun used = perplexity(model, {"--kv", format, "--calibration", out});
    ASSERT_EQ(used.exit_code, 0) << format << ": " << used.err;
    EXPECT_THAT(used.err, HasSubstr(format + " has calibrated scales, source dataset"));
    EXPECT_EQ(used.json()["effective"][0], format);
    EXPECT_LT(used.json()["kld"], 1) << format;
  }
}

TEST(CalibrateScales, TheSameTextGivesTheSameBytes) {
  const std::string model = model_copy("same");
  std::string first;
  for (const Words& words : {Words{"--threads", "1"}, {"--threads", "2", "--chunk", "64"}, {}}) {
    const std::string out = out_folder("same-out");
    Words all = {"--data",   text_file(), "--samples", "3", "--for", "int8_head,fp8_e4m3_tensor",
                 "--method", "mse",       "--out",     out};
    all.insert(all.end(), words.begin(), words.end());
    ASSERT_EQ(calibrate(model, all).exit_code, 0);
    if (first.empty()) first = sidecar_bytes(out);
    EXPECT_EQ(sidecar_bytes(out), first);
  }
}

TEST(CalibrateScales, SourcesSayWhatTheyAre) {
  const std::string model = model_copy("sources");
  const std::string fixed = out_folder("fixed"), random = out_folder("random");
  const ProgramRun run = run_program(
      {"calibrate", model, "--source", "fixed", "--for", "fp8_e4m3_tensor", "--out", fixed});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("scales fixed at 1"));
  const ProgramRun seen = run_program({"inspect", fixed, "--scales"});
  EXPECT_THAT(seen.out, AllOf(HasSubstr("kvant-cache.safetensors: fixed"),
                              HasSubstr("every scale is exactly 1")));
  EXPECT_THAT(perplexity(fixed, {}).err, HasSubstr("kvant-cache.safetensors: no text\n"));
  // The scale 1 is FP8 without a scale.
  EXPECT_EQ(perplexity(fixed, {}).json()["digest"],
            perplexity(model, {"--kv", "fp8"}).json()["digest"]);

  for (int i = 0; i < 2; ++i) {
    const std::string before = i == 0 ? "" : sidecar_bytes(random);
    ASSERT_EQ(calibrate(model, {"--source", "random", "--samples", "3", "--for", "int8_head",
                                "--out", random})
                  .exit_code,
              0);
    if (i > 0) {
      EXPECT_EQ(sidecar_bytes(random), before);
    }
  }
  EXPECT_THAT(perplexity(model, {"--kv", "int8_head", "--calibration", random}).err,
              AllOf(HasSubstr("calibrated scales, source random"),
                    HasSubstr("600 tokens: random tokens of seed 0\n")));
  const auto said = [&](Words words) {
    words.insert(words.end(), {"--out", out_folder("refused")});
    const ProgramRun refused = calibrate(model, words);
    EXPECT_EQ(refused.exit_code, 2) << refused.err;
    EXPECT_EQ(refused.err_lines(), 1u) << refused.err;
    return refused.err;
  };
  EXPECT_THAT(said({"--source", "guess"}), HasSubstr("wanted dataset, random or fixed"));
  EXPECT_THAT(run_program({"calibrate", model, "--source", "fixed", "--for", "tc4"}).err,
              HasSubstr("tc4 has nothing that could be fixed"));
  EXPECT_THAT(said({"--source", "random", "--data", "x"}), HasSubstr("reads no --data"));
  EXPECT_THAT(said({"--data", text_file(), "--for", "int8_head", "--method", "best"}),
              HasSubstr("--method best"));
  const ProgramRun one = calibrate(model, {"--data", write_file("one.txt", "a"), "--for",
                                           "int8_head", "--out", out_folder("one")});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_THAT(one.err, HasSubstr("3 tokens in all, wanted at least 64"));
}

TEST(CalibrateScales, MoreSamplesThanThereAreIsANote) {
  const std::string model = model_copy("few"), out = out_folder("few-out");
  const Words words = {"--data", text_file(), "--samples", "99",
                       "--for",  "int8_head", "--out",     out};
  EXPECT_THAT(calibrate(model, words).out, HasSubstr("note: --samples 99: "));
  Words strict = words;
  strict.push_back("--strict");
  EXPECT_EQ(calibrate(model, strict).exit_code, 2);
}

TEST(CalibrateScales, HeldOutTextHasItsName) {
  const std::string other = write_file("other.txt", letters(30).substr(4500));
  const ProgramRun run =
      calibrate(model_copy("names"), {"--data", text_file(), "--for", "int8_head", "--held-out",
                                      other, "--out", out_folder("names-out")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr(" tokens of " + other + "\n"));
}

TEST(CalibrateScales, BucketsCutDocumentsInTurn) {
  const std::string model = model_copy("buckets"), out = out_folder("buckets-out");
  const ProgramRun run = run_program({"calibrate", model, "--data", text_file(), "--buckets",
                                      "64,128", "--for", "int8_head", "--out", out, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const int documents = run.json()["documents"];
  EXPECT_EQ(run.json()["tokens"], documents / 2 * 192 + documents % 2 * 64);
  EXPECT_THAT(run_program({"calibrate", model, "--data", text_file(), "--buckets", "4,64"}).err,
              HasSubstr("wanted lengths of at least 16"));
}

TEST(CalibrateScales, TextThatWasCalibratedOnIsNoTest) {
  const std::string model = model_copy("overlap"), out = out_folder("overlap-out");
  ASSERT_EQ(calibrate(model, {"--data", text_file(), "--for", "int8_head", "--held-out",
                              text_file(), "--out", out})
                .exit_code,
            0);
  EXPECT_THAT(perplexity(model, {"--kv", "int8_head", "--calibration", out}).err,
              HasSubstr("read of the text were calibrated on"));
  const ProgramRun other = run_program(
      {"perplexity", model, "--kv", "int8_head", "--calibration", out, "--context", "200"});
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err, Not(HasSubstr("calibrated on:")));
}

TEST(CalibrateScales, StabilityIsATableAndNoFile) {
  const std::string model = model_copy("stable");
  const ProgramRun run = run_program(
      {"calibrate", "--stability", model, "--data", text_file(), "--max-length", "64", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto rows = run.json()["stability"];
  EXPECT_GE(rows.size(), 8u);
  EXPECT_EQ(rows.back()["most"], 0) << "the last stage is what others are compared with";
  EXPECT_FALSE(fs::exists(fs::path(model) / "kvant-cache.safetensors"));
}

// Ctrl-C ends it between two documents; --resume goes on to the bytes of an undisturbed run.
TEST(CalibrateScales, ResumesToTheSameBytes) {
  const std::string model = model_copy("resume");
  const std::string data = write_file("long.txt", letters(600));
  const auto words = [&](const std::string& out) {
    return Words{"calibrate",    model,           "--data",    data,
                 "--max-length", "200",           "--samples", "60",
                 "--for",        "tc4,int8_head", "--out",     out};
  };
  const std::string whole = out_folder("whole"), cut = out_folder("cut");
  ASSERT_EQ(run_program(words(whole)).exit_code, 0);
  fs::create_directories(cut);
  const fs::path state = fs::path(cut) / "kvant-calibrate.state";
  // The state appears only after the signal; signals are sent until the program is there to heed.
  Words resumed = words(cut);
  resumed.push_back("--resume");
  EXPECT_THAT(run_program(resumed).err, HasSubstr("there is nothing to resume"));
  bool interrupted = false;
  for (const char* delay : {"0.2", "0.1", "0.4", "0.05", "0.8", "0.02"}) {
    const ProgramRun run =
        run_shell("timeout --signal=INT " + std::string(delay) + " " + command_line(words(cut)));
    interrupted = fs::exists(state);
    if (interrupted) {
      EXPECT_THAT(run.err, HasSubstr("the same command with --resume goes on"));
      break;
    }
  }
  if (!interrupted) GTEST_SKIP() << "the machine was too slow or too fast to be interrupted";
  const ProgramRun rest = run_program(resumed);
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(sidecar_bytes(cut), sidecar_bytes(whole));
  EXPECT_FALSE(fs::exists(state));
}

// Nothing tells a killed program to save: what it kept now and then is there.
TEST(CalibrateScales, ResumesToTheSameBytesAfterAKill) {
  const std::string model = model_copy("killed");
  const int count = kSlowBuild ? 300 : 3000;  // more than a second's
  const std::string samples = std::to_string(count);
  const std::string data = write_file("longer.txt", letters(count + count / 3));
  const auto words = [&](const std::string& out) {
    return Words{"calibrate", model,       "--data", data,    "--max-length",
                 "200",       "--samples", samples,  "--for", "tc4,int8_head,int8_tensor_rot",
                 "--out",     out};
  };
  const std::string whole = out_folder("killed-whole"), cut = out_folder("killed-cut");
  ASSERT_EQ(run_program(words(whole)).exit_code, 0);
  const fs::path state = fs::path(cut) / "kvant-calibrate.state";
  const ProgramRun run = run_shell(command_line(words(cut)) + " & pid=$!; i=0; while [ ! -e " +
                                   quoted(state.string()) +
                                   " ] && kill -0 $pid && [ $i -lt 3000 ]; do sleep 0.01; "
                                   "i=$((i+1)); done; kill -9 $pid; wait $pid");
  if (!fs::exists(state)) GTEST_SKIP() << "it was done before it kept anything";
  EXPECT_FALSE(fs::exists(fs::path(cut) / "kvant-cache.safetensors"));
  Words resumed = words(cut);
  resumed.insert(resumed.end(), {"--resume", "--json"});
  const ProgramRun rest = run_program(resumed);
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(sidecar_bytes(cut), sidecar_bytes(whole));
  EXPECT_FALSE(fs::exists(state));
}

TEST(CalibrateScales, SkippedDocumentsOfTheHeldOutTextAreSaid) {
  const std::string other = write_file(
      "bad-others.jsonl", "{\"text\": \"" + letters(1).substr(0, 200) + "\"}\nno document\n");
  const Words words = {"--data",     text_file(), "--for", "int8_head",
                       "--held-out", other,       "--out", out_folder("held-out-bad")};
  EXPECT_EQ(calibrate(model_copy("held-out"), words).exit_code, 2);
  Words skipping = words;
  skipping.push_back("--skip-bad");
  const ProgramRun run = calibrate(model_copy("held-out"), skipping);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("note: --held-out: 1 bad line skipped"));
}

// Per tensor, head and channel: where the magnitudes end.
TEST(InspectScales, ShowsWhereMagnitudesEnd) {
  const std::string model = model_copy("clips"), out = out_folder("clips-out");
  ASSERT_EQ(
      calibrate(model, {"--data", text_file(), "--for", "int8_head,int8_tensor", "--out", out})
          .exit_code,
      0);
  int channels = 0;
  const nlohmann::json listed = run_program({"inspect", out, "--scales", "--json"}).json();
  for (const auto& entry : listed["scales"]) {
    const nlohmann::json& clips = entry["clips"];
    double last = 0;
    for (const char* name : {"percentile:99", "percentile:99.9", "percentile:99.99"}) {
      EXPECT_GE(clips[name], last) << entry;
      last = clips[name];
    }
    EXPECT_LE(last, entry["largest"].get<double>());
    for (const char* name : {"mse:8", "mse:4"}) {
      EXPECT_GE(clips[name], 0.2 * entry["largest"].get<double>());
      EXPECT_LE(clips[name], entry["largest"].get<double>());
    }
    if (entry["head"].is_null()) continue;
    double most = 0;
    for (const nlohmann::json& channel : entry["channels"]) {
      most = std::max(most, channel["percentile:99.99"].get<double>());
      ++channels;
    }
    EXPECT_EQ(most, entry["largest"].get<double>()) << "too few tokens for anything beyond";
  }
  EXPECT_GT(channels, 3 * 3 * 16);
  EXPECT_THAT(run_program({"inspect", out, "--scales"}).out,
              AllOf(HasSubstr("99.9 %"), HasSubstr("8-bit clip"), HasSubstr(" to ")));
}

TEST(InspectScales, ListsWhatIsWrong) {
  const std::string model = model_copy("inspected"), out = out_folder("inspected-out");
  ASSERT_EQ(
      calibrate(model, {"--data", text_file(), "--for", "fp8_e4m3_tensor", "--out", out}).exit_code,
      0);
  const ProgramRun good = run_program({"inspect", out, "--scales", "--json"});
  ASSERT_EQ(good.exit_code, 0) << good.err;
  const nlohmann::json listed = good.json()["scales"];
  for (const auto& entry : listed) EXPECT_EQ(entry["complaint"], "") << entry;
  EXPECT_EQ(run_program({"inspect", out, "--scales", "--strict"}).exit_code, 0);
  EXPECT_EQ(good.json()["scales"].size(), 2 * 3 * 3u) << "q, k and v of three layers, in two files";

  // A zero and a NaN among the sidecar's bytes: listed by inspect, refused by what would use them.
  std::string bytes = sidecar_bytes(out);
  const auto header =
      nlohmann::json::parse(bytes.substr(8, *reinterpret_cast<const uint64_t*>(bytes.data())));
  const size_t data = 8 + *reinterpret_cast<const uint64_t*>(bytes.data());
  const auto put = [&](const char* name, float value) {
    const size_t at = data + header[name]["data_offsets"][0].get<size_t>();
    bytes.replace(at, 4, reinterpret_cast<const char*>(&value), 4);
  };
  put("layers.0.k.fp8_e4m3_tensor.scale", 0);
  put("layers.1.v.fp8_e4m3_tensor.scale", std::nanf(""));
  put("layers.2.k.fp8_e4m3_tensor.scale", 5000);
  std::ofstream(fs::path(out) / "kvant-cache.safetensors", std::ios::binary) << bytes;
  const ProgramRun damaged = run_program({"inspect", out, "--scales"});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("kvant-cache.safetensors is damaged: its bytes sum up to"));
  std::ofstream(fs::path(out) / "kvant-cache.safetensors", std::ios::binary)
      << with_checksum(bytes);
  const ProgramRun bad = run_program({"inspect", out, "--scales"});
  EXPECT_EQ(bad.exit_code, 0);
  EXPECT_THAT(bad.out, AllOf(HasSubstr("zero"), HasSubstr("NaN"), HasSubstr("absurd"),
                             HasSubstr("3 wrong")));
  const ProgramRun strict = run_program({"inspect", out, "--scales", "--strict"});
  EXPECT_EQ(strict.exit_code, 2);
  EXPECT_EQ(strict.out, bad.out);
  EXPECT_THAT(strict.err, HasSubstr("--strict: 3 of 18 scales"));
  EXPECT_EQ(strict.err_lines(), 1u);
  EXPECT_THAT(run_program({"inspect", out, "--strict"}).err, HasSubstr("wanted --scales"));
  const ProgramRun refused = perplexity(out, {});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("layers.0.k.fp8_e4m3_tensor.scale: the scale 0"));
  EXPECT_THAT(run_program({"inspect", model, "--scales"}).out, HasSubstr("no scales"));
}

// Scales of one layer among a model's weights, in a shard of their own.
std::string model_with_scales(const std::string& name,
                              const std::map<std::string, std::vector<float>>& scales) {
  const std::string model = model_copy(name);
  nlohmann::json header, index;
  std::ifstream(fs::path(model) / "model.safetensors.index.json") >> index;
  std::string data;
  for (const auto& [scale, values] : scales) {
    const std::string tensor = "model.layers.0.self_attn." + scale;
    const size_t begin = data.size(), bytes = values.size() * sizeof(float);
    data.append(reinterpret_cast<const char*>(values.data()), bytes);
    header[tensor] = {
        {"dtype", "F32"}, {"shape", {values.size()}}, {"data_offsets", {begin, begin + bytes}}};
    index["weight_map"][tensor] = "scales.safetensors";
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream(fs::path(model) / "scales.safetensors", std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof length) << text << data;
  std::ofstream(fs::path(model) / "model.safetensors.index.json") << index;
  return model;
}

// A missing scale that is taken as 1 isn't the checkpoint's.
TEST(CalibrateScales, ScalesThatAreAssumedAreNamed) {
  const std::string model = model_with_scales("lacking", {{"k_scale", {0.25f}}});
  nlohmann::json config = nlohmann::json::parse(slurp(fs::path(model) / "config.json"));
  config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"kv_cache_scheme",
                                    {{"num_bits", 8},
                                     {"type", "float"},
                                     {"strategy", "tensor"},
                                     {"symmetric", true},
                                     {"dynamic", false}}}};
  std::ofstream(fs::path(model) / "config.json") << config;
  const ProgramRun run = perplexity(model, {"--kv", "fp8_e4m3_tensor"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("layers 0: fp8_e4m3_tensor has the checkpoint's scales"),
                    HasSubstr("layers 1-2: fp8_e4m3_tensor has the scale 1 for K, of which the "
                              "checkpoint has none"),
                    HasSubstr("layers 0-2: fp8_e4m3_tensor has the scale 1 for V, of which the "
                              "checkpoint has none")));
}

TEST(InspectScales, AbsurdScalesAndWrongCountsOfACheckpointAreNamed) {
  const std::string model =
      model_with_scales("odd", {{"k_scale", {0.1f, 0.1f, 0.1f}}, {"v_scale", {5000}}});
  const ProgramRun run = run_program({"inspect", model, "--scales"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("one of 3 scales for 2 KV heads"),
                             HasSubstr("absurd: holds 2.24e+06, no K, V or Q is beyond 65536")));
  const std::string fine =
      model_with_scales("even", {{"k_scale", {0.1f, 0.2f}}, {"v_scale", {2}}, {"q_scale", {1}}});
  const nlohmann::json listed =
      run_program({"inspect", fine, "--scales", "--json"}).json()["scales"];
  for (const auto& entry : listed) {
    if (entry["layer"] == 0) {
      EXPECT_EQ(entry["complaint"], "") << entry;
    }
  }
}

}  // namespace
}  // namespace kvant::cli
