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
    expect_refusal(run, "which calibration or the library's caller must give");
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

void expect_says(const ProgramRun& run, const std::string& part) {
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const size_t at = run.err.find(part);
  EXPECT_NE(at, std::string::npos) << run.err << "lacks " << part;
  EXPECT_EQ(run.err.find(part, at + 1), std::string::npos) << "twice\n" << run.err;
}

TEST(Usability, ATextWithoutEndOrWordsIsBlamedItself) {
  for (const char* command : {"perplexity", "compare"}) {
    expect_refusal(
        run_program({command, tiny_chat_model(), "--text", "/dev/zero", "--context", "128"}),
        "kvant: /dev/zero: its first 18.9 MB have 1 token before the last line break");
  }
  expect_refusal(run_program({"tokenize", tiny_chat_model(), "--text-file", "/dev/zero"}),
                 "/dev/zero is longer than 256 MB");
  expect_refusal(generate({"--prompt-file", "/dev/zero"}), "/dev/zero is longer than 256 MB");
  const std::string zeros = write_file("zeros", std::string(300000, '\0'));
  const ProgramRun run = run_program({"perplexity", tiny_chat_model(), "--text", zeros, "--context",
                                      "100", "--no-baseline", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json()["tokens"], 100) << "a text that ends is read to its end";
}

TEST(Usability, BytesThatAreNoUtf8AreNotedOnce) {
  const std::string odd = "a\xff\xfe" + std::string(30, 'b') + "\xc3",
                    file = write_file("odd.txt", odd), model = tiny_chat_model();
  expect_says(generate({"-p", odd, "-n", "1"}), "note     not UTF-8: 3 bytes of the prompt");
  expect_says(run_program({"logits", model, "--prompt-file", file, "--out", "/dev/null"}),
              "note     not UTF-8: 3 bytes of the prompt");
  expect_says(run_program({"chat", model, "-n", "1"}, odd + "\nb\n"),
              "note     not UTF-8: 3 bytes of the message");
  expect_says(run_program({"tokenize", model, "--text-file", file}),
              "note     not UTF-8: 3 bytes of the text");
  for (const char* command : {"perplexity", "compare"})
    expect_says(run_program({command, model, "--text", file, "--kv", "int8"}),
                "note     not UTF-8: 3 bytes of the text");
  EXPECT_EQ(generate({"-p", "\xc3\xa4", "-n", "1"}).err.find("UTF-8"), std::string::npos);
}

TEST(Usability, WhatTokenizeWritesIsReadByEveryIdsFile) {
  const std::string model = tiny_chat_model(), text = "A text, to be read again.",
                    ids = (scratch() / "tokens.json").string();
  ASSERT_EQ(run_program({"tokenize", model, "--text", text, "--json=" + ids}).exit_code, 0);
  EXPECT_EQ(run_program({"detokenize", model, "--ids-file", ids}).out, text + "\n");
  EXPECT_EQ(run_program({"logits", model, "--ids-file", ids, "--out", "/dev/null"}).exit_code, 0);
  EXPECT_EQ(run_program({"perplexity", model, "--ids-file", ids}).exit_code, 0);
  for (const char* bad : {"{}", "{\"ids\": 5}", "{\"ids\": [1, 2]", "{\"ids\": [\"a\"]}",
                          "{\"ids\": []}", "  ", "     256  <s>"}) {
    const std::string file = write_file("bad-ids", bad);
    expect_refusal(run_program({"detokenize", model, "--ids-file", file}), "kvant: " + file + ": ");
  }
}

TEST(Usability, TheHelpShowsLayersThatEveryModelHas) {
  const std::string help = run_program({"generate", "--help"}).out, shown = "\"0-1=bf16;-1=int8\"";
  EXPECT_NE(help.find(shown), std::string::npos) << help;
  EXPECT_EQ(generate({"-p", "x", "-n", "1", "--kv-layers", "0-1=bf16;-1=int8"}).exit_code, 0);
  expect_refusal(
      generate({"-p", "x", "--kv-layers", "sliding=bf16"}),
      "kvant: --kv-layers sliding=bf16: layers \"sliding\": the model has no such layer");
  expect_refusal(generate({"-p", "x", "--kv-layers", "0-99=bf16"}), "--kv-layers 0-99=bf16: ");
}

TEST(Usability, InspectOffersNoListOfFormats) {
  EXPECT_EQ(run_program({"inspect", "--help"}).out.find("--verbose"), std::string::npos);
  expect_refusal(run_program({"inspect", kIds, "-v"}), "no option -v");
  EXPECT_NE(run_program({"compare", "--help"}).out.find("--verbose"), std::string::npos);
}

TEST(Usability, MessagesNameTheOptionOrTheDirectory) {
  expect_refusal(generate({"-p", "x", "--weights", "q3"}),
                 "kvant: --weights: 'q3' isn't one of native");
  const std::filesystem::path folder = scratch() / "no-model";
  std::filesystem::create_directories(folder);
  expect_refusal(run_program({"compare", folder.string()}),
                 folder.string() + " is a directory, but not a model's: it has no config.json");
  expect_refusal(run_program({"tokenize", folder.string(), "--text", "x"}), "no tokenizer.json");
}

TEST(Usability, TheDemoShowsCommandsThatCanBePasted) {
  const std::string demo = slurp(KVANT_TEST_DATA "/../../tools/demo.sh");
  const size_t begin = demo.find("\nrun() {"), end = demo.find("\n}\n", begin);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::string script =
      write_file("demo.sh", "model=\"/a b/m.gguf\"\n" + demo.substr(begin, end + 3 - begin) +
                                "run printf '%s;' \"$model\" -n 8 "
                                "\"Why's it so? (\\$5)\" ''\n");
  const ProgramRun shown = run_shell("bash " + quoted(script));
  const size_t at = shown.out.find("$ "), line_end = shown.out.find('\n', at);
  ASSERT_NE(at, std::string::npos) << shown.err;
  const std::string line = shown.out.substr(at + 2, line_end - at - 2),
                    printed = shown.out.substr(line_end + 1);
  EXPECT_EQ(printed, "/a b/m.gguf;-n;8;Why's it so? ($5);;");
  const std::string pasted = write_file("pasted.sh", "MODEL='/a b/m.gguf'\n" + line + "\n");
  EXPECT_EQ(run_shell("bash " + quoted(pasted)).out, printed) << line;
}

TEST(Usability, AFullContextIsNamedAsTheEnd) {
  const std::vector<std::string> words = {"-p", "Hi", "--ignore-end", "--context", "6", "-n"};
  const auto ended = [&](const char* count) {
    std::vector<std::string> all = words;
    all.emplace_back(count);
    return generate(all).err;
  };
  EXPECT_NE(ended("20").find("; ended as the context of 6 tokens was full"), std::string::npos);
  EXPECT_NE(ended("2").find("; ended by length"), std::string::npos);
}

TEST(Usability, SamplingOptionsWithoutTemperatureAreNoted) {
  expect_says(generate({"-p", "x", "-n", "1", "--top-k", "3", "--seed", "1"}),
              "note     --top-k, --seed: no effect without a --temperature above 0");
  expect_says(run_program({"chat", tiny_chat_model(), "--top-p", "0.5"}), "note     --top-p: no");
  for (const char* temperature : {"0", "1"}) {
    std::vector<std::string> words = {"-p", "x", "-n", "1", "--temperature", temperature};
    if (*temperature == '1') words.insert(words.end(), {"--min-p", "0.1", "--top-k", "3"});
    EXPECT_EQ(generate(words).err.find("no effect"), std::string::npos) << temperature;
  }
}

}  // namespace
}  // namespace kvant::cli
