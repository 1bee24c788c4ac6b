// The program as users meet it: good commands on tiny models, and a table of bad ones.

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "formats/tested_formats.h"
#include "run_program.h"
#include "slow_build.h"

namespace kvant::cli {
namespace {

const std::string kModel = tiny_model("llama");
constexpr int kVocab = 64;  // smaller than any tiny model's

TEST(Program, HelpTeachesAndEveryCommandShowsAnExample) {
  const ProgramRun help = run_program({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command : {"plan", "compare", "generate", "chat", "perplexity", "logits",
                              "tokenize", "detokenize", "formats", "inspect", "doctor", "bench"}) {
    EXPECT_NE(help.out.find(std::string("\n  ") + command), std::string::npos) << command;
    const ProgramRun one = run_program({command, "--help"});
    EXPECT_EQ(one.exit_code, 0);
    EXPECT_NE(one.out.find(std::string("Example\n  kvant ") + command), std::string::npos)
        << command;
  }
}

TEST(Program, CaseH1_BadInputIsOneSentenceFast) {
  const std::string empty = write_file("empty.gguf", ""),
                    junk = write_file("junk.gguf", "GGUF is not what this is");
  const std::string ids = ids_file(200, kVocab), short_text = write_file("short.ids", "5");
  const std::vector<std::vector<std::string>> kBad = {
      {"frobnicate"},
      {"compare"},
      {"compare", "/nowhere/model.gguf"},
      {"compare", kModel, "--nosuch"},
      {"compare", kModel, "--kv", "int9"},
      {"compare", kModel, "--kv", "int8,,int4"},
      {"compare", kModel, "--kv", ""},
      {"compare", kModel, "--kv", "int8,int8"},
      {"compare", kModel, "--ids-file", ids, "--context", "257"},
      {"compare", kModel, "--ids-file", ids, "--context", "64", "--windows", "0"},
      {"compare", kModel, "--ids-file", ids, "--context", "128", "--windows", "2"},
      {"compare", kModel, "--text", "/nowhere/text"},
      {"compare", kModel, "--text", "/"},
      {"compare", kModel, "--ids-file", ids, "--text", ids},
      {"compare", kModel, "--ids-file", ids, "--context", "201"},
      {"compare", kModel, "--ids-file", ids, "--context", "1"},
      {"compare", kModel, "--ids-file", ids, "--context", "nan"},
      {"compare", kModel, "--ids-file", ids, "--json", "--csv"},
      {"compare", kModel, "--ids-file", ids, "--json=/dev/null", "--csv=/dev/null"},
      {"compare", kModel, "--ids-file", ids, "--max-kld", "NaN"},
      {"perplexity", kModel, "--ids-file", short_text},
      {"perplexity", kModel, "--ids-file", ids, "--chunk", "100"},
      {"perplexity", kModel, "--ids-file", ids, "--chunk", "0"},
      {"perplexity", kModel, "--ids-file", ids, "--sinks", "63"},
      {"perplexity", kModel, "--ids-file", ids, "--sinks", "-64"},
      {"perplexity", kModel, "--ids-file", ids, "--exact-window", "1e400"},
      {"perplexity", kModel, "--ids-file", ids, "--kv-layers", "3-1=int8"},
      {"perplexity", kModel, "--ids-file", ids, "--kv-layers", "0-99=int8"},
      {"perplexity", kModel, "--ids-file", ids, "--kv-layers", "0-1=int8;1=int4"},
      {"perplexity", kModel, "--ids-file", ids, "--weights", "q9"},
      {"perplexity", kModel, "--ids-file", ids, "--threads", "0"},
      {"perplexity", kModel, "--ids-file", ids, "--kv", "int8/"},
      {"perplexity", empty},
      {"perplexity", junk},
      {"perplexity", scratch().string()},
      {"generate", kModel},
      {"generate", kModel, "-p", "x", "--prompt-file", ids},
      {"generate", kModel, "-p", "x", "--context", "257"},
      {"generate", kModel, "-p", "x", "--stop", ""},
      {"generate", kModel, "-p", "x", "--kv", "int8,int4"},
      {"generate", kModel, "-p", "x", "--kv", "int8_tensor"},
      {"generate", kModel, "-p", "x", "--kv-layers", "0=int8_tensor"},
      {"generate", kModel, "-p", "x", "--kv-layers", ""},
      {"chat", kModel, "--context", "257"},
      {"generate", kModel, "-p", "x", "--temperature", "nan"},
      {"generate", kModel, "-p", "x", "--temperature", "1e400"},
      {"generate", kModel, "-p", "x", "--temperature", "-3"},
      {"generate", kModel, "-p", "x", "--top-p", "0"},
      {"generate", kModel, "-p", "x", "--top-p", "7"},
      {"generate", kModel, "-p", "x", "--top-k", "0"},
      {"generate", kModel, "-p", "x", "-n", "0"},
      {"generate", kModel, "-p", "x", "-n", "-1"},
      {"generate", kModel, "-p", "x", "--seed", "1.5"},
      {"generate", kModel, "--prompt-file", "/nowhere/prompt"},
      {"logits", kModel, "--ids", "1,2"},
      {"logits", kModel, "--ids", "1,x", "--out", "/tmp/never.npy"},
      {"logits", kModel, "--ids", "1,999999", "--out", (scratch() / "never.npy").string()},
      {"logits", kModel, "--out", "/tmp/never.npy"},
      {"tokenize", kModel},
      {"tokenize", "/nowhere", "--text", "x"},
      {"detokenize", kModel, "--ids", "a"},
      {"bench", "disk"},
      {"bench", "attention", "--heads", "9", "--kv-heads", "2"},
      {"bench", "attention", "--kv", "int4_g32_z", "--dim", "80"},
      {"bench", "attention", "--tokens", "64"},
      {"bench", "attention", "--only", "decode"},
      {"bench", "attention", "--targets", "--only", "train"},
      {"bench", "attention", "--targets", "--dim", "64"},
      {"bench", "seal", "--targets"},
      {"bench", "seal", "--tokens", "100,200"},
      {"inspect", "/nowhere"},
      {"inspect", kModel, "--json", "x.json"},
      {"formats", "nosuch"},
      {"help", "frobnicate"},
  };
  for (const std::vector<std::string>& words : kBad) {
    std::string line;
    for (const std::string& word : words) line += word + " ";
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.exit_code, 2) << line << "\n" << run.err;
    EXPECT_EQ(run.out, "") << line;
    EXPECT_TRUE(run.err.starts_with("kvant: ")) << line << "\n" << run.err;
    EXPECT_EQ(run.err_lines(), 1u) << line << "\n" << run.err;
  }
}

TEST(Program, AWrongForcedIsaIsAnError) {
  setenv("KVANT_FORCE_ISA", "mmx", 1);
  const ProgramRun run = run_program({"formats"});
  unsetenv("KVANT_FORCE_ISA");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.err_lines(), 1u);
}

// For each name that `kvant formats` lists: it serves, or it is refused in one sentence.
TEST(Program, CaseH1_EveryListedFormatServesOrIsRefused) {
  const ProgramRun list = run_program({"formats", "--json"});
  ASSERT_EQ(list.exit_code, 0) << list.err;
  std::vector<std::string> names;
  const nlohmann::json listed = list.json();
  for (const auto& format : listed["formats"]) names.push_back(format["name"]);
  for (const auto& preset : listed["presets"]) names.push_back(preset["name"]);
  ASSERT_GT(names.size(), 20u);
  const std::string ids = ids_file(200, kVocab);
  for (const std::string& name : names) {
    const auto format = find_format(name);
    if (format.ok() && !is_tested(**format)) continue;
    const ProgramRun run = run_program({"perplexity", kModel, "--ids-file", ids, "--context", "200",
                                        "--no-baseline", "--kv", name, "--json"});
    if (run.exit_code == 0) {
      EXPECT_GT(run.json()["perplexity"].get<double>(), 1) << name;
    } else {
      EXPECT_EQ(run.exit_code, 2) << name << "\n" << run.err;
      EXPECT_TRUE(run.err.starts_with("kvant: ")) << run.err;
    }
  }
}

TEST(Program, CompareWritesATableJsonAndCsv) {
  const std::string json = (scratch() / "c.json").string(), csv = (scratch() / "c.csv").string();
  const ProgramRun run = run_program({"compare", kModel, "--ids-file", ids_file(256, kVocab),
                                      "--context", "256", "--kv", "bf16,int8,int2",
                                      "--decode-steps", "3", "--json=" + json, "--csv=" + csv});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find("Take "), std::string::npos);
  EXPECT_EQ(run.out.find('\x1b'), std::string::npos) << "no colours into a file";
  const nlohmann::json report = nlohmann::json::parse(slurp(json));
  ASSERT_EQ(report["rows"].size(), 3u);
  for (const char* key : {"format", "k_format", "v_format", "nominal_bits", "sealed_bits",
                          "effective_bits", "bytes_per_token", "cache_bytes", "prefill_tok_s",
                          "decode_tok_s", "perplexity", "kld", "kld_p99", "top1"}) {
    EXPECT_TRUE(report["rows"][1].contains(key)) << key;
  }
  EXPECT_EQ(report["rows"][0]["kld"], 0.0);
  EXPECT_EQ(report["rows"][0]["nominal_bits"], 16.0);
  EXPECT_GT(report["rows"][2]["kld"], report["rows"][1]["kld"]);
  EXPECT_GT(report["rows"][1]["sealed_bits"], 8.0);
  EXPECT_TRUE(report["recommend"].is_string());
  EXPECT_EQ(report["context"], 256);
  const std::string lines = slurp(csv);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 4);
  EXPECT_TRUE(lines.starts_with("format,k_format,v_format,"));
}

