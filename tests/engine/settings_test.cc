#include "engine/settings.h"

#include <gtest/gtest.h>

namespace kvant {
namespace {

const OptionSpec& spec_of(OptionGroup group, std::string_view name) {
  for (const OptionSpec& spec : option_specs()) {
    if (spec.group == group && spec.long_name() == name) return spec;
  }
  ADD_FAILURE() << name;
  return option_specs().front();
}

TEST(Settings, EveryDefaultIsInsideItsOwnRange) {
  for (const OptionSpec& spec : option_specs()) {
    if (spec.fallback.empty()) continue;
    Settings settings;
    EXPECT_TRUE(set_option(settings, spec, spec.fallback).ok())
        << spec.name << " = " << spec.fallback;
  }
}

TEST(Settings, EveryRowHasHelpAndNumbersHaveRanges) {
  for (const OptionSpec& spec : option_specs()) {
    EXPECT_FALSE(spec.help.empty()) << spec.name;
    const bool number = std::holds_alternative<int64_t Settings::*>(spec.field) ||
                        std::holds_alternative<double Settings::*>(spec.field);
    if (number) {
      EXPECT_LT(spec.low, spec.high) << spec.name;
    }
    EXPECT_EQ(spec.metavar.empty(), std::holds_alternative<bool Settings::*>(spec.field))
        << spec.name;
  }
}

TEST(Settings, CaseD6_BadNumbersAreRefusedByName) {
  for (const char* value : {"nan", "NaN", "inf", "1e400", "-3", "", "1.5x", "0x10", " 1", "1,5"}) {
    for (std::string_view name : {"temperature", "top-k", "max-tokens", "seed", "repeat-penalty"}) {
      Settings settings;
      const Status status = set_option(settings, spec_of(OptionGroup::kSampling, name), value);
      ASSERT_EQ(status.code(), Code::kInvalidArgument) << name << " " << value;
      EXPECT_NE(status.message().find(name), std::string::npos);
      EXPECT_FALSE(settings.is_given(name));
    }
  }
}

TEST(Settings, PagesAreCountedInMultiplesOf64) {
  Settings settings;
  const OptionSpec& sinks = spec_of(OptionGroup::kCache, "sinks");
  EXPECT_TRUE(set_option(settings, sinks, "128").ok());
  EXPECT_EQ(set_option(settings, sinks, "100").message(), "--sinks 100: wanted a multiple of 64");
  EXPECT_EQ(settings.sinks, 128);
}

TEST(Settings, CaseH2_AChunkThatIsNoPageNeedsInvariant) {
  Settings settings = default_settings(std::vector{OptionGroup::kMeasure, OptionGroup::kModel});
  EXPECT_TRUE(check_settings(settings).ok());
  settings.chunk = 100;
  const Status status = check_settings(settings);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("--chunk"), std::string::npos);
  EXPECT_NE(status.message().find("--invariant"), std::string::npos);
  settings.invariant = true;
  EXPECT_TRUE(check_settings(settings).ok());
}

TEST(Settings, TextsAreRefusedWhereTheyAreEmptyOrTheWrongNumberOfThings) {
  Settings settings;
  const auto message = [&](OptionGroup group, std::string_view name, std::string_view value) {
    return set_option(settings, spec_of(group, name), value).message();
  };
  EXPECT_EQ(message(OptionGroup::kManyFormats, "kv", "int8,,int4"),
            "--kv int8,,int4: an item is empty; wanted A,B,C");
  EXPECT_EQ(message(OptionGroup::kManyFormats, "kv", "int8,bf16,int8"),
            "--kv int8,bf16,int8: int8 is there twice; wanted it once");
  EXPECT_EQ(message(OptionGroup::kManyFormats, "kv", "int8,bf16"), "");
  EXPECT_EQ(split_items(settings.kv), (std::vector<std::string>{"int8", "bf16"}));
  EXPECT_NE(message(OptionGroup::kCache, "kv", "int8,bf16").find("wanted one"), std::string::npos);
  EXPECT_NE(message(OptionGroup::kSampling, "stop", "").find("is empty"), std::string::npos);
  EXPECT_EQ(message(OptionGroup::kPrompt, "prompt", ""), "");
}

TEST(Settings, ParsesListsOfIds) {
  EXPECT_EQ(*parse_ids("1,2,3"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(*parse_ids("[1, 2]\n"), (std::vector<int32_t>{1, 2}));
  for (const char* bad : {"", "1,x", "-1", "99999999999", "1.5"}) {
    EXPECT_EQ(parse_ids(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST(Numbers, CountsAreBinaryAndWhole) {
  for (const auto& [text, value] : {std::pair{"1", int64_t{1}},
                                    {"4096", 4096},
                                    {"4k", 4096},
                                    {"1.5K", 1536},
                                    {"1M", 1 << 20},
                                    {"1048576m", 1LL << 40}}) {
    EXPECT_EQ(*parse_count(text), value) << text;
  }
  for (const char* text : {"", "0", "-1", "k", "4kk", "4 k", "1.3", "0.1k", "nan", "1e3", "4kB",
                           "0x10", "1048577m", "9223372036854775808", "."}) {
    EXPECT_EQ(parse_count(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(Numbers, SizesAreBinaryUnlessTheySayBytes) {
  for (const auto& [text, value] : {std::pair{"0", uint64_t{0}},
                                    {"1000", 1000},
                                    {"1000B", 1000},
                                    {"24G", 24ull << 30},
                                    {"24GiB", 24ull << 30},
                                    {"24g", 24ull << 30},
                                    {"24gib", 24ull << 30},
                                    {"24gb", 24'000'000'000},
                                    {"24GB", 24'000'000'000},
                                    {"1.5K", 1536},
                                    {"2MB", 2'000'000},
                                    {"1T", 1ull << 40},
                                    {"1048576T", 1ull << 60}}) {
    EXPECT_EQ(*parse_size(text), value) << text;
  }
  for (const char* text : {"", "-5G", "G", "24 G", "24X", "inf", "1e300", "1048577T",
                           "18446744073709551616", "1..5G"}) {
    EXPECT_EQ(parse_size(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(Numbers, AmountsAreDecimal) {
  for (const auto& [text, value] : {std::pair{"1", int64_t{1}},
                                    {"135M", 135'000'000},
                                    {"7.6B", 7'600'000'000},
                                    {"1.5T", 1'500'000'000'000},
                                    {"1000T", 1'000'000'000'000'000}}) {
    EXPECT_EQ(*parse_amount(text), value) << text;
  }
  for (const char* text : {"", "0", "-7B", "B", "7BB", "nan", "1001T"})
    EXPECT_EQ(parse_amount(text).status().code(), Code::kInvalidArgument) << text;
}

}  // namespace
}  // namespace kvant
