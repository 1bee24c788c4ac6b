// Requests of the API, without a socket: what is taken, and what is refused with which words.
#include "server/api.h"

#include <gmock/gmock.h>

#include "server/served_model.h"

namespace kvant::server {
namespace {

using testing::HasSubstr;

ApiModel model() {
  return {.name = "tiny", .tokenizer = tiny_model().model().tokenizer(), .context = 256};
}

Parsed<ApiRequest> completions(const std::string& text) {
  const auto body = parse_body(text);
  EXPECT_FALSE(body.error) << text;
  return parse_completions(body.value, model());
}
Parsed<ApiRequest> chat(const std::string& text) {
  const auto body = parse_body(text);
  EXPECT_FALSE(body.error) << text;
  return parse_chat(body.value, model());
}

TEST(Api, TakesEveryFieldOfACompletion) {
  const auto parsed = completions(
      R"({"model": "tiny", "prompt": "ab", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9,
          "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 3, "n": 2, "best_of": 2,
          "stop": ["x", "yz"], "stream": true, "stream_options": {"include_usage": true},
          "echo": true, "ignore_eos": true, "cache_salt": "me", "user": "somebody",
          "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "suffix": null,
          "logprobs": null})");
  ASSERT_FALSE(parsed.error) << parsed.error->message;
  const ApiRequest& r = parsed.value;
  ASSERT_EQ(r.generations.size(), 1u);
  const GenerationRequest& g = r.generations[0];
  EXPECT_EQ(g.prompt, (std::vector<int32_t>{256, 'a', 'b'}));
  EXPECT_EQ(g.max_tokens, 5);
  EXPECT_EQ(g.sampling.temperature, 0.5);
  EXPECT_EQ(g.sampling.top_p, 0.9);
  EXPECT_EQ(g.sampling.top_k, 7);
  EXPECT_EQ(g.sampling.min_p, 0.1);
  EXPECT_EQ(g.sampling.repeat_penalty, 1.2);
  EXPECT_EQ(g.sampling.seed, 3u);
  EXPECT_EQ(g.num_samples, 2);
  EXPECT_EQ(g.stop, (std::vector<std::string>{"x", "yz"}));
  EXPECT_TRUE(g.ignore_end);
  EXPECT_EQ(g.cache_salt, "me");
  EXPECT_TRUE(r.stream && r.include_usage);
  EXPECT_EQ(r.echoes, std::vector<std::string>{"ab"});
}

TEST(Api, APromptIsATextOrIdsOrAListOfEither) {
  EXPECT_EQ(completions(R"({"prompt": [1, 2, 3]})").value.generations[0].prompt,
            (std::vector<int32_t>{1, 2, 3}));
  const auto many = completions(R"({"prompt": ["a", "b"]})");
  ASSERT_EQ(many.value.generations.size(), 2u);
  EXPECT_EQ(many.value.generations[1].prompt, (std::vector<int32_t>{256, 'b'}));
  EXPECT_EQ(completions(R"({"prompt": [[1], [2, 3]]})").value.generations[1].prompt,
            (std::vector<int32_t>{2, 3}));
}

TEST(Api, AChatIsWrittenInTheModelsTemplate) {
  const auto parsed =
      chat(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]})");
  ASSERT_FALSE(parsed.error) << parsed.error->message;
  EXPECT_EQ(model().tokenizer.decode(parsed.value.generations[0].prompt, true), "user: hi\n");
  // As much as there is room for.
  EXPECT_EQ(parsed.value.generations[0].max_tokens,
            256 - static_cast<int64_t>(parsed.value.generations[0].prompt.size()));
}

struct Refusal {
  const char* body;
  const char* param;
  const char* message;
};