std::string digest(std::vector<std::string> words) {
  words.insert(words.begin(), {"perplexity", kModel, "--ids-file", ids_file(250, kVocab),
                               "--context", "250", "--no-baseline", "--json"});
  const ProgramRun run = run_program(words);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return run.exit_code == 0 ? run.json()["digest"].get<std::string>() : run.err;
}

TEST(Program, TheChunkAndTheThreadsDoNotChangeOneBit) {
  for (const char* kv : {"bf16", "int8", "int4", "kivi2"}) {
    std::set<std::string> aligned, any;
    for (const char* chunk : {"64", "128", "512"})
      aligned.insert(digest({"--kv", kv, "--chunk", chunk}));
    aligned.insert(digest({"--kv", kv, "--threads", "1"}));
    for (const char* chunk : {"1", "7", "64", "250"})
      any.insert(digest({"--kv", kv, "--invariant", "--chunk", chunk}));
    EXPECT_EQ(aligned.size(), 1u) << kv;
    EXPECT_EQ(any.size(), 1u) << kv;
  }
}

TEST(Program, LogitsAreAnArrayOfTokensByVocabulary) {
  const std::string path = (scratch() / "l.npy").string();
  const ProgramRun run = run_program({"logits", kModel, "--ids", "1,2,3", "--weights", "f32",
                                      "--kv", "f32", "--out", path, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto shape = run.json()["shape"];
  EXPECT_EQ(shape[0], 3);
  EXPECT_EQ(std::filesystem::file_size(path) % 64,
            shape[0].get<size_t>() * shape[1].get<size_t>() * 4 % 64);
}

// What the checkpoint declares is followed where nothing was asked for, and said.
TEST(Program, CaseA11_AutoFollowsTheCheckpointAndSaysSo) {
  const std::filesystem::path model = scratch() / "declares";
  std::filesystem::copy(kModel, model);
  std::ofstream(model / "hf_quant_config.json")
      << R"({"quantization": {"kv_cache_quant_algo": "FP8"}})";
  const std::string ids = ids_file(200, kVocab);
  for (const auto& [path, kv, format] : {std::tuple{model.string(), "", "fp8_e4m3"},
                                         {model.string(), "auto", "fp8_e4m3"},
                                         {model.string(), "bf16", "bf16"},
                                         {kModel, "auto", "bf16"}}) {
    std::vector<std::string> words = {"perplexity", path,  "--ids-file",    ids,
                                      "--context",  "200", "--no-baseline", "--json"};
    if (*kv != 0) words.insert(words.end(), {"--kv", kv});
    const ProgramRun run = run_program(words);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const nlohmann::json report = run.json();
    for (const auto& layer : report["effective"]) EXPECT_EQ(layer, format);
    const bool declares = path != kModel;
    EXPECT_EQ(run.err.find("declares a cache of fp8_e4m3") != std::string::npos, declares);
    EXPECT_EQ(run.json()["declared_kv"].is_string(), declares);
  }
  EXPECT_EQ(run_program({"inspect", model.string(), "--json"}).json()["declared_kv"], "fp8_e4m3");
}

TEST(Program, InspectDoctorAndFormatsPrint) {
  for (const char* name : {"llama", "gemma3", "qwen3_moe", "deepseek_v2", "phi3"}) {
    const ProgramRun run = run_program({"inspect", tiny_model(name), "--json"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_GT(run.json()["num_layers"], 0) << name;
    EXPECT_EQ(run_program({"inspect", tiny_model(name)}).exit_code, 0);
  }
  const ProgramRun doctor = run_program({"doctor", "--json"});
  ASSERT_EQ(doctor.exit_code, 0) << doctor.err;
  EXPECT_GT(doctor.json()["read_bandwidth"], 1e8);
  EXPECT_GT(doctor.json()["kernels"].size(), 2u);
  EXPECT_EQ(run_program({"formats"}).exit_code, 0);
}

TEST(Program, BenchChecksAndTimesBesideItsPeers) {
  const ProgramRun run = run_program({"bench", "attention", "--heads", "4", "--kv-heads", "2",
                                      "--dim", "64", "--tokens", "500", "--kv", "bf16,int8",
                                      "--layers", "2", "--repeats", "3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  std::set<std::string> names;
  const nlohmann::json report = run.json();
  for (const auto& row : report["rows"]) {
    names.insert(row["format"]);
    for (const char* key : {"ms", "spread", "bytes", "bandwidth_share"})
      EXPECT_TRUE(row.contains(key));
  }
  EXPECT_TRUE(names.contains("bf16"));
  EXPECT_TRUE(names.contains("ggml/q8_0"));
}

TEST(Program, BenchOfABatchListsItsLengths) {
  const ProgramRun run =
      run_program({"bench", "attention", "--heads", "4", "--kv-heads", "2", "--tokens", "100,500",
                   "--kv", "int8", "--layers", "1", "--repeats", "3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["tokens"], nlohmann::json({100, 500}));
  EXPECT_EQ(run.json()["rows"].size(), 1u) << "ggml attends to one sequence";
}

TEST(Program, BenchOfTargetsSaysWhatIsReached) {
  if (kSlowBuild) GTEST_SKIP() << "takes minutes: 30 formats at 8,192 tokens";
  const ProgramRun run = run_program({"bench", "attention", "--targets", "--only", "decode/9x3x64",
                                      "--repeats", "3", "--no-peers", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json report = run.json();
  ASSERT_EQ(report["runs"].size(), 1u);
  EXPECT_EQ(report["runs"][0]["tokens"], nlohmann::json({8192}));
  for (const char* key : {"run", "threads", "format", "ms", "spread", "bytes", "bandwidth_share"})
    EXPECT_TRUE(report["rows"][0].contains(key)) << key;
  size_t known = 0;
  for (const auto& target : report["targets"]) {
    const bool of_peer = target["against"].get<std::string>().starts_with("ggml/");
    EXPECT_EQ(target["measured"].is_null(), of_peer) << target;
    EXPECT_EQ(target["reached"].is_null(), of_peer) << target;
    known += !of_peer;
  }
  EXPECT_GT(known, 10u);
}

TEST(Program, BenchOfSealingTakesTheFormatsNamed) {
  const ProgramRun run = run_program({"bench", "seal", "--tokens", "200", "--kv",
                                      "bf16,int8,int4_token", "--repeats", "3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json report = run.json();
  ASSERT_EQ(report["rows"].size(), 3u);
  EXPECT_TRUE(report["rows"][0]["k_bytes_per_second"].is_null()) << "bf16 is never sealed";
  EXPECT_GT(report["rows"][1]["k_bytes_per_second"], 1e6);
  EXPECT_TRUE(report["rows"][2]["scalar"]);
}

}  // namespace
}  // namespace kvant::cli
