// What newcomers stumbled over, one test each.

#include <gtest/gtest.h>

#include <sstream>

#include "tiny_chat_model.h"

namespace kvant::cli {
namespace {

const std::string kIds = tiny_model("llama");  // a model without a tokenizer
constexpr int kVocab = 256;

ProgramRun generate(std::vector<std::string> words) {
  words.insert(words.begin(), {"generate", tiny_chat_model()});
  return run_program(words);
}

void expect_refusal(const ProgramRun& run, const std::string& part) {
  EXPECT_NE(run.exit_code, 0) << part;
  EXPECT_EQ(run.err_lines(), 1u) << run.err;
  EXPECT_NE(run.err.find(part), std::string::npos) << run.err << "lacks " << part;
}

// The model doesn't exist either: what is said first was looked at first.
TEST(Usability, OutputsThatCannotBeWrittenAreFoundBeforeTheModelIsRead) {
  expect_refusal(run_program({"compare", "/nowhere.gguf", "--json=/nodir/x"}), "/nodir/x");
  expect_refusal(run_program({"compare", "/nowhere.gguf", "--csv=/nodir/x"}), "/nodir/x");
  expect_refusal(run_program({"logits", "/nowhere.gguf", "--ids", "1", "--out", "/nodir/x"}),
                 "/nodir/x");
  const std::string old = write_file("old", "old"), fresh = (scratch() / "not-there").string();
  expect_refusal(run_program({"compare", "/nowhere.gguf", "--json=" + old, "--csv=" + fresh}),
                 "/nowhere.gguf");
  EXPECT_EQ(slurp(old), "old");
  EXPECT_FALSE(std::filesystem::exists(fresh));
}

TEST(Usability, JsonTakesNoModelForItsFile) {
  const ProgramRun run = run_program({"perplexity", "--ids-file", ids_file(64, kVocab), "--context",
                                      "64", "--json", kIds, "--no-baseline"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["model"], kIds);
}

// The model's shape is sound and its weights are not: what is said first was looked at first.
TEST(Usability, AContextBeyondTheModelIsRefusedBeforeTheLoad) {
  const std::filesystem::path model = scratch() / "misshapen";
  std::filesystem::copy(kIds, model);
  std::string config = slurp(model / "config.json");
  const std::string width = "\"intermediate_size\": 96";
  ASSERT_NE(config.find(width), std::string::npos);
  config.replace(config.find(width), width.size(), "\"intermediate_size\": 97");
  std::ofstream(model / "config.json") << config;
  for (const char* command : {"generate", "chat", "compare", "perplexity"}) {
    std::vector<std::string> words = {command, model.string()};
    if (words[0] == "generate") words.insert(words.end(), {"-p", "x"});
    expect_refusal(run_program(words), "shape");
    words.insert(words.end(), {"--context", "257"});
    expect_refusal(run_program(words),
                   "--context 257: " + model.string() + " takes at most 256 tokens");
  }
}

// RLIMIT_AS stands for a small machine.
TEST(Usability, MoreMemoryThanThereIsIsRefusedByFlag) {
  if (*KVANT_SANITIZED) GTEST_SKIP() << "sanitizers need the address space: " << KVANT_SANITIZED;
  const ProgramRun run =
      run_shell("ulimit -v 1000000; " + command_line({"generate", tiny_chat_model(), "-p", "x",
                                                      "--threads", "1", "--chunk", "16777216"}));
  EXPECT_EQ(run.exit_code, 1);
  expect_refusal(run, "GB for 16777216 tokens at once; a smaller --chunk takes less");
}

TEST(Usability, HelpOnACommandIsThatCommandsHelp) {
  const ProgramRun help = run_program({"help", "generate"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.out, run_program({"generate", "--help"}).out);
  EXPECT_NE(help.out, run_program({"--help"}).out);
}

TEST(Usability, HelpHasNoTrailingBlanks) {
  for (const char* command : {"", "compare", "perplexity", "bench", "generate", "chat", "logits",
                              "inspect", "formats", "tokenize", "detokenize", "doctor"}) {
    const ProgramRun run = *command ? run_program({command, "--help"}) : run_program({"--help"});
    EXPECT_EQ(run.out.find(" \n"), std::string::npos) << command;
  }
}

TEST(Usability, ChatsHelpListsItsCommands) {
  const std::string help = run_program({"chat", "--help"}).out;
  EXPECT_NE(help.find("/reset"), std::string::npos);
  EXPECT_NE(help.find("/exit"), std::string::npos);
}

TEST(Usability, BitsPerElementAreNotMadeOfAnOpenPage) {
  const ProgramRun tiny = generate({"-p", "Hi", "-n", "3", "--kv", "int8", "--json"});
  ASSERT_EQ(tiny.exit_code, 0) << tiny.err;
  EXPECT_NE(tiny.err.find("no page sealed yet"), std::string::npos) << tiny.err;
  EXPECT_TRUE(tiny.json()["effective_bits"].is_null());
  const ProgramRun longer =
      generate({"-p", std::string(190, 'x'), "-n", "3", "--kv", "int8", "--json"});
  ASSERT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_NE(longer.err.find(" bits per element"), std::string::npos) << longer.err;
  EXPECT_LT(longer.json()["effective_bits"], 20);
  const ProgramRun compare = run_program({"compare", kIds, "--ids-file", ids_file(40, kVocab),
                                          "--context", "40", "--kv", "bf16,int8", "--no-speed"});
  ASSERT_EQ(compare.exit_code, 0) << compare.err;
  EXPECT_NE(compare.out.find("no page was sealed"), std::string::npos) << compare.out;
}

TEST(Usability, AFormatThatNeedsAGivenScaleSaysSoAndWhatToTake) {
  for (const char* kv : {"int8_tensor", "int8/int8_tensor"}) {
    const ProgramRun run = generate({"-p", "x", "--kv", kv});
    expect_refusal(run, "no option that gives a scale");
    expect_refusal(run, "int8_token");
  }
  const ProgramRun layers = generate({"-p", "x", "--kv-layers", "0=fp8_e4m3_tensor"});
  expect_refusal(layers, "formats that find their own scales: fp8_e4m3,");
  const ProgramRun list = run_program({"formats", "int8_tensor"});
  EXPECT_NE(list.out.find("given *"), std::string::npos) << list.out;
  EXPECT_NE(list.out.find("key_scale"), std::string::npos) << list.out;
}

TEST(Usability, OneIsSingular) {
  const ProgramRun run = generate({"-p", "", "-n", "1", "--threads", "1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.err.find("prompt 1 token,"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("; 1 new token"), std::string::npos) << run.err;
  const std::string all = run.err + run_program({"inspect", tiny_model("gemma3")}).out +
                          run_program({"compare", kIds, "--ids-file", ids_file(40, kVocab), "--kv",
                                       "int8", "--threads", "1"})
                              .err;
  for (const char* noun : {"token", "new token", "thread", "layer", "head", "KV head", "format"}) {
    const std::string wrong = std::string(" 1 ") + noun + "s";
    EXPECT_EQ(all.find(wrong), std::string::npos) << wrong << " in\n" << all;
  }
}

// Of every answer, how many tokens went in: "prompt 12 tokens, 7 of them cached;".
std::string prompts(const std::string& err) {
  std::istringstream lines(err);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("prompt ")) out += line.substr(0, line.find(", at ")) + ";";
  }
  return out;
}

TEST(Usability, PipedChatTextMayComeFromWindows) {
  const std::vector<std::string> words = {"chat", tiny_chat_model(), "-n",
                                          "4",    "--kv-layers",     "0=int8"};
  const ProgramRun plain = run_program(words, "Hi\nYou\n"),
                   odd = run_program(words, "\xef\xbb\xbfHi\r\n\r\nYou\r\n");
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.out, odd.out);
  EXPECT_EQ(prompts(plain.err), prompts(odd.err));
  EXPECT_NE(prompts(odd.err), "");
  EXPECT_EQ(run_program(words, "/exit\r\n").out, "");
}

TEST(Usability, AFullDiskIsAnErrorForEveryCommandThatPrints) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"chat", tiny_chat_model(), "-n", "4"},
        {"generate", tiny_chat_model(), "-p", "x", "-n", "4"},
        {"formats"},
        {"--help"}}) {
    const ProgramRun run = run_shell(command_line(words) + " >/dev/full", "Hi\n");
    EXPECT_EQ(run.exit_code, 1) << words[0];
    EXPECT_NE(run.err.find("kvant: the output can't be written"), std::string::npos) << run.err;
  }
}

