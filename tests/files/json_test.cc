#include "files/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temp_file.h"

namespace kvant {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JsonDocument parse(std::string_view text) {
  auto document = JsonDocument::parse(text, "config.json");
  EXPECT_TRUE(document.ok()) << document.status().message();
  return std::move(document).value();
}

TEST(Json, ReadsFieldsOfEveryKind) {
  const JsonDocument d = parse(R"({"i": 16, "e": 1e3, "f": 0.5, "b": true, "s": "x", "n": null,
                                   "o": {"p": [1, 2]}, "d": [0.5, 1], "t": ["a"]})");
  const JsonObject root = d.root();
  EXPECT_EQ(root.integer("i").value(), 16);
  EXPECT_EQ(root.integer("e").value(), 1000);
  EXPECT_EQ(root.number("i").value(), 16.0);
  EXPECT_EQ(root.boolean("b").value(), true);
  EXPECT_EQ(root.string("s").value(), "x");
  EXPECT_THAT(*root.object("o").value()->integers("p").value(), ElementsAre(1, 2));
  EXPECT_THAT(*root.numbers("d").value(), ElementsAre(0.5, 1.0));
  EXPECT_THAT(*root.strings("t").value(), ElementsAre("a"));
}

TEST(Json, AbsentAndNullAreTheSame) {
  const JsonDocument d = parse(R"({"n": null})");
  EXPECT_FALSE(d.root().has("n"));
  EXPECT_FALSE(d.root().has("m"));
  EXPECT_EQ(d.root().integer("n").value(), std::nullopt);
  EXPECT_FALSE(d.root().object("m").value().has_value());
}

TEST(Json, AWrongTypeNamesFileFieldAndValue) {
  const JsonDocument d =
      parse(R"({"head_dim": "16", "o": {"f": "x", "big": 1e300, "u": 18446744073709551615}})");
  EXPECT_EQ(d.root().integer("head_dim").status().message(),
            "config.json: head_dim: \"16\", wanted an integer");
  const JsonObject o = *d.root().object("o").value();
  EXPECT_THAT(o.number("f").status().message(), HasSubstr("config.json: o.f: \"x\""));
  EXPECT_FALSE(o.integer("big").ok());
  EXPECT_FALSE(o.integer("u").ok());
  EXPECT_FALSE(d.root().object("head_dim").ok());
  EXPECT_FALSE(d.root().integers("o").ok());
}

TEST(Json, WordsThatPythonWritesForNoNumberMatterOnlyToWhoAsks) {
  const JsonDocument d = parse(R"({"limit": [0.0, Infinity], "n": NaN, "low": -Infinity, "a": 3,
                                   "text": "say \"NaN\" or \\", "Infinity": 1})");
  EXPECT_EQ(*d.root().integer("a").value(), 3);
  EXPECT_EQ(*d.root().string("text").value(), R"(say "NaN" or \)");
  EXPECT_EQ(*d.root().integer("Infinity").value(), 1);
  EXPECT_EQ(d.root().number("n").status().message(), "config.json: n: \"NaN\", wanted a number");
  EXPECT_EQ(d.root().numbers("limit").status().message(),
            "config.json: limit: \"Infinity\", wanted a list of numbers");
  EXPECT_FALSE(d.root().number("low").ok());
  EXPECT_FALSE(JsonDocument::parse(R"({"n": NaNNaN})", "c").ok());
}

TEST(Json, NullIsThereAndAbsentIsnt) {
  const JsonDocument d = parse(R"({"null": null, "list": [], "text": "x"})");
  EXPECT_TRUE(d.root().is_null("null"));
  EXPECT_FALSE(d.root().is_null("absent"));
  EXPECT_FALSE(d.root().is_null("list"));
  EXPECT_TRUE(d.root().is_list("list"));
  EXPECT_TRUE(d.root().is_string("text"));
  EXPECT_FALSE(d.root().is_string("list"));
}

TEST(Json, ListsOfObjects) {
  const JsonDocument d = parse(R"({"blocks": [{"n": 1}, {"n": "x"}], "mixed": [{}, 2]})");
  const std::vector<JsonObject> blocks = *d.root().objects("blocks").value();
  EXPECT_EQ(*blocks[0].integer("n").value(), 1);
  EXPECT_EQ(blocks[1].integer("n").status().message(),
            "config.json: blocks[1].n: \"x\", wanted an integer");
  EXPECT_EQ(d.root().objects("mixed").status().message(),
            "config.json: mixed: 2, wanted an object");
  EXPECT_FALSE(d.root().objects("absent").value());
}

TEST(Json, BadDocumentsAreCorrupt) {
  for (std::string_view text : {"", "{", "[]", "{\"a\": nan}", "{} x", "\xff", "{\"a\":1e999}"}) {
    EXPECT_EQ(JsonDocument::parse(text, "config.json").status().code(), Code::kCorrupt) << text;
  }
}

TEST(Json, DeepNestingIsRefusedWithoutRecursion) {
  for (int depth : {100, 1'000'000}) {
    const std::string text = "{\"a\":" + std::string(static_cast<size_t>(depth), '[');
    EXPECT_THAT(JsonDocument::parse(text, "c").status().message(), HasSubstr("64 levels"));
  }
}

TEST(Json, EveryTruncationIsCorrupt) {
  const std::string text = R"({"a": [1, {"b": "\u00e9"}], "c": -1.5e3})";
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(JsonDocument::parse(text.substr(0, size), "c").ok()) << size;
  }
}

TEST(Json, OpensFiles) {
  TempFolder folder;
  EXPECT_TRUE(JsonDocument::open(folder.write("c.json", "{}")).ok());
  EXPECT_EQ(JsonDocument::open(folder.path() / "none").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace kvant
