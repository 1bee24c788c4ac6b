#include "cli/arguments.h"

#include <gtest/gtest.h>

#include <sstream>

#include "cli/help.h"

namespace kvant::cli {
namespace {

Status nothing(const Invocation&) { return {}; }

const Command kCommands[] = {
    {"run",
     "Run",
     "MODEL",
     "runs",
     "Runs it.",
     "kvant run x",
     {OptionGroup::kCache, OptionGroup::kLayerFormats, OptionGroup::kSampling, OptionGroup::kJson},
     nothing}};

Result<Arguments> parse(const std::vector<std::string>& words) {
  return parse_arguments(words, kCommands);
}

const Settings& settings_of(const Result<Arguments>& arguments) {
  EXPECT_TRUE(arguments.ok()) << arguments.status().message();
  return arguments.value().invocation.settings;
}

TEST(Arguments, DefaultsComeFromTheTable) {
  const Result<Arguments> a = parse({"run", "m.gguf"});
  EXPECT_EQ(settings_of(a).kv, "auto");
  EXPECT_EQ(settings_of(a).sinks, 64);
  EXPECT_EQ(a->invocation.model, "m.gguf");
  EXPECT_FALSE(settings_of(a).is_given("kv"));
}

TEST(Arguments, JsonMayStandAloneAnywhere) {
  EXPECT_EQ(settings_of(parse({"run", "m", "--json"})).json, "-");
  EXPECT_EQ(settings_of(parse({"run", "m", "--json=x.json"})).json, "x.json");
  EXPECT_EQ(settings_of(parse({"run", "m", "--json=-"})).json, "-");
  EXPECT_EQ(settings_of(parse({"run", "m", "--json", "--kv", "int8"})).json, "-");
  const Result<Arguments> before = parse({"run", "--json", "m"});
  EXPECT_EQ(settings_of(before).json, "-");
  EXPECT_EQ(before->invocation.model, "m");
  // A file apart from it is no file, and the message says how to name one.
  EXPECT_NE(parse({"run", "m", "--json", "x.json"}).status().message().find("--json=x.json"),
            std::string::npos);
}

TEST(Arguments, ValuesMayBeginWithADash) {
  EXPECT_EQ(settings_of(parse({"run", "m", "--kv-layers", "-1=bf16"})).kv_layers, "-1=bf16");
  EXPECT_EQ(settings_of(parse({"run", "m", "--stop", "- no"})).stop,
            std::vector<std::string>{"- no"});
  EXPECT_EQ(settings_of(parse({"run", "m", "--stop=--json"})).stop,
            std::vector<std::string>{"--json"});
  EXPECT_EQ(parse({"run", "--", "-m"})->invocation.model, "-m");
}

TEST(Arguments, StopMayBeGivenSeveralTimes) {
  EXPECT_EQ(settings_of(parse({"run", "m", "--stop", "a", "--stop", "b, c"})).stop,
            (std::vector<std::string>{"a", "b, c"}));
}

TEST(Arguments, ShortAndLongNames) {
  EXPECT_EQ(settings_of(parse({"run", "m", "-n", "7"})).max_tokens, 7);
  EXPECT_EQ(settings_of(parse({"run", "m", "-n7"})).max_tokens, 7);
  EXPECT_EQ(settings_of(parse({"run", "m", "--max-tokens=7"})).max_tokens, 7);
}

TEST(Arguments, ErrorsAreOneSentence) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"walk"},
                                                {"run"},
                                                {"run", "m", "--frob"},
                                                {"run", "m", "n"},
                                                {"run", "m", "--sinks"},
                                                {"run", "m", "--sinks", "x"},
                                                {"run", "m", "--temperature", "nan"},
                                                {"run", "m", "-n", "1", "-n", "2"}}) {
    const Result<Arguments> a = parse(words);
    ASSERT_FALSE(a.ok()) << words.back();
    EXPECT_EQ(a.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(a.status().message().find('\n'), std::string::npos) << a.status().message();
    EXPECT_GT(a.status().message().size(), 10u);
  }
}