TEST(Usability, FormatsAndDoctorFitATerminalAndAreSearched) {
  const ProgramRun all = run_program({"formats"});
  for (const ProgramRun& run : {all, run_program({"doctor"})}) {
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  }
  EXPECT_NE(all.out.find("\nint4\nint4_"), std::string::npos) << "grouped by kind";
  const ProgramRun some = run_program({"formats", "int4_token"});
  EXPECT_NE(some.out.find("int4_token_z_lsq[_rot]"), std::string::npos);
  EXPECT_EQ(some.out.find("int8_"), std::string::npos) << some.out;
  const nlohmann::json json = run_program({"formats", "int4_token_z_lsq", "--json"}).json();
  EXPECT_EQ(json["formats"].size(), 2u);
}

TEST(Usability, WithoutTimingsThereAreNoSpeeds) {
  const std::string csv = (scratch() / "speeds.csv").string();
  const ProgramRun run =
      run_program({"compare", kIds, "--ids-file", ids_file(200, kVocab), "--context", "200", "--kv",
                   "int8", "--no-speed", "--json", "--csv=" + csv});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const nlohmann::json row = run.json()["rows"][0];
  for (const char* key : {"prefill_tok_s", "decode_tok_s", "decode_spread"})
    EXPECT_TRUE(row[key].is_null()) << key;
  std::istringstream lines(slurp(csv));
  std::string names, fields;
  std::getline(lines, names);
  std::getline(lines, fields);
  EXPECT_NE(names.find("cache_bytes,prefill_tok_s,decode_tok_s,perplexity"), std::string::npos);
  EXPECT_NE(fields.find(",,,"), std::string::npos) << fields;
  EXPECT_NE(run_program({"compare", "--help"}).out.find("no speeds"), std::string::npos);
}

