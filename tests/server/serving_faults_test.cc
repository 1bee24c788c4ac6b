// Clients that err, go away, dawdle or come in crowds; and the server's end.
#include <set>

#include "server/serving_harness.h"

namespace kvant::server {
namespace {

// A request that would run for a long time.
const Json kLong = {{"prompt", "Hello"}, {"max_tokens", 4000}, {"ignore_eos", true}};

class FaultsTest : public ServingTest {
 protected:
  Json error_of_post(std::string_view path, const std::string& body, int status) const {
    const load::HttpAnswer answer = ask(path, body);
    EXPECT_EQ(answer.status, status) << path << " " << body.substr(0, 100) << "\n" << answer.body;
    const Json error = Json::parse(answer.body).at("error");
    std::set<std::string> members;
    for (const auto& [name, value] : error.items()) members.insert(name);
    EXPECT_EQ(members, (std::set<std::string>{"message", "type", "param", "code"}));
    return error;
  }
  bool becomes_idle() const {
    return eventually([this] { return service_->is_idle(); });
  }
};

TEST_F(FaultsTest, ErrorsHaveOpenAisShape) {
  EXPECT_EQ(error_of_post("/v1/completions", "{", 400).at("type"), "invalid_request_error");
  EXPECT_EQ(error_of_post("/v1/completions", "{\"prompt\": 1}", 400).at("param"), "prompt");
  EXPECT_EQ(
      error_of_post("/v1/completions", "{\"prompt\": \"a\", \"model\": \"b\"}", 404).at("code"),
      "model_not_found");
  error_of_post("/v1/nothing", "{}", 404);
  error_of_post("/health", "{}", 405);
  EXPECT_EQ(ask("/v1/completions").status, 405);
  const Json ids(std::vector<int>(5000, 65));
  const std::string message =
      error_of_post("/v1/completions", Json{{"prompt", ids}}.dump(), 400).at("message");
  EXPECT_NE(message.find("5000"), message.npos) << message;
  EXPECT_NE(message.find("4096"), message.npos) << message;
}

TEST_F(FaultsTest, APromptThatThePoolCantHoldNamesTheBytes) {
  reopen({.max_bytes = 200'000});
  const Json ids(std::vector<int>(3000, 65));
  const std::string message =
      error_of_post("/v1/completions", Json{{"prompt", ids}}.dump(), 400).at("message");
  EXPECT_NE(message.find("3000"), message.npos) << message;
  EXPECT_NE(message.find("200000"), message.npos) << message;
}

TEST_F(FaultsTest, OnlyKnownKeysAreServed) {
  reopen({.http = {.api_keys = {"secret", "second"}}});
  EXPECT_EQ(ask("/health").status, 200);
  EXPECT_EQ(ask("/v1/models").status, 401);
  EXPECT_EQ(ask("/v1/models", "", "wrong!").status, 401);
  EXPECT_EQ(ask("/v1/models", "", "secretsecret").status, 401);
  EXPECT_EQ(ask("/v1/models", "", "second").status, 200);
}

TEST_F(FaultsTest, WhatIsTooLargeIsRefused) {
  reopen({.http = {.max_body_bytes = 1000, .max_header_bytes = 2000}});
  EXPECT_EQ(ask("/v1/completions", std::string(1001, ' ')).status, 413);
  RawClient sender(port_);
  sender.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 50000000\r\n\r\n" +
              std::string(50'000'000, ' '));
  EXPECT_NE(sender.read_all().find(" 413 "), std::string::npos);
  RawClient bomb(port_);
  bomb.send("GET /health HTTP/1.1\r\nX-Bomb: " + std::string(4000, 'x') + "\r\n\r\n");
  EXPECT_NE(bomb.read_all().find(" 431 "), std::string::npos);
  RawClient garbage(port_);
  garbage.send("\x16\x03\x01 this is no HTTP\r\n\r\n");
  EXPECT_NE(garbage.read_all().find(" 400 "), std::string::npos);
  EXPECT_EQ(ask("/health").status, 200);
}

TEST_F(FaultsTest, HalfARequestIsClosedInTheEnd) {
  reopen({.http = {.read_seconds = 1}});
  RawClient half(port_);
  half.send(post_bytes("/v1/completions", "{\"prompt\": \"a\"}").substr(0, 90));
  half.read_all();  // ends
  EXPECT_EQ(ask("/health").status, 200);
}

TEST_F(FaultsTest, RequestsSentAheadAreAnsweredInOrder) {
  RawClient client(port_);
  client.send(post_bytes("/tokenize", "{\"prompt\": \"a\"}") +
              post_bytes("/tokenize", "{\"prompt\": \"bc\"}") +
              "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string heard = client.read_all();
  const size_t first = heard.find("\"count\":2"), second = heard.find("\"count\":3"),
               last = heard.find("\"ok\"");
  ASSERT_NE(last, heard.npos) << heard;
  EXPECT_LT(first, second);
  EXPECT_LT(second, last);
}

TEST_F(FaultsTest, AFullQueueSaysWhenToComeAgain) {
  reopen({.service = {.engine = {}, .max_queue = 1}});
  Json body = kLong;
  body["stream"] = true;
  RawClient client(port_);
  client.send(post_bytes("/v1/completions", body.dump()));
  client.read_until("data: ");
  RawClient second(port_);
  second.send(post_bytes("/v1/completions", kLong.dump()));
  const std::string heard = second.read_until("}}");
  EXPECT_NE(heard.find(" 429 "), heard.npos) << heard;
  EXPECT_NE(heard.find("Retry-After: "), heard.npos) << heard;
  client.close();
  EXPECT_TRUE(becomes_idle());
}

TEST_F(FaultsTest, WhoGoesAwayIsCancelled) {
  for (const bool streamed : {true, false}) {
    Json body = kLong;
    body["stream"] = streamed;
    body["max_tokens"] = 4090;
    RawClient client(port_);
    client.send(post_bytes("/v1/completions", body.dump()));
    ASSERT_TRUE(eventually([this] { return metric("kvant:num_requests_running") == 1; }));
    client.close();
    EXPECT_TRUE(becomes_idle());
  }
  EXPECT_EQ(metric("kvant:request_success_total{finished_reason=\"abort\""), 2);
  EXPECT_EQ(metric("kvant:clients_dropped_total{reason=\"gone\""), 2);
  EXPECT_EQ(cache_->usage().live_bytes, cache_->usage().cached_bytes);
}

// A reset at every phase of a request costs nobody anything, and leaves no pages.
TEST_F(FaultsTest, ResetsAtEveryPhase) {
  Json body = kLong;
  const std::string whole = post_bytes("/v1/completions", body.dump());
  body["stream"] = true;
  const std::string stream = post_bytes("/v1/completions", body.dump());
  const size_t head = whole.find("\r\n\r\n") + 4;
  struct Phase {
    const char* name;
    std::string sent;
    const char* heard;  // before the reset; empty: nothing is waited for
  };
  const Phase phases[] = {
      {"nothing was sent", "", ""},
      {"in the request line", whole.substr(0, 9), ""},
      {"in the header", whole.substr(0, head - 7), ""},
      {"before the body", whole.substr(0, head), ""},
      {"in the body", whole.substr(0, head + 20), ""},
      {"all was sent", whole, ""},
      {"another was sent ahead", whole + whole, ""},
      {"a stream was asked for", stream, ""},
      {"the stream's head came", stream, "\r\n\r\n"},
      {"in the stream", stream, "data: "},
      {"between two requests", "GET /health HTTP/1.1\r\n\r\n", "\"ok\""},
      {"in the second request", "GET /health HTTP/1.1\r\n\r\n" + stream.substr(0, head), "\"ok\""},
  };
  for (const Phase& phase : phases) {
    for (int i = 0; i < 3; ++i) {
      RawClient client(port_);
      client.send(phase.sent);
      if (*phase.heard != '\0') client.read_until(phase.heard);
      client.reset();
    }
    EXPECT_EQ(complete({{"prompt", "a"}, {"max_tokens", 2}}).at("choices").size(), 1u)
        << phase.name;
    EXPECT_TRUE(becomes_idle()) << phase.name;
    EXPECT_EQ(cache_->usage().live_bytes, cache_->usage().cached_bytes) << phase.name;
  }
}

// Two tenants with one prompt never share a page: not by the counts, nor by the time to the first
// token, which is printed and not judged.
TEST_F(FaultsTest, CaseC15_TenantsShareNothingByCountsNorByTime) {
  const Json prompt = toy::random_tokens(3900, 5);
  const auto ask_as = [&](const std::string& tenant) {
    const double hits = metric("kvant:prefix_cache_hits_total");
    const double queries = metric("kvant:prefix_cache_queries_total");
    const double seconds = metric("kvant:time_to_first_token_seconds_sum");
    const Json answer = complete({{"prompt", prompt}, {"max_tokens", 1}, {"cache_salt", tenant}});
    std::printf("tenant %s: %s of 3900 tokens found, first token after %.1f ms\n", tenant.c_str(),
                answer.at("usage").at("prompt_tokens_details").at("cached_tokens").dump().c_str(),
                1000 * (metric("kvant:time_to_first_token_seconds_sum") - seconds));
    EXPECT_EQ(metric("kvant:prefix_cache_queries_total") - queries, 3900);
    return metric("kvant:prefix_cache_hits_total") - hits;
  };
  EXPECT_EQ(ask_as("a"), 0);
  const double of_a = metric("kvant:kv_cache_bytes{model_name=\"toy\",pages=\"prefix_cache_only\"");
  EXPECT_EQ(ask_as("b"), 0) << "b never asked before";
  // Nothing is held in common: b's pages are as many again.
  EXPECT_EQ(metric("kvant:kv_cache_bytes{model_name=\"toy\",pages=\"prefix_cache_only\""),
            2 * of_a);
  EXPECT_EQ(ask_as("a"), 3840);
  EXPECT_EQ(ask_as("b"), 3840);
  EXPECT_EQ(ask_as("c"), 0);
}

// A stream of megabytes whose client never reads: it is dropped as soon as its buffers are full, by
// bytes and not by time, and others are answered meanwhile.
TEST_F(FaultsTest, WhoNeverReadsIsDroppedAndStallsNobody) {
  constexpr size_t kUnread = 200'000;
  reopen({.http = {.write_seconds = 3600, .max_unread_bytes = kUnread, .socket_bytes = 16 << 10}});
  Json body = kLong;
  body["stream"] = true;
  body["n"] = 4;
  body["logprobs"] = 20;
  RawClient client(port_, 4096);
  client.send(post_bytes("/v1/completions", body.dump()));
  ASSERT_TRUE(eventually([this] { return metric("kvant:num_requests_running") == 4; }));
  int answered = 0;
  ASSERT_TRUE(eventually([&] {
    complete({{"prompt", "a"}, {"max_tokens", 2}});
    ++answered;
    return metric("kvant:clients_dropped_total{reason=\"slow\"") == 1;
  }));
  EXPECT_GT(answered, 0);
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(metric("kvant:request_success_total{finished_reason=\"abort\""), 1);
  EXPECT_EQ(cache_->usage().live_bytes, cache_->usage().cached_bytes);
  // What it may still read is what the buffers held: the answer didn't go on behind its back.
  EXPECT_LT(client.read_all().size(), 10 * kUnread);
}

// By time, where the bytes are few: a whole answer that nobody takes.
TEST_F(FaultsTest, WhoNeverReadsAWholeAnswerIsDroppedInTime) {
  reopen({.http = {.write_seconds = 1, .socket_bytes = 16 << 10}});
  const Json body = {
      {"prompt", std::vector<int>(2000, 65)}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 20}};
  RawClient client(port_, 4096);
  client.send(post_bytes("/v1/completions", body.dump()));
  EXPECT_TRUE(
      eventually([this] { return metric("kvant:clients_dropped_total{reason=\"slow\"") == 1; }));
}

TEST_F(FaultsTest, CrowdsOfIdleConnectionsStopNobody) {
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 400; ++i) {  // two descriptors each, in a process that may have 1024
    idle.push_back(std::make_unique<RawClient>(port_));
    ASSERT_TRUE(idle.back()->is_open());
  }
  EXPECT_EQ(complete({{"prompt", "a"}, {"max_tokens", 2}}).at("choices").size(), 1u);
}

TEST_F(FaultsTest, TheEndWaitsForWhatRuns) {
  Json body = {{"prompt", "Hello"}, {"max_tokens", 600}, {"ignore_eos", true}, {"stream", true}};
  RawClient client(port_), late(port_);
  late.send("GET /ready HTTP/1.1\r\n\r\n");
  late.read_until("\"ready\"");
  client.send(post_bytes("/v1/completions", body.dump()));
  client.read_until("data: ");
  http_->stop();
  ASSERT_TRUE(eventually([this] { return service_->is_draining(); }));
  const std::string heard = client.read_all();
  EXPECT_NE(heard.find("data: [DONE]"), heard.npos);
  EXPECT_NE(heard.find("\"finish_reason\":\"length\""), heard.npos);
  server_.join();
  EXPECT_FALSE(RawClient(port_).is_open());
}

// A thing of megabytes, which a client takes only after the engine is done with it and the server
// was told to stop.
TEST_F(FaultsTest, TheEndWaitsForWhoReadsSlowly) {
  const Json body = {{"prompt", std::vector<int>(2000, 65)},
                     {"max_tokens", 0},
                     {"echo", true},
                     {"logprobs", 20},
                     {"n", 8}};
  RawClient client(port_);
  client.send(post_bytes("/v1/completions", body.dump()));
  ASSERT_TRUE(
      eventually([this] { return metric("kvant:e2e_request_latency_seconds_count") == 1; }));
  http_->stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const std::string heard = client.read_all();
  EXPECT_GT(heard.size(), 5'000'000u);
  EXPECT_TRUE(heard.ends_with("}}}"))
      << heard.substr(heard.size() - std::min<size_t>(heard.size(), 80));
}

}  // namespace
}  // namespace kvant::server