TEST(Api, CaseH1_WhatIsWrongIsNamedWithItsValue) {
  const Refusal refusals[] = {
      {R"({})", "prompt", "prompt is missing, wanted a text"},
      {R"({"prompt": 5})", "prompt", "prompt is 5, wanted a text"},
      {R"({"prompt": []})", "prompt", "prompt is a list of 0"},
      {R"({"prompt": ["a", {}]})", "prompt", "prompt has an object in it"},
      {R"({"prompt": [-1]})", "prompt", "prompt has -1 in it"},
      {R"({"prompt": "a", "max_tokens": 0})", "max_tokens",
       "max_tokens is 0, wanted at least 1, or echo"},
      {R"({"prompt": "a", "max_tokens": 1.5})", "max_tokens",
       "max_tokens is 1.5, wanted an integer"},
      {R"({"prompt": "a", "max_tokens": 1e300})", "max_tokens", "wanted an integer"},
      {R"({"prompt": "a", "max_tokens": 18446744073709551615})", "max_tokens", "wanted an integer"},
      {R"({"prompt": "a", "temperature": "hot"})", "temperature", "temperature is \"hot\""},
      {R"({"prompt": "a", "temperature": -1})", "temperature", "temperature is -1"},
      {R"({"prompt": "a", "top_p": 0})", "top_p", "top_p is 0"},
      {R"({"prompt": "a", "n": 1000})", "n", "n is 1000, wanted an integer from 1 to 128"},
      {R"({"prompt": "a", "n": 2, "best_of": 1})", "best_of", "best_of is 1, wanted at least n"},
      {R"({"prompt": "a", "stop": [""]})", "stop", "stop is a list of 1"},
      {R"({"prompt": "a", "stop": 3})", "stop", "stop is 3"},
      {R"({"prompt": "a", "suffix": "z"})", "suffix", "suffix is \"z\""},
      {R"({"prompt": "a", "logprobs": 21})", "logprobs",
       "logprobs is 21, wanted an integer from 0 to 20"},
      {R"({"prompt": "a", "stream": "yes"})", "stream", "stream is \"yes\", wanted true or false"},
      {R"({"prompt": "a", "stream_options": {"include_usage": true}})", "stream_options",
       "without stream: true"},
      {R"({"prompt": "a", "stream": true, "stream_options": {"x": 1}})", "stream_options",
       "unknown field \"x\""},
      {R"({"prompt": "a", "frequency_penalty": 0.5})", "frequency_penalty",
       "frequency_penalty is 0.5"},
      {R"({"prompt": "a", "logit_bias": {"5": 1}})", "logit_bias", "logits can't be biased"},
      {R"({"prompt": "a", "temprature": 1})", "temprature", "unknown field \"temprature\""},
      {R"({"prompt": "a", "model": "other"})", "model", "\"other\" isn't served here, tiny is"},
  };
  for (const Refusal& refusal : refusals) {
    const auto parsed = completions(refusal.body);
    ASSERT_TRUE(parsed.error) << refusal.body;
    EXPECT_EQ(parsed.error->param, refusal.param) << refusal.body;
    EXPECT_THAT(parsed.error->message, HasSubstr(refusal.message)) << refusal.body;
  }
  const Refusal chats[] = {
      {R"({})", "messages", "messages is missing"},
      {R"({"messages": "hi"})", "messages", "messages is \"hi\""},
      {R"({"messages": []})", "messages", "messages is a list of 0"},
      {R"({"messages": [{"content": "hi"}]})", "messages", "messages[0] is no message"},
      {R"({"messages": [{"role": "user", "content": 3}]})", "messages",
       "messages[0] is no message"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages",
       "messages[0] is no message"},
      {R"({"messages": [{"role": "user", "content": "x"}], "tools": 3})", "tools", "tools is 3"},
      {R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}})",
       "response_format", "only text is served"},
      {R"({"messages": [{"role": "user", "content": "x"}], "prompt": "x"})", "prompt",
       "unknown field \"prompt\""},
  };
  for (const Refusal& refusal : chats) {
    const auto parsed = chat(refusal.body);
    ASSERT_TRUE(parsed.error) << refusal.body;
    EXPECT_EQ(parsed.error->param, refusal.param) << refusal.body;
    EXPECT_THAT(parsed.error->message, HasSubstr(refusal.message)) << refusal.body;
  }
}

TEST(Api, CaseH1_ABodyThatIsNoObjectOfJson) {
  for (const std::string body : {"", "{", "{\"a\": \xff}", "[1]", "nul", "{\"a\": NaN}", "3"}) {
    const auto parsed = parse_body(body);
    ASSERT_TRUE(parsed.error) << body;
    EXPECT_THAT(parsed.error->message,
                testing::AnyOf(HasSubstr("isn't JSON"), HasSubstr("wanted an object")));
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_TRUE(parse_body(deep).error);
}

TEST(Api, ErrorsHaveOpenAIsShape) {
  const auto parsed = completions(R"({"prompt": 5})");
  EXPECT_EQ(error_json(*parsed.error).dump(),
            R"({"error":{"message":"prompt is 5, wanted a text, a list of token ids, or a list of )"
            R"(either","type":"invalid_request_error","param":"prompt","code":null}})");
}

}  // namespace
}  // namespace kvant::server
