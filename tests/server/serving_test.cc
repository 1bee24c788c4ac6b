// The API over sockets: every endpoint, streams, and the tokens that the engine gives alone.
#include <algorithm>
#include <mutex>

#include "base/rng.h"
#include "engine/engine.h"
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

// A request of the random mix, as the API has it and as the engine takes it.
struct MixedRequest {
  Json body;
  GenerationRequest engine;
};
std::vector<MixedRequest> mixed_requests(int n, uint64_t seed) {
  Rng rng(seed);
  std::vector<MixedRequest> out;
  for (int i = 0; i < n; ++i) {
    MixedRequest r;
    // Half of the prompts begin alike.
    std::vector<int32_t> prompt = toy::random_tokens(i % 2 == 0 ? 130 : 1, i % 2 == 0 ? 1 : seed);
    const std::vector<int32_t> own = toy::random_tokens(1 + rng.below(150), rng.below(1000));
    prompt.insert(prompt.end(), own.begin(), own.end());
    r.engine.prompt = prompt;
    r.engine.sampling.temperature = rng.below(3) == 0 ? 0 : 0.9;
    r.engine.sampling.seed = rng.below(1000);
    if (rng.below(2) == 0) r.engine.sampling.top_k = 20;
    if (rng.below(2) == 0) r.engine.sampling.top_p = 0.8;
    r.engine.max_tokens = static_cast<int64_t>(1 + rng.below(20));
    r.engine.ignore_end = rng.below(2) == 0;
    const SamplingParams& s = r.engine.sampling;
    r.body = {{"prompt", prompt},
              {"temperature", s.temperature},
              {"seed", s.seed},
              {"top_p", s.top_p},
              {"top_k", s.top_k.value_or(-1)},
              {"max_tokens", r.engine.max_tokens},
              {"ignore_eos", r.engine.ignore_end},
              {"logprobs", 0}};
    out.push_back(std::move(r));
  }
  return out;
}

// As the API spells the toy's tokens.
std::string spelled_token(int32_t id) {
  if (id >= 256) return "?";
  if (id < 128) return std::string(1, static_cast<char>(id));
  constexpr char kHex[] = "0123456789abcdef";
  return std::string("bytes:\\x") + kHex[id / 16] + kHex[id % 16];
}
std::string tokens_of(const Json& answer) {
  std::string out;
  for (const Json& token : answer.at("choices").at(0).at("logprobs").at("tokens"))
    out += token.get<std::string>() + " ";
  return out;
}

// Case E5: what is served at once is what each would get alone, whatever the prefix cache holds.
TEST_F(ServingTest, SixteenAtOnceGetWhatEachWouldAlone) {
  constexpr uint64_t kSeed = 20;
  std::vector<MixedRequest> requests = mixed_requests(64, kSeed);
  std::vector<std::string> alone;
  {
    toy::ToyModel model;
    ThreadPool threads(1);
    const auto cache =
        KvCache::create(toy::cache_options(model, {"int8_token", "int8_token"}), threads);
    Engine engine(model, **cache, {});
    for (MixedRequest& r : requests) {
      ASSERT_TRUE(engine.submit(r.engine).ok());
      std::string spelled;
      while (!engine.idle()) {
        for (const GenerationEvent& e : engine.step()) {
          if (e.token) spelled += spelled_token(*e.token) + " ";
        }
      }
      alone.push_back(spelled);
    }
  }
  for (const bool prefix_cache : {true, false}) {
    reopen({.prefix_cache = prefix_cache, .max_bytes = prefix_cache ? 400'000u : 0u});
    std::vector<std::string> answers(requests.size());
    std::atomic<size_t> next = 0;
    std::vector<std::thread> clients;
    for (int c = 0; c < 16; ++c) {
      clients.emplace_back([&] {
        for (size_t i = next++; i < requests.size(); i = next++) {
          const Json answer = complete(requests[i].body);
          answers[i] = tokens_of(answer);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(answers[i], alone[i]) << "request " << i << ", seed " << kSeed;
    }
  }
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
