#include "cli/arguments.h"

#include <gtest/gtest.h>

#include "cli/help.h"

namespace kvant::cli {
namespace {

Status nothing(const Invocation&) { return {}; }

const Command kCommands[] = {{"run",
                              "Run",
                              "MODEL",
                              "runs",
                              "Runs it.",
                              "kvant run x",
                              {OptionGroup::kCache, OptionGroup::kSampling, OptionGroup::kJson},
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
  EXPECT_EQ(settings_of(parse({"run", "m", "--json", "x.json"})).json, "x.json");
  EXPECT_EQ(settings_of(parse({"run", "m", "--json", "-"})).json, "-");
  EXPECT_EQ(settings_of(parse({"run", "m", "--json", "--kv", "int8"})).json, "-");
  const Result<Arguments> before = parse({"run", "--json", "m"});
  EXPECT_EQ(settings_of(before).json, "-");
  EXPECT_EQ(before->invocation.model, "m");
}

TEST(Arguments, ValuesMayBeginWithADash) {
  EXPECT_EQ(settings_of(parse({"run", "m", "--kv-layers", "-1=bf16"})).kv_layers, "-1=bf16");
  EXPECT_EQ(settings_of(parse({"run", "m", "--stop", "- no"})).stop,
            std::vector<std::string>{"- no"});
}

TEST(Arguments, StopMayBeGivenSeveralTimes) {
  EXPECT_EQ(settings_of(parse({"run", "m", "--stop", "a", "--stop", "b, c"})).stop,
            (std::vector<std::string>{"a", "b, c"}));
}

TEST(Arguments, ShortAndLongNames) {
  EXPECT_EQ(settings_of(parse({"run", "m", "-n", "7"})).max_tokens, 7);
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

TEST(Arguments, HelpIsAskedForAnywhere) {
  EXPECT_TRUE(parse({})->help);
  EXPECT_TRUE(parse({"--help"})->help);
  const Result<Arguments> a = parse({"run", "--help"});
  ASSERT_TRUE(a.ok());
  EXPECT_TRUE(a->help);
  EXPECT_EQ(a->command, &kCommands[0]);
}

TEST(Help, NamesEveryOptionOnceWithItsDefault) {
  const std::string help = command_help(kCommands[0]);
  EXPECT_NE(help.find("--sinks N"), std::string::npos);
  EXPECT_NE(help.find("(default 64)"), std::string::npos);
  EXPECT_NE(help.find("Example\n  kvant run x"), std::string::npos);
}

}  // namespace
}  // namespace kvant::cli