TEST(Usability, AnEndlessTextIsReadAsFarAsTheContext) {
  const ProgramRun run =
      run_shell("yes 'The quick brown fox jumps over the lazy dog.' | " +
                command_line({"perplexity", tiny_chat_model(), "--text", "/dev/stdin", "--context",
                              "100", "--no-baseline", "--json"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["tokens"], 100);
}

// Each window begins as the text does, with <s>.
TEST(Usability, WindowsAreTheMeanOfRunsOnTheirOwn) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i * i % 26);
  const auto perplexity = [&](const std::vector<std::string>& input) {
    std::vector<std::string> words = {"perplexity", tiny_chat_model(), "--kv", "int8", "--context",
                                      "150",        "--json"};
    words.insert(words.end(), input.begin(), input.end());
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.json();
  };
  const nlohmann::json both =
      perplexity({"--text", write_file("long.txt", text), "--windows", "2"});
  const nlohmann::json first = perplexity({"--text", write_file("a.txt", text.substr(0, 149))}),
                       second = perplexity({"--text", write_file("b.txt", text.substr(149, 149))});
  EXPECT_EQ(both["windows"], 2);
  EXPECT_EQ(both["context"], 150);
  EXPECT_EQ(both["tokens"], 300);
  for (const char* key : {"nll", "kld", "top1"}) {
    const double mean = (first[key].get<double>() + second[key].get<double>()) / 2;
    EXPECT_NEAR(both[key].get<double>(), mean, 1e-12) << key;
  }
}

}  // namespace
}  // namespace kvant::cli
