// The whole server over sockets: every endpoint, streams, errors, clients that misbehave, the end.
#include <gmock/gmock.h>

#include "server/served_model.h"

namespace kvant::server {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json greedy(const std::string& prompt, int max_tokens) {
  return {{"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}};
}

TEST(Http, AnswersWhatIsAskedOfItself) {
  const RunningServer server;
  EXPECT_EQ(get(server, "/health").json()["status"].get<std::string>(), "ok");
  EXPECT_EQ(get(server, "/ready").code, 200);
  EXPECT_EQ(get(server, "/version").json().count("version"), 1u);
  const json models = get(server, "/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"].get<std::string>(), "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"].get<int>(), 256);
  const HttpAnswer metrics = get(server, "/metrics");
  EXPECT_THAT(metrics.head, HasSubstr("text/plain"));
  EXPECT_THAT(metrics.body, HasSubstr("# TYPE kvant:num_requests_running gauge"));
  const json tokens = post(server, "/tokenize", {{"prompt", "ab"}}).json();
  EXPECT_EQ(tokens["tokens"].get<std::vector<int>>(), (std::vector<int>{256, 'a', 'b'}));
  EXPECT_EQ(post(server, "/detokenize", {{"tokens", {97, 98}}}).json()["prompt"].get<std::string>(),
            "ab");
}

TEST(Http, CompletesAndStreamsTheSame) {
  const RunningServer server;
  json body = greedy("the cache", 20);
  const HttpAnswer whole = post(server, "/v1/completions", body);
  ASSERT_EQ(whole.code, 200) << whole.body;
  const json answer = whole.json();
  EXPECT_EQ(answer["object"].get<std::string>(), "text_completion");
  EXPECT_EQ(answer["usage"]["prompt_tokens"].get<int>(), 10);
  EXPECT_EQ(answer["usage"]["completion_tokens"].get<int>(), 20);
  EXPECT_EQ(answer["choices"][0]["finish_reason"].get<std::string>(), "length");

  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpAnswer streamed = post(server, "/v1/completions", body);
  EXPECT_THAT(streamed.head, HasSubstr("text/event-stream"));
  const std::vector<std::string> events = streamed.events();
  ASSERT_GT(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text, reason;
  json usage;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json event = json::parse(events[i]);
    if (event["choices"].empty()) {
      usage = event["usage"];
      continue;
    }
    text += event["choices"][0]["text"].get<std::string>();
    if (!event["choices"][0]["finish_reason"].is_null())
      reason = event["choices"][0]["finish_reason"].get<std::string>();
  }
  EXPECT_EQ(text, answer["choices"][0]["text"].get<std::string>());
  EXPECT_EQ(reason, "length");
  EXPECT_EQ(usage["completion_tokens"].get<int>(), 20);
}

TEST(Http, ChatsInRoles) {
  const RunningServer server;
  json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
               {"max_tokens", 5},
               {"temperature", 0},
               {"ignore_eos", true}};
  const json answer = post(server, "/v1/chat/completions", body).json();
  EXPECT_EQ(answer["object"].get<std::string>(), "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["role"].get<std::string>(), "assistant");
  body["stream"] = true;
  const std::vector<std::string> events = post(server, "/v1/chat/completions", body).events();
  const json first = json::parse(events.at(0));
  EXPECT_EQ(first["object"].get<std::string>(), "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"].get<std::string>(), "assistant");
}

TEST(Http, EveryPromptHasItsAnswers) {
  const RunningServer server;
  json body = greedy("", 4);
  body["prompt"] = {"one", "two"};
  body["n"] = 2;
  body["echo"] = true;
  const json choices = post(server, "/v1/completions", body).json()["choices"];
  ASSERT_EQ(choices.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(choices[i]["index"].get<size_t>(), i);
    EXPECT_EQ(choices[i]["text"].get<std::string>().substr(0, 3), i < 2 ? "one" : "two");
  }
}

