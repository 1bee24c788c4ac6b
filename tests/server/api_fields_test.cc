// Requests without sockets: what is taken, and what is refused by name.
#include <gtest/gtest.h>

#include "server/api.h"
#include "server/serving_harness.h"

namespace kvant::server {
namespace {

const ChatTokenizer kTokenizer;
const ApiModel kModel = {.name = "toy", .tokenizer = kTokenizer, .context = 4096};

const Json kChat = {{"messages", Json::array({{{"role", "user"}, {"content", "Hello"}}})}};

TEST(ApiFields, PromptsAreTextsOrIds) {
  const auto request =
      parse_completions({{"prompt", Json{"ab", "c"}}, {"n", 2}, {"max_tokens", 7}}, kModel).value;
  ASSERT_EQ(request.generations.size(), 2u);
  EXPECT_EQ(request.generations[0].prompt, (std::vector<int32_t>{toy::kBos, 'a', 'b'}));
  EXPECT_EQ(request.generations[1].num_samples, 2);
  EXPECT_EQ(request.generations[1].max_tokens, 7);
  const auto ids = parse_completions({{"prompt", Json{65, 66}}}, kModel).value;
  EXPECT_EQ(ids.generations[0].prompt, (std::vector<int32_t>{65, 66}));
}

TEST(ApiFields, ChatsGoThroughTheTemplateWithTheirTools) {
  Json body = kChat;
  body["messages"][0]["content"] = Json::array({{{"type", "text"}, {"text", "Hi"}}});
  body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  const auto parsed = parse_chat(body, kModel);
  ASSERT_FALSE(parsed.error) << parsed.error->message;
  EXPECT_EQ(kTokenizer.decode(parsed.value.generations[0].prompt, true),
            "user: Hi\ntools: 1\nassistant: ");
}

TEST(ApiFields, AnotherModelIs404) {
  Json body = kChat;
  body["model"] = "gpt-4";
  const auto parsed = parse_chat(body, kModel);
  ASSERT_TRUE(parsed.error);
  EXPECT_EQ(parsed.error->http, 404);
  EXPECT_EQ(parsed.error->code, "model_not_found");
}

TEST(ApiFields, BodiesThatArentObjectsAreRefused) {
  for (const std::string body :
       {"", "{", "[1]", "1", "null", "{\"prompt\": NaN}", "{} x",
        "{\"prompt\": \"a\", \"max_tokens\": 1e400}", "{\"prompt\": \"\xff\"}", "\xef\xbb"}) {
    const auto parsed = parse_body(body);
    ASSERT_TRUE(parsed.error) << body;
    EXPECT_EQ(parsed.error->http, 400);
  }
}

TEST(ApiFields, ABodyOfManyBracketsIsRefused) {
  const std::string body(1 << 20, '[');
  EXPECT_TRUE(parse_body(body).error);
}

TEST(ApiFields, WhatNestsTooDeepIsRefusedBeforeAnythingGoesOverIt) {
  const std::string deep = std::string(4'000'000, '[') + std::string(4'000'000, ']');
  for (const std::string field : {"prompt", "tools", "stop", "logit_bias"}) {
    const auto parsed = parse_body("{\"" + field + "\": " + deep + "}");
    ASSERT_TRUE(parsed.error);
    EXPECT_EQ(parsed.error->message, "the body nests 4000001 levels deep, wanted at most 64");
  }
  EXPECT_FALSE(parse_body("{\"prompt\": \"" + std::string(100, '[') + "\\\"[\"}").error);
}

TEST(ApiFields, MaxTokensZeroReadsThePromptAlone) {
  EXPECT_EQ(parse_completions({{"prompt", "a"}, {"max_tokens", 0}}, kModel).error->param,
            "max_tokens");
  const auto parsed =
      parse_completions({{"prompt", "a"}, {"max_tokens", 0}, {"echo", true}}, kModel);
  EXPECT_FALSE(parsed.error);
}

}  // namespace
}  // namespace kvant::server
