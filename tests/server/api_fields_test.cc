// Requests without sockets: what is taken, and what is refused by name.
#include <gtest/gtest.h>

#include "server/api.h"
#include "server/serving_harness.h"

namespace kvant::server {
namespace {

const ChatTokenizer kTokenizer;
const ApiModel kModel = {.name = "toy", .tokenizer = kTokenizer, .context = 4096};

Json body_of(Endpoint endpoint) {
  if (endpoint == Endpoint::kCompletions) return {{"prompt", "Hello"}};
  return {{"messages", Json::array({{{"role", "user"}, {"content", "Hello"}}})}};
}
Parsed<ApiRequest> parse(Endpoint endpoint, const Json& body) {
  return endpoint == Endpoint::kCompletions ? parse_completions(body, kModel)
                                            : parse_chat(body, kModel);
}

// A field, values that it takes, and values that it doesn't.
struct FieldCase {
  const char* name;
  std::vector<Json> good, bad;
  bool completions = true, chat = true;
};
const Json kObject = {{"a", 1}}, kList = {1, "a"};
const std::vector<FieldCase> kFields = {
    {"n", {1, 3, nullptr}, {0, -1, 1.5, "1", true, kObject, kList, 1e300}},
    {"max_tokens", {1, 100, nullptr}, {0, -1, 1.5, "1", true, kObject, kList}},
    {"max_completion_tokens", {1}, {0, "1", true}, false, true},
    {"min_tokens", {0, 3}, {-1, "1", 0.5, true, kObject}},
    {"temperature", {0, 0.7, 2}, {-0.1, 1e9, "1", true, kObject, kList}},
    {"top_p", {0.1, 1}, {0, -1, 1.01, "1", true, kObject}},
    {"min_p", {0, 0.5}, {-0.1, 1, "0", true, kList}},
    {"top_k", {-1, 0, 40}, {-2, 1.5, "1", true, kObject}},
    {"repetition_penalty", {1, 1.2}, {0, -1, "1", true}},
    {"seed", {0, -5, 12345678901}, {1.5, "1", true, kObject}},
    {"stop", {"a", Json{"a", "b"}}, {"", 1, true, kObject, kList, Json{""}}},
    {"stream", {true, false}, {0, 1, "true", kObject}},
    {"ignore_eos", {true}, {1, "true"}},
    {"cache_salt", {"tenant"}, {1, true, kObject}},
    {"echo", {true}, {1, "true", kList}, true, false},
    {"logprobs", {0, 5}, {-1, 21, 1.5, "5", kObject}, true, false},
    {"logprobs", {true, false}, {1, "true", kObject}, false, true},
    {"prompt",
     {"a", Json{1, 2}, Json{"a", "b"}, Json{{1, 2}, {3}}},
     {nullptr, 1, true, kObject, kList, Json::array(), Json{{-1}}},
     true,
     false},
    {"messages", {}, {nullptr, 1, "a", kObject, kList, Json::array()}, false, true},
    {"tools", {Json::array()}, {1, "a", kObject}, false, true},
    {"model", {"toy"}, {1, true, kObject}},
    {"suffix", {""}, {"b"}, true, false},
    {"best_of", {1, 2}, {0, "1", 129}, true, false},
    {"frequency_penalty", {0}, {0.5, "a"}},
    {"logit_bias", {Json::object()}, {kObject}},
    {"nonsense", {}, {1, "a", true}},
};

TEST(ApiFields, EveryFieldTakesItsTypeAndRefusesOthersByName) {
  for (const Endpoint endpoint : {Endpoint::kCompletions, Endpoint::kChat}) {
    for (const FieldCase& field : kFields) {
      if (!(endpoint == Endpoint::kChat ? field.chat : field.completions)) continue;
      for (const Json& value : field.good) {
        Json body = body_of(endpoint);
        body[field.name] = value;
        const auto parsed = parse(endpoint, body);
        EXPECT_FALSE(parsed.error) << field.name << " " << value << ": " << parsed.error->message;
      }
      for (const Json& value : field.bad) {
        Json body = body_of(endpoint);
        body[field.name] = value;
        const auto parsed = parse(endpoint, body);
        ASSERT_TRUE(parsed.error) << field.name << " " << value;
        EXPECT_EQ(parsed.error->http, 400) << field.name << " " << value;
        EXPECT_EQ(parsed.error->param, field.name) << value << ": " << parsed.error->message;
        EXPECT_NE(parsed.error->message.find(field.name), std::string::npos);
      }
    }
  }
}

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
  Json body = body_of(Endpoint::kChat);
  body["messages"][0]["content"] = Json::array({{{"type", "text"}, {"text", "Hi"}}});
  body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  const auto parsed = parse_chat(body, kModel);
  ASSERT_FALSE(parsed.error) << parsed.error->message;
  EXPECT_EQ(kTokenizer.decode(parsed.value.generations[0].prompt, true),
            "user: Hi\ntools: 1\nassistant: ");
}

TEST(ApiFields, AnotherModelIs404) {
  Json body = body_of(Endpoint::kChat);
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