TEST(Http, CaseC3_WhatPromptsShareIsCountedOnce) {
  const RunningServer server;
  const std::string prompt(150, 'p');
  const json cold = post(server, "/v1/completions", greedy(prompt, 5)).json();
  const json warm = post(server, "/v1/completions", greedy(prompt, 5)).json();
  EXPECT_EQ(cold["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 0);
  EXPECT_EQ(warm["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), 128);
  EXPECT_EQ(warm["choices"][0]["text"], cold["choices"][0]["text"]);
  json other = greedy(prompt, 5);
  other["cache_salt"] = "another tenant";
  EXPECT_EQ(post(server, "/v1/completions", other)
                .json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                .get<int>(),
            0);
}

TEST(Http, CaseH1_EveryRefusalIsASentenceWithACode) {
  ServerSettings settings;
  settings.http.max_body_bytes = 4096;
  settings.http.max_header_bytes = 1024;
  const RunningServer server(settings);
  EXPECT_EQ(get(server, "/nothing").code, 404);
  EXPECT_EQ(get(server, "/v1/completions").code, 405);
  EXPECT_EQ(post(server, "/v1/models", json::object()).code, 405);
  EXPECT_EQ(post(server, "/v1/completions", {{"prompt", "a"}, {"model", "gpt"}}).code, 404);
  const HttpAnswer wrong = post(server, "/v1/completions", {{"prompt", 5}});
  EXPECT_EQ(wrong.code, 400);
  EXPECT_EQ(wrong.json()["error"]["param"].get<std::string>(), "prompt");
  const HttpAnswer long_prompt = post(server, "/v1/completions", greedy(std::string(300, 'a'), 5));
  EXPECT_EQ(long_prompt.code, 400);
  EXPECT_THAT(long_prompt.body, HasSubstr("301"));
  EXPECT_EQ(post(server, "/v1/completions", greedy(std::string(5000, 'a'), 5)).code, 413);
  EXPECT_EQ(get(server, "/health", "X: " + std::string(2000, 'x') + "\r\n").code, 431);
  Client client(server.port());
  client.send("no request at all\r\n\r\n");
  EXPECT_EQ(client.receive().code, 400);
  Client text(server.port());
  text.send(request_text("POST", "/v1/completions", "{\"prompt\": \"\xff\"}"));
  EXPECT_EQ(text.receive().code, 400);
}

TEST(Http, KeysAreAskedForUnderV1) {
  ServerSettings settings;
  settings.http.api_keys = {"secret", "other"};
  const RunningServer server(settings);
  EXPECT_EQ(get(server, "/health").code, 200);
  EXPECT_EQ(get(server, "/v1/models").code, 401);
  EXPECT_EQ(get(server, "/v1/models", "Authorization: Bearer secre\r\n").code, 401);
  EXPECT_EQ(get(server, "/v1/models", "Authorization: Bearer secretsecret\r\n").code, 401);
  EXPECT_EQ(get(server, "/v1/models", "Authorization: Bearer \r\n").code, 401);
  EXPECT_EQ(get(server, "/v1/models", "Authorization: secret\r\n").code, 401);
  EXPECT_EQ(get(server, "/v1/models", "Authorization: Bearer other\r\n").code, 200);
}

TEST(Http, OriginsAreLetInWhereAsked) {
  const RunningServer closed;
  EXPECT_THAT(get(closed, "/health").head, testing::Not(HasSubstr("Access-Control")));
  ServerSettings settings;
  settings.http.cors_origin = "*";
  const RunningServer open(settings);
  EXPECT_THAT(get(open, "/health").head, HasSubstr("Access-Control-Allow-Origin: *"));
  Client client(open.port());
  client.send(request_text("OPTIONS", "/v1/completions"));
  EXPECT_EQ(client.receive().code, 204);
}

TEST(Http, CaseF3_AFullQueueIsAnswered429) {
  ServerSettings settings;
  settings.service.max_queue = 1;
  const RunningServer server(settings);
  Client first(server.port());
  first.send(request_text("POST", "/v1/completions", greedy("a", 200).dump()));
  HttpAnswer second;
  do {  // until the first was taken
    second = post(server, "/v1/completions", greedy("b", 1));
  } while (second.code == 200);
  EXPECT_EQ(second.code, 429);
  EXPECT_THAT(second.head, HasSubstr("Retry-After"));
  EXPECT_EQ(first.receive().code, 200);
}

TEST(Http, RequestsOnOneConnectionAreAnsweredInOrder) {
  const RunningServer server;
  Client client(server.port());
  const std::string one = request_text("POST", "/v1/completions", greedy("a", 8).dump());
  const std::string two = request_text("GET", "/health");
  client.send(one + two);  // sent ahead
  EXPECT_EQ(client.receive().json()["usage"]["completion_tokens"].get<int>(), 8);
  EXPECT_EQ(client.receive().json()["status"].get<std::string>(), "ok");
  client.send(two);
  EXPECT_EQ(client.receive().code, 200);
}

TEST(Http, CaseF4_AClientThatGoesAwayLeavesNoPages) {
  RunningServer server;
  json stream = greedy("a", 240);
  stream["stream"] = true;
  for (const json& body : {greedy("a", 240), stream}) {
    for (const size_t sent : {10u, 60u, 100000u}) {  // in the head, in the body, all of it
      Client client(server.port());
      client.send(request_text("POST", "/v1/completions", body.dump()).substr(0, sent));
    }
  }
  while (!server.service().is_idle()) std::this_thread::yield();
  server.stop();
  const CacheUsage usage = server.cache().usage();
  EXPECT_EQ(usage.live_bytes, usage.cached_bytes);
  EXPECT_TRUE(server.cache().check_invariants().ok());
}

TEST(Http, ARequestThatNeverComesWholeIsGivenUp) {
  ServerSettings settings;
  settings.http.read_seconds = 1;
  settings.http.idle_seconds = 1;
  const RunningServer server(settings);
  Client half(server.port()), idle(server.port());
  half.send("POST /v1/completions HTTP/1.1\r\nContent-Le");
  EXPECT_EQ(half.receive().code, 0);
  EXPECT_EQ(idle.receive().code, 0);
}

TEST(Http, WhatRunsEndsBeforeTheServerDoes) {
  RunningServer server;
  Client client(server.port());
  json body = greedy("a", 200);
  body["stream"] = true;
  client.send(request_text("POST", "/v1/completions", body.dump()));
  while (server.service().is_idle()) std::this_thread::yield();
  server.stop();
  const std::vector<std::string> events = client.receive().events();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_FALSE(Client(server.port()).connected());
}

}  // namespace
}  // namespace kvant::server
