// The API over sockets: every endpoint, and streams.
#include <algorithm>

#include "server/serving_harness.h"

namespace kvant::server {
namespace {

const Json kHello = Json::array({{{"role", "user"}, {"content", "Hello"}}});

TEST_F(ServingTest, SaysWhatItIs) {
  EXPECT_EQ(get("/health").at("status").get<std::string>(), "ok");
  EXPECT_EQ(get("/ready").at("status").get<std::string>(), "ready");
  EXPECT_TRUE(get("/version").contains("version"));
  const Json models = get("/v1/models");
  EXPECT_EQ(models.at("data").at(0).at("id").get<std::string>(), "toy");
  EXPECT_EQ(models.at("data").at(0).at("max_model_len").get<int64_t>(), 4096);
}

TEST_F(ServingTest, TokenizesAndBack) {
  const Json json = post("/tokenize", {{"prompt", "ab"}});
  EXPECT_EQ(json.at("tokens"), (Json{toy::kBos, 'a', 'b'}));
  EXPECT_EQ(json.at("count"), 3);
  EXPECT_EQ(post("/detokenize", {{"tokens", {'a', 'b'}}}).at("prompt"), "ab");
}

TEST_F(ServingTest, ACompletionHasOpenAisShape) {
  const Json json =
      complete({{"prompt", "Hello"}, {"max_tokens", 5}, {"temperature", 0}, {"ignore_eos", true}});
  EXPECT_EQ(json.at("object").get<std::string>(), "text_completion");
  ASSERT_EQ(json.at("choices").size(), 1u);
  EXPECT_EQ(json.at("choices").at(0).at("finish_reason").get<std::string>(), "length");
  EXPECT_EQ(json.at("usage").at("prompt_tokens"), 6);
  EXPECT_EQ(json.at("usage").at("completion_tokens"), 5);
  EXPECT_EQ(json.at("usage").at("total_tokens"), 11);
}

TEST_F(ServingTest, StreamsSayWhatWholeAnswersSay) {
  for (const std::string path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool is_chat = path == "/v1/chat/completions";
    Json body = {{"max_tokens", 20}, {"seed", 5}, {"n", 2}, {"ignore_eos", true}};
    is_chat ? body["messages"] = kHello : body["prompt"] = "Hello";
    const Json whole = post(path, body);
    body["stream_options"] = {{"include_usage", true}};
    const std::vector<Json> pieces = stream(path, body);
    std::vector<std::string> texts(2);
    std::vector<std::string> reasons(2);
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      const Json& choice = pieces[i].at("choices").at(0);
      const auto index = choice.at("index").get<size_t>();
      texts[index] +=
          is_chat ? choice.at("delta").value("content", "") : choice.at("text").get<std::string>();
      if (!choice.at("finish_reason").is_null())
        reasons[index] = choice.at("finish_reason").get<std::string>();
      EXPECT_TRUE(pieces[i].at("usage").is_null());
    }
    for (size_t i = 0; i < 2; ++i) {
      const Json& choice = whole.at("choices").at(i);
      EXPECT_EQ(
          texts[i],
          (is_chat ? choice.at("message").at("content") : choice.at("text")).get<std::string>());
      EXPECT_EQ(reasons[i], "length");
    }
    EXPECT_NE(texts[0], texts[1]);
    EXPECT_TRUE(pieces.back().at("choices").empty());
    EXPECT_EQ(pieces.back().at("usage").at("completion_tokens"), 40);
  }
}

TEST_F(ServingTest, UsageCountsWhatThePrefixCacheHeld) {
  const std::string prompt(200, 'p');
  const Json body = {{"prompt", prompt}, {"max_tokens", 1}};
  const auto cached = [&](const Json& b) {
    return complete(b).at("usage").at("prompt_tokens_details").at("cached_tokens").get<int64_t>();
  };
  EXPECT_EQ(cached(body), 0);
  EXPECT_EQ(cached(body), 192);
  Json salted = body;
  salted["cache_salt"] = "another tenant";
  EXPECT_EQ(cached(salted), 0);
  EXPECT_EQ(metric("kvant:prefix_cache_hits_total"), 192);
}

TEST_F(ServingTest, LogprobsComeWithEveryToken) {
  const Json chat = post("/v1/chat/completions", {{"messages", kHello},
                                                  {"max_tokens", 4},
                                                  {"temperature", 0},
                                                  {"ignore_eos", true},
                                                  {"logprobs", true},
                                                  {"top_logprobs", 3}});
  const Json& content = chat.at("choices").at(0).at("logprobs").at("content");
  ASSERT_EQ(content.size(), 4u);
  for (const Json& token : content) {
    ASSERT_EQ(token.at("top_logprobs").size(), 3u);
    EXPECT_EQ(token.at("logprob"), token.at("top_logprobs").at(0).at("logprob"));
    EXPECT_LE(token.at("logprob").get<double>(), 0);
  }
}

TEST_F(ServingTest, EchoScoresThePromptAndStreamsTheSame) {
  Json body = {{"prompt", "Hello"}, {"max_tokens", 3},  {"echo", true},
               {"logprobs", 2},     {"temperature", 0}, {"ignore_eos", true}};
  const Json choice = complete(body).at("choices").at(0);
  EXPECT_TRUE(choice.at("text").get<std::string>().starts_with("Hello"));
  const Json logprobs = choice.at("logprobs");
  ASSERT_EQ(logprobs.at("tokens").size(), 9u);  // <s> Hello and three
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  EXPECT_EQ(logprobs.at("tokens").at(1).get<std::string>(), "H");
  EXPECT_EQ(logprobs.at("text_offset").at(2), 1);
  for (size_t i = 1; i < 9; ++i) EXPECT_LE(logprobs.at("token_logprobs").at(i).get<double>(), 0);
  Json streamed = {};
  for (const Json& piece : stream("/v1/completions", body)) {
    const Json& part = piece.at("choices").at(0).at("logprobs");
    if (part.is_null()) continue;
    for (const auto& [name, list] : part.items()) {
      for (const Json& item : list) streamed[name].push_back(item);
    }
  }
  EXPECT_EQ(streamed, logprobs);
  body["max_tokens"] = 0;
  const Json read = complete(body);
  EXPECT_EQ(read.at("choices").at(0).at("text").get<std::string>(), "Hello");
  EXPECT_EQ(read.at("choices").at(0).at("logprobs").at("tokens").size(), 6u);
  EXPECT_EQ(read.at("usage").at("completion_tokens"), 0);
}

TEST_F(ServingTest, BestOfGivesTheLikeliestOfItsSamples) {
  Json body = {{"prompt", "Hello"}, {"max_tokens", 9}, {"n", 5}, {"seed", 3}, {"logprobs", 0}};
  std::vector<std::pair<double, std::string>> all;
  const Json five = complete(body);
  for (const Json& choice : five.at("choices")) {
    const Json& logprobs = choice.at("logprobs").at("token_logprobs");
    double sum = 0;
    for (const Json& logprob : logprobs) sum += logprob.get<double>();
    all.emplace_back(-sum / static_cast<double>(logprobs.size()),
                     choice.at("text").get<std::string>());
  }
  std::sort(all.begin(), all.end());
  body.erase("logprobs");
  body["n"] = 2;
  body["best_of"] = 5;
  const Json best = complete(body);
  ASSERT_EQ(best.at("choices").size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(best.at("choices").at(i).at("text").get<std::string>(), all[i].second);
    EXPECT_EQ(best.at("choices").at(i).at("index").get<size_t>(), i);
    EXPECT_TRUE(best.at("choices").at(i).at("logprobs").is_null());
  }
  body["stream"] = true;
  post("/v1/completions", body, 400);
}

TEST_F(ServingTest, StopStringsEndAnAnswer) {
  Json body = {{"prompt", "Hello"}, {"max_tokens", 30}, {"temperature", 0}, {"ignore_eos", true}};
  const std::string text = complete(body).at("choices").at(0).at("text").get<std::string>();
  ASSERT_GT(text.size(), 4u);
  body["stop"] = text.substr(2, 1);
  const Json choice = complete(body).at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason").get<std::string>(), "stop");
  EXPECT_EQ(choice.at("text").get<std::string>(), text.substr(0, text.find(text.substr(2, 1))));
}

TEST_F(ServingTest, MetricsCountWhatHappened) {
  complete({{"prompt", "Hello"}, {"max_tokens", 3}, {"ignore_eos", true}});
  post("/v1/completions", {{"prompt", 1}}, 400);
  EXPECT_EQ(metric("kvant:generation_tokens_total"), 3);
  EXPECT_EQ(metric("kvant:prompt_tokens_total"), 6);
  EXPECT_EQ(metric("kvant:http_responses_total{code=\"400\"}"), 1);
  EXPECT_EQ(metric("kvant:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(metric("kvant:inter_token_latency_seconds_count"), 2);
  EXPECT_EQ(metric("kvant:e2e_request_latency_seconds_count"), 1);
  EXPECT_EQ(metric("kvant:num_requests_running"), 0);
}

}  // namespace
}  // namespace kvant::server