// What was wrong, the value seen, what was wanted.
TEST(Arguments, ErrorsNameTheOptionAndWhatWasWanted) {
  const auto message = [](const std::vector<std::string>& words) {
    return parse(words).status().message();
  };
  const std::string see = "; see kvant run --help";
  EXPECT_EQ(message({"run"}), "MODEL is missing" + see);
  EXPECT_EQ(message({"run", "m", "n"}),
            "n is one word too many; kvant run takes MODEL and options" + see);
  EXPECT_EQ(message({"run", "m", "--snks", "64"}),
            "kvant run has no option --snks; the closest are --sinks, --kv, --seed" + see);
  EXPECT_EQ(message({"run", "m", "-x"}), "kvant run has no option -x" + see);
  EXPECT_EQ(message({"run", "m", "--sinks"}), "--sinks has no value; wanted --sinks N" + see);
  EXPECT_EQ(message({"run", "m", "--sinks", "--json"}),
            "--sinks has no value; wanted --sinks N" + see);
  EXPECT_EQ(message({"run", "m", "-n", "1", "-n", "2"}),
            "--max-tokens was given twice; wanted it once" + see);
  EXPECT_EQ(message({"run", "m", "--strict=1"}), "--strict takes no value, but got 1" + see);
  EXPECT_EQ(message({"run", "m", "--kv", ""}),
            "--kv is empty; wanted a value, or no --kv at all (--kv FORMAT)");
  EXPECT_EQ(message({"run", "m", "--", "--kv"}),
            "--kv is one word too many; kvant run takes MODEL and options" + see);
  EXPECT_EQ(message({"run", "m", "--sinks", "--kv=int8"}),
            "--sinks has no value; wanted --sinks N" + see);
  EXPECT_EQ(message({"run", "m", "--json=a", "--json=b"}),
            "--json was given twice; wanted it once" + see);
  // The value is empty: the word behind it isn't taken.
  EXPECT_EQ(message({"run", "--kv=", "m"}),
            "--kv is empty; wanted a value, or no --kv at all (--kv FORMAT)");
  EXPECT_EQ(message({"run", "m", "--kv-layers", ""}),
            "--kv-layers is empty; wanted a value, or no --kv-layers at all (--kv-layers LIST)");
  EXPECT_EQ(message({"run", "m", "--kv", "int8,int4"}),
            "--kv int8,int4: wanted one FORMAT; kvant compare takes a list");
  EXPECT_EQ(message({"walk"}), "walk is no command; wanted run");
}

TEST(Arguments, HelpIsAskedForAnywhere) {
  EXPECT_TRUE(parse({})->help);
  EXPECT_TRUE(parse({"--help"})->help);
  const Result<Arguments> a = parse({"run", "--help"});
  ASSERT_TRUE(a.ok());
  EXPECT_TRUE(a->help);
  EXPECT_EQ(a->command, &kCommands[0]);
  for (const char* word : {"help", "--help"}) {
    const Result<Arguments> b = parse({word, "run"});
    ASSERT_TRUE(b.ok());
    EXPECT_TRUE(b->help);
    EXPECT_EQ(b->command, &kCommands[0]);
  }
  EXPECT_FALSE(parse({"help", "walk"}).ok());
}

TEST(Help, NamesEveryOptionOnceWithItsDefault) {
  const std::string help = command_help(kCommands[0]);
  EXPECT_NE(help.find("--sinks N"), std::string::npos);
  EXPECT_NE(help.find("(default 64)"), std::string::npos);
  EXPECT_NE(help.find("Example\n  kvant run x"), std::string::npos);
  EXPECT_NE(help.find("--json[=FILE]"), std::string::npos);
}

TEST(Help, NoLineEndsInABlankOrIsWiderThanAHundred) {
  for (const std::string& help : {command_help(kCommands[0]), program_help(kCommands)}) {
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_FALSE(line.ends_with(' ')) << line;
      EXPECT_LE(line.size(), 100u) << line;
    }
  }
}

}  // namespace
}  // namespace kvant::cli
